/* Pictures inside of VAEs, whole and in strips of rows, and the blocks that VAEs have in common. */
#include "models/vae/picture.h"

#include "base/size.h"

#include <math.h>

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

/* ---- strips ---- */

/*
 * Where memory is short, a picture inside a block does not exist whole. It is made a strip of rows
 * at a time, for the convolution that reads it. That needs a row more above and below, so two rows
 * are kept from strip to strip. The picture that grows strip by strip may be the one that strips
 * are made from: a strip's last row is made before the row below it, which it needs, is written.
 */
#define STRIPS 16

/* Rows of a strip; `height` if the picture is too small for strips. */
int64_t strip_rows(const struct vae_lane *l, int64_t height)
{
    int64_t rows = l->strip_rows;

    if (!rows) rows = ceil_div(ceil_div(height, STRIPS), PICTURE_STRIP_UNIT) * PICTURE_STRIP_UNIT;
    return rows + 2 < height ? rows : height;
}

uint64_t picture_bytes(const struct exec *x, int64_t channels, int64_t pixels)
{
    return (uint64_t)dtype_bytes(x->device->traits.activation, channels * pixels);
}

/* Whether a block may take so much, if it could do with less. */
bool picture_may_take(struct vae_lane *l, uint64_t bytes)
{
    if (l->whole_bytes && bytes > l->whole_bytes) return false;
    if (bytes > l->largest_bytes) l->largest_bytes = bytes;
    return true;
}

int64_t strip_choose(struct vae_lane *l, int64_t height, uint64_t bytes)
{
    int64_t strip = strip_rows(l, height);

    if (strip == height || picture_may_take(l, bytes)) return height;
    l->strip_blocks++;
    return strip;
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

enum {
    QKV,
    QKV_BIAS,
    OUT,
    OUT_BIAS,
};

void picture_attend(
    struct exec *x, struct vae_lane *l, struct matrix *tokens, const struct matrix *weights)
{
    int64_t channels = l->hidden.rows, pixels = l->hidden.cols;
    struct matrix qkv = exec_alloc(x, pixels, 3 * channels), picture;

    x->ops->linear(x->stream, qkv, *tokens, weights[QKV], weights[QKV_BIAS]);
    x->ops->attention(x->stream, *tokens, matrix_cols(qkv, 0, channels),
        matrix_cols(qkv, channels, channels), matrix_cols(qkv, 2 * channels, channels),
        &(struct attention){.heads = 1, .kv_heads = 1, .scale = 1.0f / sqrtf((float)channels)});
    exec_free(x, &qkv);

    qkv = exec_alloc(x, pixels, channels); /* now the projection */
    x->ops->linear(x->stream, qkv, *tokens, weights[OUT], weights[OUT_BIAS]);
    exec_free(x, tokens);
    picture = exec_alloc(x, channels, pixels);
    x->ops->transpose(x->stream, picture, qkv);
    exec_free(x, &qkv);
    x->ops->gated_add(x->stream, l->hidden, MATRIX_NONE, picture, MATRIX_NONE, 0);
    exec_free(x, &picture);
}

void picture_decode_in(
    struct exec *x, struct vae_lane *l, const struct matrix *post_quant, const struct matrix *conv)
{
    int64_t channels = l->latent.rows;
    struct picture input = {l->latent, l->height, l->width, 0}, latent = input;
    struct matrix affine = exec_alloc_float(x, 2, channels);

    exec_upload(x, affine, l->host_affine);
    l->hidden_height = l->height;
    l->hidden_width = l->width;
    l->hidden = exec_alloc(x, conv[0].rows, l->height * l->width);
    if (post_quant) {
        latent.rows = exec_alloc(x, channels, l->height * l->width);
        picture_convolve(x, latent, input, post_quant, (struct conv){.affine = affine});
    }
    picture_convolve(
        x, picture_of(l), latent, conv, (struct conv){.affine = post_quant ? MATRIX_NONE : affine});
    if (post_quant) exec_free(x, &latent.rows);
    exec_free(x, &affine);
}

void picture_encode_out(struct exec *x, struct vae_lane *l, const struct matrix *quant)
{
    struct matrix scale;

    if (quant) {
        struct picture raw = picture_of(l);

        l->hidden = exec_alloc_float(x, quant[0].rows, raw.rows.cols);
        picture_convolve(x, picture_of(l), raw, quant, (struct conv){0});
        exec_free(x, &raw.rows);
    }
    scale = exec_alloc_float(x, 2, l->latent.rows);
    exec_upload(x, scale, l->host_affine);
    x->ops->affine(
        x->stream, l->latent, matrix_rows(l->hidden, 0, l->latent.rows), scale, ACTIVATION_NONE);
    exec_free(x, &scale);
}

void picture_encode_in(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct vae_config *config = block->config;
    struct vae_lane *l = lane;
    struct picture image = {
        .height = config->factor * l->height, .width = config->factor * l->width};

    l->hidden_height = image.height;
    l->hidden_width = image.width;
    image.rows = exec_alloc_float(x, 3, image.height * image.width);
    exec_upload(x, image.rows, l->image);
    l->hidden = exec_alloc(x, weights[0].rows, image.height * image.width);
    picture_convolve(x, picture_of(l), image, weights, (struct conv){0});
    exec_free(x, &image.rows);
}

void picture_upsample(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct picture small = picture_of(l);

    (void)block;
    l->hidden = exec_alloc(x, weights[0].rows, 4 * small.rows.cols);
    l->hidden_height *= 2;
    l->hidden_width *= 2;
    picture_convolve(x, picture_of(l), small, weights, (struct conv){0});
    exec_free(x, &small.rows);
}

/*
 * Of a convolution of the same size it is every other row and column, from the second on. It is
 * made in strips whatever memory there is, as that takes no more arithmetic.
 */
void picture_downsample(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct picture large = picture_of(l), small;
    int64_t channels = weights[0].rows, strip = strip_rows(l, large.height);

    (void)block;
    l->hidden_height /= 2;
    l->hidden_width /= 2;
    l->hidden = exec_alloc(x, channels, l->hidden_height * l->hidden_width);
    small = picture_of(l);
    for (int64_t row = 0; row < large.height; row += strip) {
        int64_t end = least(row + strip, large.height), pixels = (end - row) * large.width;
        struct picture made = {exec_alloc(x, channels, pixels), large.height, large.width, row};
        struct matrix fours = exec_alloc(x, pixels / 4, 4 * channels);

        picture_convolve_rows(x, &made, &large, row, end, weights, (struct conv){0});
        x->ops->patchify(
            x->stream, fours, made.rows, end - row, large.width, 2, PATCH_CHANNELS_LAST);
        x->ops->transpose(x->stream, picture_rows(&small, row / 2, end / 2),
            matrix_cols(fours, 3 * channels, channels));
        exec_free(x, &fours);
        exec_free(x, &made.rows);
    }
    exec_free(x, &large.rows);
}

void picture_decode_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;

    (void)block;
    (void)weights;
    exec_download(x, l->image, l->hidden);
    vae_lane_fini(x, l);
}

void picture_encode_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    (void)block;
    (void)weights;
    vae_lane_fini(x, lane);
}
