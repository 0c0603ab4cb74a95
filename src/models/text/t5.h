/*
 * T5's encoder (v1, v1.1) and UMT5's as text encoders, of text.h. Their only state is TEXT_LAST: a
 * row for each token that is given, the end of the text included; there is no padding.
 */
#ifndef MODELS_TEXT_T5_H
#define MODELS_TEXT_T5_H

#include "models/text/text.h"

struct t5_config {
    struct text_config base;
    int64_t ffn_dim;
    int32_t heads, head_dim, layers;
    int32_t buckets, max_distance; /* of relative positions */
    int32_t bias_layers;           /* that have biases for them: all (UMT5), or only the first */
    bool gated;                    /* GELU of one half times the other (v1.1); else ReLU (v1) */
    float norm_eps;
};

/* What UMT5 has and T5 has not: biases of its own in the second layer. */
#define T5_SECOND_BIAS "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"

/* As zimage_open; of both families. */
enum shoal_status t5_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct t5_config *t5_config(const struct model *model);

/* The bucket of a key that lies `distance` tokens behind its query, the first half for keys before
 * it: near ones have one each, the others share them by the logarithm, up to max_distance. */
int32_t t5_bucket(const struct t5_config *config, int64_t distance);

#endif
