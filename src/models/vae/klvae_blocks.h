/*
 * What the decoder and the encoder are made of. For those two alone.
 */
#ifndef MODELS_VAE_KLVAE_BLOCKS_H
#define MODELS_VAE_KLVAE_BLOCKS_H

#include "models/vae/klvae.h"

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

/* Rows of a picture of height x width, from row `first` on: all of them, or a strip. */
struct picture {
    struct matrix rows; /* [channels, rows width] */
    int64_t height, width, first;
};

struct picture picture_of(const struct vae_lane *l);

/* Where rows [first, end) lie. */
struct matrix picture_rows(const struct picture *p, int64_t first, int64_t end);

/* Rows [first, end) of y = the convolution of x, whose rows that takes are there. */
void picture_convolve_rows(struct exec *x, const struct picture *y, const struct picture *input,
    int64_t first, int64_t end, const struct matrix *w, struct conv conv);

void picture_convolve(struct exec *x, struct picture y, struct picture input,
    const struct matrix *w, struct conv conv);

/* A picture's moments, which are taken in runs of KLVAE_STRIP_UNIT rows. Freed when folded. */
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

/* Rows of a strip; `height` if the picture is too small for strips. */
int64_t strip_rows(const struct vae_lane *l, int64_t height);

uint64_t picture_bytes(const struct exec *x, int64_t channels, int64_t pixels);

/* Whether a block may take so much, if it could do with less. */
bool klvae_may_take(struct vae_lane *l, uint64_t bytes);

/* Room for a strip of so many rows with its two more, or for all of a picture. */
struct picture strip_alloc(
    struct exec *x, int64_t channels, int64_t height, int64_t width, int64_t strip);

/* Puts the strip that begins at `row` into p's room, all of which is to be made. */
void strip_at(struct picture *p, int64_t row);

/* Moves on to the strip that begins at `row`, with the two rows about its beginning. Returns the
 * row from which on it is to be made. */
int64_t strip_next(struct exec *x, struct picture *p, int64_t row);

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
