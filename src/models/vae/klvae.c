/*
 * The decoder of the KL autoencoder: opening it and its forward functions.
 *
 * Pictures are [channels, pixels]. Group norms are folded into the convolution that follows them,
 * upsampling too, and a residual's second convolution adds into what is there, so a step holds its
 * input and what it makes, nothing else.
 */
#include "models/vae/klvae.h"

#include "base/size.h"
#include "models/source.h"
#include "models/vae/klvae_blocks.h"

#include <stdio.h>

const struct klvae_config *klvae_config(const struct model *model)
{
    return model->config;
}

/* ---- forward: the blocks ---- */

/* Weights: conv_in, its bias; before them post_quant_conv and its bias if there is one. */
static void conv_in(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct vae_lane *l = lane;

    for (int64_t c = 0; c < config->base.latent_channels; c++) {
        l->host_affine[c] = 1.0f / config->scaling;
        l->host_affine[config->base.latent_channels + c] = config->shift;
    }
    picture_decode_in(
        x, l, config->post_quant ? weights : NULL, weights + (config->post_quant ? 2 : 0));
}

/* ---- forward: an upsampler and the resnet after it, where the channels get fewer ---- */

/*
 * Written plainly, this is where a decoder needs most memory: a picture of full size with the
 * channels of the level before. But group norm works on groups of channels, and the convolutions
 * that read it sum over channels, so the upsampled picture need exist only for a few groups at a
 * time:
 *
 *     for each piece of channels:  u = upsample(hidden)            (rows of its weights)
 *                                  out += shortcut(u)              (columns of their weights)
 *                                  inner += conv1(silu(norm1(u)))
 *     out += conv2(silu(norm2(inner)))
 *
 * In strips inner is whole and out takes its place row by row, so u is made again for the shortcut;
 * with less memory still, u is made in strips too, and a third time for conv1.
 *
 * Weights: the upsampler's convolution and its bias, then the resnet's.
 */
#define PIECE_CHANNELS 32

/* Channels of a piece: whole groups, of the upsampled picture's `channels`. */
static int64_t piece_of(const struct klvae_config *config, int64_t channels)
{
    int64_t group = channels / config->groups;

    return group < PIECE_CHANNELS ? PIECE_CHANNELS / group * group : group;
}

struct shrink {
    const struct matrix *up, *resnet; /* weights */
    int32_t groups;                   /* of all channels */
    int64_t channels, piece;          /* of u; of these at a time */
    int64_t strip, u_strip;           /* rows */
    struct picture small, inner, out; /* out is inner's place in strips */
};

/* Rows [row, end) of u, channels [first, ...) as many as it has. */
static void shrink_upsample(struct exec *x, const struct shrink *s, const struct picture *u,
    int64_t first, int64_t row, int64_t end)
{
    const struct matrix w[2] = {
        matrix_rows(s->up[0], first, u->rows.rows), matrix_cols(s->up[1], first, u->rows.rows)};

    picture_convolve_rows(x, u, &s->small, row, end, w, (struct conv){0});
}

/* out += shortcut(u), rows [row, end). Biases are added once, with the first piece. */
static void shrink_shortcut(struct exec *x, const struct shrink *s, const struct picture *u,
    int64_t first, int64_t row, int64_t end)
{
    const struct matrix w[2] = {matrix_cols(s->resnet[RESNET_SHORTCUT], first, u->rows.rows),
        first ? MATRIX_NONE : s->resnet[RESNET_SHORTCUT_BIAS]};

    picture_convolve_rows(x, &s->out, u, row, end, w, (struct conv){.accumulate = first > 0});
}

/* inner += conv1(silu(norm1(u))) for the piece of channels from `first` on; out too if it has a
 * place of its own. */
static void shrink_piece(struct exec *x, const struct shrink *s, int64_t first)
{
    int64_t count = least(s->channels - first, s->piece), height = s->inner.height;
    struct picture u = strip_alloc(x, count, height, s->inner.width, s->u_strip);
    struct matrix moments = picture_moments(x, &u), affine;
    const struct matrix w[2] = {matrix_cols(s->resnet[RESNET_CONV1], 9 * first, 9 * count),
        first ? MATRIX_NONE : s->resnet[RESNET_CONV1_BIAS]};
    struct conv conv1 = {.activation = ACTIVATION_SILU, .accumulate = first > 0};

    for (int64_t row = 0; row < height; row += s->u_strip) {
        int64_t end = least(row + s->u_strip, height);

        strip_at(&u, row);
        shrink_upsample(x, s, &u, first, row, end);
        picture_take_moments(x, moments, &u, row, end);
    }
    if (s->strip == height) shrink_shortcut(x, s, &u, first, 0, height);
    affine = picture_fold(x, &moments, &u, matrix_cols(s->resnet[RESNET_NORM1], first, count),
        matrix_cols(s->resnet[RESNET_NORM1_BIAS], first, count),
        (int32_t)(count * s->groups / s->channels));
    conv1.affine = affine;
    for (int64_t row = 0; row < height; row += s->u_strip) {
        int64_t end = least(row + s->u_strip, height);

        if (s->u_strip < height) {
            int64_t from = strip_next(x, &u, row);

            shrink_upsample(x, s, &u, first, from, least(end + 1, height));
        }
        picture_convolve_rows(x, &s->inner, &u, row, end, w, conv1);
    }
    exec_free(x, &affine);
    exec_free(x, &u.rows);
}

/* out = shortcut(u), rows [row, end), where there is no u any more. */
static void shrink_shortcut_again(struct exec *x, const struct shrink *s, int64_t row, int64_t end)
{
    for (int64_t first = 0; first < s->channels; first += s->piece) {
        int64_t count = least(s->channels - first, s->piece);
        struct picture u = strip_alloc(x, count, s->inner.height, s->inner.width, s->strip);

        strip_at(&u, row);
        shrink_upsample(x, s, &u, first, row, end);
        shrink_shortcut(x, s, &u, first, row, end);
        exec_free(x, &u.rows);
    }
}

/* out += conv2(silu(norm2(inner))); in strips, out = that and the shortcut. */
static void shrink_finish(struct exec *x, const struct block *block, const struct shrink *s)
{
    int64_t height = s->inner.height;
    struct matrix affine = picture_norm(x, block, s->inner, &s->resnet[RESNET_NORM2]);
    const struct conv conv2 = {.affine = affine, .activation = ACTIVATION_SILU, .accumulate = true};
    struct picture old = s->inner;

    if (s->strip < height)
        old = strip_alloc(x, s->inner.rows.rows, height, s->inner.width, s->strip);
    for (int64_t row = 0; row < height; row += s->strip) {
        int64_t end = least(row + s->strip, height);

        if (s->strip < height) {
            int64_t from = strip_next(x, &old, row), to = least(end + 1, height);

            if (from < to)
                x->ops->copy(
                    x->stream, picture_rows(&old, from, to), picture_rows(&s->inner, from, to));
            shrink_shortcut_again(x, s, row, end);
        }
        picture_convolve_rows(x, &s->out, &old, row, end, &s->resnet[RESNET_CONV2], conv2);
    }
    if (s->strip < height) exec_free(x, &old.rows);
    exec_free(x, &affine);
}

/* How it works, by what the lane may take. */
static void shrink_choose(struct exec *x, struct vae_lane *l, struct shrink *s)
{
    int64_t height = 2 * s->small.height, pixels = 4 * s->small.rows.cols;
    int64_t outs = s->resnet[RESNET_CONV1].rows;
    uint64_t least_bytes = picture_bytes(x, s->small.rows.rows, s->small.rows.cols) +
                           picture_bytes(x, outs + s->piece, pixels);

    s->strip = s->u_strip = strip_rows(l, height);
    if (s->strip == height) return;
    if (picture_may_take(l, least_bytes + picture_bytes(x, outs, pixels))) {
        s->strip = s->u_strip = height;
        return;
    }
    l->strip_blocks++;
    if (picture_may_take(l, least_bytes)) s->u_strip = height;
}

static void upsample_and_shrink(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct vae_lane *l = lane;
    struct shrink s = {.up = weights, .resnet = weights + 2, .groups = config->groups};
    int64_t outs = s.resnet[RESNET_CONV1].rows;

    exec_settle(x, &l->hidden);
    s.channels = weights[0].rows;
    s.piece = least(piece_of(config, s.channels), s.channels);
    s.small = picture_of(l);
    shrink_choose(x, l, &s);
    l->hidden_height *= 2;
    l->hidden_width *= 2;
    l->hidden = exec_alloc(x, outs, 4 * s.small.rows.cols);
    s.out = s.inner = picture_of(l);
    if (s.strip == s.out.height) s.inner.rows = exec_alloc(x, outs, s.out.rows.cols);
    for (int64_t first = 0; first < s.channels; first += s.piece)
        shrink_piece(x, &s, first);
    if (s.strip == s.out.height) exec_free(x, &s.small.rows);
    shrink_finish(x, block, &s);
    if (s.strip == s.out.height) exec_free(x, &s.inner.rows);
    exec_free(x, &s.small.rows);
}

/* ---- forward: the last block and the end ---- */

/* Weights: norm, its bias, conv, its bias. */
static void conv_out(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct vae_lane *l = lane;
    struct picture hidden = picture_of(l);
    struct matrix affine;

    l->hidden = exec_alloc_float(x, weights[2].rows, hidden.rows.cols);
    affine = picture_norm(x, block, hidden, weights);
    picture_convolve(x, picture_of(l), hidden, weights + 2,
        (struct conv){.affine = affine, .activation = ACTIVATION_SILU});
    exec_free(x, &affine);
    exec_free(x, &hidden.rows);
}

/* ---- opening ---- */

/* Two ways to name the same tensors: diffusers' and that of the original (LDM) files. */
struct naming {
    bool ldm;
    char key[64]; /* the last that was made */
};

#define PROBE_DIFFUSERS "decoder.mid_block.resnets.0.norm1.weight"
#define PROBE_LDM "decoder.mid.block_1.norm1.weight"

/* The key prefix of resnet `r` of level `level` (level -1: of the middle). */
static const char *resnet_key(struct naming *n, const struct klvae_config *c, int level, int r)
{
    if (level < 0)
        snprintf(n->key, sizeof n->key,
            n->ldm ? "decoder.mid.block_%d." : "decoder.mid_block.resnets.%d.", r + n->ldm);
    else if (n->ldm)
        snprintf(n->key, sizeof n->key, "decoder.up.%d.block.%d.", c->levels - 1 - level, r);
    else
        snprintf(n->key, sizeof n->key, "decoder.up_blocks.%d.resnets.%d.", level, r);
    return n->key;
}

static int64_t conv1_dim(
    struct source *s, struct naming *n, const struct klvae_config *c, int level)
{
    char name[128];

    snprintf(name, sizeof name, "%sconv1.weight", resnet_key(n, c, level, 0));
    return source_dim(s, name, 0);
}

/* What the config says that shapes do not. FLUX.1's values stand in where there is none. */
static void read_numbers(struct source *s, struct klvae_config *c)
{
    bool known = c->base.latent_channels == 16;

    c->groups = (int32_t)source_number(s, "norm_num_groups", 32, 1, 1024);
    c->scaling = (float)source_number(s, "scaling_factor", known ? 0.3611 : 0.0, 1e-6, 1e6);
    c->shift =
        (float)source_number(s, "shift_factor", known && !s->config ? 0.1159 : 0.0, -1e6, 1e6);
    if (!s->status && c->scaling == 0.0f)
        s->status = error_set(s->error, SHOAL_E_MISSING, __FILE__, __LINE__,
            "%s: a VAE of %lld latent channels; its \"scaling_factor\" is known only from a "
            "config.json, and there is none beside it that says it",
            checkpoint_path(s->checkpoint), (long long)c->base.latent_channels);
    for (int32_t i = 0; i < c->levels; i++)
        if (!s->status && c->channels[i] % c->groups)
            s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
                "%s: %lld channels do not divide into %d groups (config.json's "
                "\"norm_num_groups\", or 32)",
                checkpoint_path(s->checkpoint), (long long)c->channels[i], (int)c->groups);
}

static void check_config(struct source *s, const struct klvae_config *c)
{
    int64_t said[KLVAE_MAX_LEVELS];
    int32_t count = source_integers(s, "block_out_channels", said, KLVAE_MAX_LEVELS, 1, 1 << 24);

    source_agrees(s, "latent_channels", c->base.latent_channels, "decoder.conv_in.weight");
    source_agrees(s, "layers_per_block", c->resnets - 1, "decoder's resnets");
    source_agrees(s, "out_channels", 3, "decoder.conv_out.weight");
    source_requires_text(s, "act_fn", "silu");
    source_requires_bool(s, "mid_block_add_attention", c->attention);
    source_requires_bool(s, "use_post_quant_conv", c->post_quant);
    for (int32_t i = 0; i < count && !s->status; i++)
        if (count != c->levels || said[count - 1 - i] != c->channels[i])
            s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
                "%s: \"block_out_channels\" has %d entries, the %s %lld, but by the resnets in %s "
                "there are %d and it is %lld",
                s->config_path, (int)count, i ? "next" : "last", (long long)said[count - 1 - i],
                checkpoint_path(s->checkpoint), (int)c->levels, (long long)c->channels[i]);
}

static void read_config(struct source *s, void *config)
{
    static const struct vae_family family = {.encoder_open = klvae_encoder_open};
    struct klvae_config *c = config;

    c->base.family = &family;
    struct naming naming = {.ldm = source_tensor(s, PROBE_LDM) != NULL}, *n = &naming;
    char group[64];

    c->ldm_names = naming.ldm;
    c->base.latent_channels = source_dim(s, "decoder.conv_in.weight", 1);
    c->levels = source_count(s, n->ldm ? "decoder.up." : "decoder.up_blocks.");
    if (!s->status && (c->levels < 1 || c->levels > KLVAE_MAX_LEVELS ||
                          c->base.latent_channels > VAE_MAX_CHANNELS))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: a VAE of %d levels and %lld latent channels; this build runs up to %d and %d",
            checkpoint_path(s->checkpoint), (int)c->levels, (long long)c->base.latent_channels,
            KLVAE_MAX_LEVELS, VAE_MAX_CHANNELS);
    if (s->status) return;
    c->base.factor = 1 << (c->levels - 1);
    snprintf(group, sizeof group, n->ldm ? "decoder.up.%d.block." : "decoder.up_blocks.%d.resnets.",
        n->ldm ? c->levels - 1 : 0);
    c->resnets = source_count(s, group);
    for (int32_t i = 0; i < c->levels; i++)
        c->channels[i] = conv1_dim(s, n, c, i);
    c->attention = source_tensor(s, n->ldm ? "decoder.mid.attn_1.q.weight"
                                           : "decoder.mid_block.attentions.0.to_q.weight") != NULL;
    c->post_quant = source_tensor(s, "post_quant_conv.weight") != NULL;
    check_config(s, c);
    read_numbers(s, c);
}

static void upsampler_weights(struct model_builder *b, const struct naming *n,
    const struct klvae_config *c, int level, int64_t piece)
{
    int64_t channels = c->channels[level];
    char key[64];

    if (n->ldm)
        snprintf(key, sizeof key, "decoder.up.%d.", c->levels - 1 - level);
    else
        snprintf(key, sizeof key, "decoder.up_blocks.%d.", level);
    builder_key_prefix(b, key);
    builder_weight(b, "upsamplers.0.conv.weight|upsample.conv.weight", channels, channels * 9);
    builder_weight(b, "upsamplers.0.conv.bias|upsample.conv.bias", 1, channels);
    builder_pieces(b, piece);
}

/* A level's resnets, and the upsampler before it. */
static void build_level(
    struct model_builder *b, struct naming *n, const struct klvae_config *c, int level)
{
    int64_t in = c->channels[level ? level - 1 : 0], out = c->channels[level];
    bool upsampled = level > 0, shrunk = upsampled && in != out;
    char name[64];

    if (upsampled && !shrunk) {
        snprintf(name, sizeof name, "level %d upsampler", level);
        builder_block(b, picture_upsample, level, name, "");
        upsampler_weights(b, n, c, level - 1, in);
    }
    for (int32_t r = 0; r < c->resnets; r++) {
        bool first = shrunk && r == 0;
        int64_t channels = r ? out : in, piece = first ? piece_of(c, in) : channels;

        snprintf(name, sizeof name, "level %d%s resnet %d", level, first ? " upsampler and" : "",
            (int)r);
        builder_block(b, first ? upsample_and_shrink : klvae_resnet, level, name, "");
        if (first) upsampler_weights(b, n, c, level - 1, piece);
        klvae_resnet_weights(b, resnet_key(n, c, level, r), channels, out, piece);
    }
}

static void build(struct model_builder *b, const void *config)
{
    const struct klvae_config *c = config;
    struct naming naming = {.ldm = c->ldm_names}, *n = &naming;
    int64_t channels = c->channels[0], latent = c->base.latent_channels;

    builder_block(b, conv_in, 0, "conv in", "decoder.");
    if (c->post_quant) {
        builder_weight(b, "/post_quant_conv.weight", latent, latent);
        builder_weight(b, "/post_quant_conv.bias", 1, latent);
    }
    builder_weight(b, "conv_in.weight", channels, latent * 9);
    builder_weight(b, "conv_in.bias", 1, channels);
    builder_block(b, klvae_resnet, 0, "middle resnet 0", "");
    klvae_resnet_weights(b, resnet_key(n, c, -1, 0), channels, channels, channels);
    if (c->attention)
        klvae_build_attention(
            b, n->ldm ? "decoder.mid.attn_1." : "decoder.mid_block.attentions.0.", channels);
    builder_block(b, klvae_resnet, 0, "middle resnet 1", "");
    klvae_resnet_weights(b, resnet_key(n, c, -1, 1), channels, channels, channels);
    for (int32_t level = 0; level < c->levels; level++)
        build_level(b, n, c, level);
    channels = c->channels[c->levels - 1];
    builder_block(b, conv_out, 0, "conv out", "decoder.");
    builder_weight(b, "conv_norm_out.weight|norm_out.weight", 1, channels);
    builder_weight(b, "conv_norm_out.bias|norm_out.bias", 1, channels);
    builder_weight(b, "conv_out.weight", 3, channels * 9);
    builder_weight(b, "conv_out.bias", 1, 3);
    if (b->status) return;
    builder_pass(b, (struct pass){.name = "decode",
                        .count = b->model->block_count,
                        .globals = -1,
                        .end = picture_decode_end});
}

enum shoal_status klvae_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family family = {
        .name = "kl-vae",
        .key = source_probe(checkpoint, PROBE_LDM) ? PROBE_LDM : PROBE_DIFFUSERS,
        .type_key = "_class_name",
        .type = "AutoencoderKL",
        .config_bytes = sizeof(struct klvae_config),
        .read_config = read_config,
        .build = build,
    };

    return source_open(&family, checkpoint, config_path, model, error);
}
