/* The names of models' weights, sorted; and the prefixes that writers of adapters put before. */
#include "adapter/targets.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 512
#define MOST_PREFIXES 4 /* one behind the other */

/* What stands before a weight's own name, with '_' for '.'. */
static const struct prefix {
    const char *text;
    enum family_kind kind; /* FAMILY_KINDS: of any */
} prefixes[] = {
    {"base_model_model_", FAMILY_KINDS},
    {MODEL_ALIAS_LESS, FAMILY_DIT}, /* a part's name too */
    {"model_diffusion_model_", FAMILY_DIT},
    {"diffusion_model_", FAMILY_DIT},
    {"unet_", FAMILY_DIT},
    {"lora_unet_", FAMILY_DIT},
    {"lora_transformer_", FAMILY_DIT},
    {"lycoris_", FAMILY_KINDS},
    {"lora_te_", FAMILY_TEXT},
    {"lora_te1_", FAMILY_TEXT},
    {"text_encoder_", FAMILY_TEXT},
    {"model_", FAMILY_TEXT},
};

/* ComfyUI's, behind which the text encoder has a name of its own. */
#define NAMED_TEXT "text_encoders_"

static void flatten(char *name)
{
    for (; *name; name++)
        if (*name == '.') *name = '_';
}

/* ---- the list ---- */

static enum shoal_status add(struct adapter_targets *t, struct adapter_target target,
    const char *name, size_t bytes, struct shoal_error *error)
{
    if (t->count == t->room) {
        size_t room = t->room * 2 + 256;
        struct adapter_target *larger = mem_realloc(t->list, room, sizeof *larger);

        if (!larger) FAIL_MEMORY(error);
        t->list = larger;
        t->room = room;
    }
    target.name = mem_format("%.*s", (int)bytes, name);
    if (!target.name) FAIL_MEMORY(error);
    flatten(target.name);
    t->list[t->count++] = target;
    return SHOAL_OK;
}

/* What is counted along a weight: rows, or a vector's columns. */
static int64_t extent_of(const struct weight *weight)
{
    return weight->rows == 1 ? weight->cols : weight->rows;
}

static int32_t pieces_in(const char *names)
{
    int32_t count = 1;

    for (; *names && *names != '|'; names++)
        count += *names == '+';
    return count;
}

/* How much piece `index` of `count` has, of the whole that is `total`; 0: it cannot be told. */
static int64_t piece_extent(
    const struct weight *weight, int32_t index, int32_t count, int64_t total)
{
    const struct checkpoint_tensor *piece;

    if (count == 1) return total;
    if (count == weight->parts) return weight->part_rows[index];
    if (count == weight->piece_count) {
        piece = weight->pieces[index];
        return weight->rows == 1 ? (int64_t)checkpoint_elements(piece) : piece->shape.dim[0];
    }
    return total % count ? 0 : total / count;
}

/* The names of one alternative: pieces one after another. */
static enum shoal_status add_alternative(struct adapter_targets *t, struct adapter_target target,
    const struct weight *weight, const char *names, struct shoal_error *error)
{
    const int32_t count = pieces_in(names);
    int64_t own_first = 0, own_end = extent_of(weight), total = own_end, at = 0;

    if (weight->part >= 0) { /* it is one of several: where, in the whole */
        total = 0;
        for (int32_t i = 0; i < weight->parts; i++) {
            if (i == weight->part) own_first = total;
            total += weight->part_rows[i];
        }
        own_end = own_first + weight->rows;
    }
    for (int32_t i = 0; i < count; i++) {
        const size_t bytes = strcspn(names, "+|");
        const int64_t extent = piece_extent(weight, i, count, total);
        const int64_t first = at > own_first ? at : own_first;
        const int64_t end = at + extent < own_end ? at + extent : own_end;

        if (!extent) return SHOAL_OK;
        target.first = first - own_first;
        target.count = end - first;
        target.from = first - at;
        target.of = extent;
        if (first < end) TRY(add(t, target, names, bytes, error));
        at += extent;
        names += bytes + (names[bytes] == '+');
    }
    return SHOAL_OK;
}

static enum shoal_status add_weight(struct adapter_targets *t, struct adapter_target target,
    const struct weight *weight, struct shoal_error *error)
{
    for (const char *names = weight->aliases; names;
         names = strchr(names, '|') ? strchr(names, '|') + 1 : NULL)
        TRY(add_alternative(t, target, weight, names, error));
    return SHOAL_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct adapter_target *x = a, *y = b;
    int order = x->kind < y->kind ? -1 : x->kind > y->kind;

    if (!order) order = strcmp(x->name, y->name);
    if (!order) order = x->block < y->block ? -1 : x->block > y->block;
    return order ? order : x->weight < y->weight ? -1 : x->weight > y->weight;
}

enum shoal_status adapter_targets_open(struct adapter_targets *targets,
    const struct model *const models[FAMILY_KINDS], struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    *targets = (struct adapter_targets){.models = models};
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        for (int32_t b = 0; models[kind] && b < models[kind]->block_count; b++)
            for (int32_t w = 0; w < models[kind]->blocks[b].weight_count && !status; w++)
                status = add_weight(targets,
                    (struct adapter_target){
                        .kind = (enum family_kind)kind, .block = b, .weight = w},
                    &models[kind]->blocks[b].weights[w], error);
    if (status) {
        adapter_targets_close(targets);
        return status;
    }
    if (targets->count) qsort(targets->list, targets->count, sizeof *targets->list, by_name);
    return SHOAL_OK;
}

void adapter_targets_close(struct adapter_targets *targets)
{
    for (size_t i = 0; i < targets->count; i++)
        mem_free(targets->list[i].name);
    mem_free(targets->list);
    *targets = (struct adapter_targets){0};
}

/* ---- finding ---- */

/* The run of those of that name, of one kind. */
static size_t find_in(const struct adapter_targets *t, enum family_kind kind, const char *name,
    const struct adapter_target **first)
{
    size_t low = 0, high = t->count, count = 0;
    const struct adapter_target wanted = {
        .kind = kind, .name = (char *)(uintptr_t)name, .block = -1};

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (by_name(&t->list[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = &t->list[low];
    while (low + count < t->count && t->list[low + count].kind == kind &&
           !strcmp(t->list[low + count].name, name))
        count++;
    return count;
}

/* The same, of one kind or (FAMILY_KINDS) of the first that has some; with and without the ending
 * of `bytes` bytes, as parameters have none that are no module's. */
static size_t find_plain(const struct adapter_targets *t, enum family_kind kind, char *name,
    size_t bytes, const struct adapter_target **first)
{
    const size_t length = strlen(name);

    for (int k = 0; k < FAMILY_KINDS; k++) {
        size_t count;

        if (kind != FAMILY_KINDS && kind != (enum family_kind)k) continue;
        count = find_in(t, (enum family_kind)k, name, first);
        if (count) return count;
        if (bytes != sizeof "_weight" - 1 || length <= bytes) continue;
        name[length - bytes] = 0;
        count = find_in(t, (enum family_kind)k, name, first);
        name[length - bytes] = '_';
        if (count) return count;
    }
    return 0;
}

/* Behind the text encoder's own name, which may be any. */
static size_t find_named_text(
    const struct adapter_targets *t, char *name, size_t ending, const struct adapter_target **first)
{
    for (char *at = name + strlen(NAMED_TEXT); at; at = strchr(at, '_')) {
        size_t count;

        at += *at == '_';
        count = find_plain(t, FAMILY_TEXT, at, ending, first);
        if (count) return count;
    }
    return 0;
}

static size_t find(
    const struct adapter_targets *t, char *name, size_t ending, const struct adapter_target **first)
{
    enum family_kind kind = FAMILY_KINDS;

    for (int depth = 0; depth <= MOST_PREFIXES; depth++) {
        const char *before = name;
        const size_t count = find_plain(t, kind, name, ending, first);

        if (count) return count;
        if (!strncmp(name, NAMED_TEXT, strlen(NAMED_TEXT)))
            return find_named_text(t, name, ending, first);
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && name == before; i++) {
            const struct prefix *p = &prefixes[i];

            if (strncmp(name, p->text, strlen(p->text))) continue;
            if (kind != FAMILY_KINDS && p->kind != FAMILY_KINDS && kind != p->kind) continue;
            name += strlen(p->text);
            if (p->kind != FAMILY_KINDS) kind = p->kind;
        }
        if (name == before) return 0;
    }
    return 0;
}

enum shoal_status adapter_targets_find(const struct adapter_targets *targets, const char *key,
    size_t key_bytes, const char *ending, const struct adapter_target **first, size_t *count,
    struct shoal_error *error)
{
    char *name = mem_format("%.*s_%s", (int)key_bytes, key, ending);

    if (!name) FAIL_MEMORY(error);
    flatten(name);
    *count = key_bytes < KEY_BYTES ? find(targets, name, strlen(ending) + 1, first) : 0;
    mem_free(name);
    return SHOAL_OK;
}
