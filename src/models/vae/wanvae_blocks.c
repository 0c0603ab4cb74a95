/*
 * The forward functions of the Wan VAE.
 *
 * Norms are of a pixel's channels. They cannot be folded into the convolution that follows, as
 * group norms are, but need nothing of other pixels: what is made in strips is made once.
 */
#include "models/vae/wanvae_blocks.h"

#include "base/size.h"
#include "models/vae/picture.h"

enum {
    RESNET_NORM1,
    RESNET_CONV1,
    RESNET_CONV1_BIAS,
    RESNET_NORM2,
    RESNET_CONV2,
    RESNET_CONV2_BIAS,
    RESNET_SHORTCUT, /* only where the channels change */
    RESNET_SHORTCUT_BIAS,
};

enum {
    ATTENTION_NORM,
    ATTENTION_QKV, /* and what picture_attend takes after it */
};

enum {
    OUT_NORM,
    OUT_CONV,
    OUT_CONV_BIAS,
    OUT_QUANT, /* only the encoder's */
};

/* Rows [first, end) of inner = silu(norm2(conv1(silu(norm1(from))))). */
static void make_inner(struct exec *x, const struct picture *inner, const struct picture *from,
    int64_t first, int64_t end, int64_t strip, const struct matrix *weights)
{
    int64_t top = first ? first - 1 : 0, bottom = least(end + 1, from->height);
    struct picture normed;

    if (first >= end) return;
    normed = strip_alloc(x, from->rows.rows, from->height, from->width, strip);
    normed.first = top;
    x->ops->channel_norm(x->stream, picture_rows(&normed, top, bottom),
        picture_rows(from, top, bottom), weights[RESNET_NORM1], ACTIVATION_SILU);
    picture_convolve_rows(x, inner, &normed, first, end, &weights[RESNET_CONV1], (struct conv){0});
    exec_free(x, &normed.rows);
    x->ops->channel_norm(x->stream, picture_rows(inner, first, end),
        picture_rows(inner, first, end), weights[RESNET_NORM2], ACTIVATION_SILU);
}

/* from + conv2(inner), or shortcut(from) + conv2(inner), where the sum has a place of its own. */
void wanvae_resnet(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct picture from, out, inner;
    int64_t ins = l->hidden.rows, outs = weights[RESNET_CONV1].rows, height = l->hidden_height;
    int64_t pictures = (ins == outs ? ins : ins + outs) + ins + outs, strip;

    (void)block;
    exec_settle(x, &l->hidden);
    from = out = picture_of(l);
    strip = strip_choose(l, height, picture_bytes(x, pictures, from.rows.cols));
    if (ins != outs) {
        out.rows = l->hidden = exec_alloc(x, outs, from.rows.cols);
        picture_convolve(x, out, from, &weights[RESNET_SHORTCUT], (struct conv){0});
    }
    inner = strip_alloc(x, outs, height, from.width, strip);
    for (int64_t row = 0; row < height; row += strip) {
        int64_t end = least(row + strip, height), made = strip_next(x, &inner, row);

        make_inner(x, &inner, &from, made, least(end + 1, height), strip, weights);
        picture_convolve_rows(
            x, &out, &inner, row, end, &weights[RESNET_CONV2], (struct conv){.accumulate = true});
    }
    exec_free(x, &inner.rows);
    if (ins != outs) exec_free(x, &from.rows);
}

/* Self-attention over pixels, one head. */
void wanvae_attention(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct matrix tokens = exec_alloc(x, l->hidden.cols, l->hidden.rows);
    struct matrix normed = exec_alloc(x, l->hidden.rows, l->hidden.cols);

    (void)block;
    x->ops->channel_norm(x->stream, normed, l->hidden, weights[ATTENTION_NORM], ACTIVATION_NONE);
    x->ops->transpose(x->stream, tokens, normed);
    exec_free(x, &normed);
    picture_attend(x, l, &tokens, &weights[ATTENTION_QKV]);
}

void wanvae_decode_in(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct wanvae_config *config = block->config;
    struct vae_lane *l = lane;

    for (int64_t c = 0; c < config->base.latent_channels; c++) {
        l->host_affine[c] = config->deviation[c];
        l->host_affine[config->base.latent_channels + c] = config->mean[c];
    }
    picture_decode_in(x, l, weights, weights + 2);
}

/* The hidden picture, whose place its norm takes, through the last convolution, in F32. */
void wanvae_decode_out(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct picture hidden = picture_of(l);

    (void)block;
    x->ops->channel_norm(x->stream, hidden.rows, hidden.rows, weights[OUT_NORM], ACTIVATION_SILU);
    l->hidden = exec_alloc_float(x, weights[OUT_CONV].rows, hidden.rows.cols);
    picture_convolve(x, picture_of(l), hidden, &weights[OUT_CONV], (struct conv){0});
    exec_free(x, &hidden.rows);
}

void wanvae_encode_out(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct wanvae_config *config = block->config;
    struct vae_lane *l = lane;

    wanvae_decode_out(x, block, weights, lane);
    for (int64_t c = 0; c < config->base.latent_channels; c++) {
        l->host_affine[c] = 1.0f / config->deviation[c];
        l->host_affine[config->base.latent_channels + c] = -config->mean[c] / config->deviation[c];
    }
    picture_encode_out(x, l, &weights[OUT_QUANT]);
}
