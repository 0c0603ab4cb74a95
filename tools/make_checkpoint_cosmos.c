/* Cosmos-Predict2's and Anima's transformers, under the names of the ComfyUI layout, their only one
 * here. */
#include "make_checkpoint.h"

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

enum { PATCH = 4 * MAKE_VAE_LATENT, MASKED_PATCH = PATCH + 4, RATIO = 4 };

static void linear(struct make_list *list, const char *name, int64_t outputs, int64_t inputs)
{
    list_linear(list, name, name, outputs, inputs);
}

static void norm(struct make_list *list, const char *name, int64_t width)
{
    list_norm(list, name, name, width);
}

/* "NAMES.q_proj" and so on; out is what the last one is called. */
static void attention(struct make_list *list, const char *scope, const char *out, int64_t dim,
    int64_t context, int64_t head)
{
    char name[64];

    list_scope(list, scope, scope);
    linear(list, "q_proj.weight", dim, dim);
    linear(list, "k_proj.weight", dim, context);
    linear(list, "v_proj.weight", dim, context);
    norm(list, "q_norm.weight", head);
    norm(list, "k_norm.weight", head);
    snprintf(name, sizeof name, "%s.weight", out);
    linear(list, name, dim, dim);
}

static void layer(struct make_list *list, const struct cosmos_size *size, int index)
{
    static const char *const residuals[] = {"self_attn", "cross_attn", "mlp"};
    char scope[64], name[64];

    snprintf(scope, sizeof scope, "blocks.%d.self_attn.", index);
    attention(list, scope, "output_proj", size->dim, size->dim, size->head);
    snprintf(scope, sizeof scope, "blocks.%d.cross_attn.", index);
    attention(list, scope, "output_proj", size->dim, size->context, size->head);
    snprintf(scope, sizeof scope, "blocks.%d.", index);
    list_scope(list, scope, scope);
    linear(list, "mlp.layer1.weight", RATIO * size->dim, size->dim);
    linear(list, "mlp.layer2.weight", size->dim, RATIO * size->dim);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "adaln_modulation_%s.1.weight", residuals[i]);
        linear(list, name, size->lora, size->dim);
        snprintf(name, sizeof name, "adaln_modulation_%s.2.weight", residuals[i]);
        linear(list, name, 3 * size->dim, size->lora);
    }
}

static void transformer(struct make_list *list, const struct cosmos_size *size)
{
    list->component = "dit";
    list_scope(list, "", "");
    linear(list, "x_embedder.proj.1.weight", size->dim, MASKED_PATCH);
    linear(list, "t_embedder.1.linear_1.weight", size->dim, size->dim);
    linear(list, "t_embedder.1.linear_2.weight", 3 * size->dim, size->dim);
    norm(list, "t_embedding_norm.weight", size->dim);
    linear(list, "final_layer.adaln_modulation.1.weight", size->lora, size->dim);
    linear(list, "final_layer.adaln_modulation.2.weight", 2 * size->dim, size->lora);
    linear(list, "final_layer.linear.weight", PATCH, size->dim);
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

/* ---- Anima ---- */

static void adapter_layer(struct make_list *list, bool small, int index)
{
    int64_t width = sizes_2b[small].context, head = adapter_sizes[small].head;
    int64_t ffn = adapter_sizes[small].ffn;
    char scope[64];

    snprintf(scope, sizeof scope, "llm_adapter.blocks.%d.self_attn.", index);
    attention(list, scope, "o_proj", width, width, head);
    snprintf(scope, sizeof scope, "llm_adapter.blocks.%d.cross_attn.", index);
    attention(list, scope, "o_proj", width, adapter_sizes[small].source, head);
    snprintf(scope, sizeof scope, "llm_adapter.blocks.%d.", index);
    list_scope(list, scope, scope);
    norm(list, "norm_self_attn.weight", width);
    norm(list, "norm_cross_attn.weight", width);
    norm(list, "norm_mlp.weight", width);
    linear(list, "mlp.0.weight", ffn, width);
    list_bias(list, "mlp.0.bias", "mlp.0.bias", ffn);
    linear(list, "mlp.2.weight", width, ffn);
    list_bias(list, "mlp.2.bias", "mlp.2.bias", width);
}

void make_anima(struct make_list *list, bool small)
{
    int64_t width = sizes_2b[small].context;
    struct shape table = make_plane(adapter_sizes[small].words, width);

    transformer(list, &sizes_2b[small]);
    for (int i = 0; i < adapter_sizes[small].layers; i++)
        adapter_layer(list, small, i);
    list_scope(list, "llm_adapter.", "llm_adapter.");
    list_tensor(list, "embed.weight", "embed.weight", &table, 0, 1);
    linear(list, "out_proj.weight", width, width);
    list_bias(list, "out_proj.bias", "out_proj.bias", width);
    norm(list, "norm.weight", width);
}
