/*
 * Pictures inside of VAEs, [channels, pixels], whole and in strips of rows; and the forwards of
 * blocks that VAEs have in common. Not their norms.
 */
#ifndef MODELS_VAE_PICTURE_H
#define MODELS_VAE_PICTURE_H

#include "models/vae/vae.h"

#define PICTURE_STRIP_UNIT 8 /* rows: strips are multiples of it */

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

/* Rows of a strip; `height` if the picture is too small for strips. */
int64_t strip_rows(const struct vae_lane *l, int64_t height);

uint64_t picture_bytes(const struct exec *x, int64_t channels, int64_t pixels);

/* Whether a block may take so much, if it could do with less. */
bool picture_may_take(struct vae_lane *l, uint64_t bytes);

/* Rows of the strips that a block works in: `height` if it may take so much for whole pictures. */
int64_t strip_choose(struct vae_lane *l, int64_t height, uint64_t bytes);

/* Room for a strip of so many rows with its two more, or for all of a picture. */
struct picture strip_alloc(
    struct exec *x, int64_t channels, int64_t height, int64_t width, int64_t strip);

/* Puts the strip that begins at `row` into p's room, all of which is to be made. */
void strip_at(struct picture *p, int64_t row);

/* Moves on to the strip that begins at `row`, with the two rows about its beginning. Returns the
 * row from which on it is to be made. */
int64_t strip_next(struct exec *x, struct picture *p, int64_t row);

/* Adds to the hidden picture its pixels' attention, with one head. `tokens`, which are freed: the
 * norm of them, [pixels, channels]. Weights: of q, k and v together, and their bias; of the
 * projection, and its bias. */
void picture_attend(
    struct exec *x, struct vae_lane *l, struct matrix *tokens, const struct matrix *weights);

/* Begins decoding: from the latent, by the lane's host_affine (the channels' scales, then shifts),
 * through post_quant's convolution (NULL: none), to the hidden picture by `conv`. */
void picture_decode_in(
    struct exec *x, struct vae_lane *l, const struct matrix *post_quant, const struct matrix *conv);

/* Ends encoding: the hidden picture, F32, through quant's convolution (NULL: none) has means, and
 * after them the logarithms of variances. The means by host_affine are the latent. */
void picture_encode_out(struct exec *x, struct vae_lane *l, const struct matrix *quant);

/*
 * Forwards of blocks whose weights are a convolution and its bias: from the image to the hidden
 * picture; to twice its size; to half of it, for which the reference pads a row below and a column
 * to the right, and convolves with a stride of 2.
 */
block_forward picture_encode_in, picture_upsample, picture_downsample;

/* Ends of passes: the hidden picture, F32, is the image; it is no longer needed. */
block_forward picture_decode_end, picture_encode_end;

#endif
