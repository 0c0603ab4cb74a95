/* Recognising Qwen-Image among what looks like it, its configuration, and its positions. */
#include "unit/family_files.h"
#include "unit/gguf_file.h"

#include "models/dit/qwen_image.h"

#include <math.h>

/* ---- recognising ---- */

#define MAX_KEYS 4
#define NORM                                                                                       \
    {                                                                                              \
        "txt_norm.weight", DTYPE_BF16, SHAPE1(8)                                                   \
    }
#define MODULATION                                                                                 \
    {                                                                                              \
        "transformer_blocks.0.img_mod.1.weight", DTYPE_BF16, SHAPE2(12, 2)                         \
    }

static const struct {
    const char *name;
    struct tensor_spec tensors[MAX_KEYS];
} known[] = {
    {"qwen-image", {NORM, MODULATION}},
    {"qwen-image", {NORM, MODULATION, {"proj_out.weight", DTYPE_I8, SHAPE2(64, 3072)}}},
    {"qwen-image", {{"model.diffusion_model.txt_norm.weight", DTYPE_BF16, SHAPE1(8)},
                       {"model.diffusion_model.transformer_blocks.0.img_mod.1.weight", DTYPE_BF16,
                           SHAPE2(12, 2)},
                       {"vae.decoder.conv_in.weight", DTYPE_BF16, SHAPE1(8)}}},
    {"qwen-image-edit-2511",
        {NORM, MODULATION, {"__index_timestep_zero__", DTYPE_BF16, SHAPE1(0)}}},
    {"qwen-image-layered",
        {NORM, MODULATION,
            {"time_text_embed.addition_t_embedding.weight", DTYPE_BF16, SHAPE2(2, 2)}}},
    {"qwen-image-controlnet",
        {NORM, MODULATION, {"controlnet_blocks.0.weight", DTYPE_BF16, SHAPE2(2, 2)}}},
    {"mage-flow", {NORM, MODULATION, {"proj_out.weight", DTYPE_I8, SHAPE2(128, 3072)}}},
    {"lens",
        {NORM, MODULATION, {"transformer_blocks.0.attn.norm_added_q.weight", DTYPE_BF16, SHAPE1(8)},
            {"transformer_blocks.0.img_mlp.w1.weight", DTYPE_BF16, SHAPE2(2, 2)}}},
};

static void test_detect(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct shoal_error error = {0};
        struct checkpoint *checkpoint;
        const struct family *family;
        size_t count = 0;

        while (count < MAX_KEYS && known[i].tensors[count].name)
            count++;
        assert_ok(checkpoint_open(
            write_tensors("known.safetensors", known[i].tensors, count), &checkpoint, &error));
        family = family_detect(checkpoint, FAMILY_DIT);
        assert_non_null(family);
        assert_string_equal(family->name, known[i].name);
        assert_int_equal(family->open != NULL, i < 3);
        checkpoint_close(&checkpoint);
    }
}

/* Packed as Nunchaku does. */
static void test_nunchaku(void **state)
{
    static const struct tensor_spec tensors[] = {
        NORM, {"transformer_blocks.0.img_mod.1.qweight", DTYPE_I32, SHAPE2(2, 2)}};

    (void)state;
    assert_open_says(write_tensors("n.safetensors", tensors, 2), FAMILY_DIT, NULL,
        SHOAL_E_UNSUPPORTED, "its weights are quantised");
}

/* ---- a small one ---- */

enum { DIM = 64, HEAD = 32, FFN = 24, WIDTH = 20 };

#define STREAM(key, q, k, v, out, norm_q, norm_k, side)                                            \
    {key side "_mod.1.weight", DTYPE_F32, SHAPE2(6 * DIM, DIM)},                                   \
        {key side "_mod.1.bias", DTYPE_F32, SHAPE1(6 * DIM)},                                      \
        {key "attn." q ".weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                    \
        {key "attn." q ".bias", DTYPE_F32, SHAPE1(DIM)},                                           \
        {key "attn." k ".weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                    \
        {key "attn." k ".bias", DTYPE_F32, SHAPE1(DIM)},                                           \
        {key "attn." v ".weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                    \
        {key "attn." v ".bias", DTYPE_F32, SHAPE1(DIM)},                                           \
        {key "attn." out ".weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                  \
        {key "attn." out ".bias", DTYPE_F32, SHAPE1(DIM)},                                         \
        {key "attn." norm_q ".weight", DTYPE_F32, SHAPE1(HEAD)},                                   \
        {key "attn." norm_k ".weight", DTYPE_F32, SHAPE1(HEAD)},                                   \
        {key side "_mlp.net.0.proj.weight", DTYPE_F32, SHAPE2(FFN, DIM)},                          \
        {key side "_mlp.net.0.proj.bias", DTYPE_F32, SHAPE1(FFN)},                                 \
        {key side "_mlp.net.2.weight", DTYPE_F32, SHAPE2(DIM, FFN)},                               \
    {                                                                                              \
        key side "_mlp.net.2.bias", DTYPE_F32, SHAPE1(DIM)                                         \
    }
#define BLOCK(key)                                                                                 \
    STREAM(key, "to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k", "img"),                    \
        STREAM(key, "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_q",        \
            "norm_added_k", "txt")

static const struct tensor_spec small[] = {
    {"txt_norm.weight", DTYPE_F32, SHAPE1(WIDTH)},
    {"txt_in.weight", DTYPE_F32, SHAPE2(DIM, WIDTH)},
    {"txt_in.bias", DTYPE_F32, SHAPE1(DIM)},
    {"img_in.weight", DTYPE_F32, SHAPE2(DIM, 64)},
    {"img_in.bias", DTYPE_F32, SHAPE1(DIM)},
    {"time_text_embed.timestep_embedder.linear_1.weight", DTYPE_F32, SHAPE2(DIM, 256)},
    {"time_text_embed.timestep_embedder.linear_1.bias", DTYPE_F32, SHAPE1(DIM)},
    {"time_text_embed.timestep_embedder.linear_2.weight", DTYPE_F32, SHAPE2(DIM, DIM)},
    {"time_text_embed.timestep_embedder.linear_2.bias", DTYPE_F32, SHAPE1(DIM)},
    {"norm_out.linear.weight", DTYPE_F32, SHAPE2(2 * DIM, DIM)},
    {"norm_out.linear.bias", DTYPE_F32, SHAPE1(2 * DIM)},
    {"proj_out.weight", DTYPE_F32, SHAPE2(64, DIM)},
    {"proj_out.bias", DTYPE_F32, SHAPE1(64)},
    BLOCK("transformer_blocks.0."),
    BLOCK("transformer_blocks.1."),
};
#define SMALL_COUNT (sizeof small / sizeof *small)

static struct model *open_small(struct checkpoint **checkpoint, const char *config)
{
    struct shoal_error error = {0};
    struct model *model;

    assert_ok(
        checkpoint_open(write_tensors("q.safetensors", small, SMALL_COUNT), checkpoint, &error));
    assert_ok(family_open(
        *checkpoint, FAMILY_DIT, config ? put_text("config.json", config) : NULL, &model, &error));
    return model;
}

static void test_defaults(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model = open_small(&checkpoint, NULL);
    const struct qwen_image_config *config = qwen_image_config(model);
    const struct dit_family *family = config->base.family;

    (void)state;
    assert_string_equal(model->family, "qwen-image");
    assert_int_equal(config->dim, DIM);
    assert_int_equal(config->ffn_dim, FFN);
    assert_int_equal(config->heads, 2);
    assert_int_equal(config->layers, 2);
    assert_int_equal(config->base.channels, 16);
    assert_int_equal(config->base.width, WIDTH);
    assert_int_equal(config->axes[0], 4);
    assert_int_equal(config->axes[1], 14);
    assert_int_equal(config->axes[2], 14);
    assert_int_equal(model->passes[DIT_PASS_CONTEXT].count, 1);
    assert_int_equal(model->passes[DIT_PASS_STEP].count, 2);
    assert_string_equal(family->text.families[0], "qwen2.5-vl");
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void refuse_config(const char *config, enum shoal_status status, const char *says)
{
    const char *path = write_tensors("q.safetensors", small, SMALL_COUNT);

    assert_open_says(path, FAMILY_DIT, put_text("config.json", config), status, says);
}

static void test_config(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model;

    (void)state;
    refuse_config("{\"num_layers\": 60}", SHOAL_E_FORMAT, "\"num_layers\": 60");
    refuse_config("{\"num_attention_heads\": 24}", SHOAL_E_FORMAT, "\"num_attention_heads\": 24");
    refuse_config("{\"in_channels\": 16}", SHOAL_E_FORMAT, "\"in_channels\": 16");
    refuse_config("{\"patch_size\": 1}", SHOAL_E_FORMAT, "\"patch_size\": 1");
    refuse_config("{\"axes_dims_rope\": [8, 8]}", SHOAL_E_FORMAT, "three even numbers");
    refuse_config("{\"axes_dims_rope\": [16, 56, 56]}", SHOAL_E_FORMAT, "axes_dims_rope");
    refuse_config("{\"guidance_embeds\": true}", SHOAL_E_UNSUPPORTED, "guidance_embeds");
    refuse_config("{\"zero_cond_t\": true}", SHOAL_E_UNSUPPORTED, "zero_cond_t");
    refuse_config("{\"use_additional_t_cond\": true}", SHOAL_E_UNSUPPORTED, "additional_t_cond");
    refuse_config("{\"use_layer3d_rope\": true}", SHOAL_E_UNSUPPORTED, "use_layer3d_rope");
    refuse_config("{\"_class_name\": \"FluxTransformer2DModel\"}", SHOAL_E_FORMAT, "FluxTransf");

    model = open_small(&checkpoint,
        "{\"axes_dims_rope\": [8, 12, 12], \"out_channels\": 16, \"guidance_embeds\": false, "
        "\"pooled_projection_dim\": 768, \"_class_name\": \"QwenImageTransformer2DModel\"}");
    assert_int_equal(qwen_image_config(model)->axes[0], 8);
    assert_int_equal(qwen_image_config(model)->axes[2], 12);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* One tensor of the small one changed. */
static void refuse_tensor(
    const char *name, struct tensor_spec with, enum shoal_status status, const char *says)
{
    struct tensor_spec tensors[SMALL_COUNT];
    size_t found = SMALL_COUNT;

    memcpy(tensors, small, sizeof small);
    for (size_t i = 0; i < SMALL_COUNT; i++)
        if (!strcmp(tensors[i].name, name)) found = i;
    assert_true(found < SMALL_COUNT);
    tensors[found] = with;
    assert_open_says(
        write_tensors("q.safetensors", tensors, SMALL_COUNT), FAMILY_DIT, NULL, status, says);
}

static void test_broken(void **state)
{
    (void)state;
    refuse_tensor("transformer_blocks.1.attn.to_add_out.bias",
        (struct tensor_spec){"transformer_blocks.3.x", DTYPE_F32, SHAPE1(1)}, SHOAL_E_MISSING,
        "transformer_blocks.1.attn.to_add_out.bias");
    refuse_tensor("transformer_blocks.1.txt_mlp.net.2.weight",
        (struct tensor_spec){
            "transformer_blocks.1.txt_mlp.net.2.weight", DTYPE_F32, SHAPE2(FFN, DIM)},
        SHOAL_E_FORMAT, "transformer_blocks.1.txt_mlp.net.2.weight is [24, 64]");
    refuse_tensor("img_in.weight",
        (struct tensor_spec){"img_in.weight", DTYPE_F32, SHAPE2(DIM, 66)}, SHOAL_E_FORMAT,
        "patches of 66 numbers");
    refuse_tensor("transformer_blocks.0.attn.norm_q.weight",
        (struct tensor_spec){"transformer_blocks.0.attn.norm_q.weight", DTYPE_F32, SHAPE1(48)},
        SHOAL_E_FORMAT, "a width of 64 in heads of 48");
}

/* A parameter beside the model's own belongs to a variant. */
static void test_extra(void **state)
{
    struct tensor_spec tensors[SMALL_COUNT + 1];

    (void)state;
    memcpy(tensors, small, sizeof small);
    tensors[SMALL_COUNT] = (struct tensor_spec){
        "time_text_embed.guidance_embedder.linear_1.weight", DTYPE_F32, SHAPE2(DIM, 256)};
    assert_open_says(write_tensors("q.safetensors", tensors, SMALL_COUNT + 1), FAMILY_DIT, NULL,
        SHOAL_E_UNSUPPORTED, "guidance_embedder.linear_1.weight is no part of qwen-image");
}

/* As converters write it: matrices in blocks, v in more bits than q and k, vectors in F32. */
static void test_gguf(void **state)
{
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    const struct weight *weights;

    (void)state;
    gguf_file_string(&f, "general.architecture", "qwen_image");
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        const struct shape *shape = &small[i].shape;
        enum dtype dtype = DTYPE_F32;

        if (shape->rank == 2 && shape->dim[1] % 32 == 0)
            dtype = strstr(small[i].name, "to_v") ? DTYPE_Q8_0 : DTYPE_Q4_0;
        gguf_file_tensor(&f, small[i].name, gguf_number(dtype), dtype, *shape, NULL);
    }
    assert_ok(gguf_file_write(&f, at("q.gguf"), &error));
    assert_ok(checkpoint_open(at("q.gguf"), &checkpoint, &error));
    assert_ok(family_open(checkpoint, FAMILY_DIT, NULL, &model, &error));
    weights = model->blocks[model->passes[DIT_PASS_STEP].first].weights;
    /* The text's q, k and v are one matrix, the image's three; their biases are one row. */
    assert_int_equal(weights[2].rows, 3 * DIM);
    assert_int_equal(weights[3].rows, 0);
    assert_int_equal(weights[5].cols, 3 * DIM);
    assert_int_equal(weights[16].dtype, DTYPE_Q4_0);
    assert_int_equal(weights[18].dtype, DTYPE_Q8_0);
    assert_int_equal(weights[18].rows, DIM);
    assert_int_equal(weights[19].cols, 3 * DIM);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* ---- positions ---- */

/* That row of the table turns the axes' first pairs by these angles. */
static void assert_turns(const float *table, int64_t row, const int places[3])
{
    static const int first[] = {0, 2, 9}; /* pairs of axes of 4, 14, 14 */

    for (int axis = 0; axis < 3; axis++) {
        const float *pair = table + row * HEAD + first[axis];

        assert_true(fabsf(pair[0] - cosf((float)places[axis])) < 1e-6f);
        assert_true(fabsf(pair[HEAD / 2] - sinf((float)places[axis])) < 1e-6f);
    }
}

static void test_positions(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model = open_small(&checkpoint, NULL);
    struct dit_prompt *prompt;
    const float sigmas[] = {1}, features[1] = {0}; /* read by passes only */
    struct dit_prompt_spec spec = {
        .features = features, .tokens = 3, .height = 6, .width = 8, .sigmas = sigmas, .steps = 1};

    (void)state;
    assert_ok(dit_prompt_create(model, &spec, &prompt, &error));
    assert_int_equal(prompt->padded, 3);
    assert_int_equal(prompt->image_padded, 12);
    assert_int_equal(prompt->tables[1].rows, 15);
    assert_turns(prompt->tables[1].host, 0, (const int[]){2, 2, 2});
    assert_turns(prompt->tables[1].host, 2, (const int[]){4, 4, 4});
    assert_turns(prompt->tables[1].host, 3, (const int[]){0, -2, -2});
    assert_turns(prompt->tables[1].host, 14, (const int[]){0, 0, 1});
    dit_prompt_destroy(NULL, &prompt);
    spec.height = 5;
    assert_int_equal(dit_prompt_create(model, &spec, &prompt, &error), SHOAL_E_INVALID);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_nunchaku),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_extra),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_positions),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
