/*
 * Qwen3 as a text encoder, of text.h. A file may lack the last layer and the final norm: then there
 * is no state TEXT_LAST.
 */
#ifndef MODELS_TEXT_QWEN3_H
#define MODELS_TEXT_QWEN3_H

#include "models/text/text.h"

struct qwen3_config {
    struct text_config base;
    int64_t ffn_dim;
    int32_t heads, kv_heads, head_dim;
    int32_t layers; /* all but the model's last */
    bool whole;     /* the last one and the final norm are there too */
    double theta;
    float norm_eps;
};

/* As zimage_open. */
enum shoal_status qwen3_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct qwen3_config *qwen3_config(const struct model *model);

#endif
