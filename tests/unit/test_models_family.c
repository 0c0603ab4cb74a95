/* Recognising checkpoints, reading configurations, and the errors of both. */
#include "unit/family_files.h"

#include "base/memory.h"
#include "models/dit/zimage.h"
#include "models/text/qwen.h"
#include "models/vae/klvae.h"

/* ---- recognising ---- */

#define MAX_KEYS 6

static const struct {
    enum family_kind kind;
    const char *name;
    const char *keys[MAX_KEYS]; /* [2, 2] each */
} known[] = {
    {FAMILY_DIT, "z-image",
        {"cap_embedder.1.weight", "layers.0.attention.norm_k.weight", "cap_pad_token"}},
    {FAMILY_DIT, "z-image",
        {"model.diffusion_model.cap_embedder.1.weight",
            "model.diffusion_model.layers.0.attention.k_norm.weight",
            "model.diffusion_model.cap_pad_token", "vae.decoder.conv_in.weight"}},
    {FAMILY_DIT, "z-image-omni",
        {"cap_embedder.1.weight", "layers.0.attention.norm_k.weight", "cap_pad_token",
            "siglip_embedder.1.weight"}},
    {FAMILY_DIT, "ming-image", {"cap_embedder.1.weight", "layers.0.attention.norm_k.weight"}},
    {FAMILY_DIT, "lumina-2",
        {"cap_embedder.1.weight", "layers.0.attention.k_norm.weight",
            "layers.0.adaLN_modulation.1.weight", "cap_pad_token"}},
    {FAMILY_DIT, "flux.1",
        {"double_blocks.0.img_attn.norm.key_norm.scale", "img_in.weight", "txt_in.weight"}},
    {FAMILY_DIT, "flux.2",
        {"double_blocks.0.img_attn.norm.key_norm.weight", "img_in.weight",
            "double_stream_modulation_img.lin.weight"}},
    {FAMILY_DIT, "chroma",
        {"double_blocks.0.img_attn.norm.key_norm.scale", "img_in.weight",
            "distilled_guidance_layer.norms.0.scale"}},
    {FAMILY_DIT, "ltx", {"model.diffusion_model.adaln_single.emb.timestep_embedder.linear_1.bias"}},
    {FAMILY_DIT, "wan", {"head.modulation", "patch_embedding.weight"}},
    {FAMILY_DIT, "cosmos", {"net.blocks.0.mlp.layer1.weight"}},
    {FAMILY_DIT, "anima",
        {"net.blocks.0.mlp.layer1.weight", "net.llm_adapter.blocks.0.cross_attn.q_proj.weight"}},
    {FAMILY_DIT, "cosmos",
        {"transformer_blocks.0.norm1.linear_1.weight", "patch_embed.proj.weight",
            "time_embed.t_embedder.linear_1.weight"}},
    {FAMILY_DIT, "cosmos-predict1", {"net.blocks.block0.blocks.0.block.attn.to_q.0.weight"}},
    {FAMILY_DIT, "cosmos-predict1",
        {"transformer_blocks.0.norm1.linear_1.weight", "learnable_pos_embed.pos_emb_t",
            "time_embed.t_embedder.linear_1.weight"}},
    {FAMILY_DIT, "cosmos-predict2.5",
        {"net.blocks.0.mlp.layer1.weight", "net.crossattn_proj.0.weight"}},
    {FAMILY_DIT, "cosmos-predict2.5",
        {"transformer_blocks.0.norm1.linear_1.weight", "crossattn_proj.0.weight",
            "time_embed.t_embedder.linear_1.weight"}},
    {FAMILY_DIT, "cosmos-transfer",
        {"control_blocks.0.norm1.linear_1.weight", "time_embed.t_embedder.linear_1.weight"}},
    {FAMILY_DIT, "qwen-image", {"txt_norm.weight", "transformer_blocks.0.img_mod.1.weight"}},
    {FAMILY_DIT, "sd-unet",
        {"model.diffusion_model.input_blocks.0.0.weight",
            "model.diffusion_model.time_embed.0.weight"}},
    {FAMILY_TEXT, "qwen3",
        {"model.layers.0.self_attn.q_norm.weight", "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight"}},
    {FAMILY_TEXT, "qwen2.5-vl",
        {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.mlp.gate_proj.weight", "model.embed_tokens.weight",
            "visual.blocks.0.mlp.gate_proj.weight"}},
    {FAMILY_TEXT, "qwen2-vl",
        {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.mlp.gate_proj.weight", "model.embed_tokens.weight",
            "visual.blocks.0.mlp.fc1.weight"}},
    {FAMILY_TEXT, "qwen2.5-vl", /* or a plain Qwen2: opening it decides */
        {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.mlp.gate_proj.weight", "model.embed_tokens.weight"}},
    {FAMILY_TEXT, "gemma",
        {"layers.0.self_attn.q_norm.weight", "embed_tokens.weight",
            "layers.0.pre_feedforward_layernorm.weight"}},
    {FAMILY_TEXT, "t5", {"encoder.block.0.layer.0.SelfAttention.q.weight"}},
    {FAMILY_TEXT, "umt5",
        {"encoder.block.0.layer.0.SelfAttention.q.weight",
            "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {FAMILY_VAE, "kl-vae",
        {"decoder.mid_block.resnets.0.conv1.weight", "decoder.up_blocks.0.resnets.0.conv1.weight",
            "decoder.conv_in.weight"}},
    {FAMILY_VAE, "kl-vae",
        {"first_stage_model.decoder.mid.block_1.conv1.weight",
            "first_stage_model.decoder.up.0.block.0.conv1.weight",
            "first_stage_model.decoder.conv_in.weight"}},
    {FAMILY_VAE, "flux.2-vae",
        {"bn.running_mean", "decoder.conv_in.weight", "decoder.mid.block_1.conv1.weight",
            "decoder.up.0.block.0.conv1.weight"}},
    {FAMILY_VAE, "wan-vae", {"decoder.middle.0.residual.0.gamma"}},
    {FAMILY_VAE, "wan-vae",
        {"decoder.mid_block.resnets.0.norm1.gamma", "decoder.mid_block.resnets.0.conv1.weight",
            "decoder.up_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight"}},
    {FAMILY_VAE, "wan2.2-vae",
        {"vae.decoder.middle.0.residual.0.gamma",
            "vae.decoder.upsamples.0.upsamples.0.residual.2.weight"}},
    {FAMILY_VAE, "wan2.2-vae",
        {"decoder.mid_block.resnets.0.norm1.gamma", "decoder.mid_block.resnets.0.conv1.weight",
            "decoder.up_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight",
            "decoder.up_blocks.0.upsampler.resample.1.weight"}},
};

static void test_detect(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct tensor_spec tensors[MAX_KEYS] = {0};
        struct shoal_error error = {0};
        struct checkpoint *checkpoint;
        size_t count = 0;

        for (; count < MAX_KEYS && known[i].keys[count]; count++)
            tensors[count] = (struct tensor_spec){known[i].keys[count], DTYPE_BF16, SHAPE2(2, 2)};
        assert_ok(checkpoint_open(
            write_tensors("known.safetensors", tensors, count), &checkpoint, &error));
        for (int kind = 0; kind < FAMILY_KINDS; kind++) {
            const struct family *family = family_detect(checkpoint, (enum family_kind)kind);

            if (kind != (int)known[i].kind) {
                assert_null(family);
                continue;
            }
            if (!family) fail_msg("%s is not recognised", known[i].name);
            assert_string_equal(family->name, known[i].name);
        }
        checkpoint_close(&checkpoint);
    }
}

static void test_other_families(void **state)
{
    static const struct tensor_spec wan[] = {{"head.modulation", DTYPE_F32, SHAPE2(2, 2)}};
    static const struct tensor_spec lumina[] = {
        {"cap_embedder.1.weight", DTYPE_I8, SHAPE2(2304, 2304)},
        {"layers.0.attention.k_norm.weight", DTYPE_F32, SHAPE1(96)}};
    static const struct tensor_spec odd[] = {{"weights", DTYPE_F32, SHAPE2(2, 2)}};
    const char *path = write_tensors("wan.safetensors", wan, 1);

    (void)state;
    assert_open_says(path, FAMILY_DIT, NULL, SHOAL_E_UNSUPPORTED, "is Wan");
    assert_open_says(path, FAMILY_DIT, NULL, SHOAL_E_UNSUPPORTED, "runs is Z-Image");
    assert_open_says(path, FAMILY_VAE, NULL, SHOAL_E_INVALID, "is Wan, a diffusion transformer");
    path = write_tensors("lumina.safetensors", lumina, 2);
    assert_open_says(path, FAMILY_DIT, NULL, SHOAL_E_UNSUPPORTED, "is Lumina 2");
    path = write_tensors("odd.safetensors", odd, 1);
    assert_open_says(
        path, FAMILY_VAE, NULL, SHOAL_E_UNSUPPORTED, "runs is Wan 2.1 VAE or KL autoencoder");
    assert_open_says(path, FAMILY_TEXT, NULL, SHOAL_E_UNSUPPORTED, "no known text encoder");
}

/* ---- a small Z-Image ---- */

enum { DIM = 32, HEAD = 16, FFN = 24, CAP = 20, T_MID = 12, T_DIM = 8 };

#define LAYER(key)                                                                                 \
    {key "attention_norm1.weight", DTYPE_F32, SHAPE1(DIM)},                                        \
        {key "attention_norm2.weight", DTYPE_F32, SHAPE1(DIM)},                                    \
        {key "ffn_norm1.weight", DTYPE_F32, SHAPE1(DIM)},                                          \
        {key "ffn_norm2.weight", DTYPE_F32, SHAPE1(DIM)},                                          \
        {key "attention.q_norm.weight", DTYPE_F32, SHAPE1(HEAD)},                                  \
        {key "attention.k_norm.weight", DTYPE_F32, SHAPE1(HEAD)},                                  \
        {key "attention.qkv.weight", DTYPE_F32, SHAPE2(3 * DIM, DIM)},                             \
        {key "attention.out.weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                 \
        {key "feed_forward.w1.weight", DTYPE_F32, SHAPE2(FFN, DIM)},                               \
        {key "feed_forward.w2.weight", DTYPE_F32, SHAPE2(DIM, FFN)},                               \
        {key "feed_forward.w3.weight", DTYPE_F32, SHAPE2(FFN, DIM)},                               \
        {key "adaLN_modulation.0.weight", DTYPE_F32, SHAPE2(4 * DIM, T_DIM)},                      \
    {                                                                                              \
        key "adaLN_modulation.0.bias", DTYPE_F32, SHAPE1(4 * DIM)                                  \
    }

static const struct tensor_spec zimage[] = {
    {"cap_embedder.0.weight", DTYPE_F32, SHAPE1(CAP)},
    {"cap_embedder.1.weight", DTYPE_F32, SHAPE2(DIM, CAP)},
    {"cap_embedder.1.bias", DTYPE_F32, SHAPE1(DIM)},
    {"cap_pad_token", DTYPE_F32, SHAPE2(1, DIM)},
    {"x_pad_token", DTYPE_F32, SHAPE2(1, DIM)},
    {"x_embedder.weight", DTYPE_F32, SHAPE2(DIM, 64)},
    {"x_embedder.bias", DTYPE_F32, SHAPE1(DIM)},
    {"t_embedder.mlp.0.weight", DTYPE_F32, SHAPE2(T_MID, 256)},
    {"t_embedder.mlp.0.bias", DTYPE_F32, SHAPE1(T_MID)},
    {"t_embedder.mlp.2.weight", DTYPE_F32, SHAPE2(T_DIM, T_MID)},
    {"t_embedder.mlp.2.bias", DTYPE_F32, SHAPE1(T_DIM)},
    {"final_layer.adaLN_modulation.1.weight", DTYPE_F32, SHAPE2(DIM, T_DIM)},
    {"final_layer.adaLN_modulation.1.bias", DTYPE_F32, SHAPE1(DIM)},
    {"final_layer.linear.weight", DTYPE_F32, SHAPE2(64, DIM)},
    {"final_layer.linear.bias", DTYPE_F32, SHAPE1(64)},
    LAYER("layers.0."),
    LAYER("layers.1."),
    LAYER("layers.2."),
};
#define ZIMAGE_COUNT (sizeof zimage / sizeof *zimage)

static void test_zimage_defaults(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    const struct zimage_config *config;

    (void)state;
    assert_ok(
        checkpoint_open(write_tensors("z.safetensors", zimage, ZIMAGE_COUNT), &checkpoint, &error));
    assert_ok(family_open(checkpoint, FAMILY_DIT, NULL, &model, &error));
    config = zimage_config(model);
    assert_string_equal(model->family, "z-image");
    assert_int_equal(config->dim, DIM);
    assert_int_equal(config->heads, 2);
    assert_int_equal(config->layers, 3);
    assert_int_equal(config->noise_refiners, 0);
    assert_int_equal(config->axes[0], 4);
    assert_int_equal(config->axes[1], 6);
    assert_int_equal(config->axes[2], 6);
    assert_true(config->theta == 256.0);
    assert_true(config->t_scale == 1000.0f);
    assert_int_equal(model->pass_count, 2);
    assert_int_equal(model->passes[DIT_PASS_CONTEXT].count, 0);
    assert_int_equal(model->passes[DIT_PASS_STEP].count, 3);
    assert_string_equal(model->blocks[model->passes[DIT_PASS_STEP].first].name, "layers.0");
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* Opening the small Z-Image with this config.json fails with that text. */
static void refuse_config(const char *config, enum shoal_status status, const char *says)
{
    const char *path = write_tensors("z.safetensors", zimage, ZIMAGE_COUNT);

    assert_open_says(path, FAMILY_DIT, put_text("config.json", config), status, says);
}

static void test_zimage_config(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;

    (void)state;
    refuse_config("{\"dim\": 3840}", SHOAL_E_FORMAT, "says \"dim\": 3840, but by cap_embedder.1");
    refuse_config("{\"dim\": 3840}", SHOAL_E_FORMAT, "z.safetensors it is 32");
    refuse_config("{\"dim\": \"32\"}", SHOAL_E_FORMAT, "\"dim\" must be a whole number");
    refuse_config("{\"n_layers\": 30}", SHOAL_E_FORMAT, "\"n_layers\": 30");
    refuse_config("{\"n_kv_heads\": 1}", SHOAL_E_FORMAT, "\"n_kv_heads\": 1");
    refuse_config("{\"norm_eps\": -1}", SHOAL_E_FORMAT, "\"norm_eps\" must be a number");
    refuse_config("{\"rope_theta\": 1e400}", SHOAL_E_FORMAT, "config.json");
    refuse_config("{\"axes_dims\": [8, 8, 8]}", SHOAL_E_FORMAT, "sum is 16");
    refuse_config("{\"axes_dims\": [7, 3, 6]}", SHOAL_E_FORMAT, "even");
    refuse_config("{\"axes_dims\": [8, 8]}", SHOAL_E_FORMAT, "three");
    refuse_config("{\"axes_dims\": [4, 6, 6, 0]}", SHOAL_E_FORMAT, "at most 3");
    refuse_config("{\"axes_dims\": 16}", SHOAL_E_FORMAT, "array");
    refuse_config("{\"qk_norm\": false}", SHOAL_E_UNSUPPORTED, "qk_norm");
    refuse_config(
        "{\"_class_name\": \"FluxTransformer2DModel\"}", SHOAL_E_FORMAT, "FluxTransformer2DModel");
    refuse_config("[1]", SHOAL_E_FORMAT, "config.json");
    refuse_config("{", SHOAL_E_FORMAT, "config.json");

    assert_ok(
        checkpoint_open(write_tensors("z.safetensors", zimage, ZIMAGE_COUNT), &checkpoint, &error));
    assert_ok(family_open(checkpoint, FAMILY_DIT,
        put_text("config.json", "{\"axes_dims\": [8, 4, 4], \"dim\": 32, \"rope_theta\": 1e4, "
                                "\"t_scale\": 1, \"siglip_feat_dim\": null, \"qk_norm\": true}"),
        &model, &error));
    assert_int_equal(zimage_config(model)->axes[0], 8);
    assert_true(zimage_config(model)->theta == 1e4);
    assert_true(zimage_config(model)->t_scale == 1.0f);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* One tensor of the small Z-Image changed. */
static void refuse_tensor(
    size_t index, struct tensor_spec with, enum shoal_status status, const char *says)
{
    struct tensor_spec tensors[ZIMAGE_COUNT];

    memcpy(tensors, zimage, sizeof zimage);
    tensors[index] = with;
    assert_open_says(
        write_tensors("z.safetensors", tensors, ZIMAGE_COUNT), FAMILY_DIT, NULL, status, says);
}

static void test_zimage_broken(void **state)
{
    size_t last = ZIMAGE_COUNT - 1;

    (void)state;
    /* A gap in the layers. */
    refuse_tensor(last,
        (struct tensor_spec){"layers.4.attention_norm1.weight", DTYPE_F32, SHAPE1(DIM)},
        SHOAL_E_MISSING, "tensors are missing, the first of them layers.2.adaLN_modulation.0.bias");
    refuse_tensor(last, (struct tensor_spec){"layers.999999999999.x", DTYPE_F32, SHAPE1(DIM)},
        SHOAL_E_FORMAT, "more than");
    refuse_tensor(1, (struct tensor_spec){"cap_embedder.1.weight", DTYPE_F32, SHAPE1(DIM)},
        SHOAL_E_FORMAT, "cap_embedder.1.weight has the shape [32]");
    refuse_tensor(1, (struct tensor_spec){"cap_embedder.1.weight", DTYPE_F32, SHAPE2(48, CAP)},
        SHOAL_E_FORMAT, "should be [1, 48]");
    refuse_tensor(1,
        (struct tensor_spec){"cap_embedder.1.weight", DTYPE_F8_E4M3FNUZ, SHAPE2(DIM, CAP)},
        SHOAL_E_UNSUPPORTED, "quantised (tensor cap_embedder.1.weight, F8_E4M3FNUZ)");
    refuse_tensor(last,
        (struct tensor_spec){"layers.2.attention.qkv.comfy_quant", DTYPE_U8, SHAPE1(9)},
        SHOAL_E_FORMAT, "tensor layers.2.attention.qkv.comfy_quant is not valid JSON");
    refuse_tensor(9,
        (struct tensor_spec){"t_embedder.mlp.2.weight", DTYPE_F32, SHAPE2(T_DIM, T_DIM)},
        SHOAL_E_FORMAT, "t_embedder.mlp.2.weight is [8, 8]");
}

/* A parameter beside the model's own belongs to a variant; a buffer does no harm. */
static void test_zimage_extra(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct tensor_spec tensors[ZIMAGE_COUNT + 1];
    struct tensor_spec *extra = &tensors[ZIMAGE_COUNT];

    (void)state;
    memcpy(tensors, zimage, sizeof zimage);
    *extra = (struct tensor_spec){"layers.1.attention.qkv.bias", DTYPE_F32, SHAPE1(3 * DIM)};
    assert_open_says(write_tensors("z.safetensors", tensors, ZIMAGE_COUNT + 1), FAMILY_DIT, NULL,
        SHOAL_E_UNSUPPORTED, "layers.1.attention.qkv.bias is no part of z-image");
    extra->name = "layers.1.attention.inv_freq";
    assert_ok(checkpoint_open(
        write_tensors("z.safetensors", tensors, ZIMAGE_COUNT + 1), &checkpoint, &error));
    assert_ok(family_open(checkpoint, FAMILY_DIT, NULL, &model, &error));
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_zimage_prompts(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct dit_prompt *prompt;
    const float sigmas[] = {1}, features[1] = {0}; /* read by passes only */
    const struct dit_prompt_spec good = {
        .features = features, .tokens = 33, .height = 4, .width = 6, .sigmas = sigmas, .steps = 1};
    struct dit_prompt_spec bad[] = {good, good, good, good};

    (void)state;
    assert_ok(
        checkpoint_open(write_tensors("z.safetensors", zimage, ZIMAGE_COUNT), &checkpoint, &error));
    assert_ok(zimage_open(checkpoint, NULL, &model, &error));
    assert_ok(dit_prompt_create(model, &good, &prompt, &error));
    assert_int_equal(prompt->padded, 64);
    assert_int_equal(prompt->image_tokens, 6);
    assert_int_equal(prompt->image_padded, 32);
    /* Row 0: image token (65, 0, 0): the first pair turns by 65, all spatial ones not at all. */
    assert_true(prompt->tables[1].host[0] < 1.0f);
    assert_true(prompt->tables[1].host[2] == 1.0f);
    assert_true(prompt->tables[1].host[7] == 1.0f);
    /* Row 6: an image pad token, at the origin. */
    for (int i = 0; i < HEAD; i++)
        assert_true(prompt->tables[1].host[6 * HEAD + i] == (i < HEAD / 2 ? 1.0f : 0.0f));
    dit_prompt_destroy(NULL, &prompt);
    bad[0].tokens = 0;
    bad[1].height = 5;
    bad[2].width = 1 << 21;
    bad[3].steps = 0;
    for (int i = 0; i < 4; i++)
        assert_int_equal(dit_prompt_create(model, &bad[i], &prompt, &error), SHOAL_E_INVALID);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* ---- a small Qwen3 ---- */

#define QWEN_LAYER(key)                                                                            \
    {key "input_layernorm.weight", DTYPE_BF16, SHAPE1(8)},                                         \
        {key "post_attention_layernorm.weight", DTYPE_BF16, SHAPE1(8)},                            \
        {key "self_attn.q_norm.weight", DTYPE_BF16, SHAPE1(4)},                                    \
        {key "self_attn.k_norm.weight", DTYPE_BF16, SHAPE1(4)},                                    \
        {key "self_attn.q_proj.weight", DTYPE_BF16, SHAPE2(16, 8)},                                \
        {key "self_attn.k_proj.weight", DTYPE_BF16, SHAPE2(8, 8)},                                 \
        {key "self_attn.v_proj.weight", DTYPE_BF16, SHAPE2(8, 8)},                                 \
        {key "self_attn.o_proj.weight", DTYPE_BF16, SHAPE2(8, 16)},                                \
        {key "mlp.gate_proj.weight", DTYPE_BF16, SHAPE2(12, 8)},                                   \
        {key "mlp.up_proj.weight", DTYPE_BF16, SHAPE2(12, 8)},                                     \
    {                                                                                              \
        key "mlp.down_proj.weight", DTYPE_BF16, SHAPE2(8, 12)                                      \
    }

static const struct tensor_spec qwen[] = {
    {"model.embed_tokens.weight", DTYPE_BF16, SHAPE2(10, 8)},
    QWEN_LAYER("model.layers.0."),
    QWEN_LAYER("model.layers.1."),
    {"model.norm.weight", DTYPE_BF16, SHAPE1(8)},
};
#define QWEN_COUNT (sizeof qwen / sizeof *qwen)

/* How many layers are run of the first `count` tensors, with that config; 0: refused with `says`.
 */
static void check_layers(size_t count, const char *config, int32_t layers, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    const char *config_path = config ? put_text("config.json", config) : NULL;

    assert_ok(checkpoint_open(write_tensors("q.safetensors", qwen, count), &checkpoint, &error));
    if (layers) {
        assert_ok(family_open(checkpoint, FAMILY_TEXT, config_path, &model, &error));
        assert_int_equal(qwen_config(model)->layers, layers);
        assert_int_equal(model->passes[0].count, layers);
        assert_int_equal(qwen_config(model)->heads, 4);
        assert_int_equal(qwen_config(model)->kv_heads, 2);
    } else {
        assert_int_not_equal(
            family_open(checkpoint, FAMILY_TEXT, config_path, &model, &error), SHOAL_OK);
        assert_says(&error, says);
    }
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_qwen3_layers(void **state)
{
    (void)state;
    check_layers(QWEN_COUNT, NULL, 1, NULL);
    check_layers(QWEN_COUNT, "{\"num_hidden_layers\": 2}", 1, NULL);
    /* The last layer and the final norm are left out of the file. */
    check_layers(QWEN_COUNT - 1, NULL, 2, NULL);
    check_layers(QWEN_COUNT - 1, "{\"num_hidden_layers\": 3}", 2, NULL);
    check_layers(QWEN_COUNT - 1, "{\"num_hidden_layers\": 2}", 1, NULL);
    check_layers(
        QWEN_COUNT, "{\"num_hidden_layers\": 36}", 0, "says \"num_hidden_layers\": 36, but");
    check_layers(QWEN_COUNT, "{\"attention_bias\": true}", 0, "attention_bias");
    check_layers(QWEN_COUNT, "{\"rope_scaling\": {\"rope_type\": \"yarn\"}}", 0, "rope_scaling");
    check_layers(QWEN_COUNT, "{\"rope_parameters\": {\"rope_theta\": -3}}", 0, "rope_theta");
    check_layers(QWEN_COUNT, "{\"num_key_value_heads\": 8}", 0, "num_key_value_heads");
    check_layers(QWEN_COUNT, "{\"model_type\": \"llama\"}", 0, "llama");
}

static void test_qwen3_embedding(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct text_lane *lane;
    const int32_t good[] = {9, 0}, bad[] = {3, 10}, negative[] = {-1};

    (void)state;
    assert_ok(
        checkpoint_open(write_tensors("q.safetensors", qwen, QWEN_COUNT), &checkpoint, &error));
    assert_ok(qwen3_open(checkpoint, NULL, &model, &error));
    assert_ok(text_lane_create(model, good, 2, &lane, &error));
    /* All bytes of the table are 1: bfloat16 0x0101. */
    for (int i = 0; i < 16; i++) {
        uint32_t bits;

        memcpy(&bits, &lane->host_embedded[i], sizeof bits);
        assert_int_equal(bits, 0x01010000);
    }
    text_lane_destroy(NULL, &lane);
    assert_int_equal(text_lane_create(model, bad, 2, &lane, &error), SHOAL_E_FORMAT);
    assert_null(lane);
    assert_says(&error, "token 10");
    assert_int_equal(text_lane_create(model, negative, 1, &lane, &error), SHOAL_E_FORMAT);
    assert_int_equal(text_lane_create(model, good, 0, &lane, &error), SHOAL_E_INVALID);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* ---- a small VAE, in the original naming ---- */

#define VAE_RESNET(key, in, out)                                                                   \
    {key "norm1.weight", DTYPE_F32, SHAPE1(in)}, {key "norm1.bias", DTYPE_F32, SHAPE1(in)},        \
        {key "conv1.weight", DTYPE_F32, SHAPE4(out, in, 3, 3)},                                    \
        {key "conv1.bias", DTYPE_F32, SHAPE1(out)}, {key "norm2.weight", DTYPE_F32, SHAPE1(out)},  \
        {key "norm2.bias", DTYPE_F32, SHAPE1(out)},                                                \
        {key "conv2.weight", DTYPE_F32, SHAPE4(out, out, 3, 3)},                                   \
    {                                                                                              \
        key "conv2.bias", DTYPE_F32, SHAPE1(out)                                                   \
    }

#define V "first_stage_model."
static const struct tensor_spec vae[] = {
    {V "decoder.conv_in.weight", DTYPE_F32, SHAPE4(64, 16, 3, 3)},
    {V "decoder.conv_in.bias", DTYPE_F32, SHAPE1(64)},
    VAE_RESNET(V "decoder.mid.block_1.", 64, 64),
    VAE_RESNET(V "decoder.mid.block_2.", 64, 64),
    {V "decoder.mid.attn_1.norm.weight", DTYPE_F32, SHAPE1(64)},
    {V "decoder.mid.attn_1.norm.bias", DTYPE_F32, SHAPE1(64)},
    {V "decoder.mid.attn_1.q.weight", DTYPE_F32, SHAPE4(64, 64, 1, 1)},
    {V "decoder.mid.attn_1.q.bias", DTYPE_F32, SHAPE1(64)},
    {V "decoder.mid.attn_1.k.weight", DTYPE_F32, SHAPE4(64, 64, 1, 1)},
    {V "decoder.mid.attn_1.k.bias", DTYPE_F32, SHAPE1(64)},
    {V "decoder.mid.attn_1.v.weight", DTYPE_F32, SHAPE4(64, 64, 1, 1)},
    {V "decoder.mid.attn_1.v.bias", DTYPE_F32, SHAPE1(64)},
    {V "decoder.mid.attn_1.proj_out.weight", DTYPE_F32, SHAPE4(64, 64, 1, 1)},
    {V "decoder.mid.attn_1.proj_out.bias", DTYPE_F32, SHAPE1(64)},
    VAE_RESNET(V "decoder.up.1.block.0.", 64, 64),
    {V "decoder.up.1.upsample.conv.weight", DTYPE_F32, SHAPE4(64, 64, 3, 3)},
    {V "decoder.up.1.upsample.conv.bias", DTYPE_F32, SHAPE1(64)},
    VAE_RESNET(V "decoder.up.0.block.0.", 64, 32),
    {V "decoder.up.0.block.0.nin_shortcut.weight", DTYPE_F32, SHAPE4(32, 64, 1, 1)},
    {V "decoder.up.0.block.0.nin_shortcut.bias", DTYPE_F32, SHAPE1(32)},
    {V "decoder.norm_out.weight", DTYPE_F32, SHAPE1(32)},
    {V "decoder.norm_out.bias", DTYPE_F32, SHAPE1(32)},
    {V "decoder.conv_out.weight", DTYPE_F32, SHAPE4(3, 32, 3, 3)},
    {V "decoder.conv_out.bias", DTYPE_F32, SHAPE1(3)},
};
#define VAE_COUNT (sizeof vae / sizeof *vae)

static void test_klvae_original(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    const struct klvae_config *config;
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s", write_tensors("v.safetensors", vae, VAE_COUNT));
    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_ok(family_open(checkpoint, FAMILY_VAE, NULL, &model, &error));
    config = klvae_config(model);
    assert_int_equal(config->levels, 2);
    assert_int_equal(config->base.factor, 2);
    assert_int_equal(config->resnets, 1);
    assert_int_equal(config->channels[0], 64);
    assert_int_equal(config->channels[1], 32);
    assert_int_equal(config->groups, 32);
    assert_true(config->attention && !config->post_quant);
    assert_true(config->scaling == 0.3611f && config->shift == 0.1159f);
    assert_int_equal(model->block_count, 7);
    assert_string_equal(model->blocks[5].name, "level 1 upsampler and resnet 0");
    assert_int_equal(model->blocks[5].weight_count, 12);
    model_destroy(&model);
    checkpoint_close(&checkpoint);

    assert_open_says(path, FAMILY_VAE,
        put_text("config.json", "{\"block_out_channels\": [32, 128]}"), SHOAL_E_FORMAT, "128");
    assert_open_says(path, FAMILY_VAE, put_text("config.json", "{\"block_out_channels\": [64]}"),
        SHOAL_E_FORMAT, "block_out_channels");
    assert_open_says(path, FAMILY_VAE, put_text("config.json", "{\"layers_per_block\": 2}"),
        SHOAL_E_FORMAT, "layers_per_block");
    assert_open_says(path, FAMILY_VAE, put_text("config.json", "{\"norm_num_groups\": 48}"),
        SHOAL_E_FORMAT, "48 groups");
    assert_open_says(path, FAMILY_VAE, put_text("config.json", "{\"scaling_factor\": 0}"),
        SHOAL_E_FORMAT, "scaling_factor");
    assert_open_says(path, FAMILY_VAE, put_text("config.json", "{\"use_post_quant_conv\": true}"),
        SHOAL_E_UNSUPPORTED, "use_post_quant_conv");
}

static void test_config_beside(void **state)
{
    struct shoal_error error = {0};
    char *found;

    (void)state;
    put_text("config.json", "{}");
    assert_ok(family_config_beside(at("model.safetensors"), &found, &error));
    assert_string_equal(found, at("config.json"));
    mem_free(found);
    assert_ok(family_config_beside(folder, &found, &error));
    assert_string_equal(found, at("config.json"));
    mem_free(found);
    remove(at("config.json"));
    assert_ok(family_config_beside(folder, &found, &error));
    assert_null(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_other_families),
        cmocka_unit_test(test_zimage_defaults),
        cmocka_unit_test(test_zimage_config),
        cmocka_unit_test(test_zimage_broken),
        cmocka_unit_test(test_zimage_extra),
        cmocka_unit_test(test_zimage_prompts),
        cmocka_unit_test(test_qwen3_layers),
        cmocka_unit_test(test_qwen3_embedding),
        cmocka_unit_test(test_klvae_original),
        cmocka_unit_test(test_config_beside),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
