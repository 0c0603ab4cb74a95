/*
 * Anima's adapter: opening it and its forward functions. A row for each of the prompt's T5 tokens,
 * from an embedding of its own, attends to the others and to the language model's features, layer
 * by layer; what comes of it is the context of Cosmos-Predict2's transformer, which is next door.
 */
#include "models/dit/anima.h"

#include "base/memory.h"
#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "layers/rope.h"
#include "models/source.h"

#include <stdio.h>

#define EPS 1e-6f
#define THETA 1e4

/* A prompt's tables that are not Cosmos': the features, and positions of both sequences. Freed when
 * the context is made. */
enum { SOURCE = COSMOS_TABLES, POSITIONS };

enum { ENDS_OUT, ENDS_OUT_BIAS, ENDS_NORM };

/* Of either attention. */
enum {
    ATTEND_NORM,
    ATTEND_QKV,
    ATTEND_Q_NORM = ATTEND_QKV + ATTENTION_PARTS,
    ATTEND_K_NORM,
    ATTEND_OUT,
    ATTEND_WEIGHTS,
};

enum {
    LAYER_SELF,
    LAYER_CROSS = LAYER_SELF + ATTEND_WEIGHTS,
    LAYER_NORM = LAYER_CROSS + ATTEND_WEIGHTS,
    LAYER_W1,
    LAYER_B1,
    LAYER_W2,
    LAYER_B2,
};

static const struct anima_config *anima_of(const struct dit_config *base)
{
    return (const struct anima_config *)base;
}

/* ---- forward ---- */

static void context_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct dit_prompt *p = lane;
    struct matrix *source = &p->tables[SOURCE].device;

    (void)block, (void)weights;
    cosmos_begin_context(x, p);
    *source = exec_alloc_float(x, p->tokens, p->config->width);
    exec_upload(x, *source, p->features);
}

static struct attention_layer attention_of(
    const struct anima_config *config, const struct matrix *w, struct matrix rope)
{
    return (struct attention_layer){
        .heads = config->heads,
        .kv_heads = config->heads,
        .head_dim = config->head_dim,
        .eps = EPS,
        .head_eps = EPS,
        .norm = w[ATTEND_NORM],
        .qkv = {w[ATTEND_QKV], w[ATTEND_QKV + 1], w[ATTEND_QKV + 2]},
        .q_norm = w[ATTEND_Q_NORM],
        .k_norm = w[ATTEND_K_NORM],
        .out = w[ATTEND_OUT],
        .rope = rope,
        .layout = ROPE_HALF,
    };
}

static void layer_forward(
    struct exec *x, const struct block *block, const struct matrix *w, void *lane)
{
    const struct anima_config *config = block->config;
    struct dit_prompt *p = lane;
    struct matrix positions = p->tables[POSITIONS].device;
    struct matrix hidden = matrix_rows(p->context, 0, p->ids);
    struct matrix rope = matrix_rows(positions, 0, p->ids);
    struct attention_layer self = attention_of(config, w + LAYER_SELF, rope);
    struct attention_layer cross = attention_of(config, w + LAYER_CROSS, rope);

    cross.context = p->tables[SOURCE].device;
    cross.context_rope = matrix_rows(positions, 0, p->tokens);
    attention_add(x, hidden, &self);
    attention_add(x, hidden, &cross);
    feed_forward_add(x, hidden,
        &(struct feed_forward_layer){
            .eps = EPS,
            .norm = w[LAYER_NORM],
            .w1 = w[LAYER_W1],
            .b1 = w[LAYER_B1],
            .activation = ACTIVATION_GELU_ERF,
            .w2 = w[LAYER_W2],
            .b2 = w[LAYER_B2],
        });
}

/* The rows after the ids' stay zeros. */
static void context_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct dit_prompt *p = lane;
    struct matrix rows = matrix_rows(p->context, 0, p->ids);
    struct matrix out = exec_alloc_float(x, p->ids, p->context.cols);

    (void)block;
    x->ops->linear(x->stream, out, rows, weights[ENDS_OUT], weights[ENDS_OUT_BIAS]);
    x->ops->rms_norm(x->stream, rows, out, weights[ENDS_NORM], MATRIX_NONE, EPS);
    exec_free(x, &out);
    exec_free(x, &p->tables[SOURCE].device);
    exec_free(x, &p->tables[POSITIONS].device);
}

/* ---- prompts ---- */

static void measure(struct dit_prompt *p)
{
    cosmos_measure(p);
    p->padded = p->ids > COSMOS_CONTEXT ? p->ids : COSMOS_CONTEXT;
    p->tables[COSMOS_CONTEXT_ROWS].rows = p->padded;
    p->tables[POSITIONS].rows = p->ids > p->tokens ? p->ids : p->tokens;
    p->tables[POSITIONS].cols = anima_of(p->config)->head_dim;
}

static enum shoal_status fill(
    struct dit_prompt *p, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    const struct anima_config *c = anima_of(p->config);
    int64_t pairs = c->head_dim / 2;
    double *frequencies;

    if (!spec->ids || spec->id_count < 1)
        FAIL(error, SHOAL_E_INVALID,
            "Anima takes the prompt as T5's tokens too, which end with one that ends the text: "
            "there are none");
    TRY(cosmos_fill(p, spec, error));
    TRY(text_embed(&c->words, spec->ids, p->ids, p->tables[COSMOS_CONTEXT_ROWS].host, error));
    frequencies = mem_calloc((size_t)pairs, sizeof *frequencies);
    if (!frequencies) FAIL_MEMORY(error);
    rope_frequencies_single(frequencies, c->head_dim, THETA);
    for (int64_t t = 0; t < p->tables[POSITIONS].rows; t++)
        rope_row(p->tables[POSITIONS].host + t * c->head_dim, pairs, 0, pairs, frequencies, t);
    mem_free(frequencies);
    return SHOAL_OK;
}

/* ---- opening ---- */

#define ADAPTER "llm_adapter."
#define LAYER_0 ADAPTER "blocks.0."

static const struct dit_family family = {
    .patch = COSMOS_PATCH,
    .vae = "wan-vae",
    .text = {.before = "",
        .after = "",
        .empty = "<|endoftext|>",
        .most = 512,
        .state = TEXT_LAST,
        .families = {"qwen3"},
        .second = true,
        .second_most = COSMOS_CONTEXT},
    .sampling = {.width = 1024, .height = 1024, .steps = 30, .cfg = 4, .shift = 3},
    .measure = measure,
    .fill = fill,
};

static void read_config(struct source *s, void *config)
{
    struct anima_config *c = config;

    c->cosmos.base.family = &family;
    cosmos_read_config(s, &c->cosmos);
    c->cosmos.base.width = source_dim(s, LAYER_0 "cross_attn.k_proj.weight", 1);
    c->words.width = c->cosmos.context_dim;
    text_read_embedding(s, ADAPTER "embed.weight", &c->words);
    c->head_dim = (int32_t)source_dim(s, LAYER_0 "self_attn.q_norm.weight", 0);
    c->heads = (int32_t)(source_dim(s, LAYER_0 "self_attn.q_proj.weight", 0) / c->head_dim);
    c->ffn_dim = source_dim(s, LAYER_0 "mlp.0.weight", 0);
    c->layers = source_count(s, ADAPTER "blocks.");
    if (s->status) return;
    if (source_tensor(s, ADAPTER "in_proj.weight"))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: its adapter is of another width than its embedding (tensor %s" ADAPTER
            "in_proj.weight), which this build does not run",
            checkpoint_path(s->checkpoint), s->prefix);
    else if (c->head_dim % 2 || (int64_t)c->heads * c->head_dim != c->words.width)
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: an adapter of width %lld in %d heads of %d", checkpoint_path(s->checkpoint),
            (long long)c->words.width, (int)c->heads, (int)c->head_dim);
}

static void build_attention(struct model_builder *b, const struct anima_config *c, bool cross)
{
    static const char *const names[2][6] = {
        {"norm_self_attn.weight",
            "self_attn.q_proj.weight+self_attn.k_proj.weight+self_attn.v_proj.weight", NULL,
            "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight"},
        {"norm_cross_attn.weight", "cross_attn.q_proj.weight",
            "cross_attn.k_proj.weight+cross_attn.v_proj.weight", "cross_attn.q_norm.weight",
            "cross_attn.k_norm.weight", "cross_attn.o_proj.weight"},
    };
    const char *const *n = names[cross];
    int64_t width = c->words.width;
    const int64_t parts[] = {width, width, width};

    builder_weight(b, n[0], 1, width);
    builder_stack(b, n[1], parts, cross ? 1 : ATTENTION_PARTS, width);
    if (cross) builder_stack(b, n[2], parts, ATTENTION_PARTS - 1, c->cosmos.base.width);
    builder_weight(b, n[3], 1, c->head_dim);
    builder_weight(b, n[4], 1, c->head_dim);
    builder_weight(b, n[5], width, width);
}

static void build_layer(struct model_builder *b, const struct anima_config *c, int32_t i)
{
    char name[64], key_prefix[64];

    snprintf(name, sizeof name, ADAPTER "blocks.%d", (int)i);
    snprintf(key_prefix, sizeof key_prefix, ADAPTER "blocks.%d.", (int)i);
    builder_block(b, layer_forward, i, name, key_prefix);
    build_attention(b, c, false);
    build_attention(b, c, true);
    builder_weight(b, "norm_mlp.weight", 1, c->words.width);
    builder_weight(b, "mlp.0.weight", c->ffn_dim, c->words.width);
    builder_weight(b, "mlp.0.bias", 1, c->ffn_dim);
    builder_weight(b, "mlp.2.weight", c->words.width, c->ffn_dim);
    builder_weight(b, "mlp.2.bias", 1, c->words.width);
}

static void build(struct model_builder *b, const void *config)
{
    const struct anima_config *c = config;
    int32_t step = cosmos_build_ends(b, &c->cosmos);
    int32_t context = builder_block(b, NULL, 0, "adapter's output", "");

    builder_weight(b, ADAPTER "out_proj.weight", c->words.width, c->words.width);
    builder_weight(b, ADAPTER "out_proj.bias", 1, c->words.width);
    builder_weight(b, ADAPTER "norm.weight", 1, c->words.width);
    cosmos_build_times(b, &c->cosmos);
    for (int32_t i = 0; i < c->layers; i++)
        build_layer(b, c, i);
    cosmos_build_layers(b, &c->cosmos);
    builder_pass(b, (struct pass){.name = "context",
                        .first = context + 1,
                        .count = 1 + c->layers,
                        .globals = context,
                        .begin = context_begin,
                        .end = context_end});
    builder_pass(b, cosmos_step_pass(&c->cosmos, step, context + 2 + c->layers));
}

enum shoal_status anima_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    struct source_family source = {
        .name = "anima",
        .type_key = "_class_name",
        .type = "CosmosTransformer3DModel",
        .config_bytes = sizeof(struct anima_config),
        .read_config = read_config,
        .build = build,
    };

    cosmos_find_key(&source, checkpoint);
    return source_open(&source, checkpoint, config_path, model, error);
}
