/*
 * T5's encoder and UMT5's: opening them, their lanes and their forward functions.
 *
 * Where a token stands shows in biases of the scores alone, one for each head and bucket of
 * distances. They are a table of a few thousand numbers that every query and key share, so it is
 * made on the host, from the weight in the file; layers without biases of their own take the
 * first's.
 */
#include "models/text/t5.h"

#include "base/memory.h"
#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "models/source.h"
#include "tensor/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER0 "encoder.block.0.layer."
#define NORM0 LAYER0 "0.layer_norm.weight"
#define Q0 LAYER0 "0.SelfAttention.q.weight"
#define BIAS0 LAYER0 "0.SelfAttention.relative_attention_bias.weight"
#define GATE0 LAYER0 "1.DenseReluDense.wi_0.weight"
/* What GGUF files call an ungated layer's is the second half's name. */
#define WI0 LAYER0 "1.DenseReluDense.wi.weight|" LAYER0 "1.DenseReluDense.wi_1.weight"
#define FINAL_NORM "encoder.final_layer_norm.weight"

enum { DISTANCES }; /* a lane's only table */

enum {
    LAYER_NORM1,
    LAYER_QKV,
    LAYER_QKV_LAST = LAYER_QKV + ATTENTION_PARTS - 1,
    LAYER_OUT,
    LAYER_NORM2,
    LAYER_W1,
    LAYER_W2,
    LAYER_W3 /* if gated. The last weight is the biases', which is read on the host */
};

const struct t5_config *t5_config(const struct model *model)
{
    return model->config;
}

static const struct t5_config *t5_of(const struct text_config *base)
{
    return (const struct t5_config *)base;
}

/* ---- forward ---- */

static void layer_forward(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct t5_config *config = block->config;
    struct text_lane *l = lane;
    int32_t biases = config->bias_layers > 1 ? block->index : 0;
    struct attention_layer attention = {
        .heads = config->heads,
        .kv_heads = config->heads,
        .head_dim = config->head_dim,
        .eps = config->norm_eps,
        .norm = weights[LAYER_NORM1],
        .qkv = {weights[LAYER_QKV], weights[LAYER_QKV + 1], weights[LAYER_QKV + 2]},
        .out = weights[LAYER_OUT],
        .distances = matrix_rows(
            l->tables[DISTANCES].device, (int64_t)biases * config->heads, config->heads),
        .unscaled = true,
    };
    struct feed_forward_layer feed_forward = {
        .eps = config->norm_eps,
        .activation = config->gated ? ACTIVATION_GELU_TANH : ACTIVATION_RELU,
        .norm = weights[LAYER_NORM2],
        .w1 = weights[LAYER_W1],
        .w3 = config->gated ? weights[LAYER_W3] : MATRIX_NONE,
        .w2 = weights[LAYER_W2],
    };

    attention_add(x, l->hidden, &attention);
    feed_forward_add(x, l->hidden, &feed_forward);
}

static void encode_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct text_lane *l = lane;

    (void)block;
    text_finish_normed(x, l, weights[0], t5_of(l->config)->norm_eps);
}

/* ---- lanes ---- */

int32_t t5_bucket(const struct t5_config *c, int64_t distance)
{
    int32_t half = c->buckets / 2, near = half / 2, first = distance > 0 ? half : 0;
    int64_t apart = distance < 0 ? -distance : distance;
    float place;

    if (apart < near) return first + (int32_t)apart;
    if (apart >= c->max_distance) return first + half - 1;
    /* In single precision, as the references compute it: at powers of two it decides. */
    place = logf((float)apart / (float)near) / (float)log((double)c->max_distance / near) *
            (float)(half - near);
    return first + (near + (int32_t)place < half ? near + (int32_t)place : half - 1);
}

static void measure(struct text_lane *l)
{
    const struct t5_config *c = t5_of(l->config);

    l->tables[DISTANCES].rows = (int64_t)c->bias_layers * c->heads;
    l->tables[DISTANCES].cols = 2 * l->tokens - 1;
}

/* The biases of a layer, [buckets, heads]; mem_free'd by the caller. */
static enum shoal_status read_biases(
    const struct block *block, float **biases, struct shoal_error *error)
{
    const struct t5_config *c = block->config;
    const struct weight *weight = &block->weights[block->weight_count - 1];
    const struct checkpoint_tensor *tensor = weight->pieces[0];
    const int64_t count = (int64_t)c->buckets * c->heads;
    void *stored = mem_alloc((size_t)tensor->bytes);
    float *values = mem_calloc((size_t)count, sizeof *values);
    enum shoal_status status = SHOAL_E_MEMORY;

    *biases = NULL;
    if (!stored || !values) {
        error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    TRY_OR_FAIL(checkpoint_read(tensor, stored, error));
    quant_widen(values, stored, weight->dtype, weight->scale, 0, count);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) {
            status = error_set(error, SHOAL_E_NUMERIC, __FILE__, __LINE__,
                "%s: tensor %s holds NaN or infinite values: the file is damaged or was badly "
                "converted: get it again",
                tensor->file->path, tensor->name);
            goto fail;
        }
    *biases = values;
    values = NULL;
fail:
    mem_free(values);
    mem_free(stored);
    return status;
}

static enum shoal_status fill(struct text_lane *l, struct shoal_error *error)
{
    const struct t5_config *c = t5_of(l->config);
    const int64_t cols = l->tables[DISTANCES].cols;

    for (int32_t i = 0; i < c->bias_layers; i++) {
        float *rows = l->tables[DISTANCES].host + (int64_t)i * c->heads * cols, *biases;

        TRY(read_biases(&l->model->blocks[i], &biases, error));
        for (int64_t d = 0; d < cols; d++) {
            const float *bucket = biases + (int64_t)t5_bucket(c, d - (l->tokens - 1)) * c->heads;

            for (int32_t h = 0; h < c->heads; h++)
                rows[h * cols + d] = bucket[h];
        }
        mem_free(biases);
    }
    return SHOAL_OK;
}

static const struct text_family family = {.measure = measure, .fill = fill};

/* ---- opening ---- */

/* The name of the embedding; the third is that of GGUF files. */
static const char *embedding_of(const struct source *s)
{
    static const char *const names[] = {"shared.weight", "encoder.embed_tokens.weight"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (source_tensor(s, names[i])) return names[i];
    return source_tensor(s, "embed_tokens.weight") ? "embed_tokens.weight" : names[0];
}

static void check_config(struct source *s, const struct t5_config *c)
{
    const char *forward = c->gated ? "gated-gelu" : "relu";
    const json_t *said = s->config ? json_object_get(s->config, "feed_forward_proj") : NULL;

    source_agrees(s, "vocab_size", c->base.vocabulary, embedding_of(s));
    source_agrees(s, "d_model", c->base.width, NORM0);
    source_agrees(s, "d_kv", c->head_dim, Q0);
    source_agrees(s, "value_dim", c->head_dim, Q0);
    source_agrees(s, "d_ff", c->ffn_dim, "encoder.block.0.layer.1.DenseReluDense");
    source_agrees(s, "num_heads", c->heads, BIAS0);
    source_agrees(s, "num_layers", c->layers, "encoder.block.*");
    source_agrees(s, "relative_attention_num_buckets", c->buckets, BIAS0);
    if (s->status) return;
    if (said && (!json_is_string(said) || strcmp(json_string_value(said), forward) != 0))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: \"feed_forward_proj\" is not \"%s\", which is what this build computes with such "
            "tensors as those of %s",
            s->config_path, forward, checkpoint_path(s->checkpoint));
    else if (c->heads * (int64_t)c->head_dim != source_dim(s, Q0, 0))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: tensor %s" Q0 " has %lld rows, which are not %d heads",
            checkpoint_path(s->checkpoint), s->prefix, (long long)source_dim(s, Q0, 0),
            (int)c->heads);
    else if (c->buckets < 4 || c->buckets % 4 || c->max_distance <= c->buckets / 4)
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: %d buckets of relative positions up to a distance of %d: this build computes "
            "multiples of 4, a fourth of them below that distance",
            checkpoint_path(s->checkpoint), (int)c->buckets, (int)c->max_distance);
}

static void read_config(struct source *s, void *config)
{
    struct t5_config *c = config;

    c->base.family = &family;
    c->base.width = source_dim(s, NORM0, 0);
    text_read_embedding(s, embedding_of(s), &c->base);
    c->base.pass[TEXT_BEFORE_LAST] = -1;
    c->buckets = (int32_t)source_dim(s, BIAS0, 0);
    c->heads = (int32_t)source_dim(s, BIAS0, 1);
    c->head_dim = (int32_t)(source_dim(s, Q0, 0) / c->heads);
    c->gated = source_tensor(s, GATE0);
    c->ffn_dim = source_dim(s, c->gated ? GATE0 : WI0, 0);
    c->layers = source_count(s, "encoder.block.");
    c->bias_layers = source_tensor(s, T5_SECOND_BIAS) ? c->layers : 1;
    c->max_distance = (int32_t)source_number(s, "relative_attention_max_distance", 128, 1, 1 << 20);
    c->norm_eps = (float)source_number(s, "layer_norm_epsilon", 1e-6, 1e-12, 0.1);
    check_config(s, c);
}

static void build_layer(struct model_builder *b, const struct t5_config *c, int32_t i)
{
    const int64_t inner = (int64_t)c->heads * c->head_dim, width = c->base.width;
    char name[64], key_prefix[64];

    snprintf(name, sizeof name, "encoder.block.%d", (int)i);
    snprintf(key_prefix, sizeof key_prefix, "encoder.block.%d.layer.", (int)i);
    builder_block(b, layer_forward, i, name, key_prefix);
    builder_weight(b, "0.layer_norm.weight", 1, width);
    builder_stack(b, "0.SelfAttention.q.weight+0.SelfAttention.k.weight+0.SelfAttention.v.weight",
        (const int64_t[]){inner, inner, inner}, ATTENTION_PARTS, width);
    builder_weight(b, "0.SelfAttention.o.weight", width, inner);
    builder_weight(b, "1.layer_norm.weight", 1, width);
    builder_weight(b,
        c->gated ? "1.DenseReluDense.wi_0.weight"
                 : "1.DenseReluDense.wi.weight|1.DenseReluDense.wi_1.weight",
        c->ffn_dim, width);
    builder_weight(b, "1.DenseReluDense.wo.weight", width, c->ffn_dim);
    if (c->gated) builder_weight(b, "1.DenseReluDense.wi_1.weight", c->ffn_dim, width);
    if (i >= c->bias_layers) return;
    builder_weight(b, "0.SelfAttention.relative_attention_bias.weight", c->buckets, c->heads);
    builder_on_host(b);
}

static void build(struct model_builder *b, const void *config)
{
    const struct t5_config *c = config;
    struct pass pass = {
        .name = "encode", .count = c->layers, .begin = text_begin, .end = encode_end};

    for (int32_t i = 0; i < c->layers; i++)
        build_layer(b, c, i);
    pass.globals = builder_block(b, NULL, 0, "final norm", "");
    builder_weight(b, FINAL_NORM, 1, c->base.width);
    builder_pass(b, pass);
}

static const struct source_key gguf_keys[] = {
    {"num_layers", "block_count"},
    {"d_model", "embedding_length"},
    {"d_ff", "feed_forward_length"},
    {"num_heads", "attention.head_count"},
    {"d_kv", "attention.key_length"},
    {"value_dim", "attention.value_length"},
    {"layer_norm_epsilon", "attention.layer_norm_rms_epsilon"},
    {"relative_attention_num_buckets", "attention.relative_buckets_count"},
    {"vocab_size", "vocab_size"},
    {NULL, NULL},
};

enum shoal_status t5_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const bool umt5 = source_probe(checkpoint, T5_SECOND_BIAS);
    const struct source_family source = {
        .name = umt5 ? "umt5" : "t5",
        .key = Q0,
        .type_key = "model_type",
        .type = umt5 ? "umt5" : "t5",
        .gguf_type = "t5encoder|t5",
        .gguf_keys = gguf_keys,
        .config_bytes = sizeof(struct t5_config),
        .read_config = read_config,
        .build = build,
    };

    return source_open(&source, checkpoint, config_path, model, error);
}
