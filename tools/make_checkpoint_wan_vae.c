/* The Wan 2.1 VAE as make_checkpoint makes it, which Qwen-Image has. docs/models.md says what it
 * is. */
#include "make_checkpoint.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>

#define LEVELS 4
#define BLOCKS 2 /* resnets a level; one more on the way up */

static const int64_t bases[2] = {96, 8}; /* channels: the real one, the small one */
static const int64_t factors[LEVELS] = {1, 2, 4, 4};

/* Convolutions over frames have cubes for kernels, of which a single frame meets the last plane. */
static void conv(struct make_list *list, const char *name, const char *stored, struct shape shape)
{
    const int64_t rows = shape.dim[shape.rank - 2], cols = shape.dim[shape.rank - 1];
    const double inputs = (double)(shape.dim[1] * rows * cols);
    char weight[2][48], bias[2][48];

    for (int i = 0; i < 2; i++) {
        snprintf(weight[i], sizeof weight[i], "%s.weight", i ? stored : name);
        snprintf(bias[i], sizeof bias[i], "%s.bias", i ? stored : name);
    }
    list_tensor(list, weight[0], weight[1], &shape, 0, 1 / sqrt(inputs));
    list_bias(list, bias[0], bias[1], shape.dim[0]);
}

static void cube(struct make_list *list, const char *name, const char *stored, int64_t outputs,
    int64_t inputs, int64_t kernel)
{
    conv(list, name, stored, (struct shape){5, {outputs, inputs, kernel, kernel, kernel}});
}

static void plane(
    struct make_list *list, const char *name, int64_t outputs, int64_t inputs, int64_t kernel)
{
    conv(list, name, name, (struct shape){4, {outputs, inputs, kernel, kernel}});
}

static void norm(
    struct make_list *list, const char *name, const char *stored, int64_t channels, bool cubic)
{
    const struct shape shape = {cubic ? 4 : 3, {channels, 1, 1, 1}};

    list_tensor(list, name, stored, &shape, 1, 0.02);
}

static void resnet(struct make_list *list, int64_t outputs, int64_t inputs)
{
    norm(list, "norm1.gamma", "residual.0.gamma", inputs, true);
    cube(list, "conv1", "residual.2", outputs, inputs, 3);
    norm(list, "norm2.gamma", "residual.3.gamma", outputs, true);
    cube(list, "conv2", "residual.6", outputs, outputs, 3);
    if (outputs != inputs) cube(list, "conv_shortcut", "shortcut", outputs, inputs, 1);
}

static void middle(struct make_list *list, const char *side, int64_t channels)
{
    char name[64], stored[64];

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.mid_block.resnets.%d.", side, i);
        snprintf(stored, sizeof stored, "%s.middle.%d.", side, 2 * i);
        list_scope(list, name, stored);
        resnet(list, channels, channels);
    }
    snprintf(name, sizeof name, "%s.mid_block.attentions.0.", side);
    snprintf(stored, sizeof stored, "%s.middle.1.", side);
    list_scope(list, name, stored);
    norm(list, "norm.gamma", "norm.gamma", channels, false);
    plane(list, "to_qkv", 3 * channels, channels, 1);
    plane(list, "proj", channels, channels, 1);
}

/* What a side begins and ends with. */
static void ends(struct make_list *list, const char *side, int64_t first, int64_t inputs,
    int64_t last, int64_t outputs)
{
    char name[64];

    snprintf(name, sizeof name, "%s.", side);
    list_scope(list, name, name);
    cube(list, "conv_in", "conv1", first, inputs, 3);
    norm(list, "norm_out.gamma", "head.0.gamma", last, true);
    cube(list, "conv_out", "head.2", outputs, last, 3);
}

/* After the last resnet of all levels but one; two of the three join or split frames too. */
static void resample(struct make_list *list, int64_t outputs, int64_t inputs, int64_t over_time)
{
    plane(list, "resample.1", outputs, inputs, 3);
    if (over_time)
        conv(list, "time_conv", "time_conv", (struct shape){5, {over_time, inputs, 3, 1, 1}});
}

static void encoder(struct make_list *list, int64_t base)
{
    int64_t inputs = base, last = base * factors[LEVELS - 1];
    char name[64], stored[64];
    int step = 0;

    ends(list, "encoder", base, 3, last, 2 * MAKE_VAE_LATENT);
    for (int level = 0; level < LEVELS; level++)
        for (int i = 0; i <= BLOCKS; i++) {
            int64_t channels = base * factors[level];

            if (level == LEVELS - 1 && i == BLOCKS) break;
            snprintf(name, sizeof name, "encoder.down_blocks.%d.", step);
            snprintf(stored, sizeof stored, "encoder.downsamples.%d.", step++);
            list_scope(list, name, stored);
            if (i == BLOCKS)
                resample(list, channels, channels, level > 0 ? channels : 0);
            else
                resnet(list, channels, inputs);
            inputs = channels;
        }
    middle(list, "encoder", last);
}

static void decoder(struct make_list *list, int64_t base)
{
    int64_t inputs = base * factors[LEVELS - 1];
    char name[64], stored[64];
    int step = 0;

    ends(list, "decoder", inputs, MAKE_VAE_LATENT, base, 3);
    middle(list, "decoder", inputs);
    for (int up = 0; up < LEVELS; up++) {
        int64_t channels = base * factors[LEVELS - 1 - up];

        for (int i = 0; i <= BLOCKS; i++, inputs = channels) {
            snprintf(name, sizeof name, "decoder.up_blocks.%d.resnets.%d.", up, i);
            snprintf(stored, sizeof stored, "decoder.upsamples.%d.", step++);
            list_scope(list, name, stored);
            resnet(list, channels, inputs);
        }
        if (up == LEVELS - 1) break;
        snprintf(name, sizeof name, "decoder.up_blocks.%d.upsamplers.0.", up);
        snprintf(stored, sizeof stored, "decoder.upsamples.%d.", step++);
        list_scope(list, name, stored);
        resample(list, channels / 2, channels, up < 2 ? 2 * channels : 0);
        inputs = channels / 2;
    }
}

void make_wan_vae(struct make_list *list, bool small)
{
    list->component = "vae";
    encoder(list, bases[small]);
    decoder(list, bases[small]);
    list_scope(list, "", "");
    cube(list, "quant_conv", "conv1", 2 * MAKE_VAE_LATENT, 2 * MAKE_VAE_LATENT, 1);
    cube(list, "post_quant_conv", "conv2", MAKE_VAE_LATENT, MAKE_VAE_LATENT, 1);
}

/* The latents' statistics are the published ones, which hold where nothing is said. */
void make_wan_vae_config(struct text *json, bool small)
{
    text_append(json,
        "{\n"
        "  \"_class_name\": \"AutoencoderKLQwenImage\",\n"
        "  \"attn_scales\": [],\n"
        "  \"base_dim\": %lld,\n"
        "  \"dim_mult\": [1, 2, 4, 4],\n"
        "  \"dropout\": 0.0,\n"
        "  \"num_res_blocks\": %d,\n"
        "  \"temperal_downsample\": [false, true, true],\n"
        "  \"z_dim\": %d\n"
        "}\n",
        (long long)bases[small], BLOCKS, MAKE_VAE_LATENT);
}
