/*
 * The tensors of Z-Image's models, under the names that they have in each layout, and what lists of
 * other families' are made with. docs/models.md says where the names and shapes come from.
 */
#include "make_checkpoint.h"

#include "base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct make_dit_size make_dit_sizes[2] = {
    {3840, 30, 2, 30, 2560, 10240, 1024}, {384, 3, 1, 3, 128, 1024, 384}};
const struct make_text_size make_text_sizes[2] = {
    {2560, 36, 32, 8, 128, 9728, 151936}, {128, 3, 2, 1, 128, 256, 2048}};
const struct make_vae_size make_vae_sizes[2] = {{{128, 256, 512, 512}}, {{32, 32, 64, 64}}};

/* ---- appending ---- */

/* Sets both names of where we are from the one format that fits the layout. */
void list_scope(struct make_list *list, const char *name, const char *stored)
{
    snprintf(list->scope, sizeof list->scope, "%s", name);
    snprintf(list->stored_scope, sizeof list->stored_scope, "%s",
        list->layout == MAKE_COMFYUI ? stored : name);
}

static struct make_tensor *append(struct make_list *list, const char *stored)
{
    struct make_tensor *tensor;

    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 256;
        struct make_tensor *tensors = mem_realloc(list->tensors, room, sizeof *tensors);

        if (!tensors) {
            list->failed = true;
            return NULL;
        }
        list->tensors = tensors;
        list->room = room;
    }
    tensor = &list->tensors[list->count++];
    memset(tensor, 0, sizeof *tensor);
    snprintf(tensor->name, sizeof tensor->name, "%s%s%s", list->prefix, list->stored_scope, stored);
    return tensor;
}

static void source(struct make_list *list, struct make_tensor *tensor, const char *name,
    uint64_t count, double mean, double deviation)
{
    struct make_source *s = &tensor->sources[tensor->source_count++];

    snprintf(s->name, sizeof s->name, "%s.%s%s", list->component, list->scope, name);
    s->count = count;
    s->mean = (float)mean;
    s->deviation = (float)deviation;
}

/* One tensor whose name is the same in every layout but for the scope and, perhaps, `stored`. */
void list_tensor(struct make_list *list, const char *name, const char *stored,
    const struct shape *shape, double mean, double deviation)
{
    struct make_tensor *tensor = append(list, list->layout == MAKE_COMFYUI ? stored : name);
    uint64_t count;

    if (!tensor || !shape_count(shape, &count)) return;
    tensor->shape = *shape;
    source(list, tensor, name, count, mean, deviation);
}

static struct shape vector(int64_t n)
{
    return (struct shape){1, {n}};
}

struct shape make_plane(int64_t rows, int64_t cols)
{
    return (struct shape){2, {rows, cols}};
}

/* Weights that keep the variance of what they are applied to. */
static double spread(int64_t inputs)
{
    return 1 / sqrt((double)inputs);
}

void list_linear(
    struct make_list *list, const char *name, const char *stored, int64_t outputs, int64_t inputs)
{
    struct shape shape = make_plane(outputs, inputs);

    list_tensor(list, name, stored, &shape, 0, spread(inputs));
}

void list_bias(struct make_list *list, const char *name, const char *stored, int64_t outputs)
{
    struct shape shape = vector(outputs);

    list_tensor(list, name, stored, &shape, 0, 0.02);
}

void list_norm(struct make_list *list, const char *name, const char *stored, int64_t width)
{
    struct shape shape = vector(width);

    list_tensor(list, name, stored, &shape, 1, 0.02);
}

/* ---- Z-Image's transformer ---- */

static const int64_t adaln = 256, frequencies = 256, patch = 64;

static void dit_block(struct make_list *list, const struct make_dit_size *size, const char *group,
    int index, bool modulated)
{
    static const char *const parts[] = {
        "attention.to_q.weight", "attention.to_k.weight", "attention.to_v.weight"};
    int64_t d = size->dim, hidden = size->ffn, head = d / size->heads;
    char name[64];

    snprintf(name, sizeof name, "%s.%d.", group, index);
    list_scope(list, name, name);
    if (list->layout == MAKE_COMFYUI) {
        struct make_tensor *qkv = append(list, "attention.qkv.weight");

        if (!qkv) return;
        qkv->shape = make_plane(3 * d, d);
        for (int i = 0; i < 3; i++)
            source(list, qkv, parts[i], (uint64_t)(d * d), 0, spread(d));
    } else {
        for (int i = 0; i < 3; i++)
            list_linear(list, parts[i], parts[i], d, d);
    }
    list_linear(list, "attention.to_out.0.weight", "attention.out.weight", d, d);
    list_norm(list, "attention.norm_q.weight", "attention.q_norm.weight", head);
    list_norm(list, "attention.norm_k.weight", "attention.k_norm.weight", head);
    list_linear(list, "feed_forward.w1.weight", "feed_forward.w1.weight", hidden, d);
    list_linear(list, "feed_forward.w2.weight", "feed_forward.w2.weight", d, hidden);
    list_linear(list, "feed_forward.w3.weight", "feed_forward.w3.weight", hidden, d);
    list_norm(list, "attention_norm1.weight", "attention_norm1.weight", d);
    list_norm(list, "attention_norm2.weight", "attention_norm2.weight", d);
    list_norm(list, "ffn_norm1.weight", "ffn_norm1.weight", d);
    list_norm(list, "ffn_norm2.weight", "ffn_norm2.weight", d);
    if (!modulated) return;
    list_linear(list, "adaLN_modulation.0.weight", "adaLN_modulation.0.weight", 4 * d, adaln);
    list_bias(list, "adaLN_modulation.0.bias", "adaLN_modulation.0.bias", 4 * d);
}

void make_z_image_dit(struct make_list *list, bool small)
{
    const struct make_dit_size *size = &make_dit_sizes[small];
    struct shape pad = make_plane(1, size->dim);
    int64_t d = size->dim;

    list->component = "dit";
    list_scope(list, "all_x_embedder.2-1.", "x_embedder.");
    list_linear(list, "weight", "weight", d, patch);
    list_bias(list, "bias", "bias", d);
    list_scope(list, "all_final_layer.2-1.", "final_layer.");
    list_linear(list, "linear.weight", "linear.weight", patch, d);
    list_bias(list, "linear.bias", "linear.bias", patch);
    list_linear(list, "adaLN_modulation.1.weight", "adaLN_modulation.1.weight", d, adaln);
    list_bias(list, "adaLN_modulation.1.bias", "adaLN_modulation.1.bias", d);
    for (int i = 0; i < size->refiners; i++)
        dit_block(list, size, "noise_refiner", i, true);
    for (int i = 0; i < size->refiners; i++)
        dit_block(list, size, "context_refiner", i, false);
    list_scope(list, "", "");
    list_linear(
        list, "t_embedder.mlp.0.weight", "t_embedder.mlp.0.weight", size->middle, frequencies);
    list_bias(list, "t_embedder.mlp.0.bias", "t_embedder.mlp.0.bias", size->middle);
    list_linear(list, "t_embedder.mlp.2.weight", "t_embedder.mlp.2.weight", adaln, size->middle);
    list_bias(list, "t_embedder.mlp.2.bias", "t_embedder.mlp.2.bias", adaln);
    list_norm(list, "cap_embedder.0.weight", "cap_embedder.0.weight", size->caption);
    list_linear(list, "cap_embedder.1.weight", "cap_embedder.1.weight", d, size->caption);
    list_bias(list, "cap_embedder.1.bias", "cap_embedder.1.bias", d);
    list_tensor(list, "x_pad_token", "x_pad_token", &pad, 0, 0.5);
    list_tensor(list, "cap_pad_token", "cap_pad_token", &pad, 0, 0.5);
    for (int i = 0; i < size->layers; i++)
        dit_block(list, size, "layers", i, true);
}

/* ---- Qwen3 ---- */

void make_language_model(struct make_list *list, const struct make_text_size *size, bool biased)
{
    int64_t hidden = size->hidden, ffn = size->ffn, head = size->head_dim;
    int64_t queries = head * size->heads, keys = head * size->kv_heads;
    struct shape table = make_plane(size->vocabulary, hidden);

    list->component = "text";
    list_scope(list, "model.", "model.");
    list_tensor(list, "embed_tokens.weight", "embed_tokens.weight", &table, 0, 0.02);
    list_norm(list, "norm.weight", "norm.weight", hidden);
    for (int i = 0; i < size->layers; i++) {
        char name[64];

        snprintf(name, sizeof name, "model.layers.%d.", i);
        list_scope(list, name, name);
        list_norm(list, "input_layernorm.weight", "input_layernorm.weight", hidden);
        list_norm(
            list, "post_attention_layernorm.weight", "post_attention_layernorm.weight", hidden);
        list_linear(list, "self_attn.q_proj.weight", "self_attn.q_proj.weight", queries, hidden);
        list_linear(list, "self_attn.k_proj.weight", "self_attn.k_proj.weight", keys, hidden);
        list_linear(list, "self_attn.v_proj.weight", "self_attn.v_proj.weight", keys, hidden);
        list_linear(list, "self_attn.o_proj.weight", "self_attn.o_proj.weight", hidden, queries);
        if (biased) {
            list_bias(list, "self_attn.q_proj.bias", "self_attn.q_proj.bias", queries);
            list_bias(list, "self_attn.k_proj.bias", "self_attn.k_proj.bias", keys);
            list_bias(list, "self_attn.v_proj.bias", "self_attn.v_proj.bias", keys);
        } else {
            list_norm(list, "self_attn.q_norm.weight", "self_attn.q_norm.weight", head);
            list_norm(list, "self_attn.k_norm.weight", "self_attn.k_norm.weight", head);
        }
        list_linear(list, "mlp.gate_proj.weight", "mlp.gate_proj.weight", ffn, hidden);
        list_linear(list, "mlp.up_proj.weight", "mlp.up_proj.weight", ffn, hidden);
        list_linear(list, "mlp.down_proj.weight", "mlp.down_proj.weight", hidden, ffn);
    }
}

void make_qwen3(struct make_list *list, bool small)
{
    make_language_model(list, &make_text_sizes[small], false);
}

/* ---- the FLUX VAE ---- */

static void conv(struct make_list *list, const char *name, const char *stored, int64_t outputs,
    int64_t inputs, int64_t kernel)
{
    struct shape shape = {4, {outputs, inputs, kernel, kernel}};
    char weight[48], weight_stored[48], bias_name[48], bias_stored[48];

    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(weight_stored, sizeof weight_stored, "%s.weight", stored);
    snprintf(bias_name, sizeof bias_name, "%s.bias", name);
    snprintf(bias_stored, sizeof bias_stored, "%s.bias", stored);
    list_tensor(list, weight, weight_stored, &shape, 0, spread(inputs * kernel * kernel));
    list_bias(list, bias_name, bias_stored, outputs);
}

static void group_norm(
    struct make_list *list, const char *name, const char *stored, int64_t channels)
{
    char weight[48], weight_stored[48], bias_name[48], bias_stored[48];

    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(weight_stored, sizeof weight_stored, "%s.weight", stored);
    snprintf(bias_name, sizeof bias_name, "%s.bias", name);
    snprintf(bias_stored, sizeof bias_stored, "%s.bias", stored);
    list_norm(list, weight, weight_stored, channels);
    list_bias(list, bias_name, bias_stored, channels);
}

static void resnet(struct make_list *list, int64_t outputs, int64_t inputs)
{
    group_norm(list, "norm1", "norm1", inputs);
    conv(list, "conv1", "conv1", outputs, inputs, 3);
    group_norm(list, "norm2", "norm2", outputs);
    conv(list, "conv2", "conv2", outputs, outputs, 3);
    if (outputs != inputs) conv(list, "conv_shortcut", "nin_shortcut", outputs, inputs, 1);
}

/* Linear in diffusers, 1x1 convolutions elsewhere: the same bytes. */
static void attention_linear(
    struct make_list *list, const char *name, const char *stored, int64_t channels)
{
    size_t at = list->count;

    conv(list, name, stored, channels, channels, 1);
    if (!list->failed && list->layout == MAKE_DIFFUSERS)
        list->tensors[at].shape = make_plane(channels, channels);
}

static void middle(struct make_list *list, const char *side, int64_t channels)
{
    char name[64], stored[64];

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.mid_block.resnets.%d.", side, i);
        snprintf(stored, sizeof stored, "%s.mid.block_%d.", side, i + 1);
        list_scope(list, name, stored);
        resnet(list, channels, channels);
    }
    snprintf(name, sizeof name, "%s.mid_block.attentions.0.", side);
    snprintf(stored, sizeof stored, "%s.mid.attn_1.", side);
    list_scope(list, name, stored);
    group_norm(list, "group_norm", "norm", channels);
    attention_linear(list, "to_q", "q", channels);
    attention_linear(list, "to_k", "k", channels);
    attention_linear(list, "to_v", "v", channels);
    attention_linear(list, "to_out.0", "proj_out", channels);
}

static void encoder(struct make_list *list, const int64_t channels[MAKE_VAE_LEVELS])
{
    int64_t last = channels[MAKE_VAE_LEVELS - 1], inputs = channels[0];
    char name[64], stored[64];

    list_scope(list, "encoder.", "encoder.");
    conv(list, "conv_in", "conv_in", channels[0], 3, 3);
    group_norm(list, "conv_norm_out", "norm_out", last);
    conv(list, "conv_out", "conv_out", 2 * MAKE_VAE_LATENT, last, 3);
    for (int level = 0; level < MAKE_VAE_LEVELS; level++) {
        for (int i = 0; i < MAKE_VAE_LAYERS; i++) {
            snprintf(name, sizeof name, "encoder.down_blocks.%d.resnets.%d.", level, i);
            snprintf(stored, sizeof stored, "encoder.down.%d.block.%d.", level, i);
            list_scope(list, name, stored);
            resnet(list, channels[level], inputs);
            inputs = channels[level];
        }
        if (level == MAKE_VAE_LEVELS - 1) break;
        snprintf(name, sizeof name, "encoder.down_blocks.%d.downsamplers.0.", level);
        snprintf(stored, sizeof stored, "encoder.down.%d.downsample.", level);
        list_scope(list, name, stored);
        conv(list, "conv", "conv", inputs, inputs, 3);
    }
    middle(list, "encoder", last);
}

static void decoder(struct make_list *list, const int64_t channels[MAKE_VAE_LEVELS])
{
    int64_t inputs = channels[MAKE_VAE_LEVELS - 1];
    char name[64], stored[64];

    list_scope(list, "decoder.", "decoder.");
    conv(list, "conv_in", "conv_in", inputs, MAKE_VAE_LATENT, 3);
    group_norm(list, "conv_norm_out", "norm_out", channels[0]);
    conv(list, "conv_out", "conv_out", 3, channels[0], 3);
    middle(list, "decoder", inputs);
    for (int up = 0; up < MAKE_VAE_LEVELS; up++) {
        int level = MAKE_VAE_LEVELS - 1 - up;

        for (int i = 0; i < MAKE_VAE_LAYERS + 1; i++) {
            snprintf(name, sizeof name, "decoder.up_blocks.%d.resnets.%d.", up, i);
            snprintf(stored, sizeof stored, "decoder.up.%d.block.%d.", level, i);
            list_scope(list, name, stored);
            resnet(list, channels[level], inputs);
            inputs = channels[level];
        }
        if (!level) break;
        snprintf(name, sizeof name, "decoder.up_blocks.%d.upsamplers.0.", up);
        snprintf(stored, sizeof stored, "decoder.up.%d.upsample.", level);
        list_scope(list, name, stored);
        conv(list, "conv", "conv", inputs, inputs, 3);
    }
}

void make_flux_vae(struct make_list *list, bool small)
{
    const int64_t *channels = make_vae_sizes[small].channels;

    list->component = "vae";
    encoder(list, channels);
    decoder(list, channels);
}
