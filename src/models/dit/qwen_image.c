/*
 * Qwen-Image's diffusion transformer: opening it and its forward functions.
 *
 * Text and image are two streams with weights of their own, which meet in the attention, text
 * first. No text token is padded and nothing is masked. What the text's stream begins with does not
 * depend on the timestep, so it is made once for each prompt; the blocks change both streams.
 */
#include "models/dit/qwen_image.h"

#include "layers/feed_forward.h"
#include "layers/joint_attention.h"
#include "layers/timestep.h"
#include "models/source.h"

#include <stdio.h>

#define NORM_EPS 1e-6f /* of every norm */
#define THETA 1e4

/* A prompt's tables. */
enum { TIMES, ROPE };

/* A block's streams, in the order of the joint sequence. */
enum { TEXT, IMAGE, STREAMS };
_Static_assert(STREAMS == JOINT_STREAMS, "text and image");

enum { CONTEXT_NORM, CONTEXT_IN, CONTEXT_IN_BIAS };

enum {
    STEP_IN,
    STEP_IN_BIAS,
    STEP_T1,
    STEP_T1_BIAS,
    STEP_T2,
    STEP_T2_BIAS,
    STEP_MODULATION,
    STEP_MODULATION_BIAS,
    STEP_OUT,
    STEP_OUT_BIAS,
};

/* Of a stream; the image's follow the text's. */
enum {
    BLOCK_MODULATION,
    BLOCK_MODULATION_BIAS,
    BLOCK_QKV,
    BLOCK_QKV_BIAS = BLOCK_QKV + JOINT_PARTS,
    BLOCK_Q_NORM,
    BLOCK_K_NORM,
    BLOCK_OUT,
    BLOCK_OUT_BIAS,
    BLOCK_W1,
    BLOCK_B1,
    BLOCK_W2,
    BLOCK_B2,
    BLOCK_WEIGHTS
};

/* What modulates a stream, in the order in which one product makes it. */
enum { SHIFT_1, SCALE_1, GATE_1, SHIFT_2, SCALE_2, GATE_2, MODULATIONS };

const struct qwen_image_config *qwen_image_config(const struct model *model)
{
    return model->config;
}

static const struct qwen_image_config *config_of(const struct dit_prompt *prompt)
{
    return (const struct qwen_image_config *)prompt->config;
}

/* ---- forward ---- */

static struct joint_stream stream_of(struct matrix hidden, const struct matrix *weights,
    struct matrix modulation, struct matrix rope)
{
    const int64_t dim = hidden.cols;

    return (struct joint_stream){
        .hidden = hidden,
        .scale = matrix_cols(modulation, SCALE_1 * dim, dim),
        .shift = matrix_cols(modulation, SHIFT_1 * dim, dim),
        .gate = matrix_cols(modulation, GATE_1 * dim, dim),
        .qkv = {weights[BLOCK_QKV], weights[BLOCK_QKV + 1], weights[BLOCK_QKV + 2]},
        .qkv_bias = weights[BLOCK_QKV_BIAS],
        .q_norm = weights[BLOCK_Q_NORM],
        .k_norm = weights[BLOCK_K_NORM],
        .out = weights[BLOCK_OUT],
        .out_bias = weights[BLOCK_OUT_BIAS],
        .rope = rope,
    };
}

static void feed(
    struct exec *x, struct matrix hidden, const struct matrix *weights, struct matrix modulation)
{
    const int64_t dim = hidden.cols;
    const struct feed_forward_layer layer = {
        .eps = NORM_EPS,
        .activation = ACTIVATION_GELU_TANH,
        .scale = matrix_cols(modulation, SCALE_2 * dim, dim),
        .shift = matrix_cols(modulation, SHIFT_2 * dim, dim),
        .gate = matrix_cols(modulation, GATE_2 * dim, dim),
        .w1 = weights[BLOCK_W1],
        .b1 = weights[BLOCK_B1],
        .w2 = weights[BLOCK_W2],
        .b2 = weights[BLOCK_B2],
    };

    feed_forward_add(x, hidden, &layer);
}

static void double_block(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct qwen_image_config *config = block->config;
    struct dit_lane *l = lane;
    const struct matrix rope = l->prompt->tables[ROPE].device;
    const struct matrix hidden[STREAMS] = {[TEXT] = l->text, [IMAGE] = l->hidden};
    struct matrix modulation = exec_alloc_float(x, STREAMS, MODULATIONS * config->dim);
    struct joint_attention attention = {
        .heads = config->heads,
        .head_dim = config->head_dim,
        .eps = NORM_EPS,
        .head_eps = NORM_EPS,
        .layout = ROPE_INTERLEAVED,
    };
    int64_t first = 0;

    for (int i = 0; i < STREAMS; i++) {
        const struct matrix *own = weights + (ptrdiff_t)i * BLOCK_WEIGHTS;
        struct matrix m = matrix_rows(modulation, i, 1);

        x->ops->linear(x->stream, m, l->time, own[BLOCK_MODULATION], own[BLOCK_MODULATION_BIAS]);
        attention.streams[i] =
            stream_of(hidden[i], own, m, matrix_rows(rope, first, hidden[i].rows));
        first += hidden[i].rows;
    }
    joint_attention_add(x, &attention);
    for (int i = 0; i < STREAMS; i++)
        feed(x, hidden[i], weights + (ptrdiff_t)i * BLOCK_WEIGHTS, matrix_rows(modulation, i, 1));
    exec_free(x, &modulation);
}

static void context_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct dit_prompt *p = lane;

    (void)block;
    (void)weights;
    tables_upload(x, p->tables, DIT_TABLES);
    p->context = exec_alloc_float(x, p->tokens, config_of(p)->dim);
}

/* The context pass's only block. */
static void embed_text(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct qwen_image_config *config = block->config;
    struct dit_prompt *p = lane;
    struct matrix features = exec_alloc_float(x, p->tokens, config->base.width);

    exec_upload(x, features, p->features);
    x->ops->rms_norm(x->stream, features, features, weights[CONTEXT_NORM], MATRIX_NONE, NORM_EPS);
    x->ops->linear(x->stream, p->context, features, weights[CONTEXT_IN], weights[CONTEXT_IN_BIAS]);
    exec_free(x, &features);
}

/* The image's tokens as the latent's patches, and back. */
static struct matrix alloc_patches(struct exec *x, const struct dit_prompt *p)
{
    return exec_alloc(
        x, p->image_tokens, QWEN_IMAGE_PATCH * QWEN_IMAGE_PATCH * p->config->channels);
}

static void step_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct qwen_image_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    struct matrix patches, inner;

    l->time = exec_alloc_float(x, 1, config->dim);
    inner = exec_alloc_float(x, 1, config->dim);
    x->ops->linear(x->stream, inner, matrix_rows(p->tables[TIMES].device, l->step, 1),
        weights[STEP_T1], weights[STEP_T1_BIAS]);
    x->ops->activate(x->stream, inner, inner, ACTIVATION_SILU);
    x->ops->linear(x->stream, l->time, inner, weights[STEP_T2], weights[STEP_T2_BIAS]);
    /* All that takes it takes its SiLU. */
    x->ops->activate(x->stream, l->time, l->time, ACTIVATION_SILU);
    exec_free(x, &inner);

    l->text = exec_alloc_float(x, p->tokens, config->dim);
    x->ops->copy(x->stream, l->text, p->context);
    l->hidden = exec_alloc_float(x, p->image_tokens, config->dim);
    patches = alloc_patches(x, p);
    x->ops->patchify(
        x->stream, patches, l->latent, p->height, p->width, QWEN_IMAGE_PATCH, PATCH_CHANNELS_FIRST);
    x->ops->linear(x->stream, l->hidden, patches, weights[STEP_IN], weights[STEP_IN_BIAS]);
    exec_free(x, &patches);
}

static void step_end(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    const struct qwen_image_config *config = block->config;
    struct dit_lane *l = lane;
    const struct dit_prompt *p = l->prompt;
    /* Here the scale comes first. */
    struct matrix modulation = exec_alloc_float(x, 1, 2 * config->dim);
    struct matrix patches = alloc_patches(x, p);

    x->ops->linear(
        x->stream, modulation, l->time, weights[STEP_MODULATION], weights[STEP_MODULATION_BIAS]);
    x->ops->layer_norm(x->stream, l->hidden, l->hidden, MATRIX_NONE,
        matrix_cols(modulation, 0, config->dim), matrix_cols(modulation, config->dim, config->dim),
        NORM_EPS);
    x->ops->linear(x->stream, patches, l->hidden, weights[STEP_OUT], weights[STEP_OUT_BIAS]);
    x->ops->unpatchify(x->stream, l->velocity, patches, p->height, p->width, QWEN_IMAGE_PATCH,
        PATCH_CHANNELS_FIRST);
    exec_free(x, &patches);
    exec_free(x, &modulation);
    dit_lane_fini(x, l);
}

/* ---- prompts ---- */

static void measure(struct dit_prompt *p)
{
    p->tables[TIMES].rows = p->steps;
    p->tables[TIMES].cols = QWEN_IMAGE_FREQUENCIES;
    p->tables[ROPE].rows = p->tokens + p->image_tokens;
    p->tables[ROPE].cols = config_of(p)->head_dim;
}

/* Image token (row, column) of rows x columns at (0, row, column), counted from the middle; of an
 * odd number, the more are before it, as diffusers has it. Text token i, on all three axes, at i
 * after the larger half. */
static void position(const struct dit_prompt *p, int64_t row, int64_t place[3])
{
    const int64_t rows = p->height / QWEN_IMAGE_PATCH, columns = p->width / QWEN_IMAGE_PATCH;
    const int64_t t = row - p->tokens;

    if (t < 0) {
        place[0] = place[1] = place[2] = (rows > columns ? rows : columns) / 2 + row;
        return;
    }
    place[0] = 0;
    place[1] = t / columns - (rows - rows / 2);
    place[2] = t % columns - (columns - columns / 2);
}

static enum shoal_status fill(
    struct dit_prompt *p, const struct dit_prompt_spec *spec, struct shoal_error *error)
{
    for (int32_t i = 0; i < p->steps; i++)
        timestep_sinusoid(p->tables[TIMES].host + (int64_t)i * QWEN_IMAGE_FREQUENCIES,
            QWEN_IMAGE_FREQUENCIES, spec->sigmas[i] * 1000.0f);
    return dit_fill_rope(p,
        &(struct dit_rope){.table = ROPE,
            .axes = config_of(p)->axes,
            .theta = THETA,
            .single = true,
            .position = position},
        error);
}

/* ---- opening ---- */

#define BLOCK_0 "transformer_blocks.0."

static const struct dit_family family = {
    .patch = QWEN_IMAGE_PATCH,
    .vae = "wan-vae",
    .text = {.before = "<|im_start|>system\nDescribe the image by detailing the color, shape, "
                       "size, texture, quantity, text, spatial relationships of the objects and "
                       "background:<|im_end|>\n<|im_start|>user\n",
        .after = "<|im_end|>\n<|im_start|>assistant\n",
        .skip = 34,
        .most = 1024,
        .state = TEXT_LAST,
        .families = {"qwen2.5-vl"}},
    .sampling = {.width = 1024,
        .height = 1024,
        .steps = 50,
        .cfg = 4,
        .shift = 3.1581929f, /* e^1.15: ComfyUI's, of schedules that do not follow the size */
        .table = 10000,
        .base_tokens = 256,
        .max_tokens = 8192,
        .base_shift = 0.5f,
        .max_shift = 0.9f,
        .terminal = 0.02f,
        .keeps_norm = true},
    .measure = measure,
    .fill = fill,
};

static void read_config(struct source *s, void *config)
{
    struct qwen_image_config *c = config;
    const int64_t patch = QWEN_IMAGE_PATCH * QWEN_IMAGE_PATCH;
    int64_t inputs = source_dim(s, "img_in.weight", 1);

    c->base.family = &family;
    c->base.channels = inputs / patch;
    c->base.width = source_dim(s, "txt_in.weight", 1);
    c->dim = source_dim(s, "img_in.weight", 0);
    c->head_dim = (int32_t)source_dim(s, BLOCK_0 "attn.norm_q.weight", 0);
    c->heads = (int32_t)(c->dim / c->head_dim);
    c->ffn_dim = source_dim(s, BLOCK_0 "img_mlp.net.0.proj.weight", 0);
    c->layers = source_count(s, "transformer_blocks.");

    source_agrees(s, "in_channels", inputs, "img_in.weight");
    source_agrees(s, "out_channels", c->base.channels, "img_in.weight");
    source_agrees(s, "joint_attention_dim", c->base.width, "txt_in.weight");
    source_agrees(s, "attention_head_dim", c->head_dim, BLOCK_0 "attn.norm_q.weight");
    source_agrees(s, "num_attention_heads", c->heads, BLOCK_0 "attn.norm_q.weight");
    source_agrees(s, "num_layers", c->layers, "transformer_blocks.*");
    source_agrees(s, "patch_size", QWEN_IMAGE_PATCH, "img_in.weight");
    source_requires_bool(s, "guidance_embeds", false);
    source_requires_bool(s, "zero_cond_t", false);
    source_requires_bool(s, "use_additional_t_cond", false);
    source_requires_bool(s, "use_layer3d_rope", false);
    if (!s->status && (c->dim % c->head_dim || c->head_dim % 2 || inputs % patch))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: a width of %lld in heads of %d, and patches of %lld numbers",
            checkpoint_path(s->checkpoint), (long long)c->dim, (int)c->head_dim, (long long)inputs);
    c->axes[0] = c->head_dim / 8;
    c->axes[1] = c->axes[2] = c->head_dim / 16 * 7;
    source_axes(s, "axes_dims_rope", c->head_dim, c->axes);
}

static void build_stream(struct model_builder *b, const struct qwen_image_config *c, bool text)
{
    const int64_t dim = c->dim, parts[JOINT_PARTS] = {dim, dim, dim};

    builder_weight(b, text ? "txt_mod.1.weight" : "img_mod.1.weight", MODULATIONS * dim, dim);
    builder_weight(b, text ? "txt_mod.1.bias" : "img_mod.1.bias", 1, MODULATIONS * dim);
    builder_stack(b,
        text ? "attn.add_q_proj.weight+attn.add_k_proj.weight+attn.add_v_proj.weight"
             : "attn.to_q.weight+attn.to_k.weight+attn.to_v.weight",
        parts, JOINT_PARTS, dim);
    builder_weight(b,
        text ? "attn.add_q_proj.bias+attn.add_k_proj.bias+attn.add_v_proj.bias"
             : "attn.to_q.bias+attn.to_k.bias+attn.to_v.bias",
        1, JOINT_PARTS * dim);
    builder_pieces(b, dim);
    builder_weight(b, text ? "attn.norm_added_q.weight" : "attn.norm_q.weight", 1, c->head_dim);
    builder_weight(b, text ? "attn.norm_added_k.weight" : "attn.norm_k.weight", 1, c->head_dim);
    builder_weight(b, text ? "attn.to_add_out.weight" : "attn.to_out.0.weight", dim, dim);
    builder_weight(b, text ? "attn.to_add_out.bias" : "attn.to_out.0.bias", 1, dim);
    builder_weight(
        b, text ? "txt_mlp.net.0.proj.weight" : "img_mlp.net.0.proj.weight", c->ffn_dim, dim);
    builder_weight(b, text ? "txt_mlp.net.0.proj.bias" : "img_mlp.net.0.proj.bias", 1, c->ffn_dim);
    builder_weight(b, text ? "txt_mlp.net.2.weight" : "img_mlp.net.2.weight", dim, c->ffn_dim);
    builder_weight(b, text ? "txt_mlp.net.2.bias" : "img_mlp.net.2.bias", 1, dim);
}

static void build(struct model_builder *b, const void *config)
{
    const struct qwen_image_config *c = config;
    const int64_t patch = QWEN_IMAGE_PATCH * QWEN_IMAGE_PATCH * c->base.channels;
    int32_t context, step;

    context = builder_block(b, embed_text, 0, "text embedder", "");
    builder_weight(b, "txt_norm.weight", 1, c->base.width);
    builder_weight(b, "txt_in.weight", c->dim, c->base.width);
    builder_weight(b, "txt_in.bias", 1, c->dim);

    step = builder_block(b, NULL, 0, "image and time embedders, final layer", "");
    builder_weight(b, "img_in.weight", c->dim, patch);
    builder_weight(b, "img_in.bias", 1, c->dim);
    builder_key_prefix(b, "time_text_embed.");
    builder_weight(b, "timestep_embedder.linear_1.weight", c->dim, QWEN_IMAGE_FREQUENCIES);
    builder_weight(b, "timestep_embedder.linear_1.bias", 1, c->dim);
    builder_weight(b, "timestep_embedder.linear_2.weight", c->dim, c->dim);
    builder_weight(b, "timestep_embedder.linear_2.bias", 1, c->dim);
    builder_key_prefix(b, "");
    builder_weight(b, "norm_out.linear.weight", 2 * c->dim, c->dim);
    builder_weight(b, "norm_out.linear.bias", 1, 2 * c->dim);
    builder_weight(b, "proj_out.weight", patch, c->dim);
    builder_weight(b, "proj_out.bias", 1, patch);

    for (int32_t i = 0; i < c->layers; i++) {
        char name[64], key_prefix[64];

        snprintf(name, sizeof name, "transformer_blocks.%d", (int)i);
        snprintf(key_prefix, sizeof key_prefix, "transformer_blocks.%d.", (int)i);
        builder_block(b, double_block, i, name, key_prefix);
        build_stream(b, c, true);
        build_stream(b, c, false);
    }
    builder_pass(b, (struct pass){.name = "context",
                        .first = context,
                        .count = 1,
                        .globals = -1,
                        .begin = context_begin});
    builder_pass(b, (struct pass){.name = "step",
                        .first = 2,
                        .count = c->layers,
                        .globals = step,
                        .begin = step_begin,
                        .end = step_end});
}

enum shoal_status qwen_image_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error)
{
    const struct source_family source = {
        .name = "qwen-image",
        .key = "txt_norm.weight",
        .type_key = "_class_name",
        .type = "QwenImageTransformer2DModel",
        .config_bytes = sizeof(struct qwen_image_config),
        .read_config = read_config,
        .build = build,
    };

    return source_open(&source, checkpoint, config_path, model, error);
}
