/*
 * What VAEs of all families have in common. A decoder is a model of one pass, "decode", its encoder
 * another of one, "encode"; lanes are struct vae_lane, one for each picture.
 */
#ifndef MODELS_VAE_VAE_H
#define MODELS_VAE_VAE_H

#include "models/model.h"

#define VAE_MAX_CHANNELS 64 /* of a latent */

struct vae_family {
    /*
     * The encoder that lies in the same checkpoint as `decoder`, whose scaling it has.
     * SHOAL_E_MISSING where there is none. Its result is the mean of the distribution that it
     * gives, without noise, scaled and shifted as the decoder undoes it.
     */
    enum shoal_status (*encoder_open)(const struct checkpoint *checkpoint,
        const struct model *decoder, struct model **model, struct shoal_error *error);
};

/* What every family's config begins with. */
struct vae_config {
    const struct vae_family *family;
    int64_t latent_channels;
    int32_t factor; /* of image size to latent size, a power of 2 */
};

static inline const struct vae_config *vae_config(const struct model *model)
{
    return model->config;
}

/* SHOAL_E_MISSING: there is no encoder in the checkpoint. */
enum shoal_status vae_encoder_missing(
    const struct checkpoint *checkpoint, struct shoal_error *error) SHOAL_CHECKED;

/* SHOAL_E_FORMAT unless the latents of the encoder at `path` are the decoder's. */
enum shoal_status vae_encoder_fits(const struct vae_config *encoder,
    const struct vae_config *decoder, const char *path, struct shoal_error *error) SHOAL_CHECKED;

/* Zero-initialise, then fill in the first part. Must stay where it is until the stream is
 * synchronised after the pass. */
struct vae_lane {
    struct matrix latent;  /* [latent_channels, height * width], device; encoding fills it in,
                              decoding only reads it */
    int64_t height, width; /* of the latent */
    float *image; /* host, the caller's: [3, factor height * factor width], about -1..1, not
                     clamped; filled once the stream is synchronised after the pass; may be NULL on
                     the counting device. Encoding only reads it: -1..1 */

    /*
     * What a block may take for its pictures. One that would take more works in strips of rows, at
     * the cost of arithmetic; the bits are the same. 0: no limit.
     */
    uint64_t whole_bytes;
    int64_t
        strip_rows; /* of a strip, a multiple of the unit; 0: a sixteenth of the picture or so */

    /* Filled by the pass: blocks that worked in strips; and the most that any took for its pictures
     * though it could do with less (0: none). A limit below that makes a difference. */
    int32_t strip_blocks;
    uint64_t largest_bytes;

    /* Between begin and end: */
    float host_affine[2 * VAE_MAX_CHANNELS];
    struct matrix hidden; /* as allocated */
    int64_t hidden_height, hidden_width;
};

/* After a pass that was broken off, and for its end: frees what it held. */
static inline void vae_lane_fini(struct exec *x, struct vae_lane *lane)
{
    exec_free(x, &lane->hidden);
}

#endif
