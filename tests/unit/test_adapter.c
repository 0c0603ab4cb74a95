/*
 * Adapters: what is made of a weight is what ComfyUI and peft make of it, and to the bit what
 * docs/formats.md says (tools/golden/lora.py), in whatever layout the model lies; and what is
 * refused, of hostile files too.
 */
#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "adapter/patches.h"
#include "device/cpu/patch.h"
#include "tensor/quant.h"

#include <math.h>

#define GOLDEN(name) "tests/golden/" name
#define WEIGHTS 6

/* Weights of the made-up model, as builder_weight numbers them where nothing is apart. */
enum { QKV, K_PART, V_PART, NORM, W1, W1_BIAS, CONV, F8, ALL };

struct fixture {
    struct checkpoint *checkpoint;
    struct model *model;
    const struct model *models[FAMILY_KINDS];
    struct adapter_targets targets;
    struct adapter *adapters[4];
    int32_t count;
    struct patches patches;
};

static void open_model(struct fixture *f, const char *path)
{
    struct shoal_error error = {0};
    struct model_builder b;

    memset(f, 0, sizeof *f);
    assert_ok(checkpoint_open(path, &f->checkpoint, &error));
    builder_begin(&b, "made-up", NULL, f->checkpoint, "", &error);
    builder_block(&b, NULL, 0, "block", "blocks.0.");
    builder_stack(&b, "attn.to_q.weight+attn.to_k.weight+attn.to_v.weight|attn.qkv.weight",
        (const int64_t[]){16, 8, 8}, 3, 24);
    builder_weight(&b, "attn.norm_q.weight|attn.q_norm.weight", 1, 8);
    builder_weight(&b, "ff.w1.weight", 40, 24);
    builder_weight(&b, "ff.w1.bias", 1, 40);
    builder_weight(&b, "conv.weight", 6, 36);
    builder_weight(&b, "/blocks.0.f8.weight", 16, 24);
    builder_pass(&b, (struct pass){.name = "all", .count = 1, .globals = -1});
    assert_ok(builder_finish(&b, &f->model));
    f->models[FAMILY_DIT] = f->model;
    assert_ok(adapter_targets_open(&f->targets, f->models, &error));
}

static enum shoal_status try_adapter(struct fixture *f, const char *path, struct shoal_error *error)
{
    struct allowance allowance = {.most_bytes = UINT64_MAX};
    enum shoal_status status =
        adapter_open(&f->adapters[f->count], path, &f->targets, &allowance, error);

    if (!status) f->count++;
    return status;
}

static void open_adapter(struct fixture *f, const char *path)
{
    struct shoal_error error = {0};

    assert_ok(try_adapter(f, path, &error));
}

static void use(struct fixture *f, const float *strengths)
{
    struct adapter_use uses[4];
    struct shoal_error error = {0};

    for (int32_t i = 0; i < f->count; i++)
        uses[i] = (struct adapter_use){f->adapters[i], strengths[i]};
    assert_ok(patches_open(&f->patches, uses, f->count, f->models, &error));
}

static void close_all(struct fixture *f)
{
    patches_close(&f->patches);
    for (int32_t i = 0; i < f->count; i++)
        adapter_close(&f->adapters[i]);
    adapter_targets_close(&f->targets);
    model_destroy(&f->model);
    checkpoint_close(&f->checkpoint);
}

/* The weight's bytes when it has been patched; NULL: it is not. */
static void *patched(const struct fixture *f, int32_t index, uint64_t *bytes)
{
    const struct weight *w = &f->model->blocks[0].weights[index];
    const struct block_patch *p = patches_of(&f->patches, f->model, 0);
    const enum dtype dtype = patch_dtype(w->dtype);
    struct shoal_error error = {0};
    const struct patch_run *run;
    char *stored, *values;
    uint64_t at = 0;
    int32_t runs;

    run = block_patch_runs(p, index, &runs);
    if (!runs) return NULL;
    *bytes = (uint64_t)dtype_bytes(dtype, w->rows * w->cols);
    stored = malloc(w->bytes);
    values = malloc(*bytes);
    assert_non_null(stored);
    assert_non_null(values);
    for (int32_t i = 0; i < w->piece_count; i++) {
        assert_ok(checkpoint_read(w->pieces[i], stored + at, &error));
        at += w->pieces[i]->bytes;
    }
    for (; runs; runs--, run++) {
        struct matrix x = matrix_at((uintptr_t)stored, w->dtype, w->rows, w->cols);
        struct matrix y = matrix_at((uintptr_t)values, dtype, w->rows, w->cols);
        const bool vector = w->rows == 1;
        struct patch patch;

        x.scale = w->scale;
        x = vector ? matrix_cols(x, run->first, run->count)
                   : matrix_rows(x, run->first, run->count);
        y = vector ? matrix_cols(y, run->first, run->count)
                   : matrix_rows(y, run->first, run->count);
        block_patch_terms(p, run, vector, run->first, 0, &patch);
        patch_on_host(NULL, y, x, &patch);
    }
    free(stored);
    return values;
}

/* ---- against the goldens ---- */

static const struct {
    int32_t weight;
    const char *name;
} names[WEIGHTS] = {{QKV, "blocks.0.attn.qkv.weight"}, {NORM, "blocks.0.attn.q_norm.weight"},
    {W1, "blocks.0.ff.w1.weight"}, {W1_BIAS, "blocks.0.ff.w1.bias"}, {CONV, "blocks.0.conv.weight"},
    {F8, "blocks.0.f8.weight"}};

/* What the references made of it in F32: close, but for what types round. */
static void check_reference(const struct checkpoint *golden, const char *adapter, int i,
    const void *values, enum dtype dtype, int64_t count)
{
    const struct checkpoint_tensor *t;
    float *want = malloc((size_t)count * 4), *got = malloc((size_t)count * 4), largest = 0;
    struct shoal_error error = {0};
    char name[128];

    snprintf(name, sizeof name, "%s~/%s", adapter, names[i].name);
    t = checkpoint_find(golden, name);
    assert_non_null(want);
    assert_non_null(got);
    if (t) {
        assert_ok(checkpoint_read(t, want, &error));
        quant_widen(got, values, dtype, 1.0f, 0, count);
        for (int64_t k = 0; k < count; k++)
            largest = fmaxf(largest, fabsf(want[k]));
        for (int64_t k = 0; k < count; k++)
            assert_true(fabsf(want[k] - got[k]) <= largest * (dtype == DTYPE_F32 ? 1e-6f : 6e-3f));
    }
    free(want);
    free(got);
}

/* Bits of every weight that golden adapter `name` patches; and that no other is patched. */
static void check_golden(const struct fixture *f, const char *adapter)
{
    struct shoal_error error = {0};
    struct checkpoint *golden;
    int found = 0;

    assert_ok(checkpoint_open(GOLDEN("lora_merged.safetensors"), &golden, &error));
    for (int i = 0; i < WEIGHTS; i++) {
        const struct checkpoint_tensor *want;
        uint64_t bytes = 0;
        void *got = patched(f, names[i].weight, &bytes), *values;
        char name[128];

        snprintf(name, sizeof name, "%s/%s", adapter, names[i].name);
        want = checkpoint_find(golden, name);
        assert_int_equal(!got, !want);
        if (!got) continue;
        found++;
        assert_int_equal(bytes, want->bytes);
        values = malloc(bytes);
        assert_non_null(values);
        assert_ok(checkpoint_read(want, values, &error));
        assert_memory_equal(got, values, bytes);
        check_reference(golden, adapter, i, got, want->dtype, (int64_t)checkpoint_elements(want));
        free(values);
        free(got);
    }
    assert_true(found > 0);
    checkpoint_close(&golden);
}

static const struct {
    const char *name, *path;
    float strength;
} files[] = {
    {"kohya", GOLDEN("lora_kohya.safetensors"), 0.75f},
    {"diffusers", GOLDEN("lora_diffusers.safetensors"), -1.25f},
    {"loha", GOLDEN("lora_loha.safetensors"), 0.9f},
    {"peft", GOLDEN("lora_peft/adapter_model.safetensors"), 1.0f},
    {"diff", GOLDEN("lora_diff.safetensors"), 0.6f},
    {"lokr", GOLDEN("lora_lokr.safetensors"), 1.1f},
};

static void test_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct fixture f;

        open_model(&f, GOLDEN("lora_base.safetensors"));
        open_adapter(&f, files[i].path);
        assert_int_equal(f.adapters[0]->unmatched, 0);
        use(&f, &files[i].strength);
        check_golden(&f, files[i].name);
        close_all(&f);
    }
}

static void test_several(void **state)
{
    const float strengths[] = {0.75f, -1.25f, 0.9f};
    struct fixture f;

    (void)state;
    open_model(&f, GOLDEN("lora_base.safetensors"));
    for (int i = 0; i < 3; i++)
        open_adapter(&f, files[i].path);
    use(&f, strengths);
    check_golden(&f, "both");
    close_all(&f);
}

/* ---- other layouts ---- */

/* The golden model with q, k and v apart, q in F16 if `mixed`: then they are weights of their own.
 */
static void write_apart(const char *path, bool mixed)
{
    struct tensor_spec specs[10];
    const void *data[10];
    struct shoal_error error = {0};
    struct checkpoint *base;
    size_t count = 0;
    char *qkv = NULL;

    assert_ok(checkpoint_open(GOLDEN("lora_base.safetensors"), &base, &error));
    for (size_t i = 0; i < checkpoint_count(base); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(base, i);
        char *bytes = malloc(t->bytes);

        assert_non_null(bytes);
        assert_ok(checkpoint_read(t, bytes, &error));
        if (strstr(t->name, "qkv")) {
            qkv = bytes;
            continue;
        }
        specs[count] = (struct tensor_spec){t->name, t->dtype, t->shape};
        data[count++] = bytes;
    }
    assert_non_null(qkv);
    specs[count] = (struct tensor_spec){
        "blocks.0.attn.to_q.weight", mixed ? DTYPE_F16 : DTYPE_BF16, SHAPE2(16, 24)};
    data[count++] = qkv;
    specs[count] = (struct tensor_spec){"blocks.0.attn.to_k.weight", DTYPE_BF16, SHAPE2(8, 24)};
    data[count++] = qkv + 16 * 24 * 2;
    specs[count] = (struct tensor_spec){"blocks.0.attn.to_v.weight", DTYPE_BF16, SHAPE2(8, 24)};
    data[count++] = qkv + 24 * 24 * 2;
    assert_ok(tensor_file_write(path, specs, count, data, false, &error));
    free(qkv);
    for (size_t i = 0; i + 3 < count; i++)
        free((void *)(uintptr_t)data[i]);
    checkpoint_close(&base);
}

static void test_apart(void **state)
{
    const char *path = at("apart.safetensors");

    (void)state;
    write_apart(path, false);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct fixture f;

        open_model(&f, path);
        open_adapter(&f, files[i].path);
        use(&f, &files[i].strength);
        check_golden(&f, files[i].name);
        close_all(&f);
    }
}

/* Adapters of the fused matrix, and of its parts, where each part is a weight. */
static void test_apart_in_types(void **state)
{
    const char *path = at("mixed.safetensors");
    struct shoal_error error = {0};
    struct checkpoint *golden;

    (void)state;
    write_apart(path, true);
    assert_ok(checkpoint_open(GOLDEN("lora_merged.safetensors"), &golden, &error));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const struct checkpoint_tensor *want;
        char name[128], values[32 * 24 * 2];
        struct fixture f;

        snprintf(name, sizeof name, "%s/blocks.0.attn.qkv.weight", files[i].name);
        want = checkpoint_find(golden, name);
        assert_non_null(want);
        assert_int_equal(want->bytes, sizeof values);
        assert_ok(checkpoint_read(want, values, &error));
        open_model(&f, path);
        open_adapter(&f, files[i].path);
        use(&f, &files[i].strength);
        for (int32_t w = K_PART; w <= V_PART; w++) {
            uint64_t bytes;
            void *got = patched(&f, w, &bytes);

            if (!got) continue; /* no adapter of that part */
            assert_int_equal(bytes, 8 * 24 * 2);
            assert_memory_equal(got, values + (w == K_PART ? 16 : 24) * 24 * 2, bytes);
            free(got);
        }
        close_all(&f);
    }
    checkpoint_close(&golden);
}

/* ---- what is refused ---- */

/* An adapter with these tensors, all ones. */
static void check_refused(
    const struct tensor_spec *specs, size_t count, enum shoal_status status, const char *says)
{
    const char *path = at("adapter.safetensors");
    struct shoal_error error = {0};
    struct fixture f;

    open_model(&f, GOLDEN("lora_base.safetensors"));
    assert_ok(tensor_file_write(path, specs, count, NULL, false, &error));
    assert_int_equal(try_adapter(&f, path, &error), status);
    if (status && !strstr(error.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, error.text);
    if (status && !strstr(error.text, "adapter.safetensors"))
        fail_msg("no file in \"%s\"", error.text);
    close_all(&f);
}

#define CHECK_REFUSED(status, says, ...)                                                           \
    do {                                                                                           \
        const struct tensor_spec specs_[] = {__VA_ARGS__};                                         \
        check_refused(specs_, sizeof specs_ / sizeof *specs_, status, says);                       \
    } while (0)

#define UP(module, m, r)                                                                           \
    {                                                                                              \
        module ".lora_up.weight", DTYPE_F32, SHAPE2(m, r)                                          \
    }
#define DOWN(module, r, n)                                                                         \
    {                                                                                              \
        module ".lora_down.weight", DTYPE_F32, SHAPE2(r, n)                                        \
    }
#define KEY "lora_unet_blocks_0_ff_w1"
#define ONE(name)                                                                                  \
    {                                                                                              \
        name, DTYPE_F32, SHAPE1(1)                                                                 \
    }

static void test_refusals(void **state)
{
    (void)state;
    CHECK_REFUSED(SHOAL_OK, "", UP(KEY, 40, 2), DOWN(KEY, 2, 24));
    CHECK_REFUSED(SHOAL_E_FORMAT, "[40, 25]", UP(KEY, 40, 2), DOWN(KEY, 2, 25));
    CHECK_REFUSED(SHOAL_E_FORMAT, "ff.w1.weight", UP(KEY, 41, 2), DOWN(KEY, 2, 24));
    CHECK_REFUSED(SHOAL_E_FORMAT, "no rank in common", UP(KEY, 40, 2), DOWN(KEY, 3, 24));
    CHECK_REFUSED(SHOAL_E_FORMAT, "is alone", UP(KEY, 40, 2), ONE(KEY ".alpha"));
    CHECK_REFUSED(SHOAL_E_FORMAT, "is alone", DOWN(KEY, 2, 24));
    CHECK_REFUSED(SHOAL_E_FORMAT, "one number", UP(KEY, 40, 2), DOWN(KEY, 2, 24),
        {KEY ".alpha", DTYPE_F32, SHAPE1(2)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "empty", {KEY ".diff", DTYPE_F32, SHAPE2(0, 24)});
    CHECK_REFUSED(
        SHOAL_E_UNSUPPORTED, "DoRA", UP(KEY, 40, 2), DOWN(KEY, 2, 24), ONE(KEY ".dora_scale"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "DoRA",
        ONE("base_model.model.x.lora_magnitude_vector.default.weight"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "Tucker", UP(KEY, 40, 2), ONE(KEY ".lora_mid.weight"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "Tucker", ONE(KEY ".lokr_t2"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "OFT", ONE(KEY ".oft_blocks"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "in place of the model's", ONE(KEY ".set_weight"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "in place of the model's",
        {"base_model.model.blocks.0.ff.w1.weight", DTYPE_F32, SHAPE2(40, 24)});
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "biases", ONE("transformer.x.lora_B.bias"));
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "F64", {KEY ".diff", DTYPE_F64, SHAPE2(40, 24)});
    CHECK_REFUSED(SHOAL_E_UNSUPPORTED, "several kinds", UP(KEY, 40, 2), DOWN(KEY, 2, 24),
        {KEY ".diff", DTYPE_F32, SHAPE2(40, 24)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "same weight", UP(KEY, 40, 2), DOWN(KEY, 2, 24),
        {"transformer.blocks.0.ff.w1.diff", DTYPE_F32, SHAPE2(40, 24)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "same weight",
        {"transformer.blocks.0.attn.qkv.diff", DTYPE_F32, SHAPE2(32, 24)},
        {"transformer.blocks.0.attn.to_k.diff", DTYPE_F32, SHAPE2(8, 24)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "must have", {KEY ".lokr_w1", DTYPE_F32, SHAPE2(4, 3)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "hada_w2", {KEY ".hada_w1_a", DTYPE_F32, SHAPE2(40, 2)},
        {KEY ".hada_w1_b", DTYPE_F32, SHAPE2(2, 24)}, {KEY ".hada_w2_a", DTYPE_F32, SHAPE2(40, 2)},
        {KEY ".hada_w2_b", DTYPE_F32, SHAPE2(2, 23)});
    CHECK_REFUSED(SHOAL_E_FORMAT, "is alone", {KEY ".hada_w1_a", DTYPE_F32, SHAPE2(40, 2)});
    CHECK_REFUSED(SHOAL_E_MISSING, "none of its 1 modules", UP("lora_unet_other", 40, 2),
        DOWN("lora_unet_other", 2, 24));
    CHECK_REFUSED(SHOAL_E_MISSING, "lora_te_blocks_0_ff_w1", UP("lora_te_blocks_0_ff_w1", 40, 2),
        DOWN("lora_te_blocks_0_ff_w1", 2, 24));
}

static void test_values(void **state)
{
    static const float good[40 * 24], bad[40 * 24] = {[700] = NAN};
    const struct tensor_spec spec = {KEY ".diff", DTYPE_F32, SHAPE2(40, 24)};
    const char *path = at("values.safetensors");
    struct shoal_error error = {0};
    const void *data = bad;
    struct fixture f;

    (void)state;
    open_model(&f, GOLDEN("lora_base.safetensors"));
    assert_ok(tensor_file_write(path, &spec, 1, &data, false, &error));
    assert_int_equal(try_adapter(&f, path, &error), SHOAL_E_NUMERIC);
    assert_non_null(strstr(error.text, KEY ".diff"));
    data = good;
    assert_ok(tensor_file_write(path, &spec, 1, &data, false, &error));
    open_adapter(&f, path);
    assert_true(adapter_is_current(f.adapters[0]));
    assert_ok(tensor_file_write(path, &spec, 1, &data, false, &error));
    assert_false(adapter_is_current(f.adapters[0])); /* another file of the same bytes */
    close_all(&f);
}

/* Modules that are none of the model's are counted, and the first few are named. */
static void test_unmatched(void **state)
{
    const struct tensor_spec specs[] = {UP(KEY, 40, 2), DOWN(KEY, 2, 24), UP("a", 1, 1),
        DOWN("a", 1, 1), UP("b", 1, 1), DOWN("b", 1, 1), {"c.diff", DTYPE_F32, SHAPE1(1)},
        {"d.diff", DTYPE_F32, SHAPE1(1)}, {"e\x01.diff", DTYPE_F32, SHAPE1(1)}};
    const char *path = at("unmatched.safetensors");
    struct shoal_error error = {0};
    struct fixture f;

    (void)state;
    open_model(&f, GOLDEN("lora_base.safetensors"));
    assert_ok(
        tensor_file_write(path, specs, sizeof specs / sizeof *specs - 1, NULL, false, &error));
    open_adapter(&f, path);
    assert_int_equal(f.adapters[0]->modules, 5);
    assert_int_equal(f.adapters[0]->unmatched, 4);
    assert_string_equal(f.adapters[0]->unmatched_names[0], "a");
    assert_string_equal(f.adapters[0]->unmatched_names[3], "d");
    close_all(&f);
}

/* Strength 0 is as if it were not there; too many are refused. */
static void test_uses(void **state)
{
    struct adapter_use uses[PATCH_TERMS + 2] = {0};
    struct shoal_error error = {0};
    struct fixture f;

    (void)state;
    open_model(&f, GOLDEN("lora_base.safetensors"));
    open_adapter(&f, files[0].path);
    for (int i = 0; i < PATCH_TERMS + 2; i++)
        uses[i].adapter = f.adapters[0];
    assert_ok(patches_open(&f.patches, uses, 2, f.models, &error));
    assert_null(patches_of(&f.patches, f.model, 0));
    for (int i = 0; i <= PATCH_TERMS; i++)
        uses[i].strength = 1;
    assert_int_equal(
        patches_open(&f.patches, uses, PATCH_TERMS + 1, f.models, &error), SHOAL_E_UNSUPPORTED);
    uses[0].strength = 0;
    assert_ok(patches_open(&f.patches, uses, PATCH_TERMS + 1, f.models, &error));
    assert_non_null(patches_of(&f.patches, f.model, 0));
    close_all(&f);
}

/* ---- settings beside the tensors ---- */

static void check_settings(const char *config, enum shoal_status status, const char *says)
{
    const struct tensor_spec specs[] = {
        {"base_model.model.blocks.0.ff.w1.lora_B.weight", DTYPE_F32, SHAPE2(40, 2)},
        {"base_model.model.blocks.0.ff.w1.lora_A.weight", DTYPE_F32, SHAPE2(2, 24)}};
    const char *path = at("peft.safetensors");
    struct shoal_error error = {0};
    struct fixture f;

    put_text("adapter_config.json", config);
    open_model(&f, GOLDEN("lora_base.safetensors"));
    assert_ok(tensor_file_write(path, specs, 2, NULL, false, &error));
    assert_int_equal(try_adapter(&f, path, &error), status);
    if (status && !strstr(error.text, says)) fail_msg("\"%s\" is not in \"%s\"", says, error.text);
    if (!status) assert_true(f.adapters[0]->items[0].scale == atof(says));
    close_all(&f);
}

static void test_settings(void **state)
{
    (void)state;
    check_settings("{\"r\": 2, \"lora_alpha\": 6}", SHOAL_OK, "3");
    check_settings("{\"r\": 2, \"lora_alpha\": null, \"use_dora\": false}", SHOAL_OK, "1");
    check_settings("{\"lora_alpha\": 6, \"use_rslora\": true}", SHOAL_E_UNSUPPORTED, "use_rslora");
    check_settings("{\"alpha_pattern\": {\"q\": 3}}", SHOAL_E_UNSUPPORTED, "alpha_pattern");
    check_settings("{\"lora_alpha\": \"6\"}", SHOAL_E_FORMAT, "must be a number");
    check_settings("[]", SHOAL_E_FORMAT, "adapter_config.json");
    assert_int_equal(remove(at("adapter_config.json")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_apart_in_types),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_unmatched),
        cmocka_unit_test(test_uses),
        cmocka_unit_test(test_settings),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
