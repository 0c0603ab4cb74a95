/* GGUF files: what the parser makes of them, and what it refuses. */
#include "unit/checkpoint_files.h"
#include "unit/gguf_file.h"

#include "checkpoint/checkpoint.h"
#include "tensor/quant.h"

#include <math.h>

#define F SHOAL_E_FORMAT
#define U SHOAL_E_UNSUPPORTED

static struct shape shape_of(int32_t rank, int64_t a, int64_t b)
{
    return (struct shape){.rank = rank, .dim = {a, b}};
}

/* ---- what is read ---- */

static json_t *value_of(const struct checkpoint *checkpoint, const char *key)
{
    struct shoal_error error = {0};
    json_t *value;

    assert_ok(checkpoint_value(checkpoint, key, NULL, &value, &error));
    return value;
}

static void assert_value(const struct checkpoint *checkpoint, const char *key, const char *json)
{
    json_t *value = value_of(checkpoint, key), *want = json_loads(json, JSON_DECODE_ANY, NULL);

    assert_non_null(value);
    if (!json_equal(value, want)) fail_msg("%s is not %s", key, json);
    json_decref(value);
    json_decref(want);
}

/* The file that the reference package wrote. */
static void test_reference_file(void **state)
{
    struct checkpoint *c = NULL;
    struct shoal_error error = {0};
    const struct checkpoint_tensor *kernel;
    json_t *small;

    (void)state;
    assert_ok(checkpoint_open("tests/golden/quants.gguf", &c, &error));
    assert_int_equal(checkpoint_count(c), 25);
    assert_string_equal(checkpoint_metadata(c, "general.architecture"), "test");
    assert_string_equal(checkpoint_metadata(c, "of.string"), "caf\u00e9");
    assert_null(checkpoint_metadata(c, "of.u8"));
    assert_null(checkpoint_metadata(c, "none"));
    assert_null(value_of(c, "none"));
    assert_value(c, "of.u8", "200");
    assert_value(c, "of.i8", "-100");
    assert_value(c, "of.u16", "60000");
    assert_value(c, "of.i16", "-30000");
    assert_value(c, "of.u32", "4000000000");
    assert_value(c, "of.i32", "-2000000000");
    assert_value(c, "of.u64", "4611686018427387904");
    assert_value(c, "of.i64", "-4611686018427387904");
    assert_value(c, "of.f64", "1e-300");
    assert_value(c, "of.bool", "true");
    assert_value(c, "of.string", "\"caf\u00e9\"");
    assert_value(c, "of.strings", "[\"a\", \"\", \"\u4e2d\u6587\"]");
    assert_value(c, "of.ints", "[3, 8, 8, 8]");
    small = value_of(c, "of.f32");
    assert_true((float)json_real_value(small) == 1e-6f);
    json_decref(small);

    kernel = checkpoint_find(c, "kernel");
    assert_non_null(kernel);
    assert_int_equal(kernel->shape.rank, 4);
    assert_int_equal(kernel->shape.dim[1], 16);
    assert_int_equal(kernel->bytes, 1024 / 32 * 34);
    assert_int_equal(checkpoint_find(c, "q4_k")->shape.dim[0], 2);
    assert_int_equal(checkpoint_find(c, "q4_k")->shape.dim[1], 512);
    checkpoint_close(&c);
}

/* Every type's values, bit for bit, from any element to any other. */
static void test_dequantised(void **state)
{
    const char *const names[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k",
        "q5_k", "q6_k", "f16", "bf16"};
    struct checkpoint *c = NULL;
    struct shoal_error error = {0};

    (void)state;
    assert_ok(checkpoint_open("tests/golden/quants.gguf", &c, &error));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct checkpoint_tensor *stored = checkpoint_find(c, names[i]), *wide;
        char name[20], data[4096];
        float want[1024], got[1024];
        int64_t count;

        snprintf(name, sizeof name, "%s.f32", names[i]);
        wide = checkpoint_find(c, name);
        assert_non_null(stored);
        assert_non_null(wide);
        assert_true(stored->bytes <= sizeof data && wide->bytes <= sizeof want);
        assert_ok(checkpoint_read(stored, data, &error));
        assert_ok(checkpoint_read(wide, want, &error));
        count = (int64_t)(wide->bytes / sizeof *want);
        quant_widen(got, data, stored->dtype, 1.0f, 0, count);
        assert_memory_equal(got, want, wide->bytes);
        quant_widen(got, data, stored->dtype, 1.0f, 37, 23);
        assert_memory_equal(got, want + 37, 23 * sizeof *got);
        assert_false(quant_has_nonfinite(data, stored->dtype, 0, stored->bytes));
    }
    checkpoint_close(&c);
}

/* A scale that is infinite is found, in whatever chunks the tensor is looked at. */
static void test_nonfinite(void **state)
{
    const struct {
        enum dtype dtype;
        size_t at;
    } cases[] = {{DTYPE_Q4_0, 0}, {DTYPE_Q4_1, 2}, {DTYPE_Q5_0, 0}, {DTYPE_Q5_1, 2},
        {DTYPE_Q8_0, 0}, {DTYPE_Q2_K, 80}, {DTYPE_Q2_K, 82}, {DTYPE_Q3_K, 108}, {DTYPE_Q4_K, 2},
        {DTYPE_Q5_K, 0}, {DTYPE_Q6_K, 208}, {DTYPE_F16, 0}, {DTYPE_BF16, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t block = (size_t)dtype_block_bytes(cases[i].dtype), bytes = 3 * block;
        uint8_t data[700] = {0};

        memset(data, cases[i].dtype == DTYPE_F16 || cases[i].dtype == DTYPE_BF16 ? 0 : 0xff, bytes);
        for (size_t b = 0; b < 3; b++) /* finite scales everywhere */
            for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
                if (cases[k].dtype == cases[i].dtype ||
                    (cases[k].dtype == DTYPE_Q4_0 && cases[i].dtype >= DTYPE_Q4_0))
                    memset(data + b * block + cases[k].at, 0, 2);
        if (cases[i].dtype == DTYPE_Q4_1 || cases[i].dtype == DTYPE_Q5_1 ||
            cases[i].dtype == DTYPE_Q4_K || cases[i].dtype == DTYPE_Q5_K)
            for (size_t b = 0; b < 3; b++)
                memset(data + b * block, 0, 4);
        assert_false(quant_has_nonfinite(data, cases[i].dtype, 0, bytes));
        data[block + cases[i].at + 1] = 0xff;
        data[block + cases[i].at] = 0x80;
        assert_true(quant_has_nonfinite(data, cases[i].dtype, 0, bytes));
        for (size_t cut = 2; cut < bytes; cut += 2)
            assert_int_equal(quant_has_nonfinite(data, cases[i].dtype, 0, cut) ||
                                 quant_has_nonfinite(data + cut, cases[i].dtype, cut, bytes - cut),
                true);
    }
}

/* Opened by what it is, not by what it is called; alone in its folder. */
static void test_found(void **state)
{
    struct gguf_file f = {0};
    struct checkpoint *c = NULL;
    struct shoal_error error = {0};
    float data[4] = {1, 2, 3, 4};

    (void)state;
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(2, 2, 2), data);
    mkdir(at("one"), 0755);
    assert_ok(gguf_file_write(&f, at("one/model.gguf"), &error));
    assert_ok(checkpoint_open(at("one"), &c, &error));
    assert_int_equal(checkpoint_count(c), 1);
    memset(data, 0, sizeof data);
    assert_ok(checkpoint_read(checkpoint_at(c, 0), data, &error));
    assert_true(data[3] == 4);
    checkpoint_close(&c);

    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), data);
    assert_ok(gguf_file_write(&f, at("one/other.safetensors"), &error));
    assert_int_equal(checkpoint_open(at("one"), &c, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "model.gguf"));
    assert_ok(checkpoint_open(at("one/other.safetensors"), &c, &error));
    checkpoint_close(&c);
    assert_int_equal(checkpoint_open(put_text("no.gguf", "hello there"), &c, &error), F);
    assert_non_null(strstr(error.text, "no.gguf is not a GGUF file"));
}

/* llama.cpp's names. */
static void test_names(void **state)
{
    const char *const names[][2] = {
        {"token_embd.weight", "embed_tokens.weight"},
        {"output_norm.weight", "norm.weight"},
        {"output.weight", "lm_head.weight"},
        {"blk.0.attn_norm.weight", "layers.0.input_layernorm.weight"},
        {"blk.12.attn_q.weight", "layers.12.self_attn.q_proj.weight"},
        {"blk.12.attn_q.bias", "layers.12.self_attn.q_proj.bias"},
        {"blk.1.attn_q_norm.weight", "layers.1.self_attn.q_norm.weight"},
        {"blk.1.attn_output.weight", "layers.1.self_attn.o_proj.weight"},
        {"blk.1.ffn_norm.weight", "layers.1.post_attention_layernorm.weight"},
        {"blk.1.ffn_gate.weight", "layers.1.mlp.gate_proj.weight"},
        {"blk.1.ffn_gate_inp.weight", "layers.1.mlp.gate.weight"},
        {"blk.1.else", "layers.1.else"},
        {"enc.blk.23.attn_rel_b.weight",
            "encoder.block.23.layer.0.SelfAttention.relative_attention_bias.weight"},
        {"enc.blk.0.attn_o.weight", "encoder.block.0.layer.0.SelfAttention.o.weight"},
        {"enc.blk.0.ffn_down.weight", "encoder.block.0.layer.1.DenseReluDense.wo.weight"},
        {"enc.output_norm.weight", "encoder.final_layer_norm.weight"},
        {"blk.", "blk."},
        {"blk.7", "layers.7"},
        {"attn_q.weight", "attn_q.weight"},
        {"output", "output"},
        {"layers.0.attention.qkv.weight", "layers.0.attention.qkv.weight"},
    };
    struct gguf_file f = {0};
    struct checkpoint *c = NULL;
    struct shoal_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        gguf_file_tensor(&f, names[i][0], 0, DTYPE_F32, shape_of(0, 0, 0), NULL);
    assert_ok(gguf_file_write(&f, at("names.gguf"), &error));
    assert_ok(checkpoint_open(at("names.gguf"), &c, &error));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!checkpoint_find(c, names[i][1])) fail_msg("no %s", names[i][1]);
    checkpoint_close(&c);
}

/* ---- what is refused ---- */

static void refuse_bytes(
    const char *data, size_t bytes, enum shoal_status status, const char *const says[2])
{
    const char *path = put_bytes("bad.gguf", data, bytes);
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    assert_int_equal(checkpoint_open(path, &c, &error), status);
    assert_null(c);
    assert_non_null(strstr(error.text, "bad.gguf"));
    for (int i = 0; i < 2; i++)
        if (says[i] && !strstr(error.text, says[i]))
            fail_msg("\"%s\" does not say \"%s\"", error.text, says[i]);
}

static void refuse(struct gguf_file *f, enum shoal_status status, const char *a, const char *b)
{
    size_t bytes;
    char *data = gguf_file_bytes(f, &bytes);

    refuse_bytes(data, bytes, status, (const char *[2]){a, b});
    free(data);
}

/* 24 bytes: the magic, a version and the two counts. */
static void refuse_start(uint32_t version, uint64_t tensors, uint64_t pairs,
    enum shoal_status status, const char *a, const char *b)
{
    struct gguf_bytes start = {0};

    gguf_put_number(&start, 0x46554747, 4);
    gguf_put_number(&start, version, 4);
    gguf_put_number(&start, tensors, 8);
    gguf_put_number(&start, pairs, 8);
    refuse_bytes(start.data, start.used, status, (const char *[2]){a, b});
    free(start.data);
}

static void test_refuses_starts(void **state)
{
    (void)state;
    refuse_start(1, 0, 0, U, "version 1", "convert");
    refuse_start(0, 0, 0, U, "version 0", NULL);
    refuse_start(4, 0, 0, U, "version 4", "2 and 3");
    refuse_start(0x03000000, 0, 0, U, "big-endian", "little-endian");
    refuse_start(3, 1, 0, F, "truncated", NULL);
    refuse_start(3, UINT64_MAX, UINT64_MAX, F, "truncated", NULL);
    refuse_bytes("GGUF\3\0\0", 7, F, (const char *[2]){"truncated", NULL});
}

static void test_refuses_metadata(void **state)
{
    struct gguf_file f = {0};

    (void)state;
    gguf_file_string(&f, "general.architecture", "a");
    gguf_file_string(&f, "general.architecture", "b");
    refuse(&f, F, "'general.architecture' is there twice", NULL);
    gguf_file_scalar(&f, "x", (enum gguf_type)13, 0);
    refuse(&f, F, "'x' is of type 13", NULL);
    gguf_file_scalar(&f, "x", GGUF_BOOL, 2);
    refuse(&f, F, "'x' is a truth value", NULL);
    gguf_file_scalar(&f, "a\033[2J", GGUF_U8, 2);
    refuse(&f, F, "'a?[2J' has other than plain ASCII", NULL);
    gguf_file_scalar(&f, "", GGUF_U8, 2);
    refuse(&f, F, "a name of 0 bytes", NULL);
    gguf_file_scalar(&f, "general.alignment", GGUF_U32, 0);
    refuse(&f, F, "general.alignment", "power of two");
    gguf_file_scalar(&f, "general.alignment", GGUF_U32, 48);
    refuse(&f, F, "general.alignment", "power of two");
    gguf_file_scalar(&f, "general.alignment", GGUF_U64, 32);
    refuse(&f, F, "general.alignment", "power of two");
    gguf_file_scalar(&f, "split.count", GGUF_U16, 3);
    refuse(&f, U, "split", "--merge");
    /* Arrays: in arrays, and longer than the file. */
    gguf_file_scalar(&f, "x", GGUF_ARRAY, 0);
    gguf_put_number(&f.pairs, GGUF_ARRAY, 4);
    gguf_put_number(&f.pairs, 1, 8);
    refuse(&f, U, "'x' is an array of arrays", NULL);
    gguf_file_scalar(&f, "x", GGUF_ARRAY, 0);
    gguf_put_number(&f.pairs, GGUF_F64, 4);
    gguf_put_number(&f.pairs, (uint64_t)1 << 61, 8);
    refuse(&f, F, "goes over 100000000 bytes", NULL);
    gguf_file_scalar(&f, "x", GGUF_ARRAY, 0);
    gguf_put_number(&f.pairs, GGUF_U8, 4);
    gguf_put_number(&f.pairs, 1000, 8);
    refuse(&f, F, "truncated", NULL);
    gguf_file_scalar(&f, "x", GGUF_STRING, 0);
    gguf_put_number(&f.pairs, UINT64_MAX, 8);
    refuse(&f, F, "goes over", NULL);
}

static void test_refuses_tensors(void **state)
{
    struct gguf_file f = {0};
    struct shape nine = {.rank = 8, .dim = {1, 1, 1, 1, 1, 1, 1, 1}};
    size_t bytes;
    char *data;

    (void)state;
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    refuse(&f, F, "'a' is there twice", NULL);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 0, 0), NULL);
    refuse(&f, F, "'a' has a dimension of 0", NULL);
    gguf_file_tensor(&f, "a", 4, DTYPE_F32, shape_of(1, 1, 0), NULL);
    refuse(&f, U, "'a' is of type number 4", NULL);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, nine, NULL);
    f.infos.data[9] = 9;
    refuse(&f, U, "9 dimensions", "'a'");
    gguf_file_tensor(&f, "a", 12, DTYPE_F32, shape_of(2, 8, 32), NULL);
    refuse(&f, F, "[8, 32]", "whole blocks of Q4_K");
    gguf_file_tensor(&f, "a\n", 0, DTYPE_F32, shape_of(1, 1, 0), NULL);
    refuse(&f, F, "'a?'", "plain ASCII");
    /* 2^62 x 8 elements, and 2^62 of 4 bytes. */
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(2, 8, 1), NULL);
    f.infos.data[20] = 0x40;
    refuse(&f, F, "[8, 4611686018427387905]", "too big");
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(2, 1, 1), NULL);
    f.infos.data[20] = 0x40;
    refuse(&f, F, "too big", NULL);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(2, 1, 1), NULL);
    f.infos.data[20] = (char)0x80;
    refuse(&f, F, "a dimension of 9223372036854775809", NULL);
    /* Offsets: not aligned, overlapping, apart, beyond the end. */
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    f.infos.data[25] = 4;
    refuse(&f, F, "'a' has the offset 4", "alignment 32");
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    gguf_file_tensor(&f, "b", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    f.infos.data[33 + 25] = 0;
    refuse(&f, F, "overlaps", NULL);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    gguf_file_tensor(&f, "b", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    f.infos.data[33 + 25] = 64;
    refuse(&f, F, "a hole of 48 bytes", "'b'");
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 400, 0), NULL);
    data = gguf_file_bytes(&f, &bytes);
    refuse_bytes(data, bytes - 1, F, (const char *[2]){"truncated", "'a' goes beyond"});
    for (size_t cut = 4; cut < 90; cut++)
        refuse_bytes(data, cut, F, (const char *[2]){"truncated", NULL});
    free(data);
}

static void test_refuses_shapes(void **state)
{
    const int32_t wrong[] = {2, 3}, negative[] = {-2, -2}, right[] = {1, 2, 2};
    const char *key = "comfy.gguf.orig_shape.a";
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;

    (void)state;
    gguf_file_i32s(&f, key, wrong, 2);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    refuse(&f, F, "'a' has an original shape", "4 elements");
    gguf_file_i32s(&f, key, negative, 2);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    refuse(&f, F, "'a' has an original shape", "4 elements");
    gguf_file_string(&f, key, "[4]");
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    refuse(&f, F, "'a' has an original shape", "32-bit integers");
    gguf_file_i32s(&f, key, right, 3);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    assert_ok(gguf_file_write(&f, at("shape.gguf"), &error));
    assert_ok(checkpoint_open(at("shape.gguf"), &c, &error));
    assert_int_equal(checkpoint_at(c, 0)->shape.rank, 3);
    checkpoint_close(&c);
}

/* Values are looked at when they are asked for. */
static void test_refuses_values(void **state)
{
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    json_t *value;

    (void)state;
    gguf_file_string(&f, "text", "\xff");
    gguf_file_f32(&f, "number", NAN);
    assert_ok(gguf_file_write(&f, at("values.gguf"), &error));
    assert_ok(checkpoint_open(at("values.gguf"), &c, &error));
    assert_int_equal(checkpoint_value(c, "text", NULL, &value, &error), F);
    assert_non_null(strstr(error.text, "'text'"));
    assert_int_equal(checkpoint_value(c, "number", NULL, &value, &error), F);
    checkpoint_close(&c);
}

/* A header of more than one reading. */
static void test_long_header(void **state)
{
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    char *text = calloc(1, 3000001);

    (void)state;
    assert_non_null(text);
    memset(text, 'x', 3000000);
    gguf_file_string(&f, "text", text);
    gguf_file_tensor(&f, "a", 0, DTYPE_F32, shape_of(1, 4, 0), NULL);
    assert_ok(gguf_file_write(&f, at("long.gguf"), &error));
    assert_ok(checkpoint_open(at("long.gguf"), &c, &error));
    assert_string_equal(checkpoint_metadata(c, "text"), text);
    assert_int_equal(checkpoint_count(c), 1);
    checkpoint_close(&c);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_file),
        cmocka_unit_test(test_dequantised),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refuses_starts),
        cmocka_unit_test(test_refuses_metadata),
        cmocka_unit_test(test_refuses_tensors),
        cmocka_unit_test(test_refuses_shapes),
        cmocka_unit_test(test_refuses_values),
        cmocka_unit_test(test_long_header),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
