/* A pass takes exactly as much scratch on the counting device, with no input at all, as on a real
 * one: the planner depends on it. */
#include "support.h"

#include "golden/devices.h"

#include "base/memory.h"
#include "device/count/count.h"
#include "models/dit/dit.h"
#include "models/family.h"
#include "models/vae/vae.h"

#define SCRATCH_BYTES (64u << 20)

/* The high-water mark of two prompts and three lanes over two steps. */
static uint64_t run_dit(const struct golden *golden, enum run_device device)
{
    struct shoal_error error = {0};
    struct model *model;
    struct run run;
    struct dit_prompt *prompts[2];
    struct dit_lane lanes[3] = {0};
    void *pointers[3];
    float features[70 * 64] = {0};
    const float sigmas[2] = {1.0f, 0.5f};
    static const int32_t ids[30] = {1, 2, 3}; /* for those that take them */
    int64_t tokens[2] = {5, 70};
    uint64_t high_water;

    assert_ok(family_open(golden->checkpoint, FAMILY_DIT, golden->config_path, &model, &error));
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    for (int i = 0; i < 2; i++) {
        const struct dit_prompt_spec spec = {
            .features = device == RUN_COUNT ? NULL : features,
            .tokens = tokens[i],
            .ids = device == RUN_COUNT ? NULL : ids,
            .id_count = 10 + 20 * i,
            .height = 6,
            .width = 14,
            .sigmas = sigmas,
            .steps = 2,
        };

        assert_ok(dit_prompt_create(model, &spec, &prompts[i], &error));
        pointers[i] = prompts[i];
    }
    assert_ok(run_pass(&run, DIT_PASS_CONTEXT, pointers, 2, &error));
    for (int i = 0; i < 3; i++) {
        lanes[i].prompt = prompts[i % 2];
        lanes[i].latent = exec_alloc_float(&run.exec, 16, 6 * 14);
        lanes[i].velocity = exec_alloc_float(&run.exec, 16, 6 * 14);
        if (device != RUN_COUNT) exec_upload(&run.exec, lanes[i].latent, features);
        pointers[i] = &lanes[i];
    }
    for (int32_t step = 0; step < 2; step++) {
        for (int i = 0; i < 3; i++)
            lanes[i].step = step;
        assert_ok(run_pass(&run, DIT_PASS_STEP, pointers, 3, &error));
    }
    high_water = region_high_water(run.region);
    for (int i = 0; i < 3; i++) {
        exec_free(&run.exec, &lanes[i].latent);
        exec_free(&run.exec, &lanes[i].velocity);
    }
    for (int i = 0; i < 2; i++)
        dit_prompt_destroy(&run.exec, &prompts[i]);
    assert_int_equal(region_used(run.region), 0);
    if (device == RUN_COUNT) assert_true(count_read(run.device).operations > 0);
    run_close(&run);
    model_destroy(&model);
    return high_water;
}

static uint64_t run_text(const struct golden *golden, enum run_device device)
{
    static const int32_t ids[40] = {1, 2, 3};
    struct shoal_error error = {0};
    struct model *model;
    struct run run;
    struct text_lane *lanes[2];
    void *pointers[2];
    uint64_t high_water;

    assert_ok(family_open(golden->checkpoint, FAMILY_TEXT, golden->config_path, &model, &error));
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    for (int i = 0; i < 2; i++) {
        assert_ok(text_lane_create(
            model, device == RUN_COUNT ? NULL : ids, i ? 40 : 7, &lanes[i], &error));
        pointers[i] = lanes[i];
    }
    assert_ok(run_pass(&run, text_config(model)->pass[TEXT_LAST], pointers, 2, &error));
    high_water = region_high_water(run.region);
    assert_int_equal(region_used(run.region), 0);
    for (int i = 0; i < 2; i++)
        text_lane_destroy(&run.exec, &lanes[i]);
    run_close(&run);
    model_destroy(&model);
    return high_water;
}

static uint64_t run_vae(const struct golden *golden, enum run_device device)
{
    static const float latent[16 * 3 * 5];
    struct shoal_error error = {0};
    struct model *model;
    struct run run;
    struct vae_lane lane = {.height = 3, .width = 5};
    void *pointers[1] = {&lane};
    uint64_t high_water;

    assert_ok(family_open(golden->checkpoint, FAMILY_VAE, golden->config_path, &model, &error));
    assert_ok(run_open(&run, model, device, SCRATCH_BYTES, &error));
    lane.latent = exec_alloc_float(&run.exec, 16, 3 * 5);
    if (device != RUN_COUNT) {
        exec_upload(&run.exec, lane.latent, latent);
        lane.image = mem_calloc(3 * 64 * 3 * 5, sizeof *lane.image);
    }
    assert_ok(run_pass(&run, 0, pointers, 1, &error));
    high_water = region_high_water(run.region);
    exec_free(&run.exec, &lane.latent);
    assert_int_equal(region_used(run.region), 0);
    mem_free(lane.image);
    run_close(&run);
    model_destroy(&model);
    return high_water;
}

static void check(const char *name, uint64_t (*run)(const struct golden *, enum run_device))
{
    struct shoal_error error = {0};
    struct golden golden;
    uint64_t counted;

    assert_ok(golden_open(name, &golden, &error));
    run_count_traits = &golden_devices.traits;
    counted = run(&golden, RUN_COUNT);
    assert_true(counted > 0);
    for (int d = 0; d < golden_devices.count; d++)
        assert_int_equal(counted, run(&golden, golden_devices.list[d]));
    golden_close(&golden);
}

static void test_dit(void **state)
{
    (void)state;
    check("dit_a", run_dit);
    check("dit_d", run_dit);
    check("cosmos_a", run_dit);
    check("anima_a", run_dit);
    check("qwen_image_a", run_dit);
}

static void test_text(void **state)
{
    (void)state;
    check("text_gqa", run_text);
    check("text_vl", run_text);
    check("text_t5", run_text);
    check("text_umt5", run_text);
}

static void test_vae(void **state)
{
    (void)state;
    check("vae_l1", run_vae);
    check("wan_vae_d1", run_vae);
}

/* Too little scratch, by little and by much: the pass fails by name, does nothing odd, and leaves
 * nothing allocated. */
static void check_scratch_too_small(const char *name)
{
    struct shoal_error error = {0};
    struct golden golden;
    uint64_t need;

    assert_ok(golden_open(name, &golden, &error));
    need = run_vae(&golden, RUN_COUNT);
    for (uint64_t bytes = need - 256; bytes >= 1024; bytes = bytes / 512 * 256) {
        struct model *model;
        struct run run;
        struct vae_lane lane = {.height = 3, .width = 5};
        void *pointers[1] = {&lane};
        float image[3 * 64 * 15];

        lane.image = image;
        assert_ok(family_open(golden.checkpoint, FAMILY_VAE, golden.config_path, &model, &error));
        assert_ok(run_open(&run, model, golden_devices.list[0], bytes, &error));
        lane.latent = exec_alloc_float(&run.exec, 16, 3 * 5);
        assert_int_equal(run_pass(&run, 0, pointers, 1, &error), SHOAL_E_BUDGET);
        vae_lane_fini(&run.exec, &lane);
        exec_free(&run.exec, &lane.latent);
        assert_int_equal(region_used(run.region), 0);
        run_close(&run);
        model_destroy(&model);
    }
    golden_close(&golden);
}

static void test_scratch_too_small(void **state)
{
    (void)state;
    if (golden_devices.emulated_sm) skip(); /* slow, and the CPU does the same */
    check_scratch_too_small("vae_l1");
    check_scratch_too_small("wan_vae_d1");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_dit),
    cmocka_unit_test(test_text),
    cmocka_unit_test(test_vae),
    cmocka_unit_test(test_scratch_too_small),
};

GOLDEN_MAIN(tests, NULL, NULL)
