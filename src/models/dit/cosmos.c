/*
 * Cosmos-Predict2's diffusion transformer: opening it and its forward functions.
 *
 * The image's tokens attend to each other and, layer by layer, to a context: the text encoder's
 * features and zeros up to 512 rows. What modulates the layers depends on the noise level only, so
 * the context pass makes it for all steps: the weights that embed it, 4 dim^2, need not be on the
 * device while steps are run.
 */
#include "models/dit/cosmos.h"

#include "base/memory.h"
#include "layers/attention.h"
#include "layers/feed_forward.h"
#include "layers/rope.h"
#include "layers/timestep.h"
#include "models/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EPS 1e-6f
#define CHANNELS 16     /* of the latent */
#define MASK_CHANNELS 1 /* of the padding mask, which is zeros where nothing is padded */
#define PATCH_PIXELS (COSMOS_PATCH * COSMOS_PATCH)

enum { ENDS_X, ENDS_FINAL_DOWN, ENDS_FINAL_UP, ENDS_FINAL };

enum { TIMES_NORM, TIMES_1, TIMES_2 };

/* Of the three residuals of a layer. */
enum { SELF, CROSS, MLP, RESIDUALS };

enum {
    LAYER_DOWN, /* and up: of each residual's modulation */
    LAYER_QKV = LAYER_DOWN + 2 * RESIDUALS,
    LAYER_Q_NORM = LAYER_QKV + ATTENTION_PARTS,
    LAYER_K_NORM,
    LAYER_OUT,
    LAYER_CROSS_Q,
    LAYER_CROSS_KV,
    LAYER_CROSS_Q_NORM = LAYER_CROSS_KV + ATTENTION_PARTS - 1,
    LAYER_CROSS_K_NORM,
    LAYER_CROSS_OUT,
    LAYER_W1,
    LAYER_W2,
};

static const struct cosmos_config *cosmos_of(const struct dit_config *base)
{
    return (const struct cosmos_config *)base;
}

/* ---- forward: the context pass ---- */

void cosmos_begin_context(struct exec *x, struct dit_prompt *p)
{
    tables_upload(x, p->tables, DIT_TABLES);
    p->context = p->tables[COSMOS_CONTEXT_ROWS].device;
    p->tables[COSMOS_CONTEXT_ROWS].device = MATRIX_NONE;
}

static void context_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    (void)block, (void)weights;
    cosmos_begin_context(x, lane);
}

/* TIMES <- silu(norm(sinusoids)); SHARED <- W2 silu(W1 sinusoids). */
static void embed_times(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct cosmos_config *config = block->config;
    struct dit_prompt *p = lane;
    struct matrix times = p->tables[COSMOS_TIMES].device,
                  *shared = &p->tables[COSMOS_SHARED].device;
    struct matrix inner;

    *shared = exec_alloc_float(x, p->steps, 3 * config->dim);
    inner = exec_alloc_float(x, p->steps, config->dim);
    x->ops->linear(x->stream, inner, times, weights[TIMES_1], MATRIX_NONE);
    x->ops->activate(x->stream, inner, inner, ACTIVATION_SILU);
    x->ops->linear(x->stream, *shared, inner, weights[TIMES_2], MATRIX_NONE);
    exec_free(x, &inner);
    x->ops->rms_norm(x->stream, times, times, weights[TIMES_NORM], MATRIX_NONE, EPS);
    x->ops->activate(x->stream, times, times, ACTIVATION_SILU);
}

/* ---- forward: a layer ---- */

/* [1, cols]: shift, scale and, but for the final layer, gate. */
static struct matrix modulation(struct exec *x, const struct cosmos_config *config,
    const struct dit_lane *l, const struct matrix *down_up, int64_t cols)
{
    const struct table *tables = l->prompt->tables;
    struct matrix shared = matrix_rows(tables[COSMOS_SHARED].device, l->step, 1);
    struct matrix m = exec_alloc_float(x, 1, cols),
                  inner = exec_alloc_float(x, 1, config->lora_dim);

    x->ops->linear(x->stream, inner, matrix_rows(tables[COSMOS_TIMES].device, l->step, 1),
        down_up[0], MATRIX_NONE);
    x->ops->linear(x->stream, m, inner, down_up[1], MATRIX_NONE);
    x->ops->blend(x->stream, m, 1.0f, matrix_cols(shared, 0, cols), 1.0f);
    exec_free(x, &inner);
    return m;
}

static void attend(struct exec *x, const struct cosmos_config *config, struct dit_lane *l,
    struct attention_layer attention, const struct matrix *down_up)
{
    struct matrix m = modulation(x, config, l, down_up, 3 * config->dim);

    attention.heads = attention.kv_heads = config->heads;
    attention.head_dim = config->head_dim;
    attention.eps = attention.head_eps = EPS;
    attention.layout = ROPE_HALF;
    attention.shift = matrix_cols(m, 0, config->dim);
    attention.scale = matrix_cols(m, config->dim, config->dim);
    attention.gate = matrix_cols(m, 2 * config->dim, config->dim);
    attention_add(x, l->hidden, &attention);
    exec_free(x, &m);
}

static void layer_forward(
    struct exec *x, const struct block *block, const struct matrix *w, void *lane)
{
    const struct cosmos_config *config = block->config;
    struct dit_lane *l = lane;
    struct attention_layer self = {
        .qkv = {w[LAYER_QKV], w[LAYER_QKV + 1], w[LAYER_QKV + 2]},
        .q_norm = w[LAYER_Q_NORM],
        .k_norm = w[LAYER_K_NORM],
        .out = w[LAYER_OUT],
        .rope = l->prompt->tables[COSMOS_ROPE].device,
    };
    struct attention_layer cross = {
        .qkv = {w[LAYER_CROSS_Q], w[LAYER_CROSS_KV], w[LAYER_CROSS_KV + 1]},
        .q_norm = w[LAYER_CROSS_Q_NORM],
        .k_norm = w[LAYER_CROSS_K_NORM],
        .out = w[LAYER_CROSS_OUT],
        .context = l->prompt->context,
    };
    struct matrix m;

    attend(x, config, l, self, w + LAYER_DOWN + 2 * SELF);
    attend(x, config, l, cross, w + LAYER_DOWN + 2 * CROSS);
    m = modulation(x, config, l, w + LAYER_DOWN + 2 * MLP, 3 * config->dim);
    feed_forward_add(x, l->hidden,
        &(struct feed_forward_layer){
            .eps = EPS,
            .shift = matrix_cols(m, 0, config->dim),
            .scale = matrix_cols(m, config->dim, config->dim),
            .w1 = w[LAYER_W1],
            .activation = ACTIVATION_GELU_ERF,
            .w2 = w[LAYER_W2],
            .gate = matrix_cols(m, 2 * config->dim, config->dim),
        });
    exec_free(x, &m);
}

/* ---- forward: the step pass's ends ---- */

/* The padding mask's columns, the last ones, would be multiplied with zeros. */
static void step_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct cosmos_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    int64_t cols = PATCH_PIXELS * config->base.channels;
    struct matrix patches;

    l->hidden = exec_alloc_float(x, p->image_tokens, config->dim);
    patches = exec_alloc(x, p->image_tokens, cols);
    x->ops->patchify(
        x->stream, patches, l->latent, p->height, p->width, COSMOS_PATCH, PATCH_CHANNELS_FIRST);
    x->ops->linear(
        x->stream, l->hidden, patches, matrix_cols(weights[ENDS_X], 0, cols), MATRIX_NONE);
    exec_free(x, &patches);
}

/* Of all columns of a patch the channel is the fastest here, not the slowest. */
static void step_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct cosmos_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    struct matrix m = modulation(x, config, l, weights + ENDS_FINAL_DOWN, 2 * config->dim);
    struct matrix patches = exec_alloc(x, p->image_tokens, PATCH_PIXELS * config->base.channels);

    x->ops->layer_norm(x->stream, l->hidden, l->hidden, MATRIX_NONE,
        matrix_cols(m, config->dim, config->dim), matrix_cols(m, 0, config->dim), EPS);
    x->ops->linear(x->stream, patches, l->hidden, weights[ENDS_FINAL], MATRIX_NONE);
    x->ops->unpatchify(
        x->stream, l->velocity, patches, p->height, p->width, COSMOS_PATCH, PATCH_CHANNELS_LAST);
    exec_free(x, &patches);
    exec_free(x, &m);
    dit_lane_fini(x, l);
}

/* ---- prompts ---- */

void cosmos_measure(struct dit_prompt *p)
{
    const struct cosmos_config *c = cosmos_of(p->config);

    p->padded = p->tokens > COSMOS_CONTEXT ? p->tokens : COSMOS_CONTEXT;
    p->tables[COSMOS_TIMES].rows = p->steps;
    p->tables[COSMOS_TIMES].cols = c->dim;
    p->tables[COSMOS_ROPE].rows = p->image_tokens;
    p->tables[COSMOS_ROPE].cols = c->head_dim;
    p->tables[COSMOS_CONTEXT_ROWS].rows = p->padded;
    p->tables[COSMOS_CONTEXT_ROWS].cols = c->context_dim;
}

enum shoal_status cosmos_fill(
    struct dit_prompt *p, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    const struct cosmos_config *c = cosmos_of(p->config);
    int64_t columns = p->width / COSMOS_PATCH, pairs = c->head_dim / 2, first = 0;
    double *frequencies = mem_calloc((size_t)pairs, sizeof *frequencies);

    if (!frequencies) FAIL_MEMORY(error);
    for (int axis = 0; axis < 3; axis++) {
        int64_t count = c->axes[axis] / 2;

        rope_frequencies_single(frequencies, c->axes[axis], c->theta[axis]);
        for (int64_t t = 0; t < p->image_tokens; t++) {
            const int64_t place[3] = {0, t / columns, t % columns};

            rope_row(p->tables[COSMOS_ROPE].host + t * c->head_dim, pairs, first, count,
                frequencies, place[axis]);
        }
        first += count;
    }
    mem_free(frequencies);
    for (int32_t i = 0; i < p->steps; i++)
        timestep_sinusoid(
            p->tables[COSMOS_TIMES].host + i * c->dim, (int32_t)c->dim, spec->sigmas[i]);
    return SHOAL_OK;
}

static enum shoal_status fill(
    struct dit_prompt *p, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    TRY(cosmos_fill(p, spec, error));
    memcpy(p->tables[COSMOS_CONTEXT_ROWS].host, p->features,
        (size_t)(p->tokens * p->config->width) * sizeof(float));
    return SHOAL_OK;
}

/* ---- opening: the configuration ---- */

#define X_EMBEDDER "x_embedder.proj.1.weight|patch_embed.proj.weight"
#define FINAL "final_layer.linear.weight|proj_out.weight"
#define LAYER_0(name, diffusers_name) "blocks.0." name "|transformer_blocks.0." diffusers_name

#define UNSUPPORTED(s, ...)                                                                        \
    ((s)->status = error_set((s)->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__, __VA_ARGS__))
#define MALFORMED(s, ...)                                                                          \
    ((s)->status = error_set((s)->error, SHOAL_E_FORMAT, __FILE__, __LINE__, __VA_ARGS__))

/* The latent's channels, a patch's columns over its pixels; the mask's is one more. */
static void read_channels(struct source *s, struct cosmos_config *c)
{
    const char *path = checkpoint_path(s->checkpoint);
    int64_t in = source_dim(s, X_EMBEDDER, 1), out = source_dim(s, FINAL, 0);

    if (s->status) return;
    c->base.channels = out / PATCH_PIXELS;
    if (in == PATCH_PIXELS * (CHANNELS + MASK_CHANNELS + 1))
        UNSUPPORTED(s,
            "%s is of a Cosmos model that makes videos of a picture or a video: it takes %d "
            "channels beside the mask; this build runs Cosmos-Predict2 Text2Image, which takes %d",
            path, CHANNELS + 1, CHANNELS);
    else if (in != PATCH_PIXELS * (CHANNELS + MASK_CHANNELS) || out != PATCH_PIXELS * CHANNELS)
        UNSUPPORTED(s,
            "%s: patches of %lld numbers in and %lld out; Cosmos-Predict2 Text2Image, which this "
            "build runs, has %d and %d",
            path, (long long)in, (long long)out, PATCH_PIXELS * (CHANNELS + MASK_CHANNELS),
            PATCH_PIXELS * CHANNELS);
    else if (source_tensor(s, "extra_pos_embedder.pos_emb_h"))
        UNSUPPORTED(s,
            "%s: it has learned positions (tensor %sextra_pos_embedder.pos_emb_h); this build runs "
            "Cosmos-Predict2 Text2Image, which has none",
            path, s->prefix);
}

/* "rope_scale": how much larger than what it was trained on an axis' positions may become. */
static void read_rope_scales(struct source *s, double scales[3])
{
    const json_t *array = s->config ? json_object_get(s->config, "rope_scale") : NULL;
    bool good = json_array_size(array) == 3;

    if (s->status || !array || json_is_null(array)) return;
    for (int axis = 0; axis < 3 && good; axis++) {
        const json_t *item = json_array_get(array, (size_t)axis);

        scales[axis] = json_number_value(item);
        good = json_is_number(item) && scales[axis] >= 1e-3 && scales[axis] <= 1e3;
    }
    if (!good)
        MALFORMED(s, "%s: \"rope_scale\" must be three numbers from 0.001 to 1000", s->config_path);
}

/* A head's dimensions are a third each for row and column, as whole pairs allow, and the rest for
 * the time; theta^(-2 i / axis) with theta 10^4 scale^(axis / (axis - 2)). */
static void read_axes(struct source *s, struct cosmos_config *c)
{
    double scales[3] = {1, 4, 4};

    read_rope_scales(s, scales);
    if (s->status) return;
    if (c->head_dim % 2 || c->head_dim < 12 || c->heads < 1 || c->dim % c->head_dim || c->dim % 2) {
        MALFORMED(s, "%s: a width of %lld in heads of %d", checkpoint_path(s->checkpoint),
            (long long)c->dim, (int)c->head_dim);
        return;
    }
    c->axes[1] = c->axes[2] = c->head_dim / 6 * 2;
    c->axes[0] = c->head_dim - 2 * c->axes[1];
    for (int axis = 0; axis < 3; axis++)
        c->theta[axis] = 1e4 * pow(scales[axis], c->axes[axis] / (c->axes[axis] - 2.0));
}

/* The config is diffusers'. */
static void check_config(struct source *s, const struct cosmos_config *c)
{
    int64_t patch[3];
    double ratio = source_number(s, "mlp_ratio", 0, 1e-3, 1e3);

    source_agrees(s, "in_channels", c->base.channels, "patch_embed.proj.weight");
    source_agrees(s, "out_channels", c->base.channels, "proj_out.weight");
    source_agrees(s, "num_attention_heads", c->heads, "transformer_blocks.0.attn1.norm_q.weight");
    source_agrees(s, "attention_head_dim", c->head_dim, "transformer_blocks.0.attn1.norm_q.weight");
    source_agrees(s, "num_layers", c->layers, "transformer_blocks.*");
    source_agrees(s, "text_embed_dim", c->context_dim, "transformer_blocks.0.attn2.to_k.weight");
    source_agrees(s, "adaln_lora_dim", c->lora_dim, "transformer_blocks.0.norm1.linear_1.weight");
    source_requires_bool(s, "concat_padding_mask", true);
    source_requires_null(s, "extra_pos_embed_type");
    source_requires_bool(s, "use_crossattn_projection", false);
    source_requires_null(s, "controlnet_block_every_n");
    source_requires_null(s, "img_context_dim_in");
    if (source_integers(s, "patch_size", patch, 3, 1, 1024) &&
        (patch[0] != 1 || patch[1] != COSMOS_PATCH || patch[2] != COSMOS_PATCH))
        UNSUPPORTED(s, "%s: \"patch_size\" must be [1, %d, %d]: this build runs no other",
            s->config_path, COSMOS_PATCH, COSMOS_PATCH);
    if (!s->status && ratio > 0 && (int64_t)((double)c->dim * ratio) != c->ffn_dim)
        MALFORMED(s,
            "%s says \"mlp_ratio\": %g, but %s has an MLP of %lld for a width of %lld: they are "
            "not of the same model",
            s->config_path, ratio, checkpoint_path(s->checkpoint), (long long)c->ffn_dim,
            (long long)c->dim);
}

void cosmos_read_config(struct source *s, struct cosmos_config *c)
{
    c->diffusers = source_tensor(s, "patch_embed.proj.weight") != NULL;
    read_channels(s, c);
    c->dim = source_dim(s, X_EMBEDDER, 0);
    c->head_dim =
        (int32_t)source_dim(s, LAYER_0("self_attn.q_norm.weight", "attn1.norm_q.weight"), 0);
    c->heads = (int32_t)(c->dim / c->head_dim);
    c->ffn_dim = source_dim(s, LAYER_0("mlp.layer1.weight", "ff.net.0.proj.weight"), 0);
    c->lora_dim =
        source_dim(s, LAYER_0("adaln_modulation_self_attn.1.weight", "norm1.linear_1.weight"), 0);
    c->context_dim = source_dim(s, LAYER_0("cross_attn.k_proj.weight", "attn2.to_k.weight"), 1);
    c->layers = source_count(s, c->diffusers ? "transformer_blocks." : "blocks.");
    read_axes(s, c);
    if (!s->status) check_config(s, c);
}

static const struct dit_family family = {
    .patch = COSMOS_PATCH,
    .vae = "wan-vae",
    .text = {.before = "",
        .after = "",
        .ends = true,
        .most = COSMOS_CONTEXT,
        .state = TEXT_LAST,
        .families = {"t5"}},
    .sampling = {.edm = true, .width = 1360, .height = 768, .steps = 35, .cfg = 8, .shift = 1},
    .measure = cosmos_measure,
    .fill = fill,
};

static void read_config(struct source *s, void *config)
{
    struct cosmos_config *c = config;

    c->base.family = &family;
    cosmos_read_config(s, c);
    c->base.width = c->context_dim;
}

/* ---- opening: the blocks ---- */

int32_t cosmos_build_ends(struct model_builder *b, const struct cosmos_config *c)
{
    int64_t patch = PATCH_PIXELS * c->base.channels;
    int32_t index = builder_block(b, NULL, 0, "image embedder, final layer", "");

    builder_weight(b, X_EMBEDDER, c->dim, PATCH_PIXELS * (c->base.channels + MASK_CHANNELS));
    builder_pieces(b, patch);
    builder_weight(
        b, "final_layer.adaln_modulation.1.weight|norm_out.linear_1.weight", c->lora_dim, c->dim);
    builder_weight(b, "final_layer.adaln_modulation.2.weight|norm_out.linear_2.weight", 2 * c->dim,
        c->lora_dim);
    builder_weight(b, FINAL, patch, c->dim);
    /* Nothing else is known there. */
    builder_key_prefix(b, c->diffusers ? "norm_out." : "final_layer.");
    builder_key_prefix(b, c->diffusers ? "patch_embed." : "x_embedder.");
    return index;
}

void cosmos_build_times(struct model_builder *b, const struct cosmos_config *c)
{
    builder_block(b, embed_times, 0, "time embedder", "");
    builder_weight(b, "t_embedding_norm.weight|time_embed.norm.weight", 1, c->dim);
    builder_weight(
        b, "t_embedder.1.linear_1.weight|time_embed.t_embedder.linear_1.weight", c->dim, c->dim);
    builder_weight(b, "t_embedder.1.linear_2.weight|time_embed.t_embedder.linear_2.weight",
        3 * c->dim, c->dim);
    builder_key_prefix(b, c->diffusers ? "time_embed." : "t_embedder.");
}

static void build_layer(struct model_builder *b, const struct cosmos_config *c, int32_t i)
{
    static const char *const modulations[RESIDUALS][2] = {
        {"adaln_modulation_self_attn.1.weight|norm1.linear_1.weight",
            "adaln_modulation_self_attn.2.weight|norm1.linear_2.weight"},
        {"adaln_modulation_cross_attn.1.weight|norm2.linear_1.weight",
            "adaln_modulation_cross_attn.2.weight|norm2.linear_2.weight"},
        {"adaln_modulation_mlp.1.weight|norm3.linear_1.weight",
            "adaln_modulation_mlp.2.weight|norm3.linear_2.weight"},
    };
    const int64_t parts[] = {c->dim, c->dim, c->dim};
    char name[64], key_prefix[64];

    snprintf(name, sizeof name, "blocks.%d", (int)i);
    snprintf(
        key_prefix, sizeof key_prefix, "%sblocks.%d.", c->diffusers ? "transformer_" : "", (int)i);
    builder_block(b, layer_forward, i, name, key_prefix);
    for (int r = 0; r < RESIDUALS; r++) {
        builder_weight(b, modulations[r][0], c->lora_dim, c->dim);
        builder_weight(b, modulations[r][1], 3 * c->dim, c->lora_dim);
    }
    builder_stack(b,
        "self_attn.q_proj.weight+self_attn.k_proj.weight+self_attn.v_proj.weight|"
        "attn1.to_q.weight+attn1.to_k.weight+attn1.to_v.weight",
        parts, ATTENTION_PARTS, c->dim);
    builder_weight(b, "self_attn.q_norm.weight|attn1.norm_q.weight", 1, c->head_dim);
    builder_weight(b, "self_attn.k_norm.weight|attn1.norm_k.weight", 1, c->head_dim);
    builder_weight(b, "self_attn.output_proj.weight|attn1.to_out.0.weight", c->dim, c->dim);
    builder_weight(b, "cross_attn.q_proj.weight|attn2.to_q.weight", c->dim, c->dim);
    builder_stack(b,
        "cross_attn.k_proj.weight+cross_attn.v_proj.weight|attn2.to_k.weight+attn2.to_v.weight",
        parts, ATTENTION_PARTS - 1, c->context_dim);
    builder_weight(b, "cross_attn.q_norm.weight|attn2.norm_q.weight", 1, c->head_dim);
    builder_weight(b, "cross_attn.k_norm.weight|attn2.norm_k.weight", 1, c->head_dim);
    builder_weight(b, "cross_attn.output_proj.weight|attn2.to_out.0.weight", c->dim, c->dim);
    builder_weight(b, "mlp.layer1.weight|ff.net.0.proj.weight", c->ffn_dim, c->dim);
    builder_weight(b, "mlp.layer2.weight|ff.net.2.weight", c->dim, c->ffn_dim);
}

void cosmos_build_layers(struct model_builder *b, const struct cosmos_config *c)
{
    for (int32_t i = 0; i < c->layers; i++)
        build_layer(b, c, i);
}

struct pass cosmos_step_pass(const struct cosmos_config *c, int32_t globals, int32_t first)
{
    return (struct pass){.name = "step",
        .first = first,
        .count = c->layers,
        .globals = globals,
        .begin = step_begin,
        .end = step_end};
}

static void build(struct model_builder *b, const void *config)
{
    const struct cosmos_config *c = config;
    int32_t ends = cosmos_build_ends(b, c);

    cosmos_build_times(b, c);
    cosmos_build_layers(b, c);
    builder_pass(b, (struct pass){.name = "context",
                        .first = ends + 1,
                        .count = 1,
                        .globals = -1,
                        .begin = context_begin});
    builder_pass(b, cosmos_step_pass(c, ends, ends + 2));
}

void cosmos_find_key(struct source_family *source, const struct checkpoint *checkpoint)
{
    static const char diffusers[] = "patch_embed.proj.weight";

    source->key = source_probe(checkpoint, diffusers) ? diffusers : "x_embedder.proj.1.weight";
}

enum shoal_status cosmos_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    struct source_family source = {
        .name = "cosmos",
        .type_key = "_class_name",
        .type = "CosmosTransformer3DModel",
        .config_bytes = sizeof(struct cosmos_config),
        .read_config = read_config,
        .build = build,
    };

    cosmos_find_key(&source, checkpoint);
    return source_open(&source, checkpoint, config_path, model, error);
}
