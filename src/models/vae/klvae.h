/*
 * The KL autoencoder (FLUX.1's, which Z-Image uses): its decoder, a model of one pass, "decode",
 * and its encoder, another of one, "encode". Lanes are struct klvae_lane, one for each picture.
 */
#ifndef MODELS_VAE_KLVAE_H
#define MODELS_VAE_KLVAE_H

#include "models/model.h"

#define KLVAE_MAX_LEVELS 6
#define KLVAE_STRIP_UNIT 8 /* rows: strips are multiples of it */

struct klvae_config {
    int64_t latent_channels;
    int64_t channels[KLVAE_MAX_LEVELS]; /* of each up block, the smallest picture first */
    int32_t levels;                     /* up blocks; all but the last double the size */
    int32_t resnets;                    /* in each up block */
    int32_t groups;
    bool attention, post_quant;
    bool ldm_names; /* the tensors have the original's names, not diffusers' */
    float scaling, shift;
    int32_t factor; /* of image size to latent size, 2^(levels - 1) */
};

/* As zimage_open. */
enum shoal_status klvae_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct klvae_config *klvae_config(const struct model *model);

/*
 * The encoder that lies in the same checkpoint as `decoder`, whose scaling, shift and norms it has;
 * its channels are each down block's, the largest picture first. SHOAL_E_MISSING where there is
 * none. Its result is the mean of the distribution that it gives, without noise, scaled and shifted
 * as the decoder undoes it.
 */
enum shoal_status klvae_encoder_open(const struct checkpoint *checkpoint,
    const struct model *decoder, struct model **model, struct shoal_error *error) SHOAL_CHECKED;

/* Zero-initialise, then fill in the first part. Must stay where it is until the stream is
 * synchronised after the pass. */
struct klvae_lane {
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
    float host_affine[2 * 64];
    struct matrix hidden; /* as allocated */
    int64_t hidden_height, hidden_width;
};

/* After a pass that was broken off: frees what it held. */
void klvae_lane_fini(struct exec *x, struct klvae_lane *lane);

#endif
