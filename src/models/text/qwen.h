/*
 * Qwen3 and Qwen2.5-VL's language model as text encoders, of text.h. A file may lack the last layer
 * and the final norm: then there is no state TEXT_LAST. What a file holds of vision is not read.
 */
#ifndef MODELS_TEXT_QWEN_H
#define MODELS_TEXT_QWEN_H

#include "models/text/text.h"

struct qwen_config {
    struct text_config base;
    int64_t ffn_dim;
    int32_t heads, kv_heads, head_dim;
    int32_t layers; /* all but the model's last */
    bool whole;     /* the last one and the final norm are there too */
    bool biased;    /* Qwen2.5-VL: q, k and v have biases, and their heads are not normed */
    double theta;
    float norm_eps;
};

/* A tensor of Qwen2.5-VL's vision model that Qwen2-VL's has not. */
#define QWEN_VL_VISION "visual.blocks.0.mlp.gate_proj.weight"

/* As zimage_open. */
enum shoal_status qwen3_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status qwen_vl_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct qwen_config *qwen_config(const struct model *model);

#endif
