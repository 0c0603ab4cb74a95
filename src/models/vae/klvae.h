/* The KL autoencoder (FLUX.1's, which Z-Image uses), of vae.h. */
#ifndef MODELS_VAE_KLVAE_H
#define MODELS_VAE_KLVAE_H

#include "models/vae/vae.h"

#define KLVAE_MAX_LEVELS 6

struct klvae_config {
    struct vae_config base;
    int64_t channels[KLVAE_MAX_LEVELS]; /* of each up block, the smallest picture first */
    int32_t levels;                     /* up blocks; all but the last double the size */
    int32_t resnets;                    /* in each up block */
    int32_t groups;
    bool attention, post_quant;
    bool ldm_names; /* the tensors have the original's names, not diffusers' */
    float scaling, shift;
};

/* As zimage_open. */
enum shoal_status klvae_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct klvae_config *klvae_config(const struct model *model);

/* Of struct vae_family: its norms and channels are the decoder's. */
enum shoal_status klvae_encoder_open(const struct checkpoint *checkpoint,
    const struct model *decoder, struct model **model, struct shoal_error *error) SHOAL_CHECKED;

#endif
