/*
 * The whole picture: shoal-mini through the public header, streamed, against diffusers' own
 * ZImagePipeline from the same seed (tools/golden/pipeline.py). On the CPU against its pictures in
 * F32; on a card against those in the card's own activation type, which are small enough to be
 * emulated, and on a real one against the large ones in F32 as well.
 */
#include "support.h"

#include "checkpoint/checkpoint.h"
#include "golden/devices.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FOLDER "tests/golden/"
/* In dB. diffusers' own small pictures in BF16 are 41 dB from those in F32, in F16 55 dB. */
#define LEAST_PSNR (golden_devices.card ? 35.0 : 45.0)

static struct checkpoint *golden;
static struct shoal_model *model;

static int set_up(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    if (!shoal_model_open(
            &(struct shoal_model_paths){.model = "models/shoal-mini"}, &model, &error))
        return 0;
    fprintf(stderr, "%s\n", error.text);
    return -1;
}

static int tear_down(void **state)
{
    (void)state;
    shoal_model_close(&model);
    return 0;
}

static void *read_golden(size_t prompt, const char *what, uint64_t expected_bytes)
{
    struct shoal_error error = {0};
    const struct checkpoint_tensor *tensor;
    char name[64];
    void *data;

    snprintf(name, sizeof name, "p%zu.%s", prompt, what);
    tensor = checkpoint_find(golden, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, expected_bytes);
    data = malloc(tensor->bytes);
    assert_ok(checkpoint_read(tensor, data, &error));
    return data;
}

static void compare(size_t prompt, const char *text, const struct shoal_image *image)
{
    size_t pixels = (size_t)image->width * (size_t)image->height * 3;
    uint8_t *rgb = read_golden(prompt, "u8", pixels);
    float *latents = read_golden(prompt, "latents", image->latent_count * sizeof(float));
    double squares = 0, largest = 0, difference = 0, psnr;

    for (size_t i = 0; i < pixels; i++) {
        double d = (double)rgb[i] - (double)image->rgb[i];

        squares += d * d;
    }
    for (size_t i = 0; i < image->latent_count; i++) {
        assert_true(isfinite(image->latents[i]));
        largest = fmax(largest, fabs((double)latents[i]));
        difference = fmax(difference, fabs((double)latents[i] - (double)image->latents[i]));
    }
    psnr = squares > 0 ? 10 * log10(255.0 * 255.0 * (double)pixels / squares) : INFINITY;
    printf("    \"%s\": PSNR %.1f dB, latents max relative error %.1e\n", text, psnr,
        difference / largest);
    assert_true(psnr >= LEAST_PSNR);
    free(rgb);
    free(latents);
}

static void check(const char *path)
{
    struct shoal_error error = {0};
    struct shoal_request r;
    const json_t *prompts;
    json_t *config;

    assert_ok(checkpoint_open(path, &golden, &error));
    config = json_loads(checkpoint_metadata(golden, "config"), 0, NULL);
    prompts = json_object_get(config, "prompts");
    assert_true(json_array_size(prompts) > 0);
    printf("  %s\n", path);
    shoal_request_init(&r, model);
    r.width = (int32_t)json_integer_value(json_object_get(config, "width"));
    r.height = (int32_t)json_integer_value(json_object_get(config, "height"));
    r.steps = (int32_t)json_integer_value(json_object_get(config, "steps"));
    r.cfg = (float)json_number_value(json_object_get(config, "guidance")) + 1;
    r.seed = (uint64_t)json_integer_value(json_object_get(config, "seed"));
    r.negative_prompt = json_string_value(json_object_get(config, "negative"));
    r.resident_blocks = 0;
    r.device = golden_devices.name;
    /* Emulated cards take seconds for one. */
    for (size_t i = 0; i < (golden_devices.emulated_sm ? 1 : json_array_size(prompts)); i++) {
        struct shoal_plan *plan = NULL;
        struct shoal_result *result = NULL;
        struct shoal_image image;

        r.prompt = json_string_value(json_array_get(prompts, i));
        assert_ok(shoal_plan_create(model, &r, &plan, &error));
        assert_ok(shoal_run(plan, NULL, &result, &error));
        shoal_result_image(result, 0, &image);
        compare(i, r.prompt, &image);
        shoal_result_destroy(&result);
        shoal_plan_destroy(&plan);
    }
    json_decref(config);
    checkpoint_close(&golden);
}

static void test_pictures(void **state)
{
    const enum dtype activation = golden_devices.traits.activation;

    (void)state;
    if (activation == DTYPE_BF16) check(FOLDER "pipeline_mini_bf16.safetensors");
    if (activation == DTYPE_F16) check(FOLDER "pipeline_mini_f16.safetensors");
    if (!golden_devices.emulated_sm) check(FOLDER "pipeline_mini.safetensors");
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_pictures)};

GOLDEN_MAIN(tests, set_up, tear_down)
