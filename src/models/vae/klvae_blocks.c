/*
 * What the decoder and the encoder of the KL autoencoder are made of: group norms of pictures and
 * of strips of them, resnets, attention.
 *
 * Group norms are folded into the convolution that follows them, and a residual's second
 * convolution adds into what is there, so a step holds its input and what it makes, nothing else.
 * Where a picture inside a block is made in strips, it is made twice: to take its moments, and
 * again, with their norm, for the convolution that reads it.
 */
#include "models/vae/klvae_blocks.h"

#include "base/size.h"

#define NORM_EPS 1e-6f

enum {
    ATTENTION_NORM,
    ATTENTION_NORM_BIAS,
    ATTENTION_QKV, /* and what picture_attend takes after it */
};

/* ---- forward: group norms ---- */

/* A picture's moments, which are taken in runs of PICTURE_STRIP_UNIT rows. Freed when folded. */
struct matrix picture_moments(struct exec *x, const struct picture *p)
{
    return exec_alloc_float(x, p->rows.rows, 2 * ceil_div(p->height, PICTURE_STRIP_UNIT));
}

/* Of rows [first, end): whole runs. */
void picture_take_moments(
    struct exec *x, struct matrix moments, const struct picture *p, int64_t first, int64_t end)
{
    int64_t run = first / PICTURE_STRIP_UNIT, runs = ceil_div(end - first, PICTURE_STRIP_UNIT);

    x->ops->group_moments(x->stream, matrix_cols(moments, 2 * run, 2 * runs),
        picture_rows(p, first, end), PICTURE_STRIP_UNIT * p->width);
}

/* The group norm of p, whose moments these are, as an affine map of its channels; the caller frees
 * it. `groups`: of p's channels. */
struct matrix picture_fold(struct exec *x, struct matrix *moments, const struct picture *p,
    struct matrix gamma, struct matrix beta, int32_t groups)
{
    struct matrix affine = exec_alloc_float(x, 2, p->rows.rows);
    const struct group_norm norm = {
        groups, p->height * p->width, PICTURE_STRIP_UNIT * p->width, NORM_EPS};

    x->ops->group_fold(x->stream, affine, *moments, gamma, beta, &norm);
    exec_free(x, moments);
    return affine;
}

/* Group norm of a whole picture. */
struct matrix picture_norm(
    struct exec *x, const struct block *block, struct picture p, const struct matrix *weights)
{
    const struct klvae_config *config = block->config;
    struct matrix moments = picture_moments(x, &p);

    picture_take_moments(x, moments, &p, 0, p.height);
    return picture_fold(x, &moments, &p, weights[0], weights[1], config->groups);
}

/* ---- forward: the blocks ---- */

/* Whose channels stay the same; where they get fewer, see upsample_and_shrink. */
void klvae_resnet(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct vae_lane *l = lane;
    struct picture hidden, inner;
    struct matrix affine, affine2, moments;
    struct conv conv1 = {.activation = ACTIVATION_SILU};
    struct conv conv2 = {.activation = ACTIVATION_SILU, .accumulate = true};
    int64_t height = l->hidden_height, strip;

    exec_settle(x, &l->hidden);
    hidden = picture_of(l);
    affine = picture_norm(x, block, hidden, &weights[RESNET_NORM1]);
    conv1.affine = affine;
    strip = strip_choose(l, height, picture_bytes(x, 2 * hidden.rows.rows, hidden.rows.cols));
    inner = strip_alloc(x, hidden.rows.rows, height, hidden.width, strip);
    moments = picture_moments(x, &inner);
    for (int64_t row = 0; row < height; row += strip) {
        int64_t end = least(row + strip, height);

        strip_at(&inner, row);
        picture_convolve_rows(x, &inner, &hidden, row, end, &weights[RESNET_CONV1], conv1);
        picture_take_moments(x, moments, &inner, row, end);
    }
    affine2 = picture_fold(
        x, &moments, &inner, weights[RESNET_NORM2], weights[RESNET_NORM2_BIAS], config->groups);
    conv2.affine = affine2;
    for (int64_t row = 0; row < height; row += strip) {
        int64_t end = least(row + strip, height);

        if (strip < height) {
            int64_t from = strip_next(x, &inner, row);

            picture_convolve_rows(
                x, &inner, &hidden, from, least(end + 1, height), &weights[RESNET_CONV1], conv1);
        }
        picture_convolve_rows(x, &hidden, &inner, row, end, &weights[RESNET_CONV2], conv2);
    }
    exec_free(x, &affine2);
    exec_free(x, &inner.rows);
    exec_free(x, &affine);
}

/* Self-attention over pixels, one head. */
void klvae_attention(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct matrix tokens = exec_alloc(x, l->hidden.cols, l->hidden.rows);
    struct matrix normed = exec_alloc(x, l->hidden.rows, l->hidden.cols);
    struct matrix affine = picture_norm(x, block, picture_of(l), &weights[ATTENTION_NORM]);

    x->ops->affine(x->stream, normed, l->hidden, affine, ACTIVATION_NONE);
    x->ops->transpose(x->stream, tokens, normed);
    exec_free(x, &affine);
    exec_free(x, &normed);
    picture_attend(x, l, &tokens, &weights[ATTENTION_QKV]);
}

/* ---- opening ---- */

/* A resnet's weights, added to the current block. `piece`: of its input's channels, used at a time.
 */
void klvae_resnet_weights(
    struct model_builder *b, const char *key, int64_t in, int64_t out, int64_t piece)
{
    builder_key_prefix(b, key);
    builder_weight(b, "norm1.weight", 1, in);
    builder_pieces(b, piece);
    builder_weight(b, "norm1.bias", 1, in);
    builder_pieces(b, piece);
    builder_weight(b, "conv1.weight", out, in * 9);
    builder_pieces(b, piece * 9);
    builder_weight(b, "conv1.bias", 1, out);
    builder_weight(b, "norm2.weight", 1, out);
    builder_weight(b, "norm2.bias", 1, out);
    builder_weight(b, "conv2.weight", out, out * 9);
    builder_weight(b, "conv2.bias", 1, out);
    if (in == out) return;
    builder_weight(b, "conv_shortcut.weight|nin_shortcut.weight", out, in);
    builder_pieces(b, piece);
    builder_weight(b, "conv_shortcut.bias|nin_shortcut.bias", 1, out);
}

void klvae_build_attention(struct model_builder *b, const char *key, int64_t channels)
{
    builder_block(b, klvae_attention, 0, "middle attention", key);
    builder_weight(b, "group_norm.weight|norm.weight", 1, channels);
    builder_weight(b, "group_norm.bias|norm.bias", 1, channels);
    builder_weight(b, "to_q.weight+to_k.weight+to_v.weight|q.weight+k.weight+v.weight",
        3 * channels, channels);
    builder_weight(b, "to_q.bias+to_k.bias+to_v.bias|q.bias+k.bias+v.bias", 1, 3 * channels);
    builder_weight(b, "to_out.0.weight|proj_out.weight", channels, channels);
    builder_weight(b, "to_out.0.bias|proj_out.bias", 1, channels);
}
