/* The tool make_checkpoint: both layouts hold the same weights under their own names. */
#include "checkpoint_files.h"

#include "../../tools/make_checkpoint.h"
#include "base/memory.h"
#include "base/number.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/keys.h"
#include "models/family.h"
#include "models/text/text.h"
#include "models/vae/vae.h"
#include "pipeline/parts.h"

#include <math.h>

static struct make_options options(enum make_layout layout, const char *out)
{
    return (struct make_options){.layout = layout,
        .parts = MAKE_DIT | MAKE_TEXT | MAKE_VAE,
        .small = true,
        .dtype = DTYPE_BF16,
        .seed = 7,
        .shard_bytes = 5000000,
        .out = out};
}

static void *read_tensor(const struct checkpoint_tensor *tensor)
{
    struct shoal_error error = {0};
    void *data = mem_alloc((size_t)tensor->bytes);

    assert_non_null(data);
    assert_ok(checkpoint_read(tensor, data, &error));
    return data;
}

/* `offset` bytes into b lie exactly a's bytes. */
static void assert_holds(
    const struct checkpoint_tensor *b, uint64_t offset, const struct checkpoint_tensor *a)
{
    char *x, *y;

    assert_true(offset <= b->bytes && a->bytes <= b->bytes - offset);
    x = read_tensor(a);
    y = read_tensor(b);
    assert_memory_equal(x, y + offset, a->bytes);
    mem_free(x);
    mem_free(y);
}

static struct checkpoint *open_made(const char *name)
{
    struct checkpoint *checkpoint = NULL;
    struct shoal_error error = {0};

    assert_ok(checkpoint_open(at(name), &checkpoint, &error));
    return checkpoint;
}

static const struct checkpoint_tensor *find(const struct checkpoint *checkpoint, const char *name)
{
    const struct checkpoint_tensor *tensor = checkpoint_find(checkpoint, name);

    if (!tensor) fail_msg("%s has no %s", checkpoint_path(checkpoint), name);
    return tensor;
}

static int make_both(void **state)
{
    struct make_options o = options(MAKE_DIFFUSERS, NULL);
    struct shoal_error error = {0};
    uint64_t diffusers, comfyui;

    if (folder_make(state)) return -1;
    o.out = at("diffusers");
    assert_ok(make_checkpoint(&o, &diffusers, &error));
    o = options(MAKE_COMFYUI, at("comfyui"));
    assert_ok(make_checkpoint(&o, &comfyui, &error));
    assert_int_equal(diffusers, comfyui);
    return 0;
}

static void test_shards_and_index(void **state)
{
    struct checkpoint *dit = open_made("diffusers/transformer");
    const char *first = NULL;
    size_t files = 1;

    (void)state;
    assert_non_null(strstr(checkpoint_path(dit), "pytorch_model.safetensors.index.json"));
    for (size_t i = 0; i < checkpoint_count(dit); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(dit, i);

        assert_true(tensor->bytes < tensor->file->bytes && tensor->file->bytes < 5000000 + 50000);
        assert_int_equal(tensor->dtype, DTYPE_BF16);
        if (!first) first = tensor->file->path;
        files += strcmp(first, tensor->file->path) != 0;
    }
    assert_true(files > 1);
    assert_non_null(strstr(first, "-of-0000"));
    checkpoint_close(&dit);
}

/* The transformers differ by names and by q, k, v being one. */
static void test_transformers_agree(void **state)
{
    static const char *const names[][2] = {
        {"all_x_embedder.2-1.weight", "x_embedder.weight"},
        {"all_final_layer.2-1.adaLN_modulation.1.bias", "final_layer.adaLN_modulation.1.bias"},
        {"layers.2.attention.to_out.0.weight", "layers.2.attention.out.weight"},
        {"layers.2.attention.norm_q.weight", "layers.2.attention.q_norm.weight"},
        {"context_refiner.0.attention.norm_k.weight", "context_refiner.0.attention.k_norm.weight"},
        {"noise_refiner.0.adaLN_modulation.0.weight", "noise_refiner.0.adaLN_modulation.0.weight"},
        {"cap_pad_token", "cap_pad_token"},
        {"t_embedder.mlp.2.weight", "t_embedder.mlp.2.weight"},
    };
    struct checkpoint *a = open_made("diffusers/transformer");
    struct checkpoint *b = open_made("comfyui/diffusion_models");
    const char *prefix = keys_prefix(b, keys_dit_prefixes, "cap_embedder.1.weight");
    size_t blocks = 3 + 1 + 1;

    (void)state;
    assert_string_equal(prefix, "model.diffusion_model.");
    assert_int_equal(checkpoint_count(a), checkpoint_count(b) + 2 * blocks);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct checkpoint_tensor *x = find(a, names[i][0]);
        const struct checkpoint_tensor *y = keys_find(b, prefix, names[i][1]);

        assert_non_null(y);
        assert_true(shape_equal(&x->shape, &y->shape));
        assert_holds(y, 0, x);
    }
    for (uint64_t i = 0; i < 3; i++) {
        const struct checkpoint_tensor *qkv = keys_find(b, prefix, "layers.1.attention.qkv.weight");
        char name[64];

        snprintf(name, sizeof name, "layers.1.attention.to_%c.weight", "qkv"[i]);
        assert_int_equal(qkv->shape.dim[0], 3 * qkv->shape.dim[1]);
        assert_holds(qkv, i * qkv->bytes / 3, find(a, name));
    }
    assert_null(checkpoint_find(a, "context_refiner.0.adaLN_modulation.0.weight"));
    checkpoint_close(&a);
    checkpoint_close(&b);
}

static void test_vaes_agree(void **state)
{
    static const char *const names[][2] = {
        {"decoder.up_blocks.0.resnets.2.conv1.weight", "decoder.up.3.block.2.conv1.weight"},
        {"decoder.up_blocks.2.resnets.0.conv_shortcut.weight",
            "decoder.up.1.block.0.nin_shortcut.weight"},
        {"decoder.up_blocks.0.upsamplers.0.conv.bias", "decoder.up.3.upsample.conv.bias"},
        {"decoder.mid_block.resnets.1.norm2.weight", "decoder.mid.block_2.norm2.weight"},
        {"decoder.mid_block.attentions.0.to_out.0.weight", "decoder.mid.attn_1.proj_out.weight"},
        {"decoder.mid_block.attentions.0.group_norm.bias", "decoder.mid.attn_1.norm.bias"},
        {"decoder.conv_norm_out.weight", "decoder.norm_out.weight"},
        {"encoder.down_blocks.2.resnets.0.conv_shortcut.bias",
            "encoder.down.2.block.0.nin_shortcut.bias"},
        {"encoder.down_blocks.0.downsamplers.0.conv.weight",
            "encoder.down.0.downsample.conv.weight"},
    };
    struct checkpoint *a = open_made("diffusers/vae"), *b = open_made("comfyui/vae");

    (void)state;
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_holds(find(b, names[i][1]), 0, find(a, names[i][0]));
    assert_int_equal(find(a, "decoder.mid_block.attentions.0.to_q.weight")->shape.rank, 2);
    assert_int_equal(find(b, "decoder.mid.attn_1.q.weight")->shape.rank, 4);
    checkpoint_close(&a);
    checkpoint_close(&b);
}

/* Names are those of the golden files, which the reference implementation wrote. */
static void test_names_are_the_references(void **state)
{
    struct checkpoint *made = open_made("comfyui/diffusion_models"), *golden = NULL;
    struct shoal_error error = {0};

    (void)state;
    assert_ok(checkpoint_open("tests/golden/dit_a_single_file.safetensors", &golden, &error));
    for (size_t i = 0; i < checkpoint_count(golden); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(golden, i);

        if (strncmp(tensor->name, "model.", 6)) continue; /* its inputs and outputs */
        assert_int_equal(find(made, tensor->name)->shape.rank, tensor->shape.rank);
    }
    checkpoint_close(&golden);
    checkpoint_close(&made);
}

static void test_all_in_one(void **state)
{
    struct make_options o = options(MAKE_COMFYUI, at("all.safetensors"));
    struct checkpoint *all, *vae = open_made("comfyui/vae"),
                            *text = open_made("diffusers/text_encoder");
    struct shoal_error error = {0};
    const char *prefix;

    (void)state;
    assert_ok(make_checkpoint(&o, NULL, &error));
    all = open_made("all.safetensors");
    prefix = keys_prefix(all, keys_vae_prefixes, "decoder.conv_in.weight");
    assert_string_equal(prefix, "vae.");
    assert_holds(
        keys_find(all, prefix, "decoder.conv_in.weight"), 0, find(vae, "decoder.conv_in.weight"));
    prefix = keys_prefix(all, keys_text_prefixes, "embed_tokens.weight");
    assert_string_equal(prefix, "text_encoders.qwen3_4b.transformer.model.");
    assert_holds(keys_find(all, prefix, "layers.0.mlp.up_proj.weight"), 0,
        find(text, "model.layers.0.mlp.up_proj.weight"));
    checkpoint_close(&all);
    checkpoint_close(&vae);
    checkpoint_close(&text);
}

/* The latents of one short run; mem_free'd by the caller. Streamed, in the least memory. */
static float *paint(const struct shoal_model_paths *paths, size_t *count)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;
    struct shoal_plan *plan = NULL;
    struct shoal_result *result = NULL;
    struct shoal_request request;
    struct shoal_image image;
    float *latents;

    assert_ok(shoal_model_open(paths, &model, &error));
    shoal_request_init(&request, model);
    request.prompt = "a red apple";
    request.width = request.height = 64;
    request.steps = 1;
    request.cfg = 2;
    request.shift = 3;
    request.resident_blocks = 0;
    assert_ok(shoal_plan_create(model, &request, &plan, &error));
    assert_ok(shoal_run(plan, NULL, &result, &error));
    shoal_result_image(result, 0, &image);
    *count = image.latent_count;
    latents = mem_alloc(*count * sizeof *latents);
    assert_non_null(latents);
    memcpy(latents, image.latents, *count * sizeof *latents);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    shoal_model_close(&model);
    return latents;
}

/* The same weights paint the same bits, in whichever layout and under whichever names they lie. */
static void test_layouts_paint_the_same(void **state)
{
    struct make_options o = options(MAKE_COMFYUI, at("one.safetensors"));
    const char *tokenizer = "models/shoal-mini/tokenizer";
    struct shoal_error error = {0};
    float *latents[3];
    size_t count[3];

    (void)state;
    assert_ok(make_checkpoint(&o, NULL, &error));
    latents[0] = paint(
        &(struct shoal_model_paths){.model = at("diffusers"), .tokenizer = tokenizer}, &count[0]);
    latents[1] = paint(
        &(struct shoal_model_paths){.model = at("comfyui"), .tokenizer = tokenizer}, &count[1]);
    latents[2] =
        paint(&(struct shoal_model_paths){.model = at("one.safetensors"), .tokenizer = tokenizer},
            &count[2]);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(count[i], count[0]);
        assert_memory_equal(latents[i], latents[0], count[0] * sizeof(float));
    }
    for (int i = 0; i < 3; i++)
        mem_free(latents[i]);
}

/* f32 holds the very values of bf16; another seed holds others. */
static void test_dtype_and_seed(void **state)
{
    struct make_options o = options(MAKE_COMFYUI, at("f32"));
    struct checkpoint *a = open_made("comfyui/vae"), *b, *c;
    const struct checkpoint_tensor *x, *y;
    struct shoal_error error = {0};
    uint16_t *half, *other;
    float *full;

    (void)state;
    o.parts = MAKE_VAE;
    o.dtype = DTYPE_F32;
    assert_ok(make_checkpoint(&o, NULL, &error));
    assert_int_equal(access(at("f32/diffusion_models"), F_OK), -1);
    o = options(MAKE_COMFYUI, at("seed"));
    o.parts = MAKE_VAE;
    o.seed = 8;
    assert_ok(make_checkpoint(&o, NULL, &error));
    b = open_made("f32/vae");
    c = open_made("seed/vae");
    x = find(a, "decoder.conv_in.weight");
    y = find(b, "decoder.conv_in.weight");
    assert_int_equal(y->bytes, 2 * x->bytes);
    half = read_tensor(x);
    full = read_tensor(y);
    other = read_tensor(find(c, "decoder.conv_in.weight"));
    for (size_t i = 0; i < x->bytes / 2; i++)
        assert_true(bf16_to_float(half[i]) == full[i]);
    assert_memory_not_equal(half, other, x->bytes);
    mem_free(half);
    mem_free(full);
    mem_free(other);
    checkpoint_close(&a);
    checkpoint_close(&b);
    checkpoint_close(&c);
}

#define PREFIX "model.diffusion_model."

/* In fp8 matrices are bf16's, each number the nearest that there is, and the rest is bf16. */
static void test_fp8(void **state)
{
    struct make_options o = options(MAKE_COMFYUI, at("fp8"));
    struct checkpoint *a = open_made("comfyui/diffusion_models"), *b;
    const struct checkpoint_tensor *x, *y;
    struct shoal_error error = {0};
    uint16_t *half;
    uint8_t *code;

    (void)state;
    o.parts = MAKE_DIT;
    o.dtype = DTYPE_F8_E4M3;
    assert_ok(make_checkpoint(&o, NULL, &error));
    b = open_made("fp8/diffusion_models");
    assert_int_equal(find(b, PREFIX "layers.0.attention_norm1.weight")->dtype, DTYPE_BF16);
    x = find(a, PREFIX "layers.0.attention.qkv.weight");
    y = find(b, PREFIX "layers.0.attention.qkv.weight");
    assert_int_equal(y->dtype, DTYPE_F8_E4M3);
    half = read_tensor(x);
    code = read_tensor(y);
    for (size_t i = 0; i < y->bytes; i++) {
        const float value = bf16_to_float(half[i]);
        const float off = fabsf(f8_e4m3_to_float(code[i]) - value);

        assert_true((code[i] & 0x7f) < 0x7e);
        assert_true(off <= fabsf(f8_e4m3_to_float((uint8_t)(code[i] + 1)) - value));
        assert_true(
            !(code[i] & 0x7f) || off <= fabsf(f8_e4m3_to_float((uint8_t)(code[i] - 1)) - value));
    }
    mem_free(half);
    mem_free(code);
    checkpoint_close(&a);
    checkpoint_close(&b);
}

/* Normal, of the deviation that keeps a signal's variance, and different everywhere. */
static void test_weights_look_normal(void **state)
{
    struct checkpoint *a = open_made("diffusers/transformer");
    const struct checkpoint_tensor *w1 = find(a, "layers.0.feed_forward.w1.weight");
    uint16_t *x = read_tensor(w1), *y = read_tensor(find(a, "layers.1.feed_forward.w1.weight"));
    size_t count = (size_t)w1->bytes / 2, equal = 0, repeated = 0, within = 0;
    double sum = 0, squares = 0, scale = sqrt((double)w1->shape.dim[1]);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        double value = (double)bf16_to_float(x[i]) * scale;

        sum += value;
        squares += value * value;
        within += fabs(value) < 1;
        equal += x[i] == y[i];
        repeated += i && x[i] == x[i - 1];
    }
    assert_true(fabs(sum / (double)count) < 0.01);
    assert_true(fabs(squares / (double)count - 1) < 0.01);
    assert_true(fabs((double)within / (double)count - 0.6827) < 0.01);
    assert_true(equal < count / 100 && repeated < count / 100);
    mem_free(x);
    mem_free(y);
    checkpoint_close(&a);
}

static void test_tokenizer_is_copied(void **state)
{
    struct make_options o = options(MAKE_DIFFUSERS, at("with"));
    struct shoal_error error = {0};

    (void)state;
    o.parts = MAKE_VAE;
    o.tokenizer = put_text("some.json", "{\"x\":1}");
    assert_ok(make_checkpoint(&o, NULL, &error));
    assert_int_equal(access(at("with/tokenizer/tokenizer.json"), R_OK), 0);
    assert_int_equal(access(at("with/vae/config.json"), R_OK), 0);
    assert_int_equal(access(at("with/model_index.json"), R_OK), 0);
    assert_int_equal(access(at("with/scheduler/scheduler_config.json"), R_OK), 0);
}

static void refuse(const struct make_options *o, enum shoal_status status, const char *words)
{
    struct shoal_error error = {0};
    char part[600];

    assert_int_equal(make_checkpoint(o, NULL, &error), status);
    if (!strstr(error.text, words)) fail_msg("no \"%s\" in: %s", words, error.text);
    snprintf(part, sizeof part, "%s.part", o->out);
    assert_int_equal(access(part, F_OK), -1); /* nothing is left behind */
}

static void test_refuses(void **state)
{
    struct make_options o = options(MAKE_DIFFUSERS, at("diffusers"));

    (void)state;
    refuse(&o, SHOAL_E_INVALID, "exists already");
    o.out = at("no/such/folder");
    refuse(&o, SHOAL_E_IO, "no/such/folder");
    o.out = at("new");
    o.tokenizer = at("no.json");
    refuse(&o, SHOAL_E_IO, "no.json");
    assert_int_equal(access(at("new"), F_OK), -1);
    o.tokenizer = NULL;
    o.dtype = DTYPE_F16;
    refuse(&o, SHOAL_E_UNSUPPORTED, "F16");
    o.dtype = DTYPE_BF16;
    o.parts = 0;
    refuse(&o, SHOAL_E_INVALID, "dit, text, vae");
    o.parts = MAKE_VAE;
    o.depth = 1;
    refuse(&o, SHOAL_E_UNSUPPORTED, "depth");
    o.depth = 0;
    o.shard_bytes = 0;
    refuse(&o, SHOAL_E_INVALID, "shards");
}

/* Fewer blocks than there are, of each stack: the others are as they were, and it opens. */
static void test_depth(void **state)
{
    static const char *const families[] = {"z-image", "qwen-image", "cosmos-2b", "anima"};
    struct shoal_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct make_options o = options(MAKE_COMFYUI, NULL);
        struct checkpoint *checkpoints[2];
        struct model *models[2];

        o.family = make_family_find(families[i]);
        o.parts = MAKE_DIT;
        for (o.depth = 0; o.depth < 2; o.depth++) {
            char name[64];

            snprintf(name, sizeof name, "depth-%s-%d", families[i], (int)o.depth);
            o.out = at(name);
            assert_ok(make_checkpoint(&o, NULL, &error));
            strcat(name, "/diffusion_models");
            checkpoints[o.depth] = open_made(name);
            assert_ok(
                family_open(checkpoints[o.depth], FAMILY_DIT, NULL, &models[o.depth], &error));
        }
        assert_true(models[1]->block_count < models[0]->block_count);
        for (size_t t = 0; t < checkpoint_count(checkpoints[1]); t++) {
            const struct checkpoint_tensor *one = checkpoint_at(checkpoints[1], t);

            assert_holds(one, 0, find(checkpoints[0], one->name));
        }
        for (int d = 0; d < 2; d++) {
            model_destroy(&models[d]);
            checkpoint_close(&checkpoints[d]);
        }
    }
}

/* Its decoder, and its encoder. */
static void open_vae(const struct checkpoint *checkpoint, const char *config_path)
{
    struct shoal_error error = {0};
    struct model *decoder, *encoder;

    assert_ok(family_open(checkpoint, FAMILY_VAE, config_path, &decoder, &error));
    assert_string_equal(decoder->family, "wan-vae");
    assert_ok(vae_config(decoder)->family->encoder_open(checkpoint, decoder, &encoder, &error));
    model_destroy(&encoder);
    model_destroy(&decoder);
}

/* Both layouts hold the same VAE, which opens. */
static void test_wan_vae(void **state)
{
    struct make_options o = options(MAKE_DIFFUSERS, at("wan"));
    struct shoal_error error = {0};
    struct checkpoint *a, *b;

    (void)state;
    o.family = make_family_find("qwen-image");
    o.parts = MAKE_VAE;
    assert_ok(make_checkpoint(&o, NULL, &error));
    o.layout = MAKE_COMFYUI;
    o.out = at("wan.safetensors");
    assert_ok(make_checkpoint(&o, NULL, &error));
    a = open_made("wan/vae");
    b = open_made("wan.safetensors");
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    assert_holds(find(b, "vae.decoder.upsamples.7.time_conv.weight"), 0,
        find(a, "decoder.up_blocks.1.upsamplers.0.time_conv.weight"));
    assert_holds(find(b, "vae.encoder.downsamples.3.residual.2.weight"), 0,
        find(a, "encoder.down_blocks.3.conv1.weight"));
    assert_holds(find(b, "vae.conv2.bias"), 0, find(a, "post_quant_conv.bias"));
    open_vae(a, at("wan/vae/config.json"));
    open_vae(b, NULL);
    checkpoint_close(&b);
    checkpoint_close(&a);
}

/* A part that the family has not. */
static void test_other_parts(void **state)
{
    const struct make_family family = {.name = "text alone", .parts = {{0}, {make_qwen3}, {0}}};
    struct make_options o = options(MAKE_DIFFUSERS, at("alone"));

    (void)state;
    o.family = &family;
    o.parts = MAKE_TEXT | MAKE_VAE;
    refuse(&o, SHOAL_E_UNSUPPORTED, "the vae of text alone is not made");
}

/* In both layouts the same transformer, which opens. */
static void test_qwen_image(void **state)
{
    struct make_options o = options(MAKE_DIFFUSERS, at("qwen"));
    struct shoal_error error = {0};
    struct checkpoint *a, *b;
    struct model *model;

    (void)state;
    o.family = make_family_find("qwen-image");
    assert_int_equal(make_family_parts(o.family), MAKE_DIT | MAKE_TEXT | MAKE_VAE);
    o.parts = MAKE_DIT | MAKE_TEXT;
    assert_ok(make_checkpoint(&o, NULL, &error));
    o.layout = MAKE_COMFYUI;
    o.parts = MAKE_DIT;
    o.out = at("qwen.safetensors");
    assert_ok(make_checkpoint(&o, NULL, &error));
    a = open_made("qwen/transformer");
    b = open_made("qwen.safetensors");
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (size_t i = 0; i < checkpoint_count(a); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(a, i);
        char name[200];

        snprintf(name, sizeof name, "model.diffusion_model.%s", tensor->name);
        assert_holds(find(b, name), 0, tensor);
    }
    assert_ok(family_open(a, FAMILY_DIT, at("qwen/transformer/config.json"), &model, &error));
    assert_string_equal(model->family, "qwen-image");
    model_destroy(&model);
    assert_ok(family_open(b, FAMILY_DIT, NULL, &model, &error));
    model_destroy(&model);
    checkpoint_close(&b);
    checkpoint_close(&a);
    a = open_made("qwen/text_encoder");
    assert_string_equal(find(a, "model.layers.2.self_attn.k_proj.bias")->name,
        "model.layers.2.self_attn.k_proj.bias");
    assert_null(checkpoint_find(a, "model.layers.2.self_attn.k_norm.weight"));
    checkpoint_close(&a);
}

/* Text encoders alone, which open in both layouts. */
static void test_text_encoders(void **state)
{
    static const struct {
        const char *family, *text, *folder, *file;
        enum dtype dtype;
    } made[] = {
        {"qwen-image", "qwen2.5-vl", "vl", "vl.safetensors", DTYPE_BF16},
        {"cosmos-2b", "t5", "t5", "t5.safetensors", DTYPE_F8_E4M3},
        {"anima", "qwen3", "anima", "anima.safetensors", DTYPE_BF16},
    };

    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        for (int layout = 0; layout < 2; layout++) {
            const char *out = layout == MAKE_COMFYUI ? made[i].file : made[i].folder;
            struct make_options o = options((enum make_layout)layout, at(out));
            struct shoal_error error = {0};
            struct checkpoint *checkpoint;
            struct model *model;
            char path[64];

            o.family = make_family_find(made[i].family);
            o.parts = MAKE_TEXT;
            o.dtype = made[i].dtype;
            assert_ok(make_checkpoint(&o, NULL, &error));
            snprintf(path, sizeof path, "%s%s", out, layout == MAKE_COMFYUI ? "" : "/text_encoder");
            checkpoint = open_made(path);
            assert_ok(family_open(checkpoint, FAMILY_TEXT, NULL, &model, &error));
            assert_string_equal(model->family, made[i].text);
            assert_true(text_config(model)->pass[TEXT_LAST] >= 0);
            model_destroy(&model);
            checkpoint_close(&checkpoint);
        }
    }
}

/* Cosmos-Predict2's transformer, alone and as a part of Anima, in both layouts. */
static void test_cosmos(void **state)
{
    static const char *const families[][2] = {
        {"anima", "anima"}, {"cosmos-2b", "cosmos"}, {"cosmos-14b", "cosmos"}};

    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        size_t counts[2];

        for (int layout = 0; layout < 2; layout++) {
            struct shoal_error error = {0};
            struct checkpoint *made;
            struct model *model;
            char out[512], path[600];
            struct make_options o = options((enum make_layout)layout, out);

            snprintf(out, sizeof out, "%s/dit_%s%s", at("."), families[i][0],
                layout == MAKE_COMFYUI ? ".safetensors" : "");
            snprintf(path, sizeof path, "%s%s", out, layout == MAKE_COMFYUI ? "" : "/transformer");
            o.family = make_family_find(families[i][0]);
            assert_int_equal(make_family_parts(o.family), MAKE_DIT | MAKE_TEXT | MAKE_VAE);
            o.parts = MAKE_DIT;
            o.dtype = DTYPE_F8_E4M3;
            assert_ok(make_checkpoint(&o, NULL, &error));
            assert_ok(part_open_files(path, NULL, &made, &error));
            assert_ok(family_open(made, FAMILY_DIT, NULL, &model, &error));
            assert_string_equal(model->family, families[i][1]);
            counts[layout] = checkpoint_count(made);
            model_destroy(&model);
            checkpoint_close(&made);
        }
        assert_int_equal(counts[0], counts[1]);
    }
}

/* Sizes of the real models, without writing them. */
static void test_full_size(void **state)
{
    static const struct {
        void (*fill)(struct make_list *list, bool small);
        double billions;
    } parts[] = {{make_z_image_dit, 6.155}, {make_qwen3, 4.022}, {make_flux_vae, 0.0838},
        {make_t5, 4.865}, {make_qwen3_small, 0.596}, {make_cosmos_2b, 1.956},
        {make_cosmos_14b, 14.27}, {make_anima_adapter, 0.13466}};

    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct make_list list = {.layout = MAKE_DIFFUSERS, .prefix = ""};
        uint64_t total = 0, count;

        parts[i].fill(&list, false);
        assert_false(list.failed);
        for (size_t k = 0; k < list.count; k++) {
            uint64_t sources = 0;

            assert_true(shape_count(&list.tensors[k].shape, &count));
            for (int s = 0; s < list.tensors[k].source_count; s++)
                sources += list.tensors[k].sources[s].count;
            assert_int_equal(count, sources);
            total += count;
        }
        if (fabs((double)total / 1e9 / parts[i].billions - 1) > 0.001)
            fail_msg("part %zu has %llu weights", i, (unsigned long long)total);
        mem_free(list.tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_and_index),
        cmocka_unit_test(test_transformers_agree),
        cmocka_unit_test(test_vaes_agree),
        cmocka_unit_test(test_names_are_the_references),
        cmocka_unit_test(test_all_in_one),
        cmocka_unit_test(test_layouts_paint_the_same),
        cmocka_unit_test(test_dtype_and_seed),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_weights_look_normal),
        cmocka_unit_test(test_tokenizer_is_copied),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_cosmos),
        cmocka_unit_test(test_text_encoders),
        cmocka_unit_test(test_qwen_image),
        cmocka_unit_test(test_wan_vae),
        cmocka_unit_test(test_other_parts),
        cmocka_unit_test(test_full_size),
    };

    return cmocka_run_group_tests(tests, make_both, folder_remove);
}
