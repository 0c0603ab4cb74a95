/*
 * The encoder of the KL autoencoder: opening it and its forward functions. It is the decoder's
 * counterpart: resnets that add channels, and convolutions that halve the size, between.
 */
#include "base/size.h"
#include "models/source.h"
#include "models/vae/klvae_blocks.h"

#include <stdio.h>

/* ---- forward ---- */

/* A resnet whose output has other channels: out = shortcut(x), then as klvae_resnet adds to x. */
static void grow(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct vae_lane *l = lane;
    struct picture from = picture_of(l), out = from, inner;
    struct matrix affine = picture_norm(x, block, from, &weights[RESNET_NORM1]), affine2, moments;
    const struct conv conv1 = {.affine = affine, .activation = ACTIVATION_SILU};
    struct conv conv2 = {.activation = ACTIVATION_SILU, .accumulate = true};
    int64_t height = from.height, outs = weights[RESNET_CONV1].rows, strip;

    strip = strip_choose(l, height, picture_bytes(x, from.rows.rows + 2 * outs, from.rows.cols));
    inner = strip_alloc(x, outs, height, from.width, strip);
    moments = picture_moments(x, &inner);
    for (int64_t row = 0; row < height; row += strip) {
        int64_t end = least(row + strip, height);

        strip_at(&inner, row);
        picture_convolve_rows(x, &inner, &from, row, end, &weights[RESNET_CONV1], conv1);
        picture_take_moments(x, moments, &inner, row, end);
    }
    affine2 = picture_fold(
        x, &moments, &inner, weights[RESNET_NORM2], weights[RESNET_NORM2_BIAS], config->groups);
    conv2.affine = affine2;
    out.rows = l->hidden = exec_alloc(x, outs, from.rows.cols);
    picture_convolve(x, out, from, &weights[RESNET_SHORTCUT], (struct conv){0});
    for (int64_t row = 0; row < height; row += strip) {
        int64_t end = least(row + strip, height);

        if (strip < height) {
            int64_t made = strip_next(x, &inner, row);

            picture_convolve_rows(
                x, &inner, &from, made, least(end + 1, height), &weights[RESNET_CONV1], conv1);
        }
        picture_convolve_rows(x, &out, &inner, row, end, &weights[RESNET_CONV2], conv2);
    }
    exec_free(x, &affine2);
    exec_free(x, &inner.rows);
    exec_free(x, &affine);
    exec_free(x, &from.rows);
}

/* Weights: norm, its bias, conv, its bias; quant_conv and its bias if there is one. */
static void encode_out(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct klvae_config *config = block->config;
    struct vae_lane *l = lane;
    struct picture hidden = picture_of(l), out = hidden;
    int64_t channels = config->base.latent_channels;
    struct matrix affine = picture_norm(x, block, hidden, weights);

    out.rows = l->hidden = exec_alloc_float(x, weights[2].rows, hidden.rows.cols);
    picture_convolve(x, out, hidden, weights + 2,
        (struct conv){.affine = affine, .activation = ACTIVATION_SILU});
    exec_free(x, &affine);
    exec_free(x, &hidden.rows);
    for (int64_t c = 0; c < channels; c++) {
        l->host_affine[c] = config->scaling;
        l->host_affine[channels + c] = -config->shift * config->scaling;
    }
    picture_encode_out(x, l, config->post_quant ? weights + 4 : NULL);
}

/* ---- opening ---- */

#define PROBE_DIFFUSERS "encoder.mid_block.resnets.0.norm1.weight"
#define PROBE_LDM "encoder.mid.block_1.norm1.weight"

static const char *down_key(char key[64], const struct klvae_config *c, int level, int resnet)
{
    snprintf(key, 64,
        c->ldm_names ? "encoder.down.%d.block.%d." : "encoder.down_blocks.%d.resnets.%d.", level,
        resnet);
    return key;
}

static const char *middle_key(char key[64], const struct klvae_config *c, int resnet)
{
    snprintf(key, 64, c->ldm_names ? "encoder.mid.block_%d." : "encoder.mid_block.resnets.%d.",
        resnet + c->ldm_names);
    return key;
}

static void read_config(struct source *s, void *config)
{
    struct klvae_config *c = config;
    char key[64], name[128];

    c->ldm_names = source_tensor(s, PROBE_LDM) != NULL;
    c->base.latent_channels = source_dim(s, "encoder.conv_out.weight", 0) / 2;
    c->levels = source_count(s, c->ldm_names ? "encoder.down." : "encoder.down_blocks.");
    if (!s->status && (c->levels < 1 || c->levels > KLVAE_MAX_LEVELS))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: an encoder of %d levels; this build runs up to %d", checkpoint_path(s->checkpoint),
            (int)c->levels, KLVAE_MAX_LEVELS);
    if (s->status) return;
    c->base.factor = 1 << (c->levels - 1);
    c->resnets =
        source_count(s, c->ldm_names ? "encoder.down.0.block." : "encoder.down_blocks.0.resnets.");
    for (int32_t i = 0; i < c->levels; i++) {
        snprintf(name, sizeof name, "%sconv1.weight", down_key(key, c, i, 0));
        c->channels[i] = source_dim(s, name, 0);
    }
    c->attention =
        source_tensor(s, c->ldm_names ? "encoder.mid.attn_1.q.weight"
                                      : "encoder.mid_block.attentions.0.to_q.weight") != NULL;
    c->post_quant = source_tensor(s, "quant_conv.weight") != NULL;
}

static void build_resnet(
    struct model_builder *b, const char *name, const char *key, int64_t in, int64_t out)
{
    builder_block(b, in == out ? klvae_resnet : grow, 0, name, "");
    klvae_resnet_weights(b, key, in, out, in);
}

static void build_level(struct model_builder *b, const struct klvae_config *c, int level)
{
    int64_t in = c->channels[level ? level - 1 : 0], out = c->channels[level];
    char name[64], key[64];

    for (int32_t r = 0; r < c->resnets; r++) {
        snprintf(name, sizeof name, "level %d resnet %d", level, (int)r);
        build_resnet(b, name, down_key(key, c, level, r), r ? out : in, out);
    }
    if (level + 1 == c->levels) return;
    snprintf(name, sizeof name, "level %d downsampler", level);
    snprintf(key, sizeof key, c->ldm_names ? "encoder.down.%d." : "encoder.down_blocks.%d.", level);
    builder_block(b, picture_downsample, level, name, key);
    builder_weight(b, "downsamplers.0.conv.weight|downsample.conv.weight", out, out * 9);
    builder_weight(b, "downsamplers.0.conv.bias|downsample.conv.bias", 1, out);
}

static void build(struct model_builder *b, const void *config)
{
    const struct klvae_config *c = config;
    int64_t channels = c->channels[0], moments = 2 * c->base.latent_channels;
    char key[64];

    builder_block(b, picture_encode_in, 0, "conv in", "encoder.");
    builder_weight(b, "conv_in.weight", channels, 3 * 9);
    builder_weight(b, "conv_in.bias", 1, channels);
    for (int32_t level = 0; level < c->levels; level++)
        build_level(b, c, level);
    channels = c->channels[c->levels - 1];
    build_resnet(b, "middle resnet 0", middle_key(key, c, 0), channels, channels);
    if (c->attention)
        klvae_build_attention(
            b, c->ldm_names ? "encoder.mid.attn_1." : "encoder.mid_block.attentions.0.", channels);
    build_resnet(b, "middle resnet 1", middle_key(key, c, 1), channels, channels);
    builder_block(b, encode_out, 0, "conv out", "encoder.");
    builder_weight(b, "conv_norm_out.weight|norm_out.weight", 1, channels);
    builder_weight(b, "conv_norm_out.bias|norm_out.bias", 1, channels);
    builder_weight(b, "conv_out.weight", moments, channels * 9);
    builder_weight(b, "conv_out.bias", 1, moments);
    if (c->post_quant) {
        builder_weight(b, "/quant_conv.weight", moments, moments);
        builder_weight(b, "/quant_conv.bias", 1, moments);
    }
    if (b->status) return;
    builder_pass(b, (struct pass){.name = "encode",
                        .count = b->model->block_count,
                        .globals = -1,
                        .end = picture_encode_end});
}

/* Takes from the decoder what tensors do not say, and checks that the two belong together. */
static enum shoal_status match(struct model *model, const struct klvae_config *decoder,
    const char *path, struct shoal_error *error)
{
    struct klvae_config *c = model->config;

    c->groups = decoder->groups;
    c->scaling = decoder->scaling;
    c->shift = decoder->shift;
    TRY(vae_encoder_fits(&c->base, &decoder->base, path, error));
    for (int32_t i = 0; i < c->levels; i++)
        if (c->channels[i] % c->groups)
            FAIL(error, SHOAL_E_FORMAT,
                "%s: %lld channels of the encoder do not divide into %d groups", path,
                (long long)c->channels[i], (int)c->groups);
    return SHOAL_OK;
}

enum shoal_status klvae_encoder_open(const struct checkpoint *checkpoint,
    const struct model *decoder, struct model **model, struct shoal_error *error)
{
    const bool ldm = source_probe(checkpoint, PROBE_LDM) != NULL;
    const struct source_family family = {
        .name = "kl-vae encoder",
        .key = ldm ? PROBE_LDM : PROBE_DIFFUSERS,
        .config_bytes = sizeof(struct klvae_config),
        .read_config = read_config,
        .build = build,
    };
    enum shoal_status status;

    *model = NULL;
    if (!source_probe(checkpoint, family.key)) return vae_encoder_missing(checkpoint, error);
    TRY(source_open(&family, checkpoint, NULL, model, error));
    status = match(*model, klvae_config(decoder), checkpoint_path(checkpoint), error);
    if (status) model_destroy(model);
    return status;
}
