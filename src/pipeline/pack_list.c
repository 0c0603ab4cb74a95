/* In which order a checkpoint's tensors are used, and which of them are worth packing. */
#include "base/memory.h"
#include "models/family.h"
#include "pipeline/pack.h"
#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

/* Groups: the blocks of passes, then other blocks, then the rest. */
#define GROUP_REST INT32_MAX

static bool can_pack(const struct checkpoint_tensor *tensor)
{
    uint64_t count;

    return shape_count(&tensor->shape, &count) && wire_may_pack(tensor->dtype, count);
}

/* Puts a block's tensors into a group, those that no other block has. */
static void add_block(struct pack_list *list, const struct checkpoint *checkpoint,
    const struct block *block, int32_t group, bool packs)
{
    int32_t order = 0;

    for (int32_t w = 0; w < block->weight_count; w++) {
        for (int32_t p = 0; p < block->weights[w].piece_count; p++) {
            const struct checkpoint_tensor *tensor = block->weights[w].pieces[p];
            struct pack_item *item = &list->items[tensor - checkpoint_at(checkpoint, 0)];

            if (item->group != GROUP_REST) continue;
            item->group = group;
            item->order = order++;
            item->packs = packs && can_pack(tensor);
        }
    }
}

static bool in_pass(const struct model *model, int32_t block)
{
    for (int32_t i = 0; i < model->pass_count; i++)
        if (block >= model->passes[i].first &&
            block - model->passes[i].first < model->passes[i].count)
            return true;
    return false;
}

/* Blocks of passes, or the others. */
static void add_model(struct pack_list *list, const struct checkpoint *checkpoint,
    const struct model *model, bool passes, int32_t *group)
{
    for (int32_t i = 0; i < model->block_count; i++)
        if (in_pass(model, i) == passes)
            add_block(list, checkpoint, &model->blocks[i], (*group)++, passes);
}

/* Opens the models that this build runs; none is no error. */
static enum shoal_status add_models(struct pack_list *list, const struct checkpoint *checkpoint,
    const char *config_path, bool *known, struct shoal_error *error)
{
    struct model *models[FAMILY_KINDS] = {NULL};
    enum shoal_status status = SHOAL_OK;
    int32_t group = 0;

    *known = false;
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        const struct family *family = family_detect(checkpoint, (enum family_kind)kind);

        if (!family || !family->open) continue;
        TRY_OR_FAIL(
            family_open(checkpoint, (enum family_kind)kind, config_path, &models[kind], error));
        *known = true;
    }
    for (int passes = 1; passes >= 0; passes--)
        for (int kind = 0; kind < FAMILY_KINDS; kind++)
            if (models[kind]) add_model(list, checkpoint, models[kind], passes != 0, &group);
fail:
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        model_destroy(&models[kind]);
    return status;
}

/* "layers.2.w" before "layers.10.w": runs of digits count as numbers. */
static int natural_order(const char *a, const char *b)
{
    while (*a && *b) {
        size_t x = strspn(a, "0123456789"), y = strspn(b, "0123456789");
        size_t zeros_a = strspn(a, "0"), zeros_b = strspn(b, "0");

        if (!x || !y) {
            if (*a != *b) break;
            a++;
            b++;
            continue;
        }
        if (zeros_a > x) zeros_a = x;
        if (zeros_b > y) zeros_b = y;
        if (x - zeros_a != y - zeros_b) return x - zeros_a < y - zeros_b ? -1 : 1;
        int digits = memcmp(a + zeros_a, b + zeros_b, x - zeros_a);

        if (digits) return digits;
        if (x != y) return x < y ? -1 : 1;
        a += x;
        b += y;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

static int by_order(const void *a, const void *b)
{
    const struct pack_item *x = a, *y = b;

    int64_t x_bytes = dtype_block_bytes(x->tensor->dtype);
    int64_t y_bytes = dtype_block_bytes(y->tensor->dtype);

    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    /* Each lies at a multiple of its elements' size if the group does. */
    if (x_bytes != y_bytes) return x_bytes > y_bytes ? -1 : 1;
    if (x->group != GROUP_REST) return x->order < y->order ? -1 : x->order > y->order;
    return natural_order(x->tensor->name, y->tensor->name);
}

enum shoal_status pack_list_init(struct pack_list *list, const struct checkpoint *checkpoint,
    const char *config_path, struct shoal_error *error)
{
    size_t count = checkpoint_count(checkpoint);
    enum shoal_status status;
    bool known;

    *list = (struct pack_list){.count = count, .items = mem_calloc(count, sizeof *list->items)};
    if (!list->items) FAIL_MEMORY(error);
    for (size_t i = 0; i < count; i++) {
        list->items[i] =
            (struct pack_item){.tensor = checkpoint_at(checkpoint, i), .group = GROUP_REST};
        list->bytes += list->items[i].tensor->bytes;
    }
    status = add_models(list, checkpoint, config_path, &known, error);
    if (status) {
        pack_list_fini(list);
        return status;
    }
    for (size_t i = 0; i < count && !known; i++)
        list->items[i].packs = can_pack(list->items[i].tensor);
    qsort(list->items, count, sizeof *list->items, by_order);
    return SHOAL_OK;
}

void pack_list_fini(struct pack_list *list)
{
    mem_free(list->items);
    *list = (struct pack_list){0};
}
