/*
 * The decoder of the KL autoencoder: opening it and its forward functions.
 *
 * Pictures are [channels, pixels]. Group norms are folded into the convolution that follows them,
 * upsampling too, and a residual's second convolution adds into what is there, so a step holds its
 * input and what it makes, nothing else.
 */
#include "models/vae/klvae.h"

#include "base/memory.h"
#include "models/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NORM_EPS 1e-6f
#define MAX_LATENT_CHANNELS 64

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

enum {
    ATTENTION_NORM,
    ATTENTION_NORM_BIAS,
    ATTENTION_QKV,
    ATTENTION_QKV_BIAS,
    ATTENTION_OUT,
    ATTENTION_OUT_BIAS,
};

const struct klvae_config *klvae_config(const struct model *model)
{
    return model->config;
}

/* ---- forward ---- */

/* y = the convolution of x, which is `height` x `width` large (half of that if upsampled). */
static void convolve(
    struct exec *x, struct matrix y, struct matrix input, const struct matrix *w, struct conv conv)
{
    conv.kernel = w[0].cols == input.rows ? 1 : 3;
    if (!conv.upsample) conv.upsample = 1;
    x->ops->conv2d(x->stream, y, input, w[0], w[1], &conv);
}

/* Group norm of `input` as an affine map of its channels; the caller frees it. */
static struct matrix norm_of(
    struct exec *x, const struct block *block, struct matrix input, const struct matrix *weights)
{
    const struct klvae_config *config = block->config;
    struct matrix affine = exec_alloc_float(x, 2, input.rows);

    x->ops->group_norm(x->stream, affine, input, weights[0], weights[1], config->groups, NORM_EPS);
    return affine;
}

/* Weights: conv_in, its bias; before them post_quant_conv and its bias if there is one. */
static void conv_in(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct klvae_lane *l = lane;
    const struct matrix *conv_weights = weights + (config->post_quant ? 2 : 0);
    struct matrix input = l->latent, latent = MATRIX_NONE;
    struct matrix affine = exec_alloc_float(x, 2, config->latent_channels);

    for (int64_t c = 0; c < config->latent_channels; c++) {
        l->host_affine[c] = 1.0f / config->scaling;
        l->host_affine[config->latent_channels + c] = config->shift;
    }
    exec_upload(x, affine, l->host_affine);
    l->hidden_height = l->height;
    l->hidden_width = l->width;
    l->hidden = exec_alloc(x, conv_weights[0].rows, l->height * l->width);
    if (config->post_quant) {
        latent = exec_alloc(x, config->latent_channels, l->height * l->width);
        convolve(x, latent, input, weights,
            (struct conv){.height = l->height, .width = l->width, .affine = affine});
        input = latent;
    }
    convolve(x, l->hidden, input, conv_weights,
        (struct conv){.height = l->height,
            .width = l->width,
            .affine = config->post_quant ? MATRIX_NONE : affine});
    exec_free(x, &latent);
    exec_free(x, &affine);
}

/* The second half of a resnet: l->hidden += conv2(silu(norm2(inner))); frees inner. */
static void resnet_finish(struct exec *x, const struct block *block, const struct matrix *weights,
    struct klvae_lane *l, struct matrix *inner)
{
    struct matrix affine = norm_of(x, block, *inner, &weights[RESNET_NORM2]);

    convolve(x, l->hidden, *inner, &weights[RESNET_CONV2],
        (struct conv){.height = l->hidden_height,
            .width = l->hidden_width,
            .affine = affine,
            .activation = ACTIVATION_SILU,
            .accumulate = true});
    exec_free(x, &affine);
    exec_free(x, inner);
}

static void resnet(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct klvae_lane *l = lane;
    struct conv conv = {.height = l->hidden_height, .width = l->hidden_width};
    struct matrix out = MATRIX_NONE, inner, affine;

    if (block->weight_count > RESNET_SHORTCUT) {
        out = exec_alloc(x, weights[RESNET_CONV2].rows, l->hidden.cols);
        convolve(x, out, l->hidden, &weights[RESNET_SHORTCUT], conv);
    }
    inner = exec_alloc(x, weights[RESNET_CONV1].rows, l->hidden.cols);
    affine = norm_of(x, block, l->hidden, &weights[RESNET_NORM1]);
    conv.affine = affine;
    conv.activation = ACTIVATION_SILU;
    convolve(x, inner, l->hidden, &weights[RESNET_CONV1], conv);
    exec_free(x, &affine);
    if (block->weight_count > RESNET_SHORTCUT) {
        exec_free(x, &l->hidden);
        l->hidden = out;
    }
    resnet_finish(x, block, weights, l, &inner);
}

/* Self-attention over pixels, one head. */
static void attention(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct klvae_lane *l = lane;
    int64_t channels = l->hidden.rows, pixels = l->hidden.cols;
    struct matrix tokens = exec_alloc(x, pixels, channels), qkv;
    struct matrix picture = exec_alloc(x, channels, pixels);
    struct matrix affine = norm_of(x, block, l->hidden, &weights[ATTENTION_NORM]);

    x->ops->affine(x->stream, picture, l->hidden, affine, ACTIVATION_NONE);
    x->ops->transpose(x->stream, tokens, picture);
    exec_free(x, &affine);
    exec_free(x, &picture);

    qkv = exec_alloc(x, pixels, 3 * channels);
    x->ops->linear(x->stream, qkv, tokens, weights[ATTENTION_QKV], weights[ATTENTION_QKV_BIAS]);
    x->ops->attention(x->stream, tokens, matrix_cols(qkv, 0, channels),
        matrix_cols(qkv, channels, channels), matrix_cols(qkv, 2 * channels, channels), 1, 1,
        1.0f / sqrtf((float)channels), false);
    exec_free(x, &qkv);

    qkv = exec_alloc(x, pixels, channels); /* now the projection */
    x->ops->linear(x->stream, qkv, tokens, weights[ATTENTION_OUT], weights[ATTENTION_OUT_BIAS]);
    exec_free(x, &tokens);
    picture = exec_alloc(x, channels, pixels);
    x->ops->transpose(x->stream, picture, qkv);
    exec_free(x, &qkv);
    x->ops->gated_add(x->stream, l->hidden, MATRIX_NONE, picture);
    exec_free(x, &picture);
}

/* Weights: the convolution and its bias. */
static void upsample(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct klvae_lane *l = lane;
    struct matrix out = exec_alloc(x, weights[0].rows, 4 * l->hidden.cols);

    (void)block;
    l->hidden_height *= 2;
    l->hidden_width *= 2;
    convolve(x, out, l->hidden, weights,
        (struct conv){.height = l->hidden_height, .width = l->hidden_width, .upsample = 2});
    exec_free(x, &l->hidden);
    l->hidden = out;
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

/* One piece: channels [first, first + u.rows). */
static void shrink_piece(struct exec *x, const struct block *block, const struct matrix *weights,
    struct klvae_lane *l, struct matrix u, int64_t first, struct matrix out, struct matrix inner)
{
    const struct klvae_config *config = block->config;
    const struct matrix *r = weights + 2;
    int64_t count = u.rows;
    int32_t groups = (int32_t)(count * config->groups / weights[0].rows);
    struct matrix affine = exec_alloc_float(x, 2, count);
    struct conv conv = {.height = l->hidden_height, .width = l->hidden_width};
    struct matrix up[2] = {
        matrix_rows(weights[0], first, count), matrix_cols(weights[1], first, count)};
    /* The biases are added once, with the first piece. */
    struct matrix shortcut[2] = {matrix_cols(r[RESNET_SHORTCUT], first, count),
        first ? MATRIX_NONE : r[RESNET_SHORTCUT_BIAS]};
    struct matrix conv1[2] = {matrix_cols(r[RESNET_CONV1], 9 * first, 9 * count),
        first ? MATRIX_NONE : r[RESNET_CONV1_BIAS]};

    conv.upsample = 2;
    convolve(x, u, l->hidden, up, conv);
    conv.upsample = 1;
    conv.accumulate = first > 0;
    convolve(x, out, u, shortcut, conv);
    x->ops->group_norm(x->stream, affine, u, matrix_cols(r[RESNET_NORM1], first, count),
        matrix_cols(r[RESNET_NORM1_BIAS], first, count), groups, NORM_EPS);
    conv.affine = affine;
    conv.activation = ACTIVATION_SILU;
    convolve(x, inner, u, conv1, conv);
    exec_free(x, &affine);
}

static void upsample_and_shrink(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct klvae_lane *l = lane;
    int64_t channels = weights[0].rows, piece = piece_of(config, channels);
    int64_t pixels = 4 * l->hidden.cols;
    struct matrix out, inner, u;

    exec_settle(x, &l->hidden);
    out = exec_alloc(x, weights[2 + RESNET_CONV1].rows, pixels);
    inner = exec_alloc(x, out.rows, pixels);
    l->hidden_height *= 2;
    l->hidden_width *= 2;
    for (int64_t first = 0; first < channels; first += piece) {
        u = exec_alloc(x, channels - first < piece ? channels - first : piece, pixels);
        shrink_piece(x, block, weights, l, u, first, out, inner);
        exec_free(x, &u);
    }
    exec_free(x, &l->hidden);
    l->hidden = out;
    resnet_finish(x, block, weights + 2, l, &inner);
}

/* ---- forward: the last block and the end ---- */

/* Weights: norm, its bias, conv, its bias. */
static void conv_out(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct klvae_lane *l = lane;
    struct matrix image = exec_alloc_float(x, weights[2].rows, l->hidden.cols);
    struct matrix affine = norm_of(x, block, l->hidden, weights);

    convolve(x, image, l->hidden, weights + 2,
        (struct conv){.height = l->hidden_height,
            .width = l->hidden_width,
            .affine = affine,
            .activation = ACTIVATION_SILU});
    exec_free(x, &affine);
    exec_free(x, &l->hidden);
    l->hidden = image;
}

static void decode_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct klvae_lane *l = lane;

    (void)block;
    (void)weights;
    exec_download(x, l->image, l->hidden);
    klvae_lane_fini(x, l);
}

void klvae_lane_fini(struct exec *x, struct klvae_lane *lane)
{
    exec_free(x, &lane->hidden);
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
    bool known = c->latent_channels == 16;

    c->groups = (int32_t)source_number(s, "norm_num_groups", 32, 1, 1024);
    c->scaling = (float)source_number(s, "scaling_factor", known ? 0.3611 : 0.0, 1e-6, 1e6);
    c->shift =
        (float)source_number(s, "shift_factor", known && !s->config ? 0.1159 : 0.0, -1e6, 1e6);
    if (!s->status && c->scaling == 0.0f)
        s->status = error_set(s->error, SHOAL_E_MISSING, __FILE__, __LINE__,
            "%s: a VAE of %lld latent channels; its \"scaling_factor\" is known only from a "
            "config.json, and there is none beside it that says it",
            checkpoint_path(s->checkpoint), (long long)c->latent_channels);
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

    source_agrees(s, "latent_channels", c->latent_channels, "decoder.conv_in.weight");
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
    struct klvae_config *c = config;
    struct naming naming = {.ldm = source_tensor(s, PROBE_LDM) != NULL}, *n = &naming;
    char group[64];

    c->ldm_names = naming.ldm;
    c->latent_channels = source_dim(s, "decoder.conv_in.weight", 1);
    c->levels = source_count(s, n->ldm ? "decoder.up." : "decoder.up_blocks.");
    if (!s->status &&
        (c->levels < 1 || c->levels > KLVAE_MAX_LEVELS || c->latent_channels > MAX_LATENT_CHANNELS))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: a VAE of %d levels and %lld latent channels; this build runs up to %d and %d",
            checkpoint_path(s->checkpoint), (int)c->levels, (long long)c->latent_channels,
            KLVAE_MAX_LEVELS, MAX_LATENT_CHANNELS);
    if (s->status) return;
    c->factor = 1 << (c->levels - 1);
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

/* A resnet's weights, added to the current block. `piece`: of its input's channels, used at a time.
 */
static void resnet_weights(
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
        builder_block(b, upsample, level, name, "");
        upsampler_weights(b, n, c, level - 1, in);
    }
    for (int32_t r = 0; r < c->resnets; r++) {
        bool first = shrunk && r == 0;
        int64_t channels = r ? out : in, piece = first ? piece_of(c, in) : channels;

        snprintf(name, sizeof name, "level %d%s resnet %d", level, first ? " upsampler and" : "",
            (int)r);
        builder_block(b, first ? upsample_and_shrink : resnet, level, name, "");
        if (first) upsampler_weights(b, n, c, level - 1, piece);
        resnet_weights(b, resnet_key(n, c, level, r), channels, out, piece);
    }
}

static void build_attention(struct model_builder *b, const struct naming *n, int64_t channels)
{
    builder_block(b, attention, 0, "middle attention",
        n->ldm ? "decoder.mid.attn_1." : "decoder.mid_block.attentions.0.");
    builder_weight(b, "group_norm.weight|norm.weight", 1, channels);
    builder_weight(b, "group_norm.bias|norm.bias", 1, channels);
    builder_weight(b, "to_q.weight+to_k.weight+to_v.weight|q.weight+k.weight+v.weight",
        3 * channels, channels);
    builder_weight(b, "to_q.bias+to_k.bias+to_v.bias|q.bias+k.bias+v.bias", 1, 3 * channels);
    builder_weight(b, "to_out.0.weight|proj_out.weight", channels, channels);
    builder_weight(b, "to_out.0.bias|proj_out.bias", 1, channels);
}

static void build(struct model_builder *b, const void *config)
{
    const struct klvae_config *c = config;
    struct naming naming = {.ldm = c->ldm_names}, *n = &naming;
    int64_t channels = c->channels[0], latent = c->latent_channels;

    builder_block(b, conv_in, 0, "conv in", "decoder.");
    if (c->post_quant) {
        builder_weight(b, "/post_quant_conv.weight", latent, latent);
        builder_weight(b, "/post_quant_conv.bias", 1, latent);
    }
    builder_weight(b, "conv_in.weight", channels, latent * 9);
    builder_weight(b, "conv_in.bias", 1, channels);
    builder_block(b, resnet, 0, "middle resnet 0", "");
    resnet_weights(b, resnet_key(n, c, -1, 0), channels, channels, channels);
    if (c->attention) build_attention(b, n, channels);
    builder_block(b, resnet, 0, "middle resnet 1", "");
    resnet_weights(b, resnet_key(n, c, -1, 1), channels, channels, channels);
    for (int32_t level = 0; level < c->levels; level++)
        build_level(b, n, c, level);
    channels = c->channels[c->levels - 1];
    builder_block(b, conv_out, 0, "conv out", "decoder.");
    builder_weight(b, "conv_norm_out.weight|norm_out.weight", 1, channels);
    builder_weight(b, "conv_norm_out.bias|norm_out.bias", 1, channels);
    builder_weight(b, "conv_out.weight", 3, channels * 9);
    builder_weight(b, "conv_out.bias", 1, 3);
    if (b->status) return;
    builder_pass(
        b, (struct pass){
               .name = "decode", .count = b->model->block_count, .globals = -1, .end = decode_end});
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
