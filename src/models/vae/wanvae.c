/*
 * Opening the decoder and the encoder of the Wan VAE: what their tensors are called and what shapes
 * say. The two differ little: the decoder has its middle first, and a resnet more in each level.
 *
 * Its kernels are over frames too, and have three planes (struct conv says which is used). Where
 * frames are joined or split, single ones pass as they are: those kernels are not read.
 */
#include "models/vae/wanvae.h"

#include "models/source.h"
#include "models/vae/picture.h"
#include "models/vae/wanvae_blocks.h"

#include <stdio.h>
#include <string.h>

#define PLANES 3
#define TAPS (PLANES * 9)

static const struct probe {
    const char *decoder, *encoder;
} original = {"decoder.middle.0.residual.0.gamma", "encoder.middle.0.residual.0.gamma"},
  diffusers = {
      "decoder.mid_block.resnets.0.norm1.gamma", "encoder.mid_block.resnets.0.norm1.gamma"};

/* Of the 16 channels that the published models have. Source: latents_mean and latents_std of
 * diffusers' AutoencoderKLWan. */
#define KNOWN_CHANNELS 16
static const float known_mean[KNOWN_CHANNELS] = {-0.7571f, -0.7089f, -0.9113f, 0.1075f, -0.1745f,
    0.9653f, -0.1517f, 1.5508f, 0.4134f, -0.0715f, 0.5517f, -0.3632f, -0.1922f, -0.9497f, 0.2503f,
    -0.2921f};
static const float known_deviation[KNOWN_CHANNELS] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f,
    1.7708f, 2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f, 1.5579f, 1.6382f, 1.1253f, 2.8251f,
    1.9160f};

/* ---- names ---- */

#define KEY_BYTES 64

static const char *side(const struct wanvae_config *c)
{
    return c->encoder ? "encoder." : "decoder.";
}

/* What all levels' steps begin with, where they are numbered through. */
static const char *steps(const struct wanvae_config *c)
{
    if (!c->original_names) return "encoder.down_blocks.";
    return c->encoder ? "encoder.downsamples." : "decoder.upsamples.";
}

/* The key prefix of a level's resnet or, after the last of them, of its change of size. */
static const char *step_key(
    char key[KEY_BYTES], const struct wanvae_config *c, int32_t level, int32_t step)
{
    if (c->original_names || c->encoder)
        snprintf(key, KEY_BYTES, "%s%d.", steps(c), (int)(level * (c->resnets + 1) + step));
    else if (step < c->resnets)
        snprintf(key, KEY_BYTES, "decoder.up_blocks.%d.resnets.%d.", (int)level, (int)step);
    else
        snprintf(key, KEY_BYTES, "decoder.up_blocks.%d.upsamplers.0.", (int)level);
    return key;
}

/* Of the middle's three steps, the second of which is the attention. */
static const char *middle_key(char key[KEY_BYTES], const struct wanvae_config *c, int32_t step)
{
    if (c->original_names)
        snprintf(key, KEY_BYTES, "%smiddle.%d.", side(c), (int)step);
    else if (step == 1)
        snprintf(key, KEY_BYTES, "%smid_block.attentions.0.", side(c));
    else
        snprintf(key, KEY_BYTES, "%smid_block.resnets.%d.", side(c), (int)step / 2);
    return key;
}

/* ---- the configuration ---- */

/* How many levels there are, and resnets in them. */
static void read_levels(struct source *s, struct wanvae_config *c)
{
    int32_t count, resnets = 0;
    char name[2 * KEY_BYTES];

    if (!c->original_names && !c->encoder) {
        c->levels = source_count(s, "decoder.up_blocks.");
        c->resnets = source_count(s, "decoder.up_blocks.0.resnets.");
    } else {
        count = source_count(s, steps(c));
        for (; resnets < count; resnets++) {
            snprintf(name, sizeof name, "%s%d.resample.1.weight", steps(c), (int)resnets);
            if (source_tensor(s, name)) break;
        }
        c->resnets = resnets;
        c->levels = (count + 1) / (resnets + 1);
        /* Steps that do not divide into levels leave some out: a level has fewer. */
        if (c->levels * (resnets + 1) != count + 1) c->levels++;
    }
    if (s->status || (c->levels >= 1 && c->levels <= WANVAE_MAX_LEVELS && c->resnets >= 1)) return;
    s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
        "%s: a VAE of %d levels of %d resnets; this build runs up to %d levels",
        checkpoint_path(s->checkpoint), (int)c->levels, (int)c->resnets, WANVAE_MAX_LEVELS);
}

/* Colours of the pictures, which are those of the convolution at that end. */
static void check_colours(struct source *s, const struct wanvae_config *c)
{
    int64_t colours = c->encoder
                          ? source_dim(s, "encoder.conv1.weight|encoder.conv_in.weight", 1)
                          : source_dim(s, "decoder.head.2.weight|decoder.conv_out.weight", 0);

    if (s->status || colours == 3) return;
    s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
        "%s: a VAE of pictures of %lld channels (4: with transparency, as Qwen-Image-Layered's; "
        "12: "
        "of four pixels at a time); this build runs those of 3, as Wan 2.1's and Qwen-Image's",
        checkpoint_path(s->checkpoint), (long long)colours);
}

static void read_config(struct source *s, struct wanvae_config *c)
{
    char key[KEY_BYTES], name[2 * KEY_BYTES];

    c->original_names = source_tensor(s, c->encoder ? original.encoder : original.decoder) != NULL;
    check_colours(s, c);
    c->base.latent_channels =
        c->encoder ? source_dim(s, "encoder.head.2.weight|encoder.conv_out.weight", 0) / 2
                   : source_dim(s, "decoder.conv1.weight|decoder.conv_in.weight", 1);
    if (!s->status && c->base.latent_channels > VAE_MAX_CHANNELS)
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: a VAE of %lld latent channels; this build runs up to %d",
            checkpoint_path(s->checkpoint), (long long)c->base.latent_channels, VAE_MAX_CHANNELS);
    read_levels(s, c);
    if (s->status) return;
    c->base.factor = 1 << (c->levels - 1);
    for (int32_t i = 0; i < c->levels; i++) {
        snprintf(name, sizeof name, "%s%s", step_key(key, c, i, 0),
            c->original_names ? "residual.2.weight" : "conv1.weight");
        c->channels[i] = source_dim(s, name, 0);
    }
}

static void read_statistics(struct source *s, struct wanvae_config *c)
{
    int32_t channels = (int32_t)c->base.latent_channels;
    const bool mean = source_numbers(s, "latents_mean", c->mean, channels, -1e6, 1e6);
    const bool deviation = source_numbers(s, "latents_std", c->deviation, channels, 1e-6, 1e6);

    if (s->status || (mean && deviation)) return;
    if (channels == KNOWN_CHANNELS && !mean && !deviation) {
        memcpy(c->mean, known_mean, sizeof known_mean);
        memcpy(c->deviation, known_deviation, sizeof known_deviation);
        return;
    }
    s->status = error_set(s->error, SHOAL_E_MISSING, __FILE__, __LINE__,
        "%s: a VAE of %d latent channels; their \"latents_mean\" and \"latents_std\" are known "
        "only "
        "from a config.json, and there is none beside it that says both",
        checkpoint_path(s->checkpoint), (int)channels);
}

/* What the config says against what the decoder's tensors do. */
static void check_config(struct source *s, const struct wanvae_config *c)
{
    int64_t base = c->channels[c->levels - 1], said[WANVAE_MAX_LEVELS];
    int32_t count = source_integers(s, "dim_mult", said, WANVAE_MAX_LEVELS, 1, 1 << 16);

    source_agrees(s, "z_dim", c->base.latent_channels, "decoder's first convolution");
    source_agrees(s, "base_dim", base, "decoder's last level");
    source_agrees(s, "decoder_base_dim", base, "decoder's last level");
    source_agrees(s, "num_res_blocks", c->resnets - 1, "decoder's resnets");
    source_agrees(s, "in_channels", 3, "decoder's last convolution");
    source_agrees(s, "input_channels", 3, "decoder's last convolution");
    source_agrees(s, "out_channels", 3, "decoder's last convolution");
    source_agrees(s, "scale_factor_spatial", c->base.factor, "decoder's levels");
    source_requires_bool(s, "is_residual", false);
    source_requires_null(s, "patch_size");
    (void)source_integers(s, "attn_scales", NULL, 0, 0, 0);
    for (int32_t i = 0; i < count && !s->status; i++)
        if (count != c->levels || said[count - 1 - i] * base != c->channels[i])
            s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
                "%s: \"dim_mult\" has %d entries, the %s %lld, but in %s there are %d levels, of "
                "%lld channels",
                s->config_path, (int)count, i ? "next" : "last", (long long)said[count - 1 - i],
                checkpoint_path(s->checkpoint), (int)c->levels, (long long)c->channels[i]);
}

static void read_decoder(struct source *s, void *config)
{
    static const struct vae_family family = {.encoder_open = wanvae_encoder_open};
    struct wanvae_config *c = config;

    c->base.family = &family;
    read_config(s, c);
    if (s->status) return;
    check_config(s, c);
    read_statistics(s, c);
}

static void read_encoder(struct source *s, void *config)
{
    struct wanvae_config *c = config;

    c->encoder = true;
    read_config(s, c);
}

/* ---- the blocks ---- */

static void build_resnet(
    struct model_builder *b, const char *name, const char *key, int64_t in, int64_t out)
{
    builder_block(b, wanvae_resnet, 0, name, key);
    builder_weight(b, "residual.0.gamma|norm1.gamma", 1, in);
    builder_weight(b, "residual.2.weight|conv1.weight", out, in * TAPS);
    builder_weight(b, "residual.2.bias|conv1.bias", 1, out);
    builder_weight(b, "residual.3.gamma|norm2.gamma", 1, out);
    builder_weight(b, "residual.6.weight|conv2.weight", out, out * TAPS);
    builder_weight(b, "residual.6.bias|conv2.bias", 1, out);
    if (in == out) return;
    builder_weight(b, "shortcut.weight|conv_shortcut.weight", out, in);
    builder_weight(b, "shortcut.bias|conv_shortcut.bias", 1, out);
}

static void build_middle(struct model_builder *b, const struct wanvae_config *c, int64_t channels)
{
    char key[KEY_BYTES];

    build_resnet(b, "middle resnet 0", middle_key(key, c, 0), channels, channels);
    builder_block(b, wanvae_attention, 0, "middle attention", middle_key(key, c, 1));
    builder_weight(b, "norm.gamma", 1, channels);
    builder_weight(b, "to_qkv.weight", 3 * channels, channels);
    builder_weight(b, "to_qkv.bias", 1, 3 * channels);
    builder_weight(b, "proj.weight", channels, channels);
    builder_weight(b, "proj.bias", 1, channels);
    build_resnet(b, "middle resnet 1", middle_key(key, c, 2), channels, channels);
}

/* A level's resnets and its change of size, if it has one. Returns the channels after it. */
static int64_t build_level(
    struct model_builder *b, const struct wanvae_config *c, int32_t level, int64_t in)
{
    int64_t out = c->channels[level], resized = c->encoder ? out : out / 2;
    char name[64], key[KEY_BYTES];

    for (int32_t r = 0; r < c->resnets; r++) {
        snprintf(name, sizeof name, "level %d resnet %d", (int)level, (int)r);
        build_resnet(b, name, step_key(key, c, level, r), r ? out : in, out);
    }
    if (level + 1 == c->levels) return out;
    snprintf(
        name, sizeof name, "level %d %s", (int)level, c->encoder ? "downsampler" : "upsampler");
    builder_block(b, c->encoder ? picture_downsample : picture_upsample, level, name,
        step_key(key, c, level, c->resnets));
    builder_weight(b, "resample.1.weight", resized, out * 9);
    builder_weight(b, "resample.1.bias", 1, resized);
    builder_ignore(b, "time_conv.weight|time_conv.bias");
    return resized;
}

static void build_in(struct model_builder *b, const struct wanvae_config *c, int64_t channels)
{
    int64_t latent = c->base.latent_channels;

    builder_block(b, c->encoder ? picture_encode_in : wanvae_decode_in, 0, "conv in", side(c));
    if (!c->encoder) {
        builder_weight(b, "/conv2.weight|/post_quant_conv.weight", latent, latent);
        builder_weight(b, "/conv2.bias|/post_quant_conv.bias", 1, latent);
    }
    builder_weight(b, "conv1.weight|conv_in.weight", channels, (c->encoder ? 3 : latent) * TAPS);
    builder_weight(b, "conv1.bias|conv_in.bias", 1, channels);
}

static void build_out(struct model_builder *b, const struct wanvae_config *c, int64_t channels)
{
    int64_t out = c->encoder ? 2 * c->base.latent_channels : 3;

    builder_block(b, c->encoder ? wanvae_encode_out : wanvae_decode_out, 0, "conv out", side(c));
    builder_weight(b, "head.0.gamma|norm_out.gamma", 1, channels);
    builder_weight(b, "head.2.weight|conv_out.weight", out, channels * TAPS);
    builder_weight(b, "head.2.bias|conv_out.bias", 1, out);
    if (!c->encoder) return;
    builder_weight(b, "/conv1.weight|/quant_conv.weight", out, out);
    builder_weight(b, "/conv1.bias|/quant_conv.bias", 1, out);
}

static void build(struct model_builder *b, const void *config)
{
    const struct wanvae_config *c = config;
    int64_t channels = c->channels[0];

    build_in(b, c, channels);
    if (!c->encoder) build_middle(b, c, channels);
    for (int32_t level = 0; level < c->levels; level++)
        channels = build_level(b, c, level, channels);
    if (c->encoder) build_middle(b, c, channels);
    build_out(b, c, channels);
    if (b->status) return;
    builder_pass(b, (struct pass){.name = c->encoder ? "encode" : "decode",
                        .count = b->model->block_count,
                        .globals = -1,
                        .end = c->encoder ? picture_encode_end : picture_decode_end});
}

/* ---- opening ---- */

enum shoal_status wanvae_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family family = {
        .name = "wan-vae",
        .key = source_probe(checkpoint, original.decoder) ? original.decoder : diffusers.decoder,
        .type_key = "_class_name",
        .type = "AutoencoderKLWan|AutoencoderKLQwenImage",
        .config_bytes = sizeof(struct wanvae_config),
        .read_config = read_decoder,
        .build = build,
    };

    return source_open(&family, checkpoint, config_path, model, error);
}

/* Takes from the decoder what tensors do not say, and checks that the two belong together. */
static enum shoal_status match(struct wanvae_config *c, const struct wanvae_config *decoder,
    const char *path, struct shoal_error *error)
{
    memcpy(c->mean, decoder->mean, sizeof c->mean);
    memcpy(c->deviation, decoder->deviation, sizeof c->deviation);
    return vae_encoder_fits(&c->base, &decoder->base, path, error);
}

enum shoal_status wanvae_encoder_open(const struct checkpoint *checkpoint,
    const struct model *decoder, struct model **model, struct shoal_error *error)
{
    const struct source_family family = {
        .name = "wan-vae encoder",
        .key = source_probe(checkpoint, original.encoder) ? original.encoder : diffusers.encoder,
        .config_bytes = sizeof(struct wanvae_config),
        .read_config = read_encoder,
        .build = build,
    };
    enum shoal_status status;

    *model = NULL;
    if (!source_probe(checkpoint, family.key)) return vae_encoder_missing(checkpoint, error);
    TRY(source_open(&family, checkpoint, NULL, model, error));
    status = match((*model)->config, decoder->config, checkpoint_path(checkpoint), error);
    if (status) model_destroy(model);
    return status;
}
