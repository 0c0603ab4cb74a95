/*
 * Adapters on whole pictures, on each device: the same latents, to the bit, wherever their
 * differences are added (on the device at every use, or once to what is resident, or on the host
 * while weights are read), and the plan's peaks. Another strength reads no file.
 */
#include "support.h"

#include "golden/devices.h"
#include "unit/mini_adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 32, STEPS = 2 };

static char path[MINI_ADAPTER_PATH];

static int write_adapter(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    return mini_adapter_write(path, &error) != SHOAL_OK;
}

static int remove_adapter(void **state)
{
    (void)state;
    return remove(path);
}

struct way {
    const char *name;
    int32_t residents;
    enum shoal_host_format format;
    bool disk;
};

/* Latents of a picture, malloc'd; `read`: what was read of adapters' files. */
static float *paint(
    struct shoal_model *model, const struct way *way, float strength, size_t *count, uint64_t *read)
{
    const struct shoal_lora lora = {path, strength};
    struct shoal_plan_summary summary;
    struct shoal_error error = {0};
    struct shoal_result *result;
    struct shoal_report report;
    struct shoal_image image;
    struct shoal_request r;
    struct shoal_plan *plan;
    float *latents;

    shoal_request_init(&r, model);
    r.prompt = "a cat wearing a hat";
    r.width = r.height = SIZE;
    r.steps = STEPS;
    r.cfg = 1;
    r.device = golden_devices.name;
    r.resident_blocks = way->residents;
    r.host_format = way->format;
    r.loras = &lora;
    r.lora_count = strength != 0;
    if (way->disk) {
        assert_ok(shoal_plan_create(model, &r, &plan, &error));
        shoal_plan_summarise(plan, &summary);
        r.ram_bytes = summary.least_ram_bytes;
        shoal_plan_destroy(&plan);
    }
    assert_ok(shoal_plan_create(model, &r, &plan, &error));
    shoal_plan_summarise(plan, &summary);
    *read = summary.lora_read_bytes;
    assert_int_equal(summary.patched_blocks, strength != 0 ? MINI_ADAPTER_BLOCKS : 0);
    if (way->disk) assert_true(summary.disk_blocks > 0);
    if (way->format) assert_int_equal(summary.widened_blocks, MINI_ADAPTER_BLOCKS);
    assert_ok(shoal_run(plan, NULL, &result, &error));
    shoal_result_report(result, &report);
    assert_int_equal(report.peak_vram_bytes, summary.peak_vram_bytes);
    shoal_result_image(result, 0, &image);
    *count = image.latent_count;
    latents = malloc(*count * sizeof *latents);
    assert_non_null(latents);
    memcpy(latents, image.latents, *count * sizeof *latents);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    return latents;
}

static void test_everywhere(void **state)
{
    static const struct way ways[] = {
        {"resident", 12, SHOAL_HOST_FORMAT_STORAGE, false},
        {"in RAM", 0, SHOAL_HOST_FORMAT_STORAGE, false},
        {"on disk", 0, SHOAL_HOST_FORMAT_STORAGE, true},
        {"half resident, on disk", 6, SHOAL_HOST_FORMAT_STORAGE, true},
        {"baked", 0, SHOAL_HOST_FORMAT_COMPUTE, false},
    };
    struct shoal_error error = {0};
    struct shoal_model *model;
    float *first = NULL, *other;
    uint64_t read;
    size_t count;

    (void)state;
    assert_ok(shoal_model_open(
        &(struct shoal_model_paths){.model = "models/shoal-mini"}, &model, &error));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        float *latents = paint(model, &ways[i], 1.5f, &count, &read);

        assert_true(i ? read == 0 : read > 0);
        if (i && memcmp(latents, first, count * sizeof *latents) != 0)
            fail_msg("%s: other latents than where all is resident", ways[i].name);
        if (i)
            free(latents);
        else
            first = latents;
    }
    other = paint(model, &ways[0], -1.5f, &count, &read);
    assert_true(read == 0 && memcmp(other, first, count * sizeof *other) != 0);
    free(other);
    other = paint(model, &ways[0], 0, &count, &read);
    assert_true(memcmp(other, first, count * sizeof *other) != 0);
    free(other);
    free(first);
    shoal_model_close(&model);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere)};

GOLDEN_MAIN(tests, write_adapter, remove_adapter)
