/*
 * What the decoder and the encoder are made of. For those two alone.
 */
#ifndef MODELS_VAE_KLVAE_BLOCKS_H
#define MODELS_VAE_KLVAE_BLOCKS_H

#include "models/vae/klvae.h"
#include "models/vae/picture.h"

enum {
    RESNET_NORM1,
    RESNET_NORM1_BIAS,
    RESNET_CONV1,
    RESNET_CONV1_BIAS,
    RESNET_NORM2,
    RESNET_NORM2_BIAS,
    RESNET_CONV2,
    RESNET_CONV2_BIAS,
    RESNET_SHORTCUT, /* only where the channels change */
    RESNET_SHORTCUT_BIAS,
};

/* A picture's moments, which are taken in runs of PICTURE_STRIP_UNIT rows. Freed when folded. */
struct matrix picture_moments(struct exec *x, const struct picture *p);

/* Of rows [first, end): whole runs. */
void picture_take_moments(
    struct exec *x, struct matrix moments, const struct picture *p, int64_t first, int64_t end);

/* The group norm of p, whose moments these are, as an affine map of its channels; the caller frees
 * it. `groups`: of p's channels. */
struct matrix picture_fold(struct exec *x, struct matrix *moments, const struct picture *p,
    struct matrix gamma, struct matrix beta, int32_t groups);

/* Group norm of a whole picture. */
struct matrix picture_norm(
    struct exec *x, const struct block *block, struct picture p, const struct matrix *weights);

/* A resnet whose channels stay the same. */
void klvae_resnet(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane);

/* Self-attention over pixels, one head. */
void klvae_attention(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane);

/* A resnet's weights, added to the current block. `piece`: of its input's channels, used at a time.
 */
void klvae_resnet_weights(
    struct model_builder *b, const char *key, int64_t in, int64_t out, int64_t piece);

void klvae_build_attention(struct model_builder *b, const char *key, int64_t channels);

#endif
