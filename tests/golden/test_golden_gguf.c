/*
 * Whole pictures from GGUF files: the bytes that F32 safetensors files of the same values give.
 * shoal-mini's parts are written as GGUF, under the names and with the metadata that the usual
 * converters give.
 */
#include "unit/checkpoint_files.h"
#include "unit/gguf_file.h"
#include "unit/tensor_file.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "golden/devices.h"
#include "tensor/quant.h"

#include <math.h>

#define MINI "models/shoal-mini"
#define MAX_TENSORS 1000

/* The type that a tensor is to be stored in. */
typedef enum dtype choose(const char *name);

/* What was written: a GGUF file, and F32 tensors of what it means. */
struct pair {
    struct tensor_spec specs[MAX_TENSORS];
    const void *data[MAX_TENSORS];
    size_t count;
    struct gguf_file gguf;
};

static void add_tensor(
    struct pair *pair, const struct checkpoint_tensor *tensor, const char *name, enum dtype dtype)
{
    struct shoal_error error = {0};
    int64_t cols = tensor->shape.dim[tensor->shape.rank - 1], count;
    uint64_t bytes, elements;
    float *wide;
    void *stored;

    assert_true(shape_count(&tensor->shape, &elements) && pair->count < MAX_TENSORS);
    count = (int64_t)elements;
    if (tensor->shape.rank < 2 || cols % dtype_block_elements(dtype)) dtype = DTYPE_F32;
    assert_true(shape_bytes(&tensor->shape, dtype, &bytes));
    wide = malloc(elements * sizeof *wide);
    stored = malloc(elements * sizeof *wide);
    assert_ok(checkpoint_read(tensor, stored, &error));
    quant_widen(wide, stored, tensor->dtype, 1.0f, 0, count);
    gguf_quantise(stored, dtype, wide, count);
    quant_widen(wide, stored, dtype, 1.0f, 0, count);
    gguf_file_tensor(&pair->gguf, name, gguf_number(dtype), dtype, tensor->shape, stored);
    pair->specs[pair->count] = (struct tensor_spec){tensor->name, DTYPE_F32, tensor->shape};
    pair->data[pair->count++] = wide;
    free(stored);
}

/* NAME.gguf and NAME.safetensors of the checkpoint; `rename` may be NULL. */
static void write_pair(struct pair *pair, const char *checkpoint, choose *chosen,
    const char *(*rename)(const char *name), const char *name)
{
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    char file[64];

    assert_ok(checkpoint_open(checkpoint, &c, &error));
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(c, i);

        add_tensor(
            pair, tensor, rename ? rename(tensor->name) : tensor->name, chosen(tensor->name));
    }
    snprintf(file, sizeof file, "%s.gguf", name);
    assert_ok(gguf_file_write(&pair->gguf, at(file), &error));
    snprintf(file, sizeof file, "%s.safetensors", name);
    assert_ok(tensor_file_write(at(file), pair->specs, pair->count, pair->data, false, &error));
    for (size_t i = 0; i < pair->count; i++)
        free((void *)(uintptr_t)pair->data[i]);
    pair->count = 0;
    checkpoint_close(&c);
}

/* ---- pictures ---- */

static struct shoal_result *original; /* of shoal-mini as it is; NULL: on emulated cards */

static struct shoal_result *paint(const struct shoal_model_paths *paths)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;
    struct shoal_plan *plan = NULL;
    struct shoal_result *result = NULL;
    struct shoal_request r;

    assert_ok(shoal_model_open(paths, &model, &error));
    shoal_request_init(&r, model);
    r.prompt = "a red apple on a table";
    r.width = r.height = 32;
    r.steps = golden_devices.emulated_sm ? 1 : 2;
    r.shift = 3;
    r.cfg = golden_devices.emulated_sm ? 1 : 2;
    r.resident_blocks = 2;
    r.device = golden_devices.name;
    assert_ok(shoal_plan_create(model, &r, &plan, &error));
    assert_ok(shoal_run(plan, NULL, &result, &error));
    shoal_plan_destroy(&plan);
    shoal_model_close(&model);
    return result;
}

/* The largest difference of latents, against the largest of `b`; 0 only if all bits are equal. */
static double difference(const struct shoal_result *a, const struct shoal_result *b)
{
    struct shoal_image x, y;
    double most = 0, off = 0;

    shoal_result_image(a, 0, &x);
    shoal_result_image(b, 0, &y);
    assert_int_equal(x.latent_count, y.latent_count);
    if (!memcmp(x.latents, y.latents, x.latent_count * sizeof *x.latents) &&
        !memcmp(x.rgb, y.rgb, (size_t)x.width * (size_t)x.height * 3))
        return 0;
    for (size_t i = 0; i < x.latent_count; i++) {
        most = fmax(most, fabs((double)y.latents[i]));
        off = fmax(off, fabs((double)x.latents[i] - (double)y.latents[i]));
    }
    return off > 0 ? off / most : 1;
}

static void assert_same_picture(
    const struct shoal_model_paths *gguf, const struct shoal_model_paths *wide, const char *what)
{
    struct shoal_result *a = paint(gguf), *b = paint(wide);

    if (difference(a, b) != 0) fail_msg("%s: another picture than that of the same values", what);
    if (original)
        print_message(
            "    %s: latents off by %.4f of the largest\n", what, difference(a, original));
    shoal_result_destroy(&a);
    shoal_result_destroy(&b);
}

/* ---- the DiT ---- */

static enum dtype all_bf16(const char *name)
{
    (void)name;
    return DTYPE_BF16;
}

static enum dtype all_f16(const char *name)
{
    (void)name;
    return DTYPE_F16;
}

static enum dtype all_q8_0(const char *name)
{
    (void)name;
    return DTYPE_Q8_0;
}

static enum dtype all_q4_0(const char *name)
{
    (void)name;
    return DTYPE_Q4_0;
}

/* As mixed quantisations do: v in more bits than q and k; the layers differ too. */
static enum dtype mixed(const char *name)
{
    if (strstr(name, "to_v.") || strstr(name, "v_proj.")) return DTYPE_Q8_0;
    if (strstr(name, "to_k.") || strstr(name, "k_proj."))
        return strstr(name, ".1.") ? DTYPE_Q5_1 : DTYPE_F16;
    if (strstr(name, "embed_tokens") || strstr(name, "x_embedder")) return DTYPE_Q8_0;
    return DTYPE_Q5_1;
}

static void test_dit(void **state)
{
    static struct pair pair;
    const struct {
        choose *chosen;
        const char *name;
    } cases[] = {
        {all_f16, "dit-F16"}, {all_q8_0, "dit-Q8_0"}, {all_q4_0, "dit-Q4_0"}, {mixed, "dit-mixed"}};

    (void)state;
    /* An emulated card takes seconds for a picture: one, with the most types. */
    for (size_t i = golden_devices.emulated_sm ? 3 : 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_model_paths gguf = {.model = MINI}, wide = gguf;
        char file[64], other[64];

        gguf_file_string(&pair.gguf, "general.architecture", "lumina2");
        write_pair(&pair, MINI "/transformer", cases[i].chosen, NULL, cases[i].name);
        snprintf(file, sizeof file, "%s.gguf", cases[i].name);
        snprintf(other, sizeof other, "%s.safetensors", cases[i].name);
        gguf.dit = at(file);
        wide.dit = at(other);
        assert_same_picture(&gguf, &wide, cases[i].name);
    }
}

/* BF16 is shoal-mini's own type: nothing is lost, whatever holds it. */
static void test_lossless(void **state)
{
    static struct pair pair;
    struct shoal_model_paths gguf = {.model = MINI, .dit = NULL};

    (void)state;
    if (golden_devices.emulated_sm) skip();
    write_pair(&pair, MINI "/transformer", all_bf16, NULL, "dit-BF16");
    gguf.dit = at("dit-BF16.gguf");
    assert_same_picture(&gguf, &(struct shoal_model_paths){.model = MINI}, "dit-BF16");
}

/* ---- the text encoder ---- */

static const char *llama_name(const char *name)
{
    static const char *const names[][2] = {{"embed_tokens", "token_embd"},
        {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
        {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
        {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
        {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
        {"norm", "output_norm"}};
    static char renamed[200];
    bool layer = !strncmp(name, "layers.", 7);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *found = strstr(name, names[i][0]);
        const char *rest = found ? found + strlen(names[i][0]) : NULL;

        /* The whole name up to the last dot. */
        if (!found || *rest != '.' || (found != name && !layer)) continue;
        snprintf(renamed, sizeof renamed, "%s%.*s%s%s", layer ? "blk" : "",
            layer ? (int)(found - name - 6) : 0, name + (layer ? 6 : 0), names[i][1], rest);
        return renamed;
    }
    return name;
}

static void put_qwen3(struct gguf_file *f, uint32_t layers)
{
    struct shoal_error error = {0};
    char *json;
    size_t bytes;

    gguf_file_string(f, "general.architecture", "qwen3");
    gguf_file_scalar(f, "qwen3.block_count", GGUF_U32, layers);
    gguf_file_scalar(f, "qwen3.embedding_length", GGUF_U32, 192);
    gguf_file_scalar(f, "qwen3.feed_forward_length", GGUF_U32, 384);
    gguf_file_scalar(f, "qwen3.attention.head_count", GGUF_U32, 3);
    gguf_file_scalar(f, "qwen3.attention.head_count_kv", GGUF_U32, 1);
    gguf_file_scalar(f, "qwen3.attention.key_length", GGUF_U32, 64);
    gguf_file_scalar(f, "qwen3.attention.value_length", GGUF_U32, 64);
    gguf_file_f32(f, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_file_f32(f, "qwen3.rope.freq_base", 1e6f);
    assert_ok(file_read_all(MINI "/tokenizer/tokenizer.json", 1 << 20, &json, &bytes, &error));
    gguf_file_string(f, "tokenizer.huggingface.json", json);
    mem_free(json);
}

static void test_text_encoder(void **state)
{
    static struct pair pair;
    char text[512], wide_text[512];
    struct shoal_model_paths gguf = {.dit = MINI "/transformer", .vae = MINI "/vae"}, wide = gguf;

    (void)state;
    if (golden_devices.emulated_sm) skip();
    put_qwen3(&pair.gguf, 3);
    write_pair(&pair, MINI "/text_encoder", mixed, llama_name, "text");
    snprintf(text, sizeof text, "%s", at("text.gguf"));
    snprintf(wide_text, sizeof wide_text, "%s", at("text.safetensors"));
    gguf.text_encoder = text; /* and its own tokenizer */
    wide.text_encoder = wide_text;
    wide.tokenizer = MINI "/tokenizer";
    assert_same_picture(&gguf, &wide, "text encoder");
}

/* Metadata must agree with the tensors. */
static void test_text_encoder_refused(void **state)
{
    const struct {
        const char *type, *key;
        uint32_t value;
        enum shoal_status status;
        const char *says;
    } cases[] = {
        {"qwen3", "qwen3.block_count", 5, SHOAL_E_FORMAT, "num_hidden_layers"},
        {"qwen3", "qwen3.embedding_length", 100, SHOAL_E_FORMAT, "hidden_size"},
        {"qwen3", "qwen3.rope.freq_base", 0, SHOAL_E_FORMAT, "rope_theta"},
        {"qwen3", "qwen3.attention.head_count", 6, SHOAL_E_FORMAT, "num_attention_heads"},
        {"llama", "llama.attention.head_count", 3, SHOAL_E_UNSUPPORTED, "\"llama\""},
    };
    static struct pair pair;

    (void)state;
    if (golden_devices.card) skip(); /* no device is opened */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct shoal_model *model = NULL;
        struct shoal_model_paths paths = {.model = MINI};

        gguf_file_string(&pair.gguf, "general.architecture", cases[i].type);
        gguf_file_scalar(&pair.gguf, cases[i].key, GGUF_U32, cases[i].value);
        write_pair(&pair, MINI "/text_encoder", all_q8_0, llama_name, "wrong");
        paths.text_encoder = at("wrong.gguf");
        assert_int_equal(shoal_model_open(&paths, &model, &error), cases[i].status);
        if (!strstr(error.text, cases[i].says) || !strstr(error.text, "wrong.gguf"))
            fail_msg("\"%s\" does not say \"%s\"", error.text, cases[i].says);
    }
}

/* ---- types that are not computed with ---- */

static void test_unsupported_type(void **state)
{
    struct shoal_model_paths paths = {.model = MINI};
    struct gguf_file f = {0};
    struct shoal_error error = {0};
    struct checkpoint *c = NULL;
    struct shoal_model *model = NULL;
    char *text = NULL;

    (void)state;
    if (golden_devices.card) skip();
    assert_ok(checkpoint_open(MINI "/transformer", &c, &error));
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(c, i);
        bool big = tensor->shape.rank == 2 && tensor->shape.dim[1] % 32 == 0;

        gguf_file_tensor(
            &f, tensor->name, big ? 20 : 0, big ? DTYPE_IQ4_NL : DTYPE_F32, tensor->shape, NULL);
    }
    checkpoint_close(&c);
    assert_ok(gguf_file_write(&f, at("iq.gguf"), &error));
    paths.dit = at("iq.gguf");
    assert_int_equal(shoal_model_open(&paths, &model, &error), SHOAL_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "IQ4_NL"));
    assert_non_null(strstr(error.text, "Q4_K"));
    assert_ok(shoal_inspect(at("iq.gguf"), false, &text, NULL, &error));
    assert_non_null(strstr(text, "IQ4_NL"));
    shoal_text_free(&text);
}

static int set_up(void **state)
{
    if (!golden_devices.emulated_sm) original = paint(&(struct shoal_model_paths){.model = MINI});
    return folder_make(state);
}

static int tear_down(void **state)
{
    shoal_result_destroy(&original);
    return folder_remove(state);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_dit),
    cmocka_unit_test(test_lossless),
    cmocka_unit_test(test_text_encoder),
    cmocka_unit_test(test_text_encoder_refused),
    cmocka_unit_test(test_unsupported_type),
};

GOLDEN_MAIN(tests, set_up, tear_down)
