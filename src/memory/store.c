/* The RAM tier. */
#include "memory/store.h"

#include "base/memory.h"
#include "base/size.h"

#include <assert.h>

struct store {
    const struct model *model;
    void **slabs; /* NULL: not loaded */
    char *shelf;  /* one mapping for many slabs, see store_reserve */
    uint64_t shelf_bytes, shelf_used;
    uint64_t bytes, peak_bytes;
};

enum shoal_status store_create(
    struct store **store, const struct model *model, struct shoal_error *error)
{
    struct store *s = mem_calloc(1, sizeof *s);

    if (!s) FAIL_MEMORY(error);
    s->model = model;
    s->slabs = mem_calloc((size_t)model->block_count, sizeof *s->slabs);
    if (!s->slabs) {
        mem_free(s);
        FAIL_MEMORY(error);
    }
    *store = s;
    return SHOAL_OK;
}

void store_destroy(struct store **store)
{
    struct store *s = *store;

    if (!s) return;
    for (int32_t i = 0; i < s->model->block_count; i++)
        store_drop(s, i);
    pages_free(s->shelf, s->shelf_bytes);
    mem_free(s->slabs);
    mem_free(s);
    *store = NULL;
}

enum shoal_status store_reserve(struct store *s, uint64_t bytes, struct shoal_error *error)
{
    assert(!s->shelf);
    if (!bytes) return SHOAL_OK;
    s->shelf = pages_alloc(bytes);
    if (!s->shelf)
        FAIL(error, SHOAL_E_MEMORY, "out of host memory for %llu bytes of weights",
            (unsigned long long)bytes);
    pages_want_large(s->shelf, bytes);
    s->shelf_bytes = bytes;
    return SHOAL_OK;
}

static bool on_shelf(const struct store *s, const char *slab)
{
    return slab >= s->shelf && slab < s->shelf + s->shelf_bytes;
}

/* From the shelf while there is room, else pages of its own. */
static char *slab_alloc(struct store *s, uint64_t bytes)
{
    uint64_t size = size_align(bytes, HOST_PAGE_BYTES);
    char *slab;

    if (s->shelf_bytes - s->shelf_used < size) return pages_alloc(bytes);
    slab = s->shelf + s->shelf_used;
    s->shelf_used += size;
    return slab;
}

/* What lies on the shelf stays until the store is destroyed. */
static void slab_free(struct store *s, char *slab, uint64_t bytes)
{
    if (!on_shelf(s, slab)) pages_free(slab, bytes);
}

/* True if any value's exponent is all ones. Plain loops that compilers vectorise. */
static bool has_nonfinite(const void *data, uint64_t bytes, enum dtype dtype)
{
    uint32_t found = 0;

    if (dtype == DTYPE_F32) {
        const uint32_t *value = data;

        for (uint64_t i = 0; i < bytes / 4; i++)
            found |= (value[i] & 0x7f800000u) == 0x7f800000u;
    } else {
        const uint16_t *value = data, mask = dtype == DTYPE_BF16 ? 0x7f80 : 0x7c00;
        uint16_t any = 0;

        for (uint64_t i = 0; i < bytes / 2; i++)
            any |= (uint16_t)((value[i] & mask) == mask);
        found = any;
    }
    return found != 0;
}

static enum shoal_status load_weight(
    const struct block *block, const struct weight *w, char *slab, struct shoal_error *error)
{
    char *to = slab + w->offset;

    for (int32_t i = 0; i < w->piece_count; i++) {
        const struct checkpoint_tensor *piece = w->pieces[i];

        TRY(checkpoint_read(piece, to, error));
        if (has_nonfinite(to, piece->bytes, piece->dtype))
            FAIL(error, SHOAL_E_NUMERIC,
                "%s: tensor %s (block %s) holds NaN or infinite values; the file is damaged or was "
                "badly converted: get it again",
                piece->file->path, piece->name, block->name);
        to += piece->bytes;
    }
    return SHOAL_OK;
}

enum shoal_status store_load(struct store *s, int32_t index, struct shoal_error *error)
{
    const struct block *block = &s->model->blocks[index];
    char *slab;

    if (s->slabs[index]) return SHOAL_OK;
    slab = slab_alloc(s, block->bytes);
    if (!slab)
        FAIL(error, SHOAL_E_MEMORY, "out of host memory for block %s (%llu bytes)", block->name,
            (unsigned long long)block->bytes);
    for (int32_t i = 0; i < block->weight_count; i++) {
        enum shoal_status status = load_weight(block, &block->weights[i], slab, error);

        if (status) {
            slab_free(s, slab, block->bytes);
            return status;
        }
    }
    s->slabs[index] = slab;
    s->bytes += block->bytes;
    if (s->bytes > s->peak_bytes) s->peak_bytes = s->bytes;
    return SHOAL_OK;
}

const void *store_slab(const struct store *s, int32_t index)
{
    return s->slabs[index];
}

void store_drop(struct store *s, int32_t index)
{
    if (!s->slabs[index]) return;
    slab_free(s, s->slabs[index], s->model->blocks[index].bytes);
    s->slabs[index] = NULL;
    s->bytes -= s->model->blocks[index].bytes;
}

uint64_t store_peak_bytes(const struct store *s)
{
    return s->peak_bytes;
}
