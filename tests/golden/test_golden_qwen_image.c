/* The Qwen-Image transformer against the reference implementation's outputs, and steps of its
 * pipeline with guidance. */
#include "support.h"

#include "golden/devices.h"

#include "base/memory.h"
#include "models/dit/qwen_image.h"
#include "models/family.h"

#include <math.h>
#include <stdio.h>

#define SCRATCH_BYTES (16u << 20)
#define CHANNELS 16

/* A golden file, and what runs it. */
struct bench {
    struct golden golden;
    struct model *model;
    struct run run;
    char what[64], prefix[32];
    int64_t height, width;
    float *latent;
};

/* In BF16 these models are off by an RMS of 0.3 to 0.6%. */
static struct golden_gap limit(void)
{
    return golden_limit((struct golden_gap){.max = 2e-2, .rms = 1e-2});
}

static void compare(struct bench *b, struct matrix m, const char *name)
{
    float *values = run_values(&b->run, m);
    char tensor[128];

    snprintf(tensor, sizeof tensor, "%s%s", b->prefix, name);
    golden_compare(b->what, values, &b->golden, tensor, limit());
    mem_free(values);
}

static void compare_block(void *user, struct run *run, const struct block *block, void *lane)
{
    const struct dit_lane *l = lane;
    char name[80];

    (void)run;
    snprintf(name, sizeof name, "%s.text", block->name);
    compare(user, l->text, name);
    snprintf(name, sizeof name, "%s.image", block->name);
    compare(user, l->hidden, name);
}

static void bench_open(struct bench *b, const char *name, enum run_device device)
{
    struct shoal_error error = {0};

    *b = (struct bench){.prefix = "out."};
    snprintf(b->what, sizeof b->what, "%s, %s", name, run_device_name(device));
    assert_ok(golden_open(name, &b->golden, &error));
    assert_string_equal(family_detect(b->golden.checkpoint, FAMILY_DIT)->name, "qwen-image");
    assert_ok(
        family_open(b->golden.checkpoint, FAMILY_DIT, b->golden.config_path, &b->model, &error));
    assert_ok(run_open(&b->run, b->model, device, SCRATCH_BYTES, &error));
    b->latent = golden_values(&b->golden, "in.latent", NULL);
    b->height = golden_dim(&b->golden, "in.latent", 1);
    b->width = golden_dim(&b->golden, "in.latent", 2);
}

static void bench_close(struct bench *b)
{
    assert_int_equal(region_used(b->run.region), 0);
    mem_free(b->latent);
    run_close(&b->run);
    model_destroy(&b->model);
    golden_close(&b->golden);
}

/* The prompt whose features are that tensor, its context pass done; `*features` are to be freed
 * after it. */
static struct dit_prompt *prompt_of(
    struct bench *b, const char *tensor, const float *sigmas, int64_t steps, float **features)
{
    struct shoal_error error = {0};
    struct dit_prompt *prompt;
    void *lanes[1];

    *features = golden_values(&b->golden, tensor, NULL);
    assert_ok(dit_prompt_create(b->model,
        &(struct dit_prompt_spec){
            .features = *features,
            .tokens = golden_dim(&b->golden, tensor, 0),
            .height = b->height,
            .width = b->width,
            .sigmas = sigmas,
            .steps = (int32_t)steps,
        },
        &prompt, &error));
    lanes[0] = prompt;
    assert_ok(run_pass(&b->run, DIT_PASS_CONTEXT, lanes, 1, &error));
    return prompt;
}

static struct matrix alloc_latent(struct bench *b)
{
    return exec_alloc_float(&b->run.exec, CHANNELS, b->height * b->width);
}

static void check(const char *name, enum run_device device)
{
    struct shoal_error error = {0};
    struct bench b;
    struct dit_prompt *prompt;
    struct dit_lane lane = {0};
    float *sigmas, *features;
    int64_t steps;
    void *lanes[] = {&lane};

    bench_open(&b, name, device);
    sigmas = golden_values(&b.golden, "in.t", &steps);
    prompt = prompt_of(&b, "in.cap", sigmas, steps, &features);
    compare(&b, prompt->context, "context");
    lane.prompt = prompt;
    lane.latent = alloc_latent(&b);
    lane.velocity = alloc_latent(&b);
    exec_upload(&b.run.exec, lane.latent, b.latent);
    b.run.after = compare_block;
    b.run.user = &b;
    for (int32_t i = 0; i < steps; i++) {
        char tensor[64];

        if (steps > 1) snprintf(b.prefix, sizeof b.prefix, "out.t%d.", (int)i);
        snprintf(tensor, sizeof tensor, "%st_freq", b.prefix);
        golden_compare(b.what, prompt->tables[0].host + (int64_t)i * QWEN_IMAGE_FREQUENCIES,
            &b.golden, tensor, GOLDEN_FLOAT_LIMIT);
        lane.step = i;
        assert_ok(run_pass(&b.run, DIT_PASS_STEP, lanes, 1, &error));
        compare(&b, lane.velocity, "sample");
    }
    exec_free(&b.run.exec, &lane.latent);
    exec_free(&b.run.exec, &lane.velocity);
    dit_prompt_destroy(&b.run.exec, &prompt);
    mem_free(features);
    mem_free(sigmas);
    bench_close(&b);
}

static void test_model(void **state)
{
    static const char *const names[] = {"qwen_image_a", "qwen_image_b", "qwen_image_c"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int d = 0; d < golden_devices.count; d++)
            check(names[i], golden_devices.list[d]);
}

/* Each patch of y gets the norm that it has in x. */
static void match_patches(struct bench *b, struct matrix y, struct matrix x)
{
    struct exec *e = &b->run.exec;
    const int64_t numbers = QWEN_IMAGE_PATCH * QWEN_IMAGE_PATCH * CHANNELS;
    struct matrix rows[2];

    for (int i = 0; i < 2; i++) {
        rows[i] = exec_alloc_float(e, b->height * b->width * CHANNELS / numbers, numbers);
        e->ops->patchify(e->stream, rows[i], i ? x : y, b->height, b->width, QWEN_IMAGE_PATCH,
            PATCH_CHANNELS_FIRST);
    }
    e->ops->match_norms(e->stream, rows[0], rows[1]);
    e->ops->unpatchify(
        e->stream, y, rows[0], b->height, b->width, QWEN_IMAGE_PATCH, PATCH_CHANNELS_FIRST);
    exec_free(e, &rows[1]);
    exec_free(e, &rows[0]);
}

/* The pipeline's loop: guidance that keeps the patches' norms, and Euler's steps. */
static void check_steps(enum run_device device)
{
    struct shoal_error error = {0};
    struct bench b;
    struct dit_prompt *prompts[2];
    struct dit_lane lane[2] = {0};
    const struct dit_sampling *sampling;
    struct matrix guided;
    float *sigmas, *features[2];
    int64_t levels;
    void *lanes[] = {&lane[0], &lane[1]};

    bench_open(&b, "qwen_image_c", device);
    sampling = &dit_config(b.model)->family->sampling;
    assert_true(sampling->keeps_norm);
    sigmas = golden_values(&b.golden, "in.sigmas", &levels);
    assert_true(fabsf(sigmas[levels - 2] - sampling->terminal) < 1e-6f && !sigmas[levels - 1]);
    for (int i = 0; i < 2; i++) {
        prompts[i] = prompt_of(&b, i ? "in.uncap" : "in.cap", sigmas, levels - 1, &features[i]);
        lane[i].prompt = prompts[i];
        lane[i].latent = i ? lane[0].latent : alloc_latent(&b);
        lane[i].velocity = alloc_latent(&b);
    }
    guided = alloc_latent(&b);
    exec_upload(&b.run.exec, lane[0].latent, b.latent);
    for (int32_t i = 0; i < levels - 1; i++) {
        lane[0].step = lane[1].step = i;
        assert_ok(run_pass(&b.run, DIT_PASS_STEP, lanes, 2, &error));
        b.run.exec.ops->guide(
            b.run.stream, guided, lane[0].velocity, lane[1].velocity, sampling->cfg - 1);
        match_patches(&b, guided, lane[0].velocity);
        b.run.exec.ops->blend(
            b.run.stream, lane[0].latent, sigmas[i + 1] - sigmas[i], guided, 1.0f);
    }
    compare(&b, lane[0].latent, "latents");
    exec_free(&b.run.exec, &guided);
    exec_free(&b.run.exec, &lane[0].latent);
    for (int i = 0; i < 2; i++) {
        exec_free(&b.run.exec, &lane[i].velocity);
        dit_prompt_destroy(&b.run.exec, &prompts[i]);
        mem_free(features[i]);
    }
    mem_free(sigmas);
    bench_close(&b);
}

static void test_steps(void **state)
{
    (void)state;
    for (int d = 0; d < golden_devices.count; d++)
        check_steps(golden_devices.list[d]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_model), cmocka_unit_test(test_steps)};

GOLDEN_MAIN(tests, NULL, NULL)
