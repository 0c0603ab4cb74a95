/* Z-Image's diffusion transformer: a family of dit.h's. */
#ifndef MODELS_DIT_ZIMAGE_H
#define MODELS_DIT_ZIMAGE_H

#include "models/dit/dit.h"

#define ZIMAGE_PATCH 2           /* pixels of the latent a side */
#define ZIMAGE_FREQUENCIES 256   /* width of the timestep's sinusoid */
#define ZIMAGE_TOKEN_MULTIPLE 32 /* image and caption tokens are each padded to a multiple */

struct zimage_config {
    struct dit_config base;
    int64_t dim, ffn_dim, t_mid, t_dim;
    int32_t heads, head_dim, layers, noise_refiners, context_refiners;
    int32_t axes[3]; /* of a head's dimensions: caption position or time, row, column */
    double theta;
    float t_scale, norm_eps;
};

/*
 * `config_path`: a config.json that says what shapes do not and must agree where they do, or NULL
 * for the published values. The checkpoint must outlive the model.
 */
enum shoal_status zimage_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct zimage_config *zimage_config(const struct model *model);

/* What the model is told for a noise level (1: noise, 0: picture). In the reference's arithmetic.
 */
static inline float zimage_time(float sigma)
{
    return (1000.0f - 1000.0f * sigma) / 1000.0f;
}

#endif
