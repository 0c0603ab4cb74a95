/*
 * Z-Image's diffusion transformer: opening it and its forward functions.
 *
 * The joint sequence is image then caption, each padded to a multiple of 32 with its learned pad
 * token; nothing is masked. The image's tokens go through the noise refiner by themselves, the
 * caption's through the context refiner (which sees no timestep, so once for each prompt), and
 * both through the layers.
 */
#include "models/dit/zimage.h"

#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "layers/timestep.h"
#include "models/source.h"

#include <stdio.h>
#include <string.h>

#define HEAD_NORM_EPS 1e-5f
#define FINAL_NORM_EPS 1e-6f

/* A prompt's tables. */
enum { TIMES, ROPE };

enum { CONTEXT_CAP_NORM, CONTEXT_CAP, CONTEXT_CAP_BIAS, CONTEXT_PAD };

enum {
    STEP_X,
    STEP_X_BIAS,
    STEP_T1,
    STEP_T1_BIAS,
    STEP_T2,
    STEP_T2_BIAS,
    STEP_PAD,
    STEP_FINAL_SCALE,
    STEP_FINAL_SCALE_BIAS,
    STEP_FINAL,
    STEP_FINAL_BIAS,
};

enum {
    LAYER_NORM1,
    LAYER_QKV,
    LAYER_QKV_LAST = LAYER_QKV + ATTENTION_PARTS - 1,
    LAYER_Q_NORM,
    LAYER_K_NORM,
    LAYER_OUT,
    LAYER_NORM2,
    LAYER_FFN_NORM1,
    LAYER_W1,
    LAYER_W3,
    LAYER_W2,
    LAYER_FFN_NORM2,
    LAYER_MODULATION, /* not in the context refiner */
    LAYER_MODULATION_BIAS,
};

const struct zimage_config *zimage_config(const struct model *model)
{
    return model->config;
}

static const struct zimage_config *zimage_of(const struct dit_config *base)
{
    return (const struct zimage_config *)base;
}

/* ---- forward: a layer ---- */

static struct attention_layer attention_of(
    const struct zimage_config *config, const struct matrix *weights, struct matrix rope)
{
    return (struct attention_layer){
        .heads = config->heads,
        .kv_heads = config->heads,
        .head_dim = config->head_dim,
        .eps = config->norm_eps,
        .head_eps = HEAD_NORM_EPS,
        .norm = weights[LAYER_NORM1],
        .qkv = {weights[LAYER_QKV], weights[LAYER_QKV + 1], weights[LAYER_QKV + 2]},
        .q_norm = weights[LAYER_Q_NORM],
        .k_norm = weights[LAYER_K_NORM],
        .out = weights[LAYER_OUT],
        .post_norm = weights[LAYER_NORM2],
        .rope = rope,
        .layout = ROPE_INTERLEAVED,
    };
}

static struct feed_forward_layer feed_forward_of(
    const struct zimage_config *config, const struct matrix *weights)
{
    return (struct feed_forward_layer){
        .eps = config->norm_eps,
        .activation = ACTIVATION_SILU,
        .norm = weights[LAYER_FFN_NORM1],
        .w1 = weights[LAYER_W1],
        .w3 = weights[LAYER_W3],
        .w2 = weights[LAYER_W2],
        .post_norm = weights[LAYER_FFN_NORM2],
    };
}

static void context_layer(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct zimage_config *config = block->config;
    struct dit_prompt *prompt = lane;
    struct attention_layer attention = attention_of(config, weights,
        matrix_rows(prompt->tables[ROPE].device, prompt->image_padded, prompt->padded));
    struct feed_forward_layer feed_forward = feed_forward_of(config, weights);

    attention_add(x, prompt->context, &attention);
    feed_forward_add(x, prompt->context, &feed_forward);
}

/* Rows [0, rows) of the lane's sequence. */
static void modulated_layer(struct exec *x, const struct block *block, const struct matrix *weights,
    struct dit_lane *lane, int64_t rows)
{
    const struct zimage_config *config = block->config;
    struct matrix hidden = matrix_rows(lane->hidden, 0, rows);
    struct matrix modulation = exec_alloc_float(x, 1, 4 * config->dim);
    struct attention_layer attention =
        attention_of(config, weights, matrix_rows(lane->prompt->tables[ROPE].device, 0, rows));
    struct feed_forward_layer feed_forward = feed_forward_of(config, weights);

    x->ops->linear(x->stream, modulation, lane->time, weights[LAYER_MODULATION],
        weights[LAYER_MODULATION_BIAS]);
    attention.scale = matrix_cols(modulation, 0, config->dim);
    attention.gate = matrix_cols(modulation, config->dim, config->dim);
    feed_forward.scale = matrix_cols(modulation, 2 * config->dim, config->dim);
    feed_forward.gate = matrix_cols(modulation, 3 * config->dim, config->dim);
    x->ops->activate(x->stream, attention.gate, attention.gate, ACTIVATION_TANH);
    x->ops->activate(x->stream, feed_forward.gate, feed_forward.gate, ACTIVATION_TANH);

    attention_add(x, hidden, &attention);
    feed_forward_add(x, hidden, &feed_forward);
    exec_free(x, &modulation);
}

static void noise_layer(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct dit_lane *l = lane;

    modulated_layer(x, block, weights, l, l->prompt->image_padded);
}

static void joint_layer(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct dit_lane *l = lane;

    modulated_layer(x, block, weights, l, l->hidden.rows);
}

/* ---- forward: the passes' ends ---- */

/* Rows [used, hidden.rows) become the pad token. */
static void pad(struct exec *x, struct matrix hidden, int64_t used, struct matrix token)
{
    if (used < hidden.rows)
        x->ops->copy(x->stream, matrix_rows(hidden, used, hidden.rows - used), token);
}

static void context_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct zimage_config *config = block->config;
    struct dit_prompt *p = lane;
    struct matrix features;

    tables_upload(x, p->tables, DIT_TABLES);
    p->context = exec_alloc_float(x, p->padded, config->dim);
    features = exec_alloc_float(x, p->tokens, config->base.width);
    exec_upload(x, features, p->features);

    x->ops->rms_norm(
        x->stream, features, features, weights[CONTEXT_CAP_NORM], MATRIX_NONE, config->norm_eps);
    x->ops->linear(x->stream, matrix_rows(p->context, 0, p->tokens), features, weights[CONTEXT_CAP],
        weights[CONTEXT_CAP_BIAS]);
    pad(x, p->context, p->tokens, weights[CONTEXT_PAD]);
    exec_free(x, &features);
}

static void step_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct zimage_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    struct matrix patches, inner;

    l->time = exec_alloc_float(x, 1, config->t_dim);
    inner = exec_alloc_float(x, 1, config->t_mid);
    x->ops->linear(x->stream, inner, matrix_rows(p->tables[TIMES].device, l->step, 1),
        weights[STEP_T1], weights[STEP_T1_BIAS]);
    x->ops->activate(x->stream, inner, inner, ACTIVATION_SILU);
    x->ops->linear(x->stream, l->time, inner, weights[STEP_T2], weights[STEP_T2_BIAS]);
    exec_free(x, &inner);

    l->hidden = exec_alloc_float(x, p->image_padded + p->padded, config->dim);
    patches = exec_alloc(x, p->image_tokens, ZIMAGE_PATCH * ZIMAGE_PATCH * config->base.channels);
    x->ops->patchify(
        x->stream, patches, l->latent, p->height, p->width, ZIMAGE_PATCH, PATCH_CHANNELS_LAST);
    x->ops->linear(x->stream, matrix_rows(l->hidden, 0, p->image_tokens), patches, weights[STEP_X],
        weights[STEP_X_BIAS]);
    exec_free(x, &patches);
    pad(x, matrix_rows(l->hidden, 0, p->image_padded), p->image_tokens, weights[STEP_PAD]);
    x->ops->copy(x->stream, matrix_rows(l->hidden, p->image_padded, p->padded), p->context);
}

static void step_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct zimage_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    struct matrix image = matrix_rows(l->hidden, 0, p->image_tokens);
    struct matrix scale = exec_alloc_float(x, 1, config->dim);
    struct matrix patches =
        exec_alloc(x, p->image_tokens, ZIMAGE_PATCH * ZIMAGE_PATCH * config->base.channels);

    x->ops->activate(x->stream, l->time, l->time, ACTIVATION_SILU);
    x->ops->linear(
        x->stream, scale, l->time, weights[STEP_FINAL_SCALE], weights[STEP_FINAL_SCALE_BIAS]);
    x->ops->layer_norm(x->stream, image, image, MATRIX_NONE, scale, MATRIX_NONE, FINAL_NORM_EPS);
    x->ops->linear(x->stream, patches, image, weights[STEP_FINAL], weights[STEP_FINAL_BIAS]);
    x->ops->unpatchify(
        x->stream, l->velocity, patches, p->height, p->width, ZIMAGE_PATCH, PATCH_CHANNELS_LAST);
    /* The model points from noise to picture; the convention is the other way. */
    x->ops->blend(x->stream, l->velocity, 0.0f, l->latent, -1.0f);
    exec_free(x, &patches);
    exec_free(x, &scale);
    dit_lane_fini(x, l);
}

/* ---- prompts ---- */

static int64_t padded(int64_t tokens)
{
    return (tokens + ZIMAGE_TOKEN_MULTIPLE - 1) / ZIMAGE_TOKEN_MULTIPLE * ZIMAGE_TOKEN_MULTIPLE;
}

static void measure(struct dit_prompt *p)
{
    const struct zimage_config *c = zimage_of(p->config);

    p->padded = padded(p->tokens);
    p->image_padded = padded(p->image_tokens);
    p->tables[TIMES].rows = p->steps;
    p->tables[TIMES].cols = ZIMAGE_FREQUENCIES;
    p->tables[ROPE].rows = p->image_padded + p->padded;
    p->tables[ROPE].cols = c->head_dim;
}

/* Caption token i at (1 + i, 0, 0), pad tokens included; image token (row, column) at
 * (1 + caption tokens, row, column), its pad tokens at (0, 0, 0). */
static void position(const struct dit_prompt *p, int64_t row, int64_t place[3])
{
    const int64_t columns = p->width / ZIMAGE_PATCH;

    place[0] = place[1] = place[2] = 0;
    if (row >= p->image_padded) {
        place[0] = 1 + row - p->image_padded;
    } else if (row < p->image_tokens) {
        place[0] = 1 + p->padded;
        place[1] = row / columns;
        place[2] = row % columns;
    }
}

static enum shoal_status fill(
    struct dit_prompt *p, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    for (int32_t i = 0; i < p->steps; i++)
        timestep_sinusoid(p->tables[TIMES].host + (int64_t)i * ZIMAGE_FREQUENCIES,
            ZIMAGE_FREQUENCIES, zimage_time(spec->sigmas[i]) * zimage_of(p->config)->t_scale);
    return dit_fill_rope(p,
        &(struct dit_rope){.table = ROPE,
            .axes = zimage_of(p->config)->axes,
            .theta = zimage_of(p->config)->theta,
            .position = position},
        error);
}

/* ---- opening ---- */

#define X_EMBEDDER "all_x_embedder.2-1.weight|x_embedder.weight"
#define Q_NORM "layers.0.attention.norm_q.weight|layers.0.attention.q_norm.weight"

/* Lists of patch sizes: this build runs the models that have one, of this size. */
static void require_one(struct source *s, const char *key, int64_t value)
{
    int64_t found[2];
    int32_t count = source_integers(s, key, found, 2, 1, 1024);

    if (s->status || !count || (count == 1 && found[0] == value)) return;
    s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
        "%s: \"%s\" must be [%lld]: this build runs no other", s->config_path, key,
        (long long)value);
}

static const struct dit_family family = {
    .patch = ZIMAGE_PATCH,
    .vae = "kl-vae",
    .text = {.before = "<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
        .most = 512,
        .state = TEXT_BEFORE_LAST,
        .families = {"qwen3"}},
    /* Z-Image-Turbo's. */
    .sampling = {.width = 1024, .height = 1024, .steps = 8, .cfg = 1, .shift = 3},
    .measure = measure,
    .fill = fill,
};

static void read_config(struct source *s, void *config)
{
    struct zimage_config *c = config;

    c->base.family = &family;
    c->dim = source_dim(s, "cap_embedder.1.weight", 0);
    c->base.width = source_dim(s, "cap_embedder.1.weight", 1);
    c->base.channels = source_dim(s, X_EMBEDDER, 1) / (ZIMAGE_PATCH * ZIMAGE_PATCH);
    c->head_dim = (int32_t)source_dim(s, Q_NORM, 0);
    c->heads = (int32_t)(c->dim / c->head_dim);
    c->ffn_dim = source_dim(s, "layers.0.feed_forward.w1.weight", 0);
    c->t_mid = source_dim(s, "t_embedder.mlp.0.weight", 0);
    c->t_dim = source_dim(s, "t_embedder.mlp.2.weight", 0);
    c->layers = source_count(s, "layers.");
    c->noise_refiners = source_count(s, "noise_refiner.");
    c->context_refiners = source_count(s, "context_refiner.");
    c->theta = source_number(s, "rope_theta", 256.0, 1.0, 1e9);
    c->t_scale = (float)source_number(s, "t_scale", 1000.0, 1e-3, 1e6);
    c->norm_eps = (float)source_number(s, "norm_eps", 1e-5, 1e-12, 0.1);

    source_agrees(s, "dim", c->dim, "cap_embedder.1.weight");
    source_agrees(s, "cap_feat_dim", c->base.width, "cap_embedder.1.weight");
    source_agrees(s, "in_channels", c->base.channels, "x_embedder.weight");
    source_agrees(s, "n_heads", c->heads, "layers.0.attention.norm_q.weight");
    source_agrees(s, "n_kv_heads", c->heads, "layers.0.attention.norm_q.weight");
    source_agrees(s, "n_layers", c->layers, "layers.*");
    source_agrees(s, "n_refiner_layers", c->noise_refiners, "noise_refiner.*");
    source_agrees(s, "n_refiner_layers", c->context_refiners, "context_refiner.*");
    source_requires_bool(s, "qk_norm", true);
    source_requires_null(s, "siglip_feat_dim");
    require_one(s, "all_patch_size", ZIMAGE_PATCH);
    require_one(s, "all_f_patch_size", 1);
    if (!s->status && (c->dim % c->head_dim || c->head_dim % 2 || c->base.channels < 1))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: a width of %lld in heads of %d", checkpoint_path(s->checkpoint), (long long)c->dim,
            (int)c->head_dim);
    /* A head's dimensions are split between the three axes, 2 : 3 : 3 unless the config says. */
    c->axes[0] = c->head_dim / 4;
    c->axes[1] = c->axes[2] = c->head_dim / 8 * 3;
    source_axes(s, "axes_dims", c->head_dim, c->axes);
}

static void build_layers(struct model_builder *b, const struct zimage_config *c, const char *group,
    int32_t count, block_forward *forward, bool modulated)
{
    for (int32_t i = 0; i < count; i++) {
        char name[64], key_prefix[64];

        snprintf(name, sizeof name, "%s.%d", group, (int)i);
        snprintf(key_prefix, sizeof key_prefix, "%s.%d.", group, (int)i);
        builder_block(b, forward, i, name, key_prefix);
        builder_weight(b, "attention_norm1.weight", 1, c->dim);
        builder_stack(b,
            "attention.to_q.weight+attention.to_k.weight+attention.to_v.weight|attention.qkv."
            "weight",
            (const int64_t[]){c->dim, c->dim, c->dim}, ATTENTION_PARTS, c->dim);
        builder_weight(b, "attention.norm_q.weight|attention.q_norm.weight", 1, c->head_dim);
        builder_weight(b, "attention.norm_k.weight|attention.k_norm.weight", 1, c->head_dim);
        builder_weight(b, "attention.to_out.0.weight|attention.out.weight", c->dim, c->dim);
        builder_weight(b, "attention_norm2.weight", 1, c->dim);
        builder_weight(b, "ffn_norm1.weight", 1, c->dim);
        builder_weight(b, "feed_forward.w1.weight", c->ffn_dim, c->dim);
        builder_weight(b, "feed_forward.w3.weight", c->ffn_dim, c->dim);
        builder_weight(b, "feed_forward.w2.weight", c->dim, c->ffn_dim);
        builder_weight(b, "ffn_norm2.weight", 1, c->dim);
        if (!modulated) continue;
        builder_weight(b, "adaLN_modulation.0.weight", 4 * c->dim, c->t_dim);
        builder_weight(b, "adaLN_modulation.0.bias", 1, 4 * c->dim);
    }
}

static void build(struct model_builder *b, const void *config)
{
    const struct zimage_config *c = config;
    int64_t patch = ZIMAGE_PATCH * ZIMAGE_PATCH * c->base.channels;
    int32_t context, step;

    context = builder_block(b, NULL, 0, "context embedder", "");
    builder_weight(b, "cap_embedder.0.weight", 1, c->base.width);
    builder_weight(b, "cap_embedder.1.weight", c->dim, c->base.width);
    builder_weight(b, "cap_embedder.1.bias", 1, c->dim);
    builder_weight(b, "cap_pad_token", 1, c->dim);

    step = builder_block(b, NULL, 0, "image and time embedders, final layer", "");
    builder_weight(b, X_EMBEDDER, c->dim, patch);
    builder_weight(b, "all_x_embedder.2-1.bias|x_embedder.bias", 1, c->dim);
    builder_weight(b, "t_embedder.mlp.0.weight", c->t_mid, ZIMAGE_FREQUENCIES);
    builder_weight(b, "t_embedder.mlp.0.bias", 1, c->t_mid);
    builder_weight(b, "t_embedder.mlp.2.weight", c->t_dim, c->t_mid);
    builder_weight(b, "t_embedder.mlp.2.bias", 1, c->t_dim);
    builder_weight(b, "x_pad_token", 1, c->dim);
    builder_weight(b,
        "all_final_layer.2-1.adaLN_modulation.1.weight|final_layer.adaLN_modulation.1.weight",
        c->dim, c->t_dim);
    builder_weight(b,
        "all_final_layer.2-1.adaLN_modulation.1.bias|final_layer.adaLN_modulation.1.bias", 1,
        c->dim);
    builder_weight(b, "all_final_layer.2-1.linear.weight|final_layer.linear.weight", patch, c->dim);
    builder_weight(b, "all_final_layer.2-1.linear.bias|final_layer.linear.bias", 1, patch);

    build_layers(b, c, "context_refiner", c->context_refiners, context_layer, false);
    build_layers(b, c, "noise_refiner", c->noise_refiners, noise_layer, true);
    build_layers(b, c, "layers", c->layers, joint_layer, true);

    builder_pass(b, (struct pass){.name = "context",
                        .first = 2,
                        .count = c->context_refiners,
                        .globals = context,
                        .begin = context_begin});
    builder_pass(b, (struct pass){.name = "step",
                        .first = 2 + c->context_refiners,
                        .count = c->noise_refiners + c->layers,
                        .globals = step,
                        .begin = step_begin,
                        .end = step_end});
}

enum shoal_status zimage_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family source = {
        .name = "z-image",
        .key = "cap_embedder.1.weight",
        .type_key = "_class_name",
        .type = "ZImageTransformer2DModel",
        .config_bytes = sizeof(struct zimage_config),
        .read_config = read_config,
        .build = build,
    };

    return source_open(&source, checkpoint, config_path, model, error);
}
