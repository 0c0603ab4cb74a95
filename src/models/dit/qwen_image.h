/* Qwen-Image's diffusion transformer: a family of dit.h's. */
#ifndef MODELS_DIT_QWEN_IMAGE_H
#define MODELS_DIT_QWEN_IMAGE_H

#include "models/dit/dit.h"

#define QWEN_IMAGE_PATCH 2         /* pixels of the latent a side */
#define QWEN_IMAGE_FREQUENCIES 256 /* width of the timestep's sinusoid */

struct qwen_image_config {
    struct dit_config base;
    int64_t dim, ffn_dim;
    int32_t heads, head_dim, layers;
    int32_t axes[3]; /* of a head's dimensions: frame, row, column */
};

/*
 * `config_path`: a config.json that says what shapes do not and must agree where they do, or NULL
 * for the published values. The checkpoint must outlive the model.
 */
enum shoal_status qwen_image_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct qwen_image_config *qwen_image_config(const struct model *model);

#endif
