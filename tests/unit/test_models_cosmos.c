/* Recognising and opening Cosmos-Predict2 and Anima, their look-alikes, configurations and prompts.
 */
#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "base/memory.h"
#include "models/dit/anima.h"
#include "models/family.h"

enum {
    DIM = 32,
    HEAD = 16,
    FFN = 48,
    LORA = 4,
    CONTEXT = 8,
    WORDS = 10,
    SOURCE = 12,
    ADAPTER_FFN = 20
};

#define ATTENTION(key, context)                                                                    \
    {key "q_proj.weight", DTYPE_F32, SHAPE2(DIM, DIM)},                                            \
        {key "k_proj.weight", DTYPE_F32, SHAPE2(DIM, context)},                                    \
        {key "v_proj.weight", DTYPE_F32, SHAPE2(DIM, context)},                                    \
        {key "q_norm.weight", DTYPE_F32, SHAPE1(HEAD)},                                            \
        {key "k_norm.weight", DTYPE_F32, SHAPE1(HEAD)},                                            \
    {                                                                                              \
        key "output_proj.weight", DTYPE_F32, SHAPE2(DIM, DIM)                                      \
    }
#define MODULATION(key)                                                                            \
    {key ".1.weight", DTYPE_F32, SHAPE2(LORA, DIM)},                                               \
    {                                                                                              \
        key ".2.weight", DTYPE_F32, SHAPE2(3 * DIM, LORA)                                          \
    }
#define LAYER(key)                                                                                 \
    ATTENTION(key "self_attn.", DIM), ATTENTION(key "cross_attn.", CONTEXT),                       \
        MODULATION(key "adaln_modulation_self_attn"),                                              \
        MODULATION(key "adaln_modulation_cross_attn"), MODULATION(key "adaln_modulation_mlp"),     \
        {key "mlp.layer1.weight", DTYPE_F32, SHAPE2(FFN, DIM)},                                    \
    {                                                                                              \
        key "mlp.layer2.weight", DTYPE_F32, SHAPE2(DIM, FFN)                                       \
    }
#define ADAPTER_ATTENTION(key, context)                                                            \
    {key "q_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, CONTEXT)},                                    \
        {key "k_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, context)},                                \
        {key "v_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, context)},                                \
        {key "q_norm.weight", DTYPE_F32, SHAPE1(4)}, {key "k_norm.weight", DTYPE_F32, SHAPE1(4)},  \
    {                                                                                              \
        key "o_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, CONTEXT)                                   \
    }

#define N "net."
#define A "net.llm_adapter."
/* Cosmos is what Anima is without the last tensors. */
static const struct tensor_spec anima[] = {
    {N "x_embedder.proj.1.weight", DTYPE_F32, SHAPE2(DIM, 68)},
    {N "t_embedder.1.linear_1.weight", DTYPE_F32, SHAPE2(DIM, DIM)},
    {N "t_embedder.1.linear_2.weight", DTYPE_F32, SHAPE2(3 * DIM, DIM)},
    {N "t_embedding_norm.weight", DTYPE_F32, SHAPE1(DIM)},
    {N "final_layer.adaln_modulation.1.weight", DTYPE_F32, SHAPE2(LORA, DIM)},
    {N "final_layer.adaln_modulation.2.weight", DTYPE_F32, SHAPE2(2 * DIM, LORA)},
    {N "final_layer.linear.weight", DTYPE_F32, SHAPE2(64, DIM)},
    LAYER(N "blocks.0."),
    LAYER(N "blocks.1."),
    /* What files have beside the parameters. */
    {N "blocks.0.self_attn._extra_state", DTYPE_U8, SHAPE1(0)},
    {N "accum_image_sample_counter", DTYPE_F32, SHAPE1(1)},
    {N "pos_embedder.seq", DTYPE_F32, SHAPE1(7)},
    {A "embed.weight", DTYPE_F32, SHAPE2(WORDS, CONTEXT)},
    {A "blocks.0.norm_self_attn.weight", DTYPE_F32, SHAPE1(CONTEXT)},
    ADAPTER_ATTENTION(A "blocks.0.self_attn.", CONTEXT),
    {A "blocks.0.norm_cross_attn.weight", DTYPE_F32, SHAPE1(CONTEXT)},
    ADAPTER_ATTENTION(A "blocks.0.cross_attn.", SOURCE),
    {A "blocks.0.norm_mlp.weight", DTYPE_F32, SHAPE1(CONTEXT)},
    {A "blocks.0.mlp.0.weight", DTYPE_F32, SHAPE2(ADAPTER_FFN, CONTEXT)},
    {A "blocks.0.mlp.0.bias", DTYPE_F32, SHAPE1(ADAPTER_FFN)},
    {A "blocks.0.mlp.2.weight", DTYPE_F32, SHAPE2(CONTEXT, ADAPTER_FFN)},
    {A "blocks.0.mlp.2.bias", DTYPE_F32, SHAPE1(CONTEXT)},
    {A "out_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, CONTEXT)},
    {A "out_proj.bias", DTYPE_F32, SHAPE1(CONTEXT)},
    {A "norm.weight", DTYPE_F32, SHAPE1(CONTEXT)},
};
enum { ANIMA_COUNT = sizeof anima / sizeof *anima, COSMOS_COUNT = ANIMA_COUNT - 23 };

/* One more tensor than there are, or one in the place of another. */
static const char *write_with(size_t count, size_t index, const struct tensor_spec *other)
{
    struct tensor_spec tensors[ANIMA_COUNT + 1];
    struct shoal_error error = {0};
    const char *path = at("model.safetensors");

    memcpy(tensors, anima, sizeof anima);
    if (other) tensors[index] = *other;
    if (other && index == count) count++;
    assert_ok(tensor_file_write(path, tensors, count, NULL, false, &error));
    return path;
}

static struct model *open_model(
    const char *path, const char *config, struct checkpoint **checkpoint)
{
    struct shoal_error error = {0};
    struct model *model;

    assert_ok(checkpoint_open(path, checkpoint, &error));
    assert_ok(family_open(
        *checkpoint, FAMILY_DIT, config ? put_text("config.json", config) : NULL, &model, &error));
    return model;
}

static void refuse(const char *path, const char *config, enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;

    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_int_equal(family_open(checkpoint, FAMILY_DIT,
                         config ? put_text("config.json", config) : NULL, &model, &error),
        status);
    assert_null(model);
    if (!strstr(error.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, error.text);
    checkpoint_close(&checkpoint);
}

/* ---- opening ---- */

static void test_cosmos(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model = open_model(write_with(COSMOS_COUNT, 0, NULL), NULL, &checkpoint);
    const struct cosmos_config *c = cosmos_config(model);

    (void)state;
    assert_string_equal(model->family, "cosmos");
    assert_int_equal(c->base.channels, 16);
    assert_int_equal(c->base.width, CONTEXT);
    assert_int_equal(c->heads, 2);
    assert_int_equal(c->layers, 2);
    assert_int_equal(c->axes[0], 8);
    assert_int_equal(c->axes[1], 4);
    assert_int_equal(c->axes[2], 4);
    assert_true(c->theta[0] == 1e4);
    assert_true(c->theta[1] > 1.59e5 && c->theta[1] < 1.61e5); /* 4^(4 / 2) times as much */
    assert_int_equal(model->passes[DIT_PASS_CONTEXT].count, 1);
    assert_int_equal(model->passes[DIT_PASS_CONTEXT].globals, -1);
    assert_int_equal(model->passes[DIT_PASS_STEP].count, 2);
    assert_string_equal(model->blocks[model->passes[DIT_PASS_STEP].first].name, "blocks.0");
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_anima(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model = open_model(write_with(ANIMA_COUNT, 0, NULL), NULL, &checkpoint);
    const struct anima_config *c = anima_config(model);

    (void)state;
    assert_string_equal(model->family, "anima");
    assert_int_equal(dit_config(model)->width, SOURCE);
    assert_int_equal(c->cosmos.context_dim, CONTEXT);
    assert_int_equal(c->heads, 2);
    assert_int_equal(c->layers, 1);
    assert_int_equal(c->words.vocabulary, WORDS);
    assert_int_equal(model->passes[DIT_PASS_CONTEXT].count, 2);
    assert_int_equal(model->passes[DIT_PASS_STEP].count, 2);
    assert_string_equal(model->blocks[model->passes[DIT_PASS_STEP].first].name, "blocks.0");
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_variants(void **state)
{
    static const struct tensor_spec video = {
        N "x_embedder.proj.1.weight", DTYPE_F32, SHAPE2(DIM, 72)};
    static const struct tensor_spec wide = {
        N "x_embedder.proj.1.weight", DTYPE_F32, SHAPE2(DIM, 132)};
    static const struct tensor_spec learned = {
        N "extra_pos_embedder.pos_emb_h", DTYPE_F32, SHAPE2(4, DIM)};
    static const struct tensor_spec in = {A "in_proj.weight", DTYPE_F32, SHAPE2(CONTEXT, CONTEXT)};
    static const struct tensor_spec bias = {N "t_embedder.1.linear_1.bias", DTYPE_F32, SHAPE1(DIM)};
    static const struct tensor_spec image = {
        N "blocks.1.cross_attn.q_img.weight", DTYPE_F32, SHAPE2(DIM, DIM)};
    static const struct tensor_spec heads = {
        N "blocks.0.self_attn.q_norm.weight", DTYPE_F32, SHAPE1(8)};

    (void)state;
    refuse(write_with(COSMOS_COUNT, 0, &video), NULL, SHOAL_E_UNSUPPORTED,
        "17 channels beside the mask; this build runs Cosmos-Predict2 Text2Image");
    refuse(write_with(COSMOS_COUNT, 0, &wide), NULL, SHOAL_E_UNSUPPORTED, "patches of 132 numbers");
    refuse(write_with(COSMOS_COUNT, COSMOS_COUNT, &learned), NULL, SHOAL_E_UNSUPPORTED,
        "learned positions");
    refuse(write_with(ANIMA_COUNT, ANIMA_COUNT, &in), NULL, SHOAL_E_UNSUPPORTED, "in_proj");
    refuse(write_with(COSMOS_COUNT, COSMOS_COUNT, &bias), NULL, SHOAL_E_UNSUPPORTED,
        "linear_1.bias is no part of cosmos");
    refuse(write_with(COSMOS_COUNT, COSMOS_COUNT, &image), NULL, SHOAL_E_UNSUPPORTED,
        "q_img.weight is no part of cosmos");
    for (size_t i = 0; i < COSMOS_COUNT; i++)
        if (!strcmp(anima[i].name, heads.name))
            refuse(write_with(COSMOS_COUNT, i, &heads), NULL, SHOAL_E_FORMAT,
                "a width of 32 in heads of 8");
}

static void test_config(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model;
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s", write_with(COSMOS_COUNT, 0, NULL));
    model = open_model(path,
        "{\"_class_name\": \"CosmosTransformer3DModel\", \"mlp_ratio\": 1.5, \"in_channels\": 16, "
        "\"rope_scale\": [1.0, 1.0, 2.0], \"patch_size\": [1, 2, 2], \"extra_pos_embed_type\": "
        "null, \"concat_padding_mask\": true}",
        &checkpoint);
    assert_true(cosmos_config(model)->theta[1] == 1e4);
    assert_true(cosmos_config(model)->theta[2] == 4e4);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
    refuse(path, "{\"in_channels\": 17}", SHOAL_E_FORMAT, "\"in_channels\": 17");
    refuse(path, "{\"num_layers\": 28}", SHOAL_E_FORMAT, "\"num_layers\": 28");
    refuse(path, "{\"mlp_ratio\": 4.0}", SHOAL_E_FORMAT, "\"mlp_ratio\": 4");
    refuse(path, "{\"rope_scale\": [1.0, 4.0]}", SHOAL_E_FORMAT, "three numbers");
    refuse(path, "{\"rope_scale\": [1.0, 4.0, 0]}", SHOAL_E_FORMAT, "three numbers");
    refuse(path, "{\"patch_size\": [2, 2, 2]}", SHOAL_E_UNSUPPORTED, "patch_size");
    refuse(path, "{\"extra_pos_embed_type\": \"learnable\"}", SHOAL_E_UNSUPPORTED,
        "extra_pos_embed_type");
    refuse(path, "{\"use_crossattn_projection\": true}", SHOAL_E_UNSUPPORTED,
        "use_crossattn_projection");
    refuse(path, "{\"_class_name\": \"WanTransformer3DModel\"}", SHOAL_E_FORMAT, "Wan");
}

/* ---- prompts ---- */

static void test_prompts(void **state)
{
    static const float sigmas[] = {1, 0.5f}, features[3 * SOURCE] = {1, 2, 3};
    static const int32_t ids[] = {0, 9}, beyond[] = {10};
    struct dit_prompt_spec spec = {
        .features = features, .tokens = 3, .height = 4, .width = 6, .sigmas = sigmas, .steps = 2};
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct dit_prompt *prompt;
    struct model *model = open_model(write_with(COSMOS_COUNT, 0, NULL), NULL, &checkpoint);
    const struct table *table;

    (void)state;
    assert_ok(dit_prompt_create(model, &spec, &prompt, &error));
    assert_int_equal(prompt->padded, 512);
    table = &prompt->tables[COSMOS_CONTEXT_ROWS];
    assert_true(table->host[2] == 3.0f && table->host[3 * CONTEXT] == 0.0f);
    table = &prompt->tables[COSMOS_TIMES]; /* of 1, not of 1000 */
    assert_true(table->host[0] > 0.54f && table->host[0] < 0.541f);
    /* Image token (1, 2): its rows' first pair, after the time's four, turns by 1. */
    table = &prompt->tables[COSMOS_ROPE];
    assert_true(table->host[5 * HEAD] == 1.0f);
    assert_true(table->host[5 * HEAD + 4] > 0.54f && table->host[5 * HEAD + 4] < 0.541f);
    dit_prompt_destroy(NULL, &prompt);
    model_destroy(&model);
    checkpoint_close(&checkpoint);

    model = open_model(write_with(ANIMA_COUNT, 0, NULL), NULL, &checkpoint);
    assert_int_equal(dit_prompt_create(model, &spec, &prompt, &error), SHOAL_E_INVALID);
    assert_null(prompt);
    spec.ids = beyond;
    spec.id_count = 1;
    assert_int_equal(dit_prompt_create(model, &spec, &prompt, &error), SHOAL_E_FORMAT);
    assert_non_null(strstr(error.text, "llm_adapter.embed.weight"));
    spec.ids = ids;
    spec.id_count = 2;
    assert_ok(dit_prompt_create(model, &spec, &prompt, &error));
    table = &prompt->tables[COSMOS_CONTEXT_ROWS];
    assert_int_equal(table->rows, 512);
    assert_true(table->host[2 * CONTEXT - 1] != 0.0f && table->host[2 * CONTEXT] == 0.0f);
    dit_prompt_destroy(NULL, &prompt);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cosmos),
        cmocka_unit_test(test_anima),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_prompts),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
