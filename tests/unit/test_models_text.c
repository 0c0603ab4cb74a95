/* Recognising and opening Qwen2.5-VL's and T5's text encoders, and what is refused. */
#include "unit/checkpoint_files.h"
#include "unit/gguf_file.h"
#include "unit/tensor_file.h"

#include "models/family.h"
#include "models/text/qwen.h"
#include "models/text/t5.h"

#include <math.h>

#define MAX_TENSORS 48

static const char *write_tensors(
    const struct tensor_spec *tensors, size_t count, const void *const *data)
{
    struct shoal_error error = {0};
    static char path[512]; /* at's own is soon another's */

    snprintf(path, sizeof path, "%s", at("text.safetensors"));
    assert_ok(tensor_file_write(path, tensors, count, data, false, &error));
    return path;
}

/* The family that it is taken for, then what opening it gives: the model, or an error that says
 * that and no model. */
static struct model *open_text(const char *path, const char *config, const char *family,
    const char *says, struct checkpoint **checkpoint)
{
    struct shoal_error error = {0};
    struct model *model;
    enum shoal_status status;

    assert_ok(checkpoint_open(path, checkpoint, &error));
    assert_string_equal(family_detect(*checkpoint, FAMILY_TEXT)->name, family);
    status = family_open(
        *checkpoint, FAMILY_TEXT, config ? put_text("config.json", config) : NULL, &model, &error);
    if (!says) {
        assert_ok(status);
        assert_string_equal(model->family, family);
        return model;
    }
    assert_int_not_equal(status, SHOAL_OK);
    assert_null(model);
    if (!strstr(error.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, error.text);
    checkpoint_close(checkpoint);
    return NULL;
}

/* ---- a small Qwen2.5-VL ---- */

#define VL_LAYER(n)                                                                                \
    {"layers." n ".input_layernorm.weight", DTYPE_BF16, SHAPE1(8)},                                \
        {"layers." n ".post_attention_layernorm.weight", DTYPE_BF16, SHAPE1(8)},                   \
        {"layers." n ".self_attn.q_proj.weight", DTYPE_BF16, SHAPE2(256, 8)},                      \
        {"layers." n ".self_attn.k_proj.weight", DTYPE_BF16, SHAPE2(128, 8)},                      \
        {"layers." n ".self_attn.v_proj.weight", DTYPE_BF16, SHAPE2(128, 8)},                      \
        {"layers." n ".self_attn.q_proj.bias", DTYPE_BF16, SHAPE1(256)},                           \
        {"layers." n ".self_attn.k_proj.bias", DTYPE_BF16, SHAPE1(128)},                           \
        {"layers." n ".self_attn.v_proj.bias", DTYPE_BF16, SHAPE1(128)},                           \
        {"layers." n ".self_attn.o_proj.weight", DTYPE_BF16, SHAPE2(8, 256)},                      \
        {"layers." n ".mlp.gate_proj.weight", DTYPE_BF16, SHAPE2(12, 8)},                          \
        {"layers." n ".mlp.up_proj.weight", DTYPE_BF16, SHAPE2(12, 8)},                            \
    {                                                                                              \
        "layers." n ".mlp.down_proj.weight", DTYPE_BF16, SHAPE2(8, 12)                             \
    }

static const struct tensor_spec vl[] = {
    {"embed_tokens.weight", DTYPE_BF16, SHAPE2(10, 8)},
    VL_LAYER("0"),
    VL_LAYER("1"),
    {"norm.weight", DTYPE_BF16, SHAPE1(8)},
};
#define VL_COUNT (sizeof vl / sizeof *vl)

/* The small model with its names behind `prefix`, and one tensor more unless NULL. */
static const char *write_vl(const char *prefix, const char *extra)
{
    static char names[VL_COUNT][128];
    struct tensor_spec tensors[MAX_TENSORS];

    for (size_t i = 0; i < VL_COUNT; i++) {
        snprintf(names[i], sizeof names[i], "%s%s", prefix, vl[i].name);
        tensors[i] = vl[i];
        tensors[i].name = names[i];
    }
    /* Of a type that nothing computes with: vision is never read. */
    tensors[VL_COUNT] = (struct tensor_spec){extra, DTYPE_I8, SHAPE2(4, 4)};
    return write_tensors(tensors, VL_COUNT + (extra != NULL), NULL);
}

static void accept_vl(const char *path, const char *config, int32_t heads)
{
    struct checkpoint *checkpoint;
    struct model *model = open_text(path, config, "qwen2.5-vl", NULL, &checkpoint);
    const struct qwen_config *c = qwen_config(model);

    assert_true(c->biased && c->whole);
    assert_int_equal(c->heads, heads);
    assert_int_equal(c->head_dim, 256 / heads);
    assert_int_equal(c->kv_heads, heads / 2);
    assert_int_equal(c->layers, 1);
    assert_true(c->theta == 1e6);
    assert_int_equal(c->base.pass[TEXT_LAST], 1);
    assert_int_equal(model->passes[1].count, 2);
    assert_int_equal(model->block_count, 3);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void refuse_vl(const char *path, const char *config, const char *family, const char *says)
{
    struct checkpoint *checkpoint;

    assert_null(open_text(path, config, family, says, &checkpoint));
}

static void test_vl_layouts(void **state)
{
    (void)state;
    accept_vl(write_vl("model.", QWEN_VL_VISION), NULL, 2);
    accept_vl(write_vl("model.language_model.", "model." QWEN_VL_VISION), NULL, 2);
    accept_vl(write_vl("language_model.", QWEN_VL_VISION), NULL, 2);
    accept_vl(
        write_vl("te.qwen25_7b.transformer.model.", "te.qwen25_7b.transformer." QWEN_VL_VISION),
        NULL, 2);
    accept_vl(write_vl("", NULL), "{\"model_type\": \"qwen2_5_vl_text\"}", 2);
    accept_vl(write_vl("model.", NULL),
        "{\"model_type\": \"qwen2_5_vl\", \"num_attention_heads\": 4, \"rope_theta\": 1e6,"
        " \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}}",
        4);
    accept_vl(write_vl("model.", NULL),
        "{\"model_type\": \"qwen2_5_vl\", \"hidden_size\": 3584, \"text_config\": {\"model_type\": "
        "\"qwen2_5_vl_text\", \"hidden_size\": 8, \"num_attention_heads\": 4}}",
        4);
}

static void test_vl_refused(void **state)
{
    const char *path = write_vl("model.", NULL);

    (void)state;
    /* A plain Qwen2 has the same tensors. */
    refuse_vl(path, NULL, "qwen2.5-vl", "may be those of Qwen2.5-VL or of a plain Qwen2");
    refuse_vl(path, "{\"rope_theta\": 1e6}", "qwen2.5-vl", "put its config.json beside it");
    refuse_vl(path, "{\"model_type\": \"qwen2\"}", "qwen2.5-vl", "those of a qwen2_5_vl");
    refuse_vl(path, "{\"model_type\": \"qwen2_5_vl\", \"num_attention_heads\": 3}", "qwen2.5-vl",
        "256 rows, which are not 3 heads");
    refuse_vl(path, "{\"model_type\": \"qwen2_5_vl\", \"text_config\": {\"hidden_size\": 9}}",
        "qwen2.5-vl", "\"hidden_size\": 9");
    refuse_vl(path, "{\"model_type\": \"qwen2_5_vl\", \"rope_scaling\": {\"type\": \"yarn\"}}",
        "qwen2.5-vl", "scaled rotary positions");
    refuse_vl(write_vl("model.", "visual.blocks.0.mlp.fc1.weight"), NULL, "qwen2-vl",
        "is Qwen2-VL; the text encoder");
    refuse_vl(write_vl("model.", "model.layers.1.self_attn.o_proj.bias"),
        "{\"model_type\": \"qwen2_5_vl\"}", "qwen2.5-vl", "o_proj.bias is no part of qwen2.5-vl");
}

/* ---- a small T5 ---- */

#define T5_LAYER(n)                                                                                \
    {"encoder.block." n ".layer.0.layer_norm.weight", DTYPE_F32, SHAPE1(8)},                       \
        {"encoder.block." n ".layer.0.SelfAttention.q.weight", DTYPE_F32, SHAPE2(12, 8)},          \
        {"encoder.block." n ".layer.0.SelfAttention.k.weight", DTYPE_F32, SHAPE2(12, 8)},          \
        {"encoder.block." n ".layer.0.SelfAttention.v.weight", DTYPE_F32, SHAPE2(12, 8)},          \
        {"encoder.block." n ".layer.0.SelfAttention.o.weight", DTYPE_F32, SHAPE2(8, 12)},          \
        {"encoder.block." n ".layer.1.layer_norm.weight", DTYPE_F32, SHAPE1(8)},                   \
        {"encoder.block." n ".layer.1.DenseReluDense.wi.weight", DTYPE_F32, SHAPE2(20, 8)},        \
    {                                                                                              \
        "encoder.block." n ".layer.1.DenseReluDense.wo.weight", DTYPE_F32, SHAPE2(8, 20)           \
    }

enum { T5_BIAS = 1 };

static const struct tensor_spec t5[] = {
    {"shared.weight", DTYPE_F32, SHAPE2(10, 8)},
    {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", DTYPE_F32,
        SHAPE2(32, 3)},
    {"encoder.final_layer_norm.weight", DTYPE_F32, SHAPE1(8)},
    {"spiece_model", DTYPE_U8, SHAPE1(5)}, /* ComfyUI's files may hold the tokenizer */
    T5_LAYER("0"),
    T5_LAYER("1"),
};
#define T5_COUNT (sizeof t5 / sizeof *t5)

static const char *write_t5(const char *extra, struct shape shape)
{
    struct tensor_spec tensors[MAX_TENSORS];

    memcpy(tensors, t5, sizeof t5);
    tensors[T5_COUNT] = (struct tensor_spec){extra, DTYPE_F32, shape};
    return write_tensors(tensors, T5_COUNT + (extra != NULL), NULL);
}

static void refuse_t5(const char *path, const char *config, const char *says)
{
    struct checkpoint *checkpoint;

    assert_null(open_text(path, config, "t5", says, &checkpoint));
}

static void test_t5(void **state)
{
    const struct shape bias = SHAPE2(32, 3);
    struct checkpoint *checkpoint;
    struct model *model;

    (void)state;
    model = open_text(write_t5("decoder.block.0.layer.0.layer_norm.weight", bias),
        "{\"model_type\": \"t5\", \"feed_forward_proj\": \"relu\", \"d_kv\": 4, \"num_heads\": 3}",
        "t5", NULL, &checkpoint);
    assert_int_equal(t5_config(model)->heads, 3);
    assert_int_equal(t5_config(model)->head_dim, 4);
    assert_int_equal(t5_config(model)->layers, 2);
    assert_int_equal(t5_config(model)->bias_layers, 1);
    assert_false(t5_config(model)->gated);
    assert_int_equal(text_config(model)->pass[TEXT_BEFORE_LAST], -1);
    assert_int_equal(text_config(model)->pass[TEXT_LAST], 0);
    assert_int_equal(model->blocks[0].weight_count, 9);
    assert_int_equal(model->blocks[1].weight_count, 8);
    model_destroy(&model);
    checkpoint_close(&checkpoint);

    model = open_text(write_t5(T5_SECOND_BIAS, bias), NULL, "umt5", NULL, &checkpoint);
    assert_int_equal(t5_config(model)->bias_layers, 2);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_t5_refused(void **state)
{
    const struct shape plane = SHAPE2(20, 8), twelve = SHAPE2(12, 12);
    const char *path = write_t5(NULL, plane);

    (void)state;
    refuse_t5(path, "{\"feed_forward_proj\": \"gated-gelu\"}", "\"feed_forward_proj\" is not");
    refuse_t5(path, "{\"feed_forward_proj\": \"gelu\"}", "\"relu\", which is what this build");
    refuse_t5(path, "{\"model_type\": \"umt5\"}", "those of a t5");
    refuse_t5(path, "{\"num_heads\": 4}", "\"num_heads\": 4");
    refuse_t5(path, "{\"d_kv\": 64}", "\"d_kv\": 64");
    refuse_t5(path, "{\"num_layers\": 24}", "\"num_layers\": 24");
    refuse_t5(path, "{\"vocab_size\": 32128}", "\"vocab_size\": 32128");
    refuse_t5(path, "{\"relative_attention_num_buckets\": 16}", "num_buckets\": 16");
    refuse_t5(path, "{\"relative_attention_max_distance\": 8}", "32 buckets");
    refuse_t5(write_t5("encoder.block.1.layer.1.DenseReluDense.wi_1.weight", plane), NULL,
        "wi_1.weight is no part of t5");
    refuse_t5(write_t5("encoder.block.2.layer.0.SelfAttention.q.weight", twelve), NULL,
        "tensors are missing");
}

/* As files in scaled FP8 have them: all are 1.5 times the scale. */
static void check_scaled_biases(void)
{
    static const uint8_t zeros[2048];
    static const float scale = 0.5f;
    struct tensor_spec tensors[MAX_TENSORS];
    const void *data[T5_COUNT + 1];
    const int32_t ids[] = {3, 1};
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct text_lane *lane;
    uint8_t codes[32 * 3];

    memset(codes, 0x3c, sizeof codes); /* E4M3's 1.5 */
    for (size_t i = 0; i < T5_COUNT; i++) {
        tensors[i] = t5[i];
        data[i] = zeros;
    }
    tensors[T5_BIAS].dtype = DTYPE_F8_E4M3;
    data[T5_BIAS] = codes;
    tensors[T5_COUNT] = (struct tensor_spec){
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight_scale", DTYPE_F32,
        SHAPE1(1)};
    data[T5_COUNT] = &scale;
    model = open_text(write_tensors(tensors, T5_COUNT + 1, data), NULL, "t5", NULL, &checkpoint);
    assert_ok(text_lane_create(model, ids, 2, &lane, &error));
    for (int i = 0; i < 9; i++)
        assert_true(lane->tables[0].host[i] == 0.75f);
    text_lane_destroy(NULL, &lane);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_t5_biases(void **state)
{
    static float bias[32 * 3], zeros[512];
    const void *data[T5_COUNT];
    const int32_t ids[] = {3, 4, 1};
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct text_lane *lane;

    (void)state;
    for (size_t i = 0; i < T5_COUNT; i++)
        data[i] = i == T5_BIAS ? bias : zeros;
    for (int i = 0; i < 32 * 3; i++)
        bias[i] = (float)i;
    model = open_text(write_tensors(t5, T5_COUNT, data), NULL, "t5", NULL, &checkpoint);
    assert_ok(text_lane_create(model, ids, 3, &lane, &error));
    /* No adapter reaches them. */
    assert_true(model->blocks[0].weights[model->blocks[0].weight_count - 1].on_host);
    assert_int_equal(lane->tables[0].rows, 3);
    assert_int_equal(lane->tables[0].cols, 5);
    for (int h = 0; h < 3; h++) {
        /* Two and one before, itself, one and two behind. */
        static const int buckets[] = {2, 1, 0, 17, 18};

        for (int d = 0; d < 5; d++)
            assert_true(lane->tables[0].host[h * 5 + d] == (float)(buckets[d] * 3 + h));
    }
    text_lane_destroy(NULL, &lane);
    model_destroy(&model);
    checkpoint_close(&checkpoint);

    check_scaled_biases();
    bias[7] = 0.0f / bias[0];
    model = open_text(write_tensors(t5, T5_COUNT, data), NULL, "t5", NULL, &checkpoint);
    assert_int_equal(text_lane_create(model, ids, 3, &lane, &error), SHOAL_E_NUMERIC);
    assert_null(lane);
    assert_non_null(strstr(error.text, "relative_attention_bias.weight holds NaN"));
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* Rows of the embedding are read for a prompt's tokens only: a bad one is named then. */
static void test_embedded_rows(void **state)
{
    static float rows[10 * 8], zeros[512];
    const void *data[T5_COUNT];
    const int32_t others[] = {3, 5}, ids[] = {3, 4};
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;
    struct text_lane *lane;

    (void)state;
    for (size_t i = 0; i < T5_COUNT; i++)
        data[i] = i ? zeros : rows;
    rows[4 * 8 + 2] = NAN;
    model = open_text(write_tensors(t5, T5_COUNT, data), NULL, "t5", NULL, &checkpoint);
    assert_ok(text_lane_create(model, others, 2, &lane, &error));
    text_lane_destroy(NULL, &lane);
    assert_int_equal(text_lane_create(model, ids, 2, &lane, &error), SHOAL_E_NUMERIC);
    assert_null(lane);
    assert_non_null(strstr(error.text, "row 4 of tensor shared.weight holds NaN"));
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* transformers' T5Attention gives these. */
static void test_t5_buckets(void **state)
{
    static const struct {
        int64_t distance;
        int32_t bucket;
    } known[] = {{0, 0}, {-1, 1}, {-7, 7}, {-8, 8}, {-11, 8}, {-12, 9}, {-15, 9}, {-16, 10},
        {-22, 10}, {-23, 11}, {-31, 11}, {-32, 12}, {-45, 12}, {-46, 13}, {-63, 13}, {-64, 14},
        {-90, 14}, {-91, 15}, {-128, 15}, {-5000, 15}, {1, 17}, {8, 24}, {64, 30}, {300, 31}};
    const struct t5_config config = {.buckets = 32, .max_distance = 128};
    const struct t5_config few = {.buckets = 8, .max_distance = 20};

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(t5_bucket(&config, known[i].distance), known[i].bucket);
    assert_int_equal(t5_bucket(&few, -5000), 3);
    assert_int_equal(t5_bucket(&few, 1), 5);
    assert_int_equal(t5_bucket(&few, 8), 7);
}

/* ---- llama.cpp's names ---- */

struct gguf_spec {
    const char *name;
    int64_t rows, cols; /* a vector if rows is 0 */
};

static void put_tensor(struct gguf_file *f, const char *prefix, const struct gguf_spec *spec)
{
    const struct shape vector = SHAPE1(spec->cols), plane = SHAPE2(spec->rows, spec->cols);
    char name[64];

    snprintf(name, sizeof name, "%s%s", prefix, spec->name);
    gguf_file_tensor(f, name, 0, DTYPE_F32, spec->rows ? plane : vector, NULL);
}

static const char *write_vl_gguf(const char *architecture)
{
    static const struct gguf_spec others[] = {
        {"token_embd.weight", 10, 8}, {"output_norm.weight", 0, 8}, {"output.weight", 10, 8}};
    static const struct gguf_spec layer[] = {{"attn_norm.weight", 0, 8}, {"attn_q.weight", 256, 8},
        {"attn_q.bias", 0, 256}, {"attn_k.weight", 128, 8}, {"attn_k.bias", 0, 128},
        {"attn_v.weight", 128, 8}, {"attn_v.bias", 0, 128}, {"attn_output.weight", 8, 256},
        {"ffn_norm.weight", 0, 8}, {"ffn_gate.weight", 12, 8}, {"ffn_up.weight", 12, 8},
        {"ffn_down.weight", 8, 12}};
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    const char *path = at("vl.gguf");
    char key[64];

    gguf_file_string(&f, "general.architecture", architecture);
    snprintf(key, sizeof key, "%s.attention.head_count", architecture);
    gguf_file_scalar(&f, key, GGUF_U32, 4);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        put_tensor(&f, "", &others[k]);
    for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
        put_tensor(&f, "blk.0.", &layer[k]);
        put_tensor(&f, "blk.1.", &layer[k]);
    }
    assert_ok(gguf_file_write(&f, path, &error));
    return path;
}

static const char *write_t5_gguf(bool gated)
{
    static const struct gguf_spec others[] = {{"token_embd.weight", 10, 8},
        {"enc.output_norm.weight", 0, 8}, {"enc.blk.0.attn_rel_b.weight", 32, 3}};
    static const struct gguf_spec layer[] = {{"attn_norm.weight", 0, 8}, {"attn_q.weight", 12, 8},
        {"attn_k.weight", 12, 8}, {"attn_v.weight", 12, 8}, {"attn_o.weight", 8, 12},
        {"ffn_norm.weight", 0, 8}, {"ffn_up.weight", 20, 8}, {"ffn_down.weight", 8, 20},
        {"ffn_gate.weight", 20, 8}};
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    const char *path = at("t5.gguf");

    gguf_file_string(&f, "general.architecture", "t5encoder");
    gguf_file_scalar(&f, "t5encoder.attention.head_count", GGUF_U32, 3);
    gguf_file_scalar(&f, "t5encoder.attention.relative_buckets_count", GGUF_U32, 32);
    gguf_file_scalar(&f, "t5encoder.block_count", GGUF_U32, 2);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        put_tensor(&f, "", &others[k]);
    for (size_t k = 0; k < sizeof layer / sizeof *layer - !gated; k++) {
        put_tensor(&f, "enc.blk.0.", &layer[k]);
        put_tensor(&f, "enc.blk.1.", &layer[k]);
    }
    assert_ok(gguf_file_write(&f, path, &error));
    return path;
}

static void test_gguf(void **state)
{
    struct checkpoint *checkpoint;
    struct model *model;

    (void)state;
    accept_vl(write_vl_gguf("qwen2vl"), NULL, 4);
    refuse_vl(write_vl_gguf("qwen2"), NULL, "qwen2.5-vl", "are named as those of \"qwen2vl\"");
    for (int gated = 0; gated < 2; gated++) {
        model = open_text(write_t5_gguf(gated), NULL, "t5", NULL, &checkpoint);
        assert_int_equal(t5_config(model)->gated, gated);
        assert_int_equal(t5_config(model)->ffn_dim, 20);
        model_destroy(&model);
        checkpoint_close(&checkpoint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vl_layouts),
        cmocka_unit_test(test_vl_refused),
        cmocka_unit_test(test_t5),
        cmocka_unit_test(test_t5_refused),
        cmocka_unit_test(test_t5_biases),
        cmocka_unit_test(test_embedded_rows),
        cmocka_unit_test(test_t5_buckets),
        cmocka_unit_test(test_gguf),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
