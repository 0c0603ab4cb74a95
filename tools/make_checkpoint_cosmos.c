/* Cosmos-Predict2's transformers, of which Anima's is one, and what else Anima has. */
#include "make_checkpoint.h"

#include "base/text.h"

#include <stdio.h>

struct cosmos_size {
    int64_t dim, layers, head, lora, context;
};

/* [0] the real one, [1] the small one. */
static const struct cosmos_size sizes_2b[2] = {{2048, 28, 128, 256, 1024}, {256, 3, 64, 16, 128}};
static const struct cosmos_size sizes_14b[2] = {{5120, 36, 128, 256, 1024}, {384, 4, 64, 16, 128}};
/* Of Anima's adapter, as wide as the context; the width of the features is `source`. */
static const struct {
    int64_t layers, head, ffn, words, source;
} adapter_sizes[2] = {{6, 64, 4096, 32128, 1024}, {2, 32, 512, 300, 128}};

#define ADAPTER "llm_adapter." /* before its names in the ComfyUI layout */

enum { PATCH = 4 * MAKE_VAE_LATENT, MASKED_PATCH = PATCH + 4, RATIO = 4 };

typedef long long ll;

/* ---- names that both layouts have ---- */

static void linear(struct make_list *list, const char *name, int64_t outputs, int64_t inputs)
{
    list_linear(list, name, name, outputs, inputs);
}

static void norm(struct make_list *list, const char *name, int64_t width)
{
    list_norm(list, name, name, width);
}

/* ---- the transformer ---- */

static void attention(struct make_list *list, const struct cosmos_size *size, int layer, bool cross)
{
    int64_t dim = size->dim, context = cross ? size->context : dim;
    char name[64], stored[64];

    snprintf(name, sizeof name, "transformer_blocks.%d.attn%d.", layer, cross ? 2 : 1);
    snprintf(stored, sizeof stored, "blocks.%d.%s_attn.", layer, cross ? "cross" : "self");
    list_scope(list, name, stored);
    list_linear(list, "to_q.weight", "q_proj.weight", dim, dim);
    list_linear(list, "to_k.weight", "k_proj.weight", dim, context);
    list_linear(list, "to_v.weight", "v_proj.weight", dim, context);
    list_norm(list, "norm_q.weight", "q_norm.weight", size->head);
    list_norm(list, "norm_k.weight", "k_norm.weight", size->head);
    list_linear(list, "to_out.0.weight", "output_proj.weight", dim, dim);
}

static void layer(struct make_list *list, const struct cosmos_size *size, int index)
{
    static const char *const residuals[] = {"self_attn", "cross_attn", "mlp"};
    char name[64], stored[64];

    attention(list, size, index, false);
    attention(list, size, index, true);
    snprintf(name, sizeof name, "transformer_blocks.%d.", index);
    snprintf(stored, sizeof stored, "blocks.%d.", index);
    list_scope(list, name, stored);
    list_linear(list, "ff.net.0.proj.weight", "mlp.layer1.weight", RATIO * size->dim, size->dim);
    list_linear(list, "ff.net.2.weight", "mlp.layer2.weight", size->dim, RATIO * size->dim);
    for (int i = 0; i < 3; i++)
        for (int k = 1; k <= 2; k++) {
            snprintf(name, sizeof name, "norm%d.linear_%d.weight", i + 1, k);
            snprintf(stored, sizeof stored, "adaln_modulation_%s.%d.weight", residuals[i], k);
            list_linear(list, name, stored, k == 1 ? size->lora : 3 * size->dim,
                k == 1 ? size->dim : size->lora);
        }
}

static void transformer(struct make_list *list, const struct cosmos_size *size)
{
    list->component = "dit";
    list_scope(list, "", "");
    list_linear(
        list, "patch_embed.proj.weight", "x_embedder.proj.1.weight", size->dim, MASKED_PATCH);
    list_linear(list, "time_embed.t_embedder.linear_1.weight", "t_embedder.1.linear_1.weight",
        size->dim, size->dim);
    list_linear(list, "time_embed.t_embedder.linear_2.weight", "t_embedder.1.linear_2.weight",
        3 * size->dim, size->dim);
    list_norm(list, "time_embed.norm.weight", "t_embedding_norm.weight", size->dim);
    list_linear(list, "norm_out.linear_1.weight", "final_layer.adaln_modulation.1.weight",
        size->lora, size->dim);
    list_linear(list, "norm_out.linear_2.weight", "final_layer.adaln_modulation.2.weight",
        2 * size->dim, size->lora);
    list_linear(list, "proj_out.weight", "final_layer.linear.weight", PATCH, size->dim);
    for (int i = 0; i < size->layers; i++)
        layer(list, size, i);
}

void make_cosmos_2b(struct make_list *list, bool small)
{
    transformer(list, &sizes_2b[small]);
}

void make_cosmos_14b(struct make_list *list, bool small)
{
    transformer(list, &sizes_14b[small]);
}

static void config(struct text *json, const struct cosmos_size *size)
{
    text_append(json,
        "{\n"
        "  \"_class_name\": \"CosmosTransformer3DModel\",\n"
        "  \"adaln_lora_dim\": %lld,\n"
        "  \"attention_head_dim\": %lld,\n"
        "  \"concat_padding_mask\": true,\n"
        "  \"extra_pos_embed_type\": null,\n"
        "  \"in_channels\": %d,\n"
        "  \"max_size\": [128, 240, 240],\n"
        "  \"mlp_ratio\": %d.0,\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_layers\": %lld,\n"
        "  \"out_channels\": %d,\n"
        "  \"patch_size\": [1, 2, 2],\n"
        "  \"rope_scale\": [1.0, 4.0, 4.0],\n"
        "  \"text_embed_dim\": %lld\n"
        "}\n",
        (ll)size->lora, (ll)size->head, MAKE_VAE_LATENT, RATIO, (ll)(size->dim / size->head),
        (ll)size->layers, MAKE_VAE_LATENT, (ll)size->context);
}

void make_cosmos_2b_config(struct text *json, bool small)
{
    config(json, &sizes_2b[small]);
}

void make_cosmos_14b_config(struct text *json, bool small)
{
    config(json, &sizes_14b[small]);
}

/* ---- Anima's adapter ---- */

static void adapter_attention(struct make_list *list, bool small, int layer, bool cross)
{
    int64_t width = sizes_2b[small].context, head = adapter_sizes[small].head;
    int64_t context = cross ? adapter_sizes[small].source : width;
    char name[64], stored[80];

    snprintf(name, sizeof name, "blocks.%d.%s_attn.", layer, cross ? "cross" : "self");
    snprintf(stored, sizeof stored, ADAPTER "%s", name);
    list_scope(list, name, stored);
    linear(list, "q_proj.weight", width, width);
    linear(list, "k_proj.weight", width, context);
    linear(list, "v_proj.weight", width, context);
    norm(list, "q_norm.weight", head);
    norm(list, "k_norm.weight", head);
    linear(list, "o_proj.weight", width, width);
}

static void adapter_layer(struct make_list *list, bool small, int index)
{
    int64_t width = sizes_2b[small].context, ffn = adapter_sizes[small].ffn;
    char name[64], stored[80];

    adapter_attention(list, small, index, false);
    adapter_attention(list, small, index, true);
    snprintf(name, sizeof name, "blocks.%d.", index);
    snprintf(stored, sizeof stored, ADAPTER "%s", name);
    list_scope(list, name, stored);
    norm(list, "norm_self_attn.weight", width);
    norm(list, "norm_cross_attn.weight", width);
    norm(list, "norm_mlp.weight", width);
    linear(list, "mlp.0.weight", ffn, width);
    list_bias(list, "mlp.0.bias", "mlp.0.bias", ffn);
    linear(list, "mlp.2.weight", width, ffn);
    list_bias(list, "mlp.2.bias", "mlp.2.bias", width);
}

void make_anima_adapter(struct make_list *list, bool small)
{
    int64_t width = sizes_2b[small].context;
    struct shape table = make_plane(adapter_sizes[small].words, width);

    list->component = "adapter";
    for (int i = 0; i < adapter_sizes[small].layers; i++)
        adapter_layer(list, small, i);
    list_scope(list, "", ADAPTER);
    list_tensor(list, "embed.weight", "embed.weight", &table, 0, 1);
    linear(list, "out_proj.weight", width, width);
    list_bias(list, "out_proj.bias", "out_proj.bias", width);
    norm(list, "norm.weight", width);
}

void make_anima_adapter_config(struct text *json, bool small)
{
    int64_t width = sizes_2b[small].context;

    text_append(json,
        "{\n"
        "  \"_class_name\": \"AnimaTextConditioner\",\n"
        "  \"min_sequence_length\": 512,\n"
        "  \"mlp_ratio\": %.1f,\n"
        "  \"model_dim\": %lld,\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_layers\": %lld,\n"
        "  \"source_dim\": %lld,\n"
        "  \"target_dim\": %lld,\n"
        "  \"target_vocab_size\": %lld,\n"
        "  \"use_layer_norm\": false,\n"
        "  \"use_self_attention\": true\n"
        "}\n",
        (double)adapter_sizes[small].ffn / (double)width, (ll)width,
        (ll)(width / adapter_sizes[small].head), (ll)adapter_sizes[small].layers,
        (ll)adapter_sizes[small].source, (ll)width, (ll)adapter_sizes[small].words);
}
