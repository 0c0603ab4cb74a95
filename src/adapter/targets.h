/*
 * What adapters may change: the weights of models under every name that they may have, in the
 * layouts of diffusers, ComfyUI and others, fused or apart. The builder of models recorded the
 * names (struct weight), so that no family needs a table of its own here.
 *
 * Names are compared with '_' for '.', as kohya's are written.
 */
#ifndef ADAPTER_TARGETS_H
#define ADAPTER_TARGETS_H

#include "models/family.h"

/* The rows of a weight that a name means. Of a vector, which is one row, its columns. */
struct adapter_target {
    char *name; /* "layers_0_attention_to_q_weight"; owned */
    enum family_kind kind;
    int32_t block, weight;
    int64_t first, count; /* in the weight */
    int64_t from, of;     /* in the tensor of that name, which may lie in several weights */
};

struct adapter_targets {
    const struct model *const *models; /* [FAMILY_KINDS]; NULL where there is none */
    struct adapter_target *list;       /* sorted by kind, then by name */
    size_t count, room;
};

enum shoal_status adapter_targets_open(struct adapter_targets *targets,
    const struct model *const models[FAMILY_KINDS], struct shoal_error *error) SHOAL_CHECKED;
void adapter_targets_close(struct adapter_targets *targets); /* accepts a zeroed one */

/*
 * The targets of a parameter that an adapter's file calls `key` ("transformer.layers.0.to_q",
 * "lora_unet_layers_0_to_q"), `ending` being "weight" or "bias": *first[0 .. the result - 1]. 0:
 * there are none.
 */
enum shoal_status adapter_targets_find(const struct adapter_targets *targets, const char *key,
    size_t key_bytes, const char *ending, const struct adapter_target **first, size_t *count,
    struct shoal_error *error) SHOAL_CHECKED;

/* The weight itself. */
static inline const struct weight *target_weight(
    const struct adapter_targets *targets, const struct adapter_target *target)
{
    return &targets->models[target->kind]->blocks[target->block].weights[target->weight];
}

#endif
