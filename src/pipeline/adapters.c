/* The adapters of requests, and those that an open model keeps. */
#include "pipeline/adapters.h"

#include "base/memory.h"
#include "base/thread.h"

#include <math.h>
#include <string.h>

/* What an item takes beside its factors: itself, a run and a term for it, rounded up. */
#define ITEM_BYTES 1024

struct kept {
    struct adapter *adapter;
    int32_t users; /* requests */
};

struct adapter_cache {
    struct mutex mutex;
    struct kept *list;
    int32_t count, room;
};

/* ---- the cache ---- */

enum shoal_status adapter_cache_create(struct adapter_cache **cache, struct shoal_error *error)
{
    *cache = mem_calloc(1, sizeof **cache);
    if (!*cache) FAIL_MEMORY(error);
    mutex_init(&(*cache)->mutex);
    return SHOAL_OK;
}

void adapter_cache_destroy(struct adapter_cache **cache)
{
    struct adapter_cache *c = *cache;

    if (!c) return;
    for (int32_t i = 0; i < c->count; i++)
        adapter_close(&c->list[i].adapter);
    mem_free(c->list);
    mutex_fini(&c->mutex);
    mem_free(c);
    *cache = NULL;
}

static bool names(const struct shoal_request *request, const char *path)
{
    for (size_t i = 0; i < request->lora_count; i++)
        if (!strcmp(request->loras[i].path, path)) return true;
    return false;
}

/* held. Gives up what nobody uses and this request does not name, or what has changed. */
static void tidy(struct adapter_cache *c, const struct shoal_request *request)
{
    int32_t left = 0;

    for (int32_t i = 0; i < c->count; i++) {
        struct kept *k = &c->list[i];

        if (!k->users && (!names(request, k->adapter->path) || !adapter_is_current(k->adapter)))
            adapter_close(&k->adapter);
        else
            c->list[left++] = *k;
    }
    c->count = left;
    if (left) return;
    mem_free(c->list);
    c->list = NULL;
    c->room = 0;
}

/* held. The one at that path, as the file is now; NULL: it is not there. */
static struct adapter *find(struct adapter_cache *c, const char *path)
{
    for (int32_t i = 0; i < c->count; i++)
        if (!strcmp(c->list[i].adapter->path, path) && adapter_is_current(c->list[i].adapter))
            return c->list[i].adapter;
    return NULL;
}

/* held. */
static enum shoal_status keep(
    struct adapter_cache *c, struct adapter *adapter, struct shoal_error *error)
{
    if (c->count == c->room) {
        struct kept *larger = mem_realloc(c->list, (size_t)c->room * 2 + 4, sizeof *larger);

        if (!larger) {
            adapter_close(&adapter);
            FAIL_MEMORY(error);
        }
        c->list = larger;
        c->room = c->room * 2 + 4;
    }
    c->list[c->count++] = (struct kept){.adapter = adapter};
    return SHOAL_OK;
}

/* held. */
static void count_user(struct adapter_cache *c, const struct adapter *adapter, int32_t more)
{
    for (int32_t i = 0; i < c->count; i++)
        if (c->list[i].adapter == adapter) c->list[i].users += more;
}

/* ---- a request's ---- */

static enum shoal_status check(const struct shoal_request *request, struct shoal_error *error)
{
    if (request->lora_count && !request->loras)
        FAIL(error, SHOAL_E_INVALID, "loras: there are none, and lora_count is %zu",
            request->lora_count);
    if (request->lora_count > SHOAL_MAX_LORAS)
        FAIL(error, SHOAL_E_INVALID, "--lora: %d at once are the most: merge some into one file",
            SHOAL_MAX_LORAS);
    for (size_t i = 0; i < request->lora_count; i++) {
        const struct shoal_lora *lora = &request->loras[i];

        if (!lora->path || !*lora->path)
            FAIL(error, SHOAL_E_INVALID, "--lora: number %zu has no path", i + 1);
        if (!isfinite(lora->strength) || fabsf(lora->strength) > 100)
            FAIL(error, SHOAL_E_INVALID, "--lora %s: the strength %g is not between -100 and 100",
                lora->path, (double)lora->strength);
        for (size_t before = 0; before < i; before++)
            if (!strcmp(request->loras[before].path, lora->path))
                FAIL(error, SHOAL_E_INVALID, "--lora %s is given twice: add up the strengths",
                    lora->path);
    }
    return SHOAL_OK;
}

/* held. One file: from the cache, or read. */
static enum shoal_status open_one(struct request_adapters *r, const struct shoal_lora *lora,
    const struct adapter_targets *targets, struct allowance *allowance, struct shoal_error *error)
{
    struct adapter *adapter = find(r->cache, lora->path);

    if (adapter) {
        allowance->bytes += adapter->reading_bytes + adapter->factor_bytes;
    } else {
        TRY(adapter_open(&adapter, lora->path, targets, allowance, error));
        TRY(keep(r->cache, adapter, error));
        r->read_bytes += adapter->read_bytes;
    }
    count_user(r->cache, adapter, 1);
    r->loras[r->count] = (struct shoal_lora){adapter->path, lora->strength};
    r->uses[r->count++] = (struct adapter_use){adapter, lora->strength};
    r->host_bytes +=
        adapter->reading_bytes + adapter->factor_bytes + (uint64_t)adapter->item_count * ITEM_BYTES;
    return SHOAL_OK;
}

/* held. */
static enum shoal_status open_all(struct request_adapters *r,
    const struct model *const models[FAMILY_KINDS], const struct shoal_request *request,
    uint64_t taken_bytes, struct shoal_error *error)
{
    struct allowance allowance = {.most_bytes = request->ram_bytes, .bytes = taken_bytes};
    struct adapter_targets targets;
    enum shoal_status status;

    tidy(r->cache, request);
    if (!request->lora_count) return SHOAL_OK;
    r->loras = mem_calloc(request->lora_count, sizeof *r->loras);
    r->uses = mem_calloc(request->lora_count, sizeof *r->uses);
    if (!r->loras || !r->uses) FAIL_MEMORY(error);
    TRY(adapter_targets_open(&targets, models, error));
    status = SHOAL_OK;
    for (size_t i = 0; i < request->lora_count && !status; i++) {
        status = open_one(r, &request->loras[i], &targets, &allowance, error);
        if (status) error_prefix(error, "--lora: ");
    }
    adapter_targets_close(&targets);
    TRY(status);
    return patches_open(&r->patches, r->uses, r->count, models, error);
}

enum shoal_status request_adapters_open(struct request_adapters *adapters,
    struct adapter_cache *cache, const struct model *const models[FAMILY_KINDS],
    const struct shoal_request *request, uint64_t taken_bytes, struct shoal_error *error)
{
    enum shoal_status status;

    *adapters = (struct request_adapters){.cache = cache};
    TRY(check(request, error));
    mutex_lock(&cache->mutex);
    status = open_all(adapters, models, request, taken_bytes, error);
    mutex_unlock(&cache->mutex);
    if (status) request_adapters_close(adapters);
    return status;
}

void request_adapters_close(struct request_adapters *adapters)
{
    if (!adapters->cache) return;
    mutex_lock(&adapters->cache->mutex);
    for (int32_t i = 0; i < adapters->count; i++)
        count_user(adapters->cache, adapters->uses[i].adapter, -1);
    mutex_unlock(&adapters->cache->mutex);
    patches_close(&adapters->patches);
    mem_free(adapters->loras);
    mem_free(adapters->uses);
    *adapters = (struct request_adapters){0};
}
