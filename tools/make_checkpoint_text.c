/* Text encoders of Cosmos-Predict2 and Anima: T5-11B's encoder and Qwen3-0.6B. */
#include "make_checkpoint.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>

typedef long long ll;

/* [0] the real one, [1] the small one. */
static const struct make_text_size t5_sizes[2] = {
    {1024, 24, 128, 128, 128, 65536, 32128}, {128, 3, 2, 2, 64, 512, 2048}};
static const struct make_text_size qwen3_sizes[2] = {
    {1024, 28, 16, 8, 128, 3072, 151936}, {128, 3, 2, 1, 128, 256, 2048}};

enum { BUCKETS = 32 };

/* ---- tensors: all have one name in both layouts ---- */

static void matrix(
    struct make_list *list, const char *name, int64_t rows, int64_t cols, double deviation)
{
    struct shape shape = make_plane(rows, cols);

    list_tensor(list, name, name, &shape, 0, deviation);
}

void make_t5(struct make_list *list, bool small)
{
    const struct make_text_size *size = &t5_sizes[small];
    const int64_t d = size->hidden, inner = size->heads * size->head_dim;
    const double spread = 1 / sqrt((double)d);

    list->component = "text";
    list_scope(list, "", "");
    matrix(list, "shared.weight", size->vocabulary, d, 1);
    list_norm(list, "encoder.final_layer_norm.weight", "encoder.final_layer_norm.weight", d);
    for (int i = 0; i < size->layers; i++) {
        char name[64];

        snprintf(name, sizeof name, "encoder.block.%d.layer.", i);
        list_scope(list, name, name);
        list_norm(list, "0.layer_norm.weight", "0.layer_norm.weight", d);
        /* Nothing else scales the scores. */
        matrix(list, "0.SelfAttention.q.weight", inner, d, spread / sqrt((double)size->head_dim));
        matrix(list, "0.SelfAttention.k.weight", inner, d, spread);
        matrix(list, "0.SelfAttention.v.weight", inner, d, spread);
        matrix(list, "0.SelfAttention.o.weight", d, inner, 1 / sqrt((double)inner));
        if (!i)
            matrix(list, "0.SelfAttention.relative_attention_bias.weight", BUCKETS, size->heads, 1);
        list_norm(list, "1.layer_norm.weight", "1.layer_norm.weight", d);
        matrix(list, "1.DenseReluDense.wi.weight", size->ffn, d, spread);
        matrix(list, "1.DenseReluDense.wo.weight", d, size->ffn, 1 / sqrt((double)size->ffn));
    }
}

void make_qwen3_small(struct make_list *list, bool small)
{
    make_language_model(list, &qwen3_sizes[small], false);
}

/* ---- configurations ---- */

void make_t5_config(struct text *json, bool small)
{
    const struct make_text_size *size = &t5_sizes[small];

    text_append(json,
        "{\n"
        "  \"architectures\": [\"T5EncoderModel\"],\n"
        "  \"d_ff\": %lld,\n"
        "  \"d_kv\": %lld,\n"
        "  \"d_model\": %lld,\n"
        "  \"feed_forward_proj\": \"relu\",\n"
        "  \"layer_norm_epsilon\": 1e-06,\n"
        "  \"model_type\": \"t5\",\n"
        "  \"num_heads\": %lld,\n"
        "  \"num_layers\": %lld,\n"
        "  \"relative_attention_max_distance\": 128,\n"
        "  \"relative_attention_num_buckets\": %d,\n"
        "  \"vocab_size\": %lld\n"
        "}\n",
        (ll)size->ffn, (ll)size->head_dim, (ll)size->hidden, (ll)size->heads, (ll)size->layers,
        BUCKETS, (ll)size->vocabulary);
}

void make_qwen3_small_config(struct text *json, bool small)
{
    make_qwen3_config(json, &qwen3_sizes[small]);
}
