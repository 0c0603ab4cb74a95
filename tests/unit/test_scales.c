/* Weights in 8 bits: what codes mean, where their scales are found, and what is refused. */
#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "base/number.h"
#include "models/model.h"
#include "tensor/quant.h"

#include <math.h>

static void assert_says(const struct shoal_error *error, const char *part)
{
    if (!strstr(error->text, part)) fail_msg("\"%s\" is not in \"%s\"", part, error->text);
}

/* ---- values ---- */

static void check_codes(const struct checkpoint *golden, const struct scales *scales,
    const struct checkpoint_tensor *weight)
{
    struct shoal_error error = {0};
    uint8_t codes[256];
    uint16_t want[256];
    float got[256], scale;
    char name[64];

    snprintf(name, sizeof name, "%.*swant", (int)(strlen(weight->name) - 6), weight->name);
    assert_ok(checkpoint_read(weight, codes, &error));
    assert_ok(checkpoint_read(checkpoint_find(golden, name), want, &error));
    assert_ok(scales_find(scales, weight, &scale, &error));
    quant_widen(got, codes, weight->dtype, scale, 0, 256);
    for (int i = 0; i < 256; i++) {
        float expected = bf16_to_float(want[i]);
        bool finite = !quant_has_nonfinite(&codes[i], weight->dtype, (uint64_t)i, 1);

        if (isnan(expected) ? !isnan(got[i]) : float_to_bits(got[i]) != float_to_bits(expected))
            fail_msg(
                "%s: code %d is %g, not %g", weight->name, i, (double)got[i], (double)expected);
        assert_int_equal(finite, isfinite(expected));
    }
}

/* All codes of both types, as torch dequantises them. */
static void test_golden(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *golden = NULL;
    struct scales scales;
    int checked = 0;

    (void)state;
    assert_ok(checkpoint_open("tests/golden/fp8.safetensors", &golden, &error));
    assert_ok(scales_open(&scales, golden, "", &error));
    for (size_t i = 0; i < checkpoint_count(golden); i++)
        if (dtype_is_f8(checkpoint_at(golden, i)->dtype)) {
            check_codes(golden, &scales, checkpoint_at(golden, i));
            checked++;
        }
    assert_int_equal(checked, 14);
    scales_close(&scales);
    checkpoint_close(&golden);
}

/* ---- where scales are ---- */

#define LARGEST 8

/* A small checkpoint: tensors of the layer "l", each with its data. */
struct layer {
    struct tensor_spec specs[LARGEST];
    const void *data[LARGEST];
    size_t count;
};

static const uint8_t codes[8] = {0x38, 0xb8, 0x40, 0, 1, 0x7e, 0x30, 0x28};
static const float scales_of[4] = {0.5f, 0.25f, 0.5f, 0.5f};

static void add(
    struct layer *l, const char *name, enum dtype dtype, struct shape shape, const void *data)
{
    assert_true(l->count < LARGEST);
    l->specs[l->count] = (struct tensor_spec){name, dtype, shape};
    l->data[l->count++] = data;
}

static void add_text(struct layer *l, const char *name, const char *text)
{
    add(l, name, DTYPE_U8, (struct shape)SHAPE1((int64_t)strlen(text)), text);
}

static struct layer f8_layer(void)
{
    struct layer l = {0};

    add(&l, "m.l.weight", DTYPE_F8_E4M3, (struct shape)SHAPE2(2, 4), codes);
    return l;
}

static struct checkpoint *written(const struct layer *l)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint = NULL;

    assert_ok(
        tensor_file_write(at("layer.safetensors"), l->specs, l->count, l->data, false, &error));
    assert_ok(checkpoint_open(at("layer.safetensors"), &checkpoint, &error));
    return checkpoint;
}

static enum shoal_status build(const struct checkpoint *checkpoint, const char *names,
    int32_t parts, struct model **model, struct shoal_error *error)
{
    const int64_t rows[] = {2, 2, 2};
    struct model_builder b;

    builder_begin(&b, "test", NULL, checkpoint, "m.", error);
    builder_block(&b, NULL, 0, "l", "");
    builder_stack(&b, names, rows, parts, 4);
    return builder_finish(&b, model);
}

static void check_scale(const struct layer *l, float scale)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint = written(l);
    struct model *model = NULL;
    struct matrix m;

    assert_ok(build(checkpoint, "l.weight", 1, &model, &error));
    assert_true(model->blocks[0].weights[0].scale == scale);
    block_bind(&model->blocks[0], 4096, &m);
    assert_true(m.scale == scale && m.dtype == l->specs[0].dtype);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

static void test_places(void **state)
{
    static const uint16_t half = 0x3800; /* 0.5 in F16 */
    struct layer l = f8_layer();

    (void)state;
    check_scale(&l, 1.0f);
    add(&l, "m.l.weight_scale", DTYPE_F32, (struct shape){0}, scales_of);
    check_scale(&l, 0.5f);
    add_text(&l, "m.l.comfy_quant", "{\"format\": \"float8_e4m3fn\"}");
    check_scale(&l, 0.5f);
    l = f8_layer();
    add(&l, "m.l.scale_weight", DTYPE_F16, (struct shape)SHAPE1(1), &half);
    add(&l, "m.l.scale_input", DTYPE_F32, (struct shape)SHAPE1(1), scales_of);
    add(&l, "m.scaled_fp8", DTYPE_F8_E4M3, (struct shape)SHAPE1(2), codes);
    check_scale(&l, 0.5f);
}

/* Matrices that lie on top of each other are one if their scales are the same. */
static void test_stack(void **state)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model = NULL;
    struct layer l = {0};

    (void)state;
    add(&l, "m.q.weight", DTYPE_F8_E4M3, (struct shape)SHAPE2(2, 4), codes);
    add(&l, "m.k.weight", DTYPE_F8_E4M3, (struct shape)SHAPE2(2, 4), codes);
    add(&l, "m.v.weight", DTYPE_F8_E4M3, (struct shape)SHAPE2(2, 4), codes);
    add(&l, "m.q.weight_scale", DTYPE_F32, (struct shape){0}, &scales_of[0]);
    add(&l, "m.k.weight_scale", DTYPE_F32, (struct shape){0}, &scales_of[1]);
    add(&l, "m.v.weight_scale", DTYPE_F32, (struct shape){0}, &scales_of[2]);
    checkpoint = written(&l);
    assert_ok(build(checkpoint, "q.weight+k.weight+v.weight", 3, &model, &error));
    assert_int_equal(model->blocks[0].weights[0].rows, 2);
    assert_true(model->blocks[0].weights[1].scale == 0.25f);
    assert_true(model->blocks[0].weights[2].scale == 0.5f);
    model_destroy(&model);
    checkpoint_close(&checkpoint);

    l.data[4] = &scales_of[2];
    checkpoint = written(&l);
    assert_ok(build(checkpoint, "q.weight+k.weight+v.weight", 3, &model, &error));
    assert_int_equal(model->blocks[0].weights[0].rows, 6);
    assert_int_equal(model->blocks[0].weights[1].piece_count, 0);
    assert_true(model->blocks[0].weights[0].scale == 0.5f);
    model_destroy(&model);
    checkpoint_close(&checkpoint);
}

/* ---- refusals ---- */

static void refuse(const struct layer *l, enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint = written(l);
    struct model *model = NULL;

    assert_int_equal(build(checkpoint, "l.weight", 1, &model, &error), status);
    assert_null(model);
    assert_says(&error, "layer.safetensors: ");
    assert_says(&error, says);
    checkpoint_close(&checkpoint);
}

static void refuse_scale(enum dtype dtype, struct shape shape, const void *data,
    enum shoal_status status, const char *says)
{
    struct layer l = f8_layer();

    add(&l, "m.l.weight_scale", dtype, shape, data);
    refuse(&l, status, says);
}

static void refuse_text(const char *text, enum shoal_status status, const char *says)
{
    struct layer l = f8_layer();

    add(&l, "m.l.weight_scale", DTYPE_F32, (struct shape){0}, scales_of);
    add_text(&l, "m.l.comfy_quant", text);
    refuse(&l, status, says);
}

static void test_refusals(void **state)
{
    static const float bad[] = {0, -1, INFINITY, NAN, 1e36f};
    struct layer l = f8_layer();

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse_scale(DTYPE_F32, (struct shape){0}, &bad[i], SHOAL_E_NUMERIC,
            "the scale of m.l.weight must be a positive number");
    refuse_scale(DTYPE_F32, (struct shape)SHAPE2(2, 1), scales_of, SHOAL_E_UNSUPPORTED,
        "m.l.weight_scale is F32 [2, 1], but this build takes one scale for a whole tensor");
    refuse_scale(DTYPE_F8_E8M0, (struct shape)SHAPE1(1), codes, SHOAL_E_UNSUPPORTED,
        "m.l.weight_scale is F8_E8M0 [1]");
    add_text(&l, "m.l.comfy_quant", "{\"format\": \"float8_e4m3fn\"}");
    refuse(&l, SHOAL_E_MISSING, "its scale m.l.weight_scale is missing");

    refuse_text("{\"format\": \"nvfp4\"}", SHOAL_E_UNSUPPORTED,
        "its weights are quantised as \"nvfp4\" (m.l, by tensor m.l.comfy_quant), which this build "
        "cannot compute with: use the same model in one of F32");
    refuse_text("{\"format\": \"mxfp8\"}", SHOAL_E_UNSUPPORTED, "\"mxfp8\"");
    refuse_text("{\"format\": \"int8_tensorwise\"}", SHOAL_E_UNSUPPORTED, "\"int8_tensorwise\"");
    refuse_text("{\"format\": \"float8_e5m2\"}", SHOAL_E_FORMAT,
        "m.l.weight is F8_E4M3, but is said to be \"float8_e5m2\"");
    refuse_text("{\"format\": 8}", SHOAL_E_FORMAT, "has no \"format\"");
    refuse_text("float8_e4m3fn", SHOAL_E_FORMAT, "tensor m.l.comfy_quant is not valid JSON");
    refuse_text("[]", SHOAL_E_FORMAT, "tensor m.l.comfy_quant is not a JSON object");

    l = f8_layer();
    add(&l, "m.l.comfy_quant", DTYPE_F32, (struct shape)SHAPE1(2), scales_of);
    refuse(&l, SHOAL_E_FORMAT, "is F32 [2], but must be 1 to 4096 bytes (U8) of JSON");
    l = (struct layer){0};
    add(&l, "m.l.weight", DTYPE_F16, (struct shape)SHAPE2(2, 2), codes);
    add(&l, "m.l.scale_weight", DTYPE_F32, (struct shape)SHAPE1(1), scales_of);
    refuse(&l, SHOAL_E_UNSUPPORTED, "m.l.weight is F16 and has a scale, m.l.scale_weight");
}

/* Weights would be taken as if they had no scale, or one of two. */
static void test_scales_of_others(void **state)
{
    static const char *const names[] = {"weight_scale_inv", "weight_scales", "weight.scale",
        "weight.absmax", "weight_quantizer._scale", "scale", "scales", "scale_inv", "absmax"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct layer l = f8_layer();
        char name[64], says[128];

        snprintf(name, sizeof name, "m.l.%s", names[i]);
        snprintf(says, sizeof says, "tensor m.l.weight is scaled by %s, in a way", name);
        add(&l, name, DTYPE_F32, (struct shape)SHAPE2(1, 1), scales_of);
        refuse(&l, SHOAL_E_UNSUPPORTED, says);
    }
    {
        struct layer l = f8_layer();

        add(&l, "m.l.weight_scale", DTYPE_F32, (struct shape){0}, scales_of);
        add(&l, "m.l.scale_weight", DTYPE_F32, (struct shape){0}, scales_of);
        refuse(&l, SHOAL_E_FORMAT, "has two scales, weight_scale and scale_weight");
    }
}

static void refuse_metadata(const char *metadata, enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint = NULL;
    struct model *model = NULL;
    char header[512];

    snprintf(header, sizeof header,
        "{\"__metadata__\":{\"_quantization_metadata\":\"%s\"},"
        "\"m.l.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,4],\"data_offsets\":[0,8]}}",
        metadata);
    assert_ok(checkpoint_open(
        put_claiming("meta.safetensors", strlen(header), header, 8), &checkpoint, &error));
    assert_int_equal(build(checkpoint, "l.weight", 1, &model, &error), status);
    assert_null(model);
    assert_says(&error, says);
    checkpoint_close(&checkpoint);
}

static void test_metadata(void **state)
{
    (void)state;
    refuse_metadata("{\\\"layers\\\":{\\\"m.l\\\":{\\\"format\\\":\\\"nvfp4\\\"}}}",
        SHOAL_E_UNSUPPORTED, "quantised as \"nvfp4\" (m.l, by _quantization_metadata)");
    refuse_metadata("{\\\"layers\\\":{\\\"m.l\\\":{\\\"format\\\":\\\"float8_e4m3fn\\\"}}}",
        SHOAL_E_MISSING, "its scale m.l.weight_scale is missing");
    refuse_metadata("{}", SHOAL_E_FORMAT, "has no object \"layers\"");
    refuse_metadata("{", SHOAL_E_FORMAT, "_quantization_metadata is not valid JSON");
    refuse_metadata("{\\\"layers\\\":{\\\"m.l\\\":3}}", SHOAL_E_FORMAT, "has no \"format\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_scales_of_others),
        cmocka_unit_test(test_metadata),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
