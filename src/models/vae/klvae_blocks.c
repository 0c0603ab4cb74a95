/*
 * What the decoder and the encoder of the KL autoencoder are made of: convolutions and group norms
 * of pictures and of strips of them, resnets, attention.
 *
 * Pictures are [channels, pixels]. Group norms are folded into the convolution that follows them,
 * and a residual's second convolution adds into what is there, so a step holds its input and what
 * it makes, nothing else.
 */
#include "models/vae/klvae_blocks.h"

#include "base/size.h"

#include <math.h>

#define NORM_EPS 1e-6f

enum {
    ATTENTION_NORM,
    ATTENTION_NORM_BIAS,
    ATTENTION_QKV,
    ATTENTION_QKV_BIAS,
    ATTENTION_OUT,
    ATTENTION_OUT_BIAS,
};

/* ---- forward: pictures ---- */

struct picture picture_of(const struct vae_lane *l)
{
    return (struct picture){l->hidden, l->hidden_height, l->hidden_width, 0};
}

/* Where rows [first, end) lie. */
struct matrix picture_rows(const struct picture *p, int64_t first, int64_t end)
{
    return matrix_cols(p->rows, (first - p->first) * p->width, (end - first) * p->width);
}

/* Rows [first, end) of y = the convolution of x, whose rows that takes are there. */
void picture_convolve_rows(struct exec *x, const struct picture *y, const struct picture *input,
    int64_t first, int64_t end, const struct matrix *w, struct conv conv)
{
    int64_t border, top, bottom, scale = y->height / input->height;

    if (first >= end) return;
    conv.kernel = w[0].cols == input->rows.rows ? 1 : 3;
    conv.upsample = (int32_t)scale;
    border = conv.kernel / 2;
    top = (first > border ? first - border : 0) / scale;
    bottom = least(ceil_div(end + border, scale), input->height);
    conv.height = end - first;
    conv.width = y->width;
    conv.above = first - top * scale;
    conv.below = bottom * scale - end;
    x->ops->conv2d(x->stream, picture_rows(y, first, end), picture_rows(input, top, bottom), w[0],
        w[1], &conv);
}

void picture_convolve(struct exec *x, struct picture y, struct picture input,
    const struct matrix *w, struct conv conv)
{
    picture_convolve_rows(x, &y, &input, 0, y.height, w, conv);
}

/* ---- forward: group norms ---- */

/* A picture's moments, which are taken in runs of KLVAE_STRIP_UNIT rows. Freed when folded. */
struct matrix picture_moments(struct exec *x, const struct picture *p)
{
    return exec_alloc_float(x, p->rows.rows, 2 * ceil_div(p->height, KLVAE_STRIP_UNIT));
}

/* Of rows [first, end): whole runs. */
void picture_take_moments(
    struct exec *x, struct matrix moments, const struct picture *p, int64_t first, int64_t end)
{
    int64_t run = first / KLVAE_STRIP_UNIT, runs = ceil_div(end - first, KLVAE_STRIP_UNIT);

    x->ops->group_moments(x->stream, matrix_cols(moments, 2 * run, 2 * runs),
        picture_rows(p, first, end), KLVAE_STRIP_UNIT * p->width);
}

/* The group norm of p, whose moments these are, as an affine map of its channels; the caller frees
 * it. `groups`: of p's channels. */
struct matrix picture_fold(struct exec *x, struct matrix *moments, const struct picture *p,
    struct matrix gamma, struct matrix beta, int32_t groups)
{
    struct matrix affine = exec_alloc_float(x, 2, p->rows.rows);
    const struct group_norm norm = {
        groups, p->height * p->width, KLVAE_STRIP_UNIT * p->width, NORM_EPS};

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

/* ---- forward: strips ---- */

/*
 * Where memory is short, a picture inside a block does not exist whole. It is made a strip of rows
 * at a time: once to take its moments, and again, with their norm, for the convolution that reads
 * it. That needs a row more above and below, so two rows are kept from strip to strip. The picture
 * that grows strip by strip may be the one that strips are made from: a strip's last row is made
 * before the row below it, which it needs, is written.
 */
#define STRIPS 16

/* Rows of a strip; `height` if the picture is too small for strips. */
int64_t strip_rows(const struct vae_lane *l, int64_t height)
{
    int64_t rows = l->strip_rows;

    if (!rows) rows = ceil_div(ceil_div(height, STRIPS), KLVAE_STRIP_UNIT) * KLVAE_STRIP_UNIT;
    return rows + 2 < height ? rows : height;
}

uint64_t picture_bytes(const struct exec *x, int64_t channels, int64_t pixels)
{
    return (uint64_t)dtype_bytes(x->device->traits.activation, channels * pixels);
}

/* Whether a block may take so much, if it could do with less. */
bool klvae_may_take(struct vae_lane *l, uint64_t bytes)
{
    if (l->whole_bytes && bytes > l->whole_bytes) return false;
    if (bytes > l->largest_bytes) l->largest_bytes = bytes;
    return true;
}

/* Room for a strip of so many rows with its two more, or for all of a picture. */
struct picture strip_alloc(
    struct exec *x, int64_t channels, int64_t height, int64_t width, int64_t strip)
{
    int64_t rows = strip < height ? strip + 2 : height;

    return (struct picture){exec_alloc(x, channels, rows * width), height, width, 0};
}

static bool is_whole(const struct picture *p)
{
    return p->rows.cols == p->height * p->width;
}

/* Puts the strip that begins at `row` into p's room, all of which is to be made. */
void strip_at(struct picture *p, int64_t row)
{
    if (!is_whole(p)) p->first = row - 1;
}

/* Moves on to the strip that begins at `row`, with the two rows about its beginning. Returns the
 * row from which on it is to be made. */
int64_t strip_next(struct exec *x, struct picture *p, int64_t row)
{
    struct matrix kept;

    if (!row) {
        strip_at(p, 0);
        return 0;
    }
    kept = picture_rows(p, row - 1, row + 1);
    strip_at(p, row);
    x->ops->copy(x->stream, picture_rows(p, row - 1, row + 1), kept);
    return row + 1;
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
    int64_t height = l->hidden_height, strip = strip_rows(l, height);

    exec_settle(x, &l->hidden);
    hidden = picture_of(l);
    affine = picture_norm(x, block, hidden, &weights[RESNET_NORM1]);
    conv1.affine = affine;
    if (strip == height ||
        klvae_may_take(l, picture_bytes(x, 2 * hidden.rows.rows, hidden.rows.cols)))
        strip = height;
    else
        l->strip_blocks++;
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
    int64_t channels = l->hidden.rows, pixels = l->hidden.cols;
    struct matrix tokens = exec_alloc(x, pixels, channels), qkv;
    struct matrix picture = exec_alloc(x, channels, pixels);
    struct matrix affine = picture_norm(x, block, picture_of(l), &weights[ATTENTION_NORM]);

    x->ops->affine(x->stream, picture, l->hidden, affine, ACTIVATION_NONE);
    x->ops->transpose(x->stream, tokens, picture);
    exec_free(x, &affine);
    exec_free(x, &picture);

    qkv = exec_alloc(x, pixels, 3 * channels);
    x->ops->linear(x->stream, qkv, tokens, weights[ATTENTION_QKV], weights[ATTENTION_QKV_BIAS]);
    x->ops->attention(x->stream, tokens, matrix_cols(qkv, 0, channels),
        matrix_cols(qkv, channels, channels), matrix_cols(qkv, 2 * channels, channels),
        &(struct attention){.heads = 1, .kv_heads = 1, .scale = 1.0f / sqrtf((float)channels)});
    exec_free(x, &qkv);

    qkv = exec_alloc(x, pixels, channels); /* now the projection */
    x->ops->linear(x->stream, qkv, tokens, weights[ATTENTION_OUT], weights[ATTENTION_OUT_BIAS]);
    exec_free(x, &tokens);
    picture = exec_alloc(x, channels, pixels);
    x->ops->transpose(x->stream, picture, qkv);
    exec_free(x, &qkv);
    x->ops->gated_add(x->stream, l->hidden, MATRIX_NONE, picture, MATRIX_NONE, 0);
    exec_free(x, &picture);
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
