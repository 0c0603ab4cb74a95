/* Anima's diffusion transformer: Cosmos-Predict2's behind an adapter that reads a language model's
 * features: a family of dit.h's. */
#ifndef MODELS_DIT_ANIMA_H
#define MODELS_DIT_ANIMA_H

#include "models/dit/cosmos.h"

struct anima_config {
    struct cosmos_config cosmos;
    struct text_config words; /* the adapter's embedding of T5's tokens; no family */
    int64_t ffn_dim;          /* of the adapter, as wide as its embedding */
    int32_t heads, head_dim, layers;
};

/* As cosmos_open. */
enum shoal_status anima_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;

static inline const struct anima_config *anima_config(const struct model *model)
{
    return model->config;
}

#endif
