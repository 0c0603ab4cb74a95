/*
 * A text encoder in superblocks, which shoal-mini is too narrow for: q and k in one type, v in
 * another, as mixed quantisations have them. Its features are the bits that F32 weights of the same
 * values give.
 */
#include "unit/checkpoint_files.h"
#include "unit/gguf_file.h"
#include "unit/tensor_file.h"

#include "golden/run_model.h"
#include "models/family.h"
#include "models/text/qwen.h"
#include "tensor/quant.h"

#define HIDDEN 256
#define FFN 512
#define WORDS 40
#define TOKENS 9
#define SCRATCH_BYTES (8u << 20)

#define LAYER(n)                                                                                   \
    {"layers." #n ".input_layernorm.weight", DTYPE_F32, SHAPE1(HIDDEN)},                           \
        {"layers." #n ".self_attn.q_proj.weight", DTYPE_Q4_K, SHAPE2(256, HIDDEN)},                \
        {"layers." #n ".self_attn.k_proj.weight", DTYPE_Q4_K, SHAPE2(128, HIDDEN)},                \
        {"layers." #n ".self_attn.v_proj.weight", DTYPE_Q6_K, SHAPE2(128, HIDDEN)},                \
        {"layers." #n ".self_attn.q_norm.weight", DTYPE_F32, SHAPE1(128)},                         \
        {"layers." #n ".self_attn.k_norm.weight", DTYPE_F32, SHAPE1(128)},                         \
        {"layers." #n ".self_attn.o_proj.weight", DTYPE_Q5_K, SHAPE2(HIDDEN, 256)},                \
        {"layers." #n ".post_attention_layernorm.weight", DTYPE_Q8_0, SHAPE1(HIDDEN)},             \
        {"layers." #n ".mlp.gate_proj.weight", DTYPE_Q2_K, SHAPE2(FFN, HIDDEN)},                   \
        {"layers." #n ".mlp.up_proj.weight", DTYPE_Q3_K, SHAPE2(FFN, HIDDEN)},                     \
    {                                                                                              \
        "layers." #n ".mlp.down_proj.weight", DTYPE_Q6_K, SHAPE2(HIDDEN, FFN)                      \
    }

static const struct tensor_spec tensors[] = {
    {"embed_tokens.weight", DTYPE_Q6_K, SHAPE2(WORDS, HIDDEN)},
    LAYER(0),
    LAYER(1),
    {"norm.weight", DTYPE_F32, SHAPE1(HIDDEN)},
};

#define COUNT (sizeof tensors / sizeof *tensors)

static void write_files(void)
{
    struct tensor_spec wide_specs[COUNT];
    const void *wide_data[COUNT];
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    uint64_t random = 5;

    for (size_t i = 0; i < COUNT; i++) {
        uint64_t bytes, count;
        float *wide;
        void *stored;

        assert_true(shape_count(&tensors[i].shape, &count));
        assert_true(shape_bytes(&tensors[i].shape, tensors[i].dtype, &bytes));
        wide = malloc(count * sizeof *wide);
        stored = malloc(bytes);
        for (uint64_t k = 0; k < count; k++)
            wide[k] = (float)test_random(&random) * 0x1p-30f - 1;
        gguf_quantise(stored, tensors[i].dtype, wide, (int64_t)count);
        quant_widen(wide, stored, tensors[i].dtype, 1.0f, 0, (int64_t)count);
        gguf_file_tensor(&f, tensors[i].name, gguf_number(tensors[i].dtype), tensors[i].dtype,
            tensors[i].shape, stored);
        wide_specs[i] = (struct tensor_spec){tensors[i].name, DTYPE_F32, tensors[i].shape};
        wide_data[i] = wide;
        free(stored);
    }
    assert_ok(gguf_file_write(&f, at("text.gguf"), &error));
    assert_ok(
        tensor_file_write(at("text.safetensors"), wide_specs, COUNT, wide_data, false, &error));
    for (size_t i = 0; i < COUNT; i++)
        free((void *)(uintptr_t)wide_data[i]);
}

/* Features of a few tokens, into `features` [TOKENS, HIDDEN]; *bytes: of the block that is run. */
static void encode(
    const char *path, enum run_device device, float *features, uint64_t *bytes, int parts)
{
    const int32_t ids[TOKENS] = {0, 3, 39, 7, 7, 1, 20, 15, 38};
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    struct model *model = NULL;
    struct text_lane *lane;
    struct run run;
    void *lanes[1];
    int used = 0;

    assert_ok(checkpoint_open(path, &c, &error));
    assert_ok(family_open(c, FAMILY_TEXT, NULL, &model, &error));
    for (int i = 1; i < 4; i++)
        used += model->blocks[0].weights[i].rows > 0;
    assert_int_equal(used, parts);
    *bytes = model->blocks[0].bytes;
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    assert_ok(text_lane_create(model, ids, TOKENS, &lane, &error));
    lanes[0] = lane;
    assert_ok(run_pass(&run, 0, lanes, 1, &error));
    memcpy(features, lane->features, TOKENS * HIDDEN * sizeof *features);
    text_lane_destroy(&run.exec, &lane);
    run_close(&run);
    model_destroy(&model);
    checkpoint_close(&c);
}

static void test_same_bits(void **state)
{
    static float got[TOKENS * HIDDEN], want[TOKENS * HIDDEN];
    const enum run_device devices[] = {RUN_REFERENCE, RUN_FAST};
    uint64_t bytes, wide_bytes;

    (void)state;
    write_files();
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        encode(at("text.gguf"), devices[i], got, &bytes, 3);
        encode(at("text.safetensors"), devices[i], want, &wide_bytes, 1);
        for (size_t k = 0; k < TOKENS * HIDDEN; k++)
            assert_true(want[k] > -1e9f && want[k] < 1e9f);
        assert_memory_equal(got, want, sizeof got);
        /* They are still quantised where they are computed with. */
        assert_true(bytes * 5 < wide_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
