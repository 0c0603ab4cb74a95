/*
 * The Wan 2.1 VAE, of vae.h, which Qwen-Image, Anima and Cosmos-Predict2 use too: of single frames,
 * which are pictures.
 */
#ifndef MODELS_VAE_WANVAE_H
#define MODELS_VAE_WANVAE_H

#include "models/vae/vae.h"

#define WANVAE_MAX_LEVELS 6

struct wanvae_config {
    struct vae_config base;
    int64_t channels[WANVAE_MAX_LEVELS]; /* of each level's resnets, in the order of the walk */
    int32_t levels;                      /* all but the last one end with a change of size */
    int32_t resnets;                     /* in each level */
    bool encoder;
    bool original_names; /* not diffusers' */
    /* Of the latent's channels: a latent is (what the encoder makes - mean) / deviation. */
    float mean[VAE_MAX_CHANNELS], deviation[VAE_MAX_CHANNELS];
};

/* As zimage_open. */
enum shoal_status wanvae_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;

/* Of struct vae_family. */
enum shoal_status wanvae_encoder_open(const struct checkpoint *checkpoint,
    const struct model *decoder, struct model **model, struct shoal_error *error) SHOAL_CHECKED;

#endif
