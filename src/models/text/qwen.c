/*
 * Qwen3 and Qwen2.5-VL's language model as text encoders: opening them, their lanes and their
 * forward functions. They differ in a layer's attention: Qwen3 norms the heads of q and k,
 * Qwen2.5-VL adds biases to q, k and v. Of text alone the latter's three rotary positions are one.
 *
 * Two states can be asked for: hidden_states[-2], of n layers the output of the last but one, so
 * that layers 0 .. n - 2 are run, without the final norm; and the last, after that norm.
 */
#include "models/text/qwen.h"

#include "base/memory.h"
#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "layers/rope.h"
#include "models/source.h"

#include <stdio.h>
#include <string.h>

#define VL_HEAD_DIM 128 /* of all sizes of Qwen2.5-VL */

enum { ROPE }; /* a lane's only table */

enum {
    LAYER_NORM1,
    LAYER_QKV,
    LAYER_QKV_LAST = LAYER_QKV + ATTENTION_PARTS - 1,
    LAYER_OUT,
    LAYER_NORM2,
    LAYER_GATE,
    LAYER_UP,
    LAYER_DOWN,
    LAYER_Q_NORM, /* Qwen3's */
    LAYER_K_NORM,
    LAYER_QKV_BIAS = LAYER_Q_NORM, /* Qwen2.5-VL's */
};

const struct qwen_config *qwen_config(const struct model *model)
{
    return model->config;
}

static const struct qwen_config *qwen_of(const struct text_config *base)
{
    return (const struct qwen_config *)base;
}

/* ---- forward ---- */

static void layer_forward(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct qwen_config *config = block->config;
    struct text_lane *l = lane;
    struct attention_layer attention = {
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .eps = config->norm_eps,
        .head_eps = config->norm_eps,
        .norm = weights[LAYER_NORM1],
        .qkv = {weights[LAYER_QKV], weights[LAYER_QKV + 1], weights[LAYER_QKV + 2]},
        .out = weights[LAYER_OUT],
        .rope = l->tables[ROPE].device,
        .layout = ROPE_HALF,
        .causal = true,
    };
    struct feed_forward_layer feed_forward = {
        .eps = config->norm_eps,
        .activation = ACTIVATION_SILU,
        .norm = weights[LAYER_NORM2],
        .w1 = weights[LAYER_GATE],
        .w3 = weights[LAYER_UP],
        .w2 = weights[LAYER_DOWN],
    };

    if (config->biased) {
        attention.qkv_bias = weights[LAYER_QKV_BIAS];
    } else {
        attention.q_norm = weights[LAYER_Q_NORM];
        attention.k_norm = weights[LAYER_K_NORM];
    }
    attention_add(x, l->hidden, &attention);
    feed_forward_add(x, l->hidden, &feed_forward);
}

static void encode_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    (void)block;
    (void)weights;
    text_finish(x, lane);
}

/* The final norm's weight is the globals' only one. */
static void encode_all_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct text_lane *l = lane;

    (void)block;
    text_finish_normed(x, l, weights[0], qwen_of(l->config)->norm_eps);
}

/* ---- lanes ---- */

static void measure(struct text_lane *l)
{
    l->tables[ROPE].rows = l->tokens;
    l->tables[ROPE].cols = qwen_of(l->config)->head_dim;
}

static enum shoal_status fill(struct text_lane *l, struct shoal_error *error)
{
    const struct qwen_config *c = qwen_of(l->config);
    int64_t pairs = c->head_dim / 2;
    double *frequencies = mem_calloc((size_t)pairs, sizeof *frequencies);

    if (!frequencies) FAIL_MEMORY(error);
    rope_frequencies_single(frequencies, c->head_dim, c->theta);
    for (int64_t t = 0; t < l->tokens; t++)
        rope_row(l->tables[ROPE].host + t * 2 * pairs, pairs, 0, pairs, frequencies, t);
    mem_free(frequencies);
    return SHOAL_OK;
}

static const struct text_family family = {.measure = measure, .fill = fill};

/* ---- opening ---- */

/*
 * Layers before the last. A file may leave out the last one, which some models never run: the
 * config tells, or the final norm, which comes with the last layer.
 */
static int32_t layers_run(struct source *s)
{
    int32_t stored = source_count(s, "layers.");
    int32_t all = stored + (source_tensor(s, "norm.weight") ? 0 : 1);
    int32_t said = (int32_t)source_number(s, "num_hidden_layers", all, 2, 1024);

    if (s->status) return 1;
    if (stored == said || stored == said - 1) {
        if (said >= 2) return said - 1;
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: a text encoder of one layer has no hidden state before the last",
            checkpoint_path(s->checkpoint));
        return 1;
    }
    s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
        "%s says \"num_hidden_layers\": %d, but %s holds %d layers: they are not of the same model",
        s->config_path, (int)said, checkpoint_path(s->checkpoint), (int)stored);
    return 1;
}

/* Newer configs put theta into an object, older ones beside the rest. "mrope" is what Qwen2.5-VL
 * calls its positions, which for text are the usual ones. */
static double read_theta(struct source *s, bool vl)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    double theta = source_number(s, "rope_theta", 1e6, 1.0, 1e9);

    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        json_t *object = s->config ? json_object_get(s->config, objects[i]) : NULL;
        const char *type = json_string_value(json_object_get(object, "rope_type"));

        if (!json_is_object(object)) continue;
        if (!type) type = json_string_value(json_object_get(object, "type"));
        if (!type && i == 1) type = "unnamed"; /* nobody writes rope_scaling to scale nothing */
        if (type && strcmp(type, "default") != 0 && !(vl && !strcmp(type, "mrope"))) {
            s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
                "%s: \"%s\" asks for scaled rotary positions, which this build does not compute",
                s->config_path, objects[i]);
            return theta;
        }
        if (json_is_number(json_object_get(object, "rope_theta")))
            theta = json_number_value(json_object_get(object, "rope_theta"));
    }
    if (!s->status && !(theta >= 1.0 && theta <= 1e9))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: \"rope_theta\" must be a number from 1 to 1e9", s->config_path);
    return theta;
}

static void check_variants(struct source *s, const struct qwen_config *c)
{
    if (s->status) return;
    if (!c->biased && source_tensor(s, "layers.0.self_attn.q_proj.bias"))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: its attention has biases, which Qwen3's has not", checkpoint_path(s->checkpoint));
    else if (checkpoint_find(s->checkpoint, "rope_freqs.weight"))
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: tensor rope_freqs.weight scales rotary positions, which this build does not "
            "compute",
            checkpoint_path(s->checkpoint));
}

/* How many numbers a head of q has. */
static int32_t read_head_dim(struct source *s, bool biased)
{
    int64_t queries = source_dim(s, "layers.0.self_attn.q_proj.weight", 0);
    int64_t heads;

    if (!biased) return (int32_t)source_dim(s, "layers.0.self_attn.q_norm.weight", 0);
    heads = (int64_t)source_number(s, "num_attention_heads",
        (double)(queries / VL_HEAD_DIM ? queries / VL_HEAD_DIM : 1), 1, 4096);
    if (!s->status && queries % heads)
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: tensor %slayers.0.self_attn.q_proj.weight has %lld rows, which are not %lld heads",
            checkpoint_path(s->checkpoint), s->prefix, (long long)queries, (long long)heads);
    return s->status ? 1 : (int32_t)(queries / heads);
}

static void read_sizes(struct source *s, struct qwen_config *c)
{
    c->base.family = &family;
    c->base.width = source_dim(s, "layers.0.input_layernorm.weight", 0);
    text_read_embedding(s, "embed_tokens.weight", &c->base);
    c->head_dim = read_head_dim(s, c->biased);
    c->heads = (int32_t)(source_dim(s, "layers.0.self_attn.q_proj.weight", 0) / c->head_dim);
    c->kv_heads = (int32_t)(source_dim(s, "layers.0.self_attn.k_proj.weight", 0) / c->head_dim);
    c->ffn_dim = source_dim(s, "layers.0.mlp.gate_proj.weight", 0);
    c->layers = layers_run(s);
    c->whole = source_count(s, "layers.") > c->layers && source_tensor(s, "norm.weight");
    c->base.pass[TEXT_BEFORE_LAST] = 0;
    c->base.pass[TEXT_LAST] = c->whole ? 1 : -1;
    c->theta = read_theta(s, c->biased);
    c->norm_eps = (float)source_number(s, "rms_norm_eps", 1e-6, 1e-12, 0.1);
}

static void check_sizes(struct source *s, const struct qwen_config *c)
{
    const char *head =
        c->biased ? "layers.0.self_attn.q_proj.weight" : "layers.0.self_attn.q_norm.weight";

    source_agrees(s, "vocab_size", c->base.vocabulary, "embed_tokens.weight");
    source_agrees(s, "hidden_size", c->base.width, "layers.0.input_layernorm.weight");
    source_agrees(s, "head_dim", c->head_dim, head);
    source_agrees(s, "num_attention_heads", c->heads, "layers.0.self_attn.q_proj.weight");
    source_agrees(s, "num_key_value_heads", c->kv_heads, "layers.0.self_attn.k_proj.weight");
    source_agrees(s, "intermediate_size", c->ffn_dim, "layers.0.mlp.gate_proj.weight");
    source_agrees(s, "value_dim", c->head_dim, head);
    source_requires_text(s, "hidden_act", "silu");
    source_requires_text(s, "rope_type", "none");
    source_requires_bool(s, "attention_bias", c->biased);
    source_requires_bool(s, "use_sliding_window", false);
    if (!s->status &&
        (c->head_dim % 2 || c->heads < 1 || c->kv_heads < 1 || c->heads % c->kv_heads))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: %d query heads for %d key heads of %d", checkpoint_path(s->checkpoint),
            (int)c->heads, (int)c->kv_heads, (int)c->head_dim);
    check_variants(s, c);
}

static void read_qwen3(struct source *s, void *config)
{
    read_sizes(s, config);
    check_sizes(s, config);
}

/*
 * Plain Qwen2's tensors have the same names and shapes, so something must say that these are not
 * it: the config, a GGUF file's architecture (both were checked), or the vision model beside them.
 */
static void check_vl(struct source *s)
{
    const json_t *type = s->config ? json_object_get(s->config, "model_type") : NULL;

    if (s->status || json_is_string(type)) return;
    if (checkpoint_metadata(s->checkpoint, "general.architecture")) return;
    if (source_probe(s->checkpoint, QWEN_VL_VISION)) return;
    s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
        "%s: its tensors may be those of Qwen2.5-VL or of a plain Qwen2, which this build does not "
        "run: put its config.json beside it, or use a file that has the " QWEN_VL_VISION
        " of the former, or a GGUF file",
        checkpoint_path(s->checkpoint));
}

static void read_vl(struct source *s, void *config)
{
    struct qwen_config *c = config;

    check_vl(s);
    c->biased = true;
    read_sizes(s, c);
    check_sizes(s, c);
}

static void build_layer(struct model_builder *b, const struct qwen_config *c, int32_t i)
{
    int64_t q_dim = (int64_t)c->heads * c->head_dim, kv_dim = (int64_t)c->kv_heads * c->head_dim;
    char name[64], key_prefix[64];

    snprintf(name, sizeof name, "layers.%d", (int)i);
    snprintf(key_prefix, sizeof key_prefix, "layers.%d.", (int)i);
    builder_block(b, layer_forward, i, name, key_prefix);
    builder_weight(b, "input_layernorm.weight", 1, c->base.width);
    builder_stack(b, "self_attn.q_proj.weight+self_attn.k_proj.weight+self_attn.v_proj.weight",
        (const int64_t[]){q_dim, kv_dim, kv_dim}, ATTENTION_PARTS, c->base.width);
    builder_weight(b, "self_attn.o_proj.weight", c->base.width, q_dim);
    builder_weight(b, "post_attention_layernorm.weight", 1, c->base.width);
    builder_weight(b, "mlp.gate_proj.weight", c->ffn_dim, c->base.width);
    builder_weight(b, "mlp.up_proj.weight", c->ffn_dim, c->base.width);
    builder_weight(b, "mlp.down_proj.weight", c->base.width, c->ffn_dim);
    if (c->biased) {
        builder_weight(b, "self_attn.q_proj.bias+self_attn.k_proj.bias+self_attn.v_proj.bias", 1,
            q_dim + 2 * kv_dim);
    } else {
        builder_weight(b, "self_attn.q_norm.weight", 1, c->head_dim);
        builder_weight(b, "self_attn.k_norm.weight", 1, c->head_dim);
    }
}

/* Two passes over the same layers: before the last, and to the end, for which a file that holds
 * the last one is needed. */
static void build(struct model_builder *b, const void *config)
{
    const struct qwen_config *c = config;
    struct pass before = {.name = "encode",
        .count = c->layers,
        .globals = -1,
        .begin = text_begin,
        .end = encode_end};
    struct pass whole = before;

    for (int32_t i = 0; i < c->layers + c->whole; i++)
        build_layer(b, c, i);
    builder_pass(b, before);
    if (!c->whole) return;
    whole.count++;
    whole.globals = builder_block(b, NULL, 0, "final norm", "");
    builder_weight(b, "norm.weight", 1, c->base.width);
    whole.end = encode_all_end;
    builder_pass(b, whole);
}

static const struct source_key gguf_keys[] = {
    {"num_hidden_layers", "block_count"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"head_dim", "attention.key_length"},
    {"value_dim", "attention.value_length"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"rope_theta", "rope.freq_base"},
    {"rope_type", "rope.scaling.type"},
    {"vocab_size", "vocab_size"},
    {NULL, NULL},
};

enum shoal_status qwen3_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family source = {
        .name = "qwen3",
        .key = "layers.0.self_attn.q_norm.weight",
        .type_key = "model_type",
        .type = "qwen3",
        .gguf_type = "qwen3",
        .gguf_keys = gguf_keys,
        .config_bytes = sizeof(struct qwen_config),
        .read_config = read_qwen3,
        .build = build,
    };

    return source_open(&source, checkpoint, config_path, model, error);
}

enum shoal_status qwen_vl_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family source = {
        .name = "qwen2.5-vl",
        .key = "layers.0.self_attn.q_proj.bias",
        .type_key = "model_type",
        .type = "qwen2_5_vl|qwen2_5_vl_text",
        .nested = "text_config",
        .gguf_type = "qwen2vl",
        .gguf_keys = gguf_keys,
        .config_bytes = sizeof(struct qwen_config),
        .read_config = read_vl,
        .build = build,
    };

    return source_open(&source, checkpoint, config_path, model, error);
}
