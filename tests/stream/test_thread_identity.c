/*
 * The promises, on shoal-mini and through the public header only: the same bytes whatever the
 * budget, slots, residents, buffer and lanes; a peak that is the plan's to the byte; a least budget
 * that works, where one byte less is refused before anything runs.
 */
#include "support.h"

#include "fault/scenario.h"

#include "shoal/shoal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODEL "models/shoal-mini"
#define LONG_RUN 2 /* steps: enough for the ring to wrap from one to the next */

/* Slow builds leave cases out. */
#define STRIDE (1 + SCENARIO_THINNER / 4)

/* Of pictures, unless a case says another. What is decided is the same at every size. */
#define SIDE 64

static struct shoal_model *model;

static int open_model(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    if (shoal_model_open(&(struct shoal_model_paths){.model = MODEL}, &model, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    shoal_model_close(&model);
    return 0;
}

static struct shoal_request request(void)
{
    struct shoal_request r;

    shoal_request_init(&r, model);
    r.prompt = "a cat wearing a hat";
    r.width = r.height = SIDE;
    r.steps = LONG_RUN;
    r.cfg = 3;
    r.seed = 7;
    r.threads = 2;
    return r;
}

static struct shoal_plan *plan_for(const struct shoal_request *r)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;

    assert_ok(shoal_plan_create(model, r, &plan, &error));
    return plan;
}

static struct shoal_plan_summary summary_of(const struct shoal_request *r)
{
    struct shoal_plan *plan = plan_for(r);
    struct shoal_plan_summary s;

    shoal_plan_summarise(plan, &s);
    shoal_plan_destroy(&plan);
    return s;
}

/* FNV-1a over latents and pixels of every picture. */
static uint64_t hash_of(const struct shoal_result *result)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (int32_t i = 0; i < shoal_result_count(result); i++) {
        struct shoal_image image;

        shoal_result_image(result, i, &image);
        const uint8_t *latents = (const uint8_t *)image.latents;

        for (size_t k = 0; k < image.latent_count * sizeof(float); k++)
            hash = (hash ^ latents[k]) * 0x100000001b3u;
        for (size_t k = 0; k < (size_t)image.width * (size_t)image.height * 3; k++)
            hash = (hash ^ image.rgb[k]) * 0x100000001b3u;
    }
    return hash;
}

/* Runs it; checks that the peak and the bytes copied are the plan's. */
static uint64_t run(const struct shoal_request *r)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = plan_for(r);
    struct shoal_result *result = NULL;
    struct shoal_plan_summary planned;
    struct shoal_report report;
    uint64_t hash;

    shoal_plan_summarise(plan, &planned);
    assert_true(planned.fits);
    assert_true(planned.peak_vram_bytes <= r->vram_bytes);
    assert_ok(shoal_run(plan, NULL, &result, &error));
    shoal_result_report(result, &report);
    assert_int_equal(report.peak_vram_bytes, planned.peak_vram_bytes);
    assert_int_equal(report.step_bytes, planned.step_copy_bytes);
    hash = hash_of(result);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    return hash;
}

static void test_budgets(void **state)
{
    struct shoal_request r = request();
    const struct shoal_plan_summary s = summary_of(&r);
    uint64_t reference = run(&r);

    (void)state;
    assert_int_equal(s.resident_blocks, s.blocks);
    r.vram_bytes = s.full_vram_bytes;
    assert_int_equal(summary_of(&r).step_copy_bytes, 0);
    r.vram_bytes -= 1 << 20;
    assert_int_not_equal(summary_of(&r).step_copy_bytes, 0);
    for (int percent = 75; percent >= 0; percent -= 25) {
        r.vram_bytes =
            s.least_vram_bytes + (s.full_vram_bytes - s.least_vram_bytes) * (uint64_t)percent / 100;
        assert_int_equal(run(&r), reference);
    }
}

static void test_slots_and_buffers(void **state)
{
    struct shoal_request r = request();
    uint64_t reference = run(&r);

    (void)state;
    r.resident_blocks = 0;
    for (r.prefetch_slots = 2; r.prefetch_slots <= 6; r.prefetch_slots += STRIDE)
        assert_int_equal(run(&r), reference);
    r.prefetch_slots = SHOAL_AUTO;
    r.buffer = SHOAL_BUFFER_SINGLE;
    assert_int_equal(run(&r), reference);
    r.buffer = SHOAL_BUFFER_DOUBLE;
    assert_int_equal(run(&r), reference);
}

static void test_residents(void **state)
{
    struct shoal_request r = request();
    int32_t blocks = summary_of(&r).blocks;
    uint64_t reference = run(&r);

    (void)state;
    for (r.resident_blocks = 0; r.resident_blocks <= blocks; r.resident_blocks += STRIDE)
        assert_int_equal(run(&r), reference);
}

/* Pictures of one run are the pictures of runs of their own, whoever shares a pass. */
static void test_lanes_and_counts(void **state)
{
    struct shoal_request r = request();
    uint64_t reference;

    (void)state;
    r.count = 2;
    r.resident_blocks = 1;
    reference = run(&r);
    for (r.lanes = 1; r.lanes <= 4; r.lanes += STRIDE)
        assert_int_equal(run(&r), reference);

    struct shoal_error error = {0};
    struct shoal_result *pair = NULL, *single = NULL;
    struct shoal_image a, b;

    r.lanes = SHOAL_AUTO;
    struct shoal_plan *plan = plan_for(&r);

    assert_ok(shoal_run(plan, NULL, &pair, &error));
    shoal_plan_destroy(&plan);
    r.count = 1;
    r.seed++;
    plan = plan_for(&r);
    assert_ok(shoal_run(plan, NULL, &single, &error));
    shoal_plan_destroy(&plan);
    shoal_result_image(pair, 1, &a);
    shoal_result_image(single, 0, &b);
    assert_int_equal(a.seed, b.seed);
    assert_memory_equal(a.latents, b.latents, a.latent_count * sizeof(float));
    shoal_result_destroy(&pair);
    shoal_result_destroy(&single);
}

/* Picture `index` of the request's is the only one that `alone` paints. */
static void expect_picture(
    const struct shoal_result *result, int32_t index, const struct shoal_request *alone)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = plan_for(alone);
    struct shoal_result *single = NULL;
    struct shoal_image a, b;

    assert_ok(shoal_run(plan, NULL, &single, &error));
    shoal_plan_destroy(&plan);
    shoal_result_image(result, index, &a);
    shoal_result_image(single, 0, &b);
    assert_int_equal(a.seed, b.seed);
    assert_string_equal(a.prompt, alone->prompt);
    assert_memory_equal(a.latents, b.latents, a.latent_count * sizeof(float));
    assert_memory_equal(a.rgb, b.rgb, (size_t)a.width * (size_t)a.height * 3);
    shoal_result_destroy(&single);
}

/* Several prompts: each picture is that of a run of its own, whoever shares a pass. */
static void test_prompts(void **state)
{
    static const char *const more[] = {
        "two long blue dragons over a river at night", "a red apple"};
    struct shoal_request r = request(), alone;
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    struct shoal_plan_summary s;
    struct shoal_plan *plan;
    uint64_t reference;

    (void)state;
    r.steps = 2;
    r.sampler = "euler_ancestral";
    r.count = STRIDE > 2 ? 1 : 2;
    alone = r;
    alone.count = 1;
    r.more_prompts = more;
    r.more_prompt_count = 2;
    plan = plan_for(&r);
    assert_ok(shoal_run(plan, NULL, &result, &error));
    shoal_plan_destroy(&plan);
    assert_int_equal(shoal_result_count(result), 3 * r.count);
    reference = hash_of(result);
    for (int32_t i = 0; i < 3 * r.count; i += STRIDE) {
        alone.prompt = i < r.count ? r.prompt : more[i / r.count - 1];
        alone.seed = r.seed + (uint64_t)(i % r.count);
        expect_picture(result, i, &alone);
    }
    shoal_result_destroy(&result);
    s = summary_of(&r);
    r.vram_bytes = s.least_vram_bytes;
    assert_int_equal(run(&r), reference);
    r.vram_bytes = (s.least_vram_bytes + s.full_vram_bytes) / 2;
    r.lanes = 5;
    assert_int_equal(run(&r), reference);
}

static void test_threads_do_not_matter(void **state)
{
    struct shoal_request r = request();
    uint64_t reference = run(&r);

    (void)state;
    for (r.threads = 1; r.threads <= 3; r.threads += 2)
        assert_int_equal(run(&r), reference);
}

static void test_hard_cap(void **state)
{
    struct shoal_error error = {0};
    struct shoal_request r = request();
    uint64_t least = summary_of(&r).least_vram_bytes;
    struct shoal_result *result = NULL;
    char bytes[32];

    (void)state;
    r.vram_bytes = least - 1;
    struct shoal_plan *plan = plan_for(&r);

    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)least);
    assert_non_null(strstr(shoal_plan_refusal(plan), bytes));
    assert_int_equal(shoal_run(plan, NULL, &result, &error), SHOAL_E_BUDGET);
    assert_non_null(strstr(error.text, bytes));
    assert_null(result);
    shoal_plan_destroy(&plan);
    r.vram_bytes = least;
    assert_int_equal(run(&r), run(&(struct shoal_request){
                                  .prompt = r.prompt,
                                  .width = r.width,
                                  .height = r.height,
                                  .steps = r.steps,
                                  .count = 1,
                                  .cfg = r.cfg,
                                  .shift = r.shift,
                                  .seed = r.seed,
                                  .vram_bytes = SHOAL_UNLIMITED,
                                  .ram_bytes = SHOAL_UNLIMITED,
                                  .resident_blocks = SHOAL_AUTO,
                                  .prefetch_slots = SHOAL_AUTO,
                                  .lanes = SHOAL_AUTO,
                              }));
}

/* Every option alone has its own least budget, and it works. */
static void test_least_budget_of_options(void **state)
{
    struct shoal_request cases[5];

    (void)state;
    if (STRIDE > 2) skip();
    for (int i = 0; i < 5; i++)
        cases[i] = request();
    cases[0].prefetch_slots = 3;
    cases[1].resident_blocks = 2;
    cases[2].buffer = SHOAL_BUFFER_DOUBLE;
    cases[3].lanes = 2;
    cases[4].height = 256; /* the VAE is the largest phase */
    cases[4].steps = 1;
    for (int i = 0; i < 5; i++) {
        struct shoal_plan_summary s = summary_of(&cases[i]);

        cases[i].vram_bytes = s.least_vram_bytes - 1;
        assert_false(summary_of(&cases[i]).fits);
        cases[i].vram_bytes = s.least_vram_bytes;
        assert_true(summary_of(&cases[i]).fits);
        run(&cases[i]);
    }
}

/* Where the VAE is the largest phase, less memory means more strips; no bit changes. */
static void test_vae_strips(void **state)
{
    struct shoal_request r = request();
    struct shoal_plan_summary whole, least, s;
    uint64_t reference;
    int32_t before = 0;

    (void)state;
    if (STRIDE > 2) skip(); /* no threads of its own */
    r.height = 256;
    r.steps = 1;
    r.cfg = 1;
    reference = run(&r);
    r.vae_strips = SHOAL_STRIPS_OFF;
    whole = summary_of(&r);
    r.vae_strips = SHOAL_STRIPS_ON;
    least = summary_of(&r);
    assert_int_equal(whole.strip_blocks, 0);
    assert_true(least.strip_blocks > 0);
    assert_true(least.least_vram_bytes < whole.least_vram_bytes / 10 * 8);
    assert_true(least.seconds > whole.seconds);
    assert_int_equal(run(&r), reference);

    r.vae_strips = SHOAL_STRIPS_AUTO;
    assert_int_equal(summary_of(&r).strip_blocks, 0);
    assert_int_equal(summary_of(&r).least_vram_bytes, least.least_vram_bytes);
    assert_int_equal(summary_of(&r).full_vram_bytes, whole.full_vram_bytes);
    r.vram_bytes = whole.least_vram_bytes;
    assert_int_equal(summary_of(&r).strip_blocks, 0);
    for (int i = 8; i >= 0; i -= STRIDE) {
        r.vram_bytes = least.least_vram_bytes +
                       (whole.least_vram_bytes - 1 - least.least_vram_bytes) / 8 * (uint64_t)i;
        s = summary_of(&r);
        assert_true(s.fits && s.strip_blocks > 0 && s.strip_blocks >= before);
        before = s.strip_blocks;
        assert_int_equal(run(&r), reference);
    }
    assert_int_equal(before, least.strip_blocks);
    /* Less than whole pictures take is refused if they must be whole; the message's budget works.
     */
    r.vae_strips = SHOAL_STRIPS_OFF;
    assert_false(summary_of(&r).fits);
    r.vram_bytes = summary_of(&r).least_vram_bytes;
    assert_int_equal(r.vram_bytes, whole.least_vram_bytes);
    assert_int_equal(run(&r), reference);
}

/* ---- cancelling ---- */

struct stopper {
    int left; /* polls until the answer is yes */
    int reports;
};

static bool stop_after(void *user)
{
    return ((struct stopper *)user)->left-- <= 0;
}

static void count_report(void *user, const struct shoal_progress *progress)
{
    assert_true(progress->block <= progress->blocks);
    assert_true(progress->step <= progress->steps);
    ((struct stopper *)user)->reports++;
}

static void test_cancel_anywhere(void **state)
{
    struct shoal_request r = request();

    (void)state;
    r.resident_blocks = 0;
    for (int polls = 0; polls < 60; polls += 7 * STRIDE) {
        struct stopper stopper = {.left = polls};
        const struct shoal_callbacks callbacks = {&stopper, count_report, stop_after};
        struct shoal_error error = {0};
        struct shoal_result *result = NULL;
        struct shoal_plan *plan = plan_for(&r);
        enum shoal_status status = shoal_run(plan, &callbacks, &result, &error);

        if (stopper.left < 0) {
            assert_int_equal(status, SHOAL_E_CANCELLED);
            assert_null(result);
        } else {
            assert_int_equal(status, SHOAL_OK);
            assert_true(stopper.reports > 0);
        }
        shoal_result_destroy(&result);
        shoal_plan_destroy(&plan);
    }
}

/* Found by a hostile tester: these crashed, or left the caller's pointer as it was. */
static void test_nothing_given(void **state)
{
    struct shoal_error error = {0};
    struct shoal_model *missing = (struct shoal_model *)&error;

    (void)state;
    shoal_model_close(NULL);
    shoal_plan_destroy(NULL);
    shoal_result_destroy(NULL);
    shoal_text_free(NULL);
    assert_int_equal(
        shoal_model_open(&(struct shoal_model_paths){.model = "/nowhere"}, &missing, &error),
        SHOAL_E_MISSING);
    assert_null(missing);
}

/* The sizes that a plan adds up to are never wrapped. */
static void test_huge_requests(void **state)
{
    struct shoal_request r = request();
    struct shoal_plan_summary s;

    (void)state;
    r.width = r.height = 16384;
    r.count = 64 / SCENARIO_THINNER;
    s = summary_of(&r);
    assert_true(s.step_operations > 1ull << 50 && s.step_operations <= INT64_MAX);
    assert_true(s.least_vram_bytes > 1ull << 32 && s.full_vram_bytes >= s.least_vram_bytes);
}

/* A least RAM budget works; one byte less is refused with its number. */
static void test_least_ram(void **state)
{
    struct shoal_request r = request();
    char bytes[32];

    (void)state;
    r.vram_bytes = summary_of(&r).least_vram_bytes + (4 << 20);
    r.ram_bytes = summary_of(&r).least_ram_bytes;
    assert_true(summary_of(&r).fits);
    run(&r);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)r.ram_bytes);
    r.ram_bytes--;
    struct shoal_plan *plan = plan_for(&r);

    assert_non_null(strstr(shoal_plan_refusal(plan), bytes));
    shoal_plan_destroy(&plan);
    assert_false(summary_of(&r).fits);
}

/* Weights of a plain file that are packed while they are read. */
static void test_packing(void **state)
{
    struct shoal_request r = request();
    uint64_t reference = run(&r), least, full;
    int32_t blocks = summary_of(&r).blocks;

    (void)state;
    r.wire = SHOAL_WIRE_PACKED;
    least = summary_of(&r).least_vram_bytes;
    full = summary_of(&r).full_vram_bytes;
    for (uint64_t part = 0; part < 4; part += STRIDE) {
        r.vram_bytes = least + (full - least) / 4 * part;
        r.ram_bytes = SHOAL_UNLIMITED;
        assert_true(summary_of(&r).packs);
        assert_int_equal(run(&r), reference);
        r.ram_bytes = summary_of(&r).least_ram_bytes;
        assert_int_equal(run(&r), reference);
        r.ram_bytes--;
        assert_false(summary_of(&r).fits);
    }
    /* Residents that stay packed. */
    r.ram_bytes = SHOAL_UNLIMITED;
    r.vram_bytes = least;
    for (r.resident_blocks = 0; r.resident_blocks <= blocks; r.resident_blocks += 3 * STRIDE) {
        r.vram_bytes = SHOAL_UNLIMITED;
        r.vram_bytes = summary_of(&r).least_vram_bytes;
        assert_int_equal(run(&r), reference);
    }
}

/* Whatever a sampler keeps, draws and calls: no budget, lane or number of pictures changes a bit,
 * no two samplers paint the same, and what is kept is in the plan's peak (see run). */
static void test_samplers(void **state)
{
    static const struct {
        const char *sampler, *schedule;
        int32_t calls;
    } cases[] = {{"heun", "normal", 7}, {"euler", "model", 4}, {"euler", "beta", 4},
        {"euler_ancestral", "simple", 4}, {"dpmpp_2m", "karras", 4}, {"uni_pc", "exponential", 4},
        {"uni_pc_bh2", "exponential", 4}};
    enum { CASES = sizeof cases / sizeof *cases, FEW = STRIDE * STRIDE };
    uint64_t references[CASES];

    (void)state;
    if (STRIDE > 2) skip(); /* no threads of its own */
    for (int i = 0; i < CASES; i += FEW) {
        struct shoal_request r = request();
        struct shoal_plan_summary s;

        r.steps = 4;
        r.count = 2;
        r.sampler = cases[i].sampler;
        r.schedule = cases[i].schedule;
        s = summary_of(&r);
        assert_int_equal(s.calls, cases[i].calls);
        references[i] = run(&r);
        for (int k = 0; k < i; k += FEW)
            assert_int_not_equal(references[i], references[k]);
        r.vram_bytes = s.least_vram_bytes;
        assert_int_equal(run(&r), references[i]);
        r.vram_bytes = (s.least_vram_bytes + s.full_vram_bytes) / 2;
        r.lanes = 3;
        r.threads = 1;
        assert_int_equal(run(&r), references[i]);
    }
}

/* Picture 1 of two is picture 0 of the next seed, its fresh noise included. */
static void test_noise_is_each_picture_s(void **state)
{
    struct shoal_request r = request();
    struct shoal_error error = {0};
    struct shoal_result *both = NULL, *one = NULL;
    struct shoal_image second, alone;
    struct shoal_plan *plan;

    (void)state;
    if (STRIDE > 2) skip(); /* no threads of its own */
    r.steps = 3;
    r.sampler = "euler_ancestral";
    r.count = 2;
    plan = plan_for(&r);
    assert_ok(shoal_run(plan, NULL, &both, &error));
    shoal_plan_destroy(&plan);
    r.count = 1;
    r.seed++;
    plan = plan_for(&r);
    assert_ok(shoal_run(plan, NULL, &one, &error));
    shoal_plan_destroy(&plan);
    shoal_result_image(both, 1, &second);
    shoal_result_image(one, 0, &alone);
    assert_memory_equal(second.latents, alone.latents, alone.latent_count * sizeof *alone.latents);
    shoal_result_destroy(&both);
    shoal_result_destroy(&one);
}

/* Writes what the request paints to a file. */
static void paint_to(const struct shoal_request *r, const char *path)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = plan_for(r);
    struct shoal_result *result = NULL;

    assert_ok(shoal_run(plan, NULL, &result, &error));
    assert_ok(shoal_result_write_png(result, 0, path, &error));
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
}

/* From a picture: the same bits under every budget, in strips too; nearer to it with less strength;
 * with all of it, what noise alone gives. */
static void test_picture_to_begin_with(void **state)
{
    struct shoal_request r = request(), alone;
    struct shoal_plan_summary s;
    char path[64];
    uint64_t reference, weaker;

    (void)state;
    if (STRIDE > 2) skip(); /* no threads of its own */
    snprintf(path, sizeof path, "/tmp/shoal-identity-%d.png", (int)getpid());
    r.steps = 3;
    paint_to(&r, path);
    r.seed = 8;
    r.count = 2;
    r.sampler = "euler_ancestral";
    alone = r;
    r.init = path;
    r.width = r.height = 0;
    assert_int_equal(summary_of(&r).width, alone.width);
    reference = run(&r);
    r.strength = 0.3f;
    weaker = run(&r);
    assert_int_not_equal(weaker, reference);
    r.strength = 1;
    assert_int_equal(run(&r), run(&alone));
    r.strength = SHOAL_DEFAULT_STRENGTH;
    s = summary_of(&r);
    r.vram_bytes = s.least_vram_bytes;
    assert_int_equal(run(&r), reference);
    r.vram_bytes = (s.least_vram_bytes + s.full_vram_bytes) / 2;
    r.lanes = 1;
    r.vae_strips = SHOAL_STRIPS_ON;
    assert_int_equal(run(&r), reference);
    unlink(path);
}

/* What is wrong with a picture to begin with, or with its strength. */
static void test_bad_pictures(void **state)
{
    static const struct {
        const char *init;
        int32_t width;
        float strength;
        const char *words;
    } cases[] = {{"nowhere.png", SIDE, 0.5f, "nowhere.png"}, {"meson.build", SIDE, 0.5f, "no PNG"},
        {NULL, 96, 0.5f, "64 x 64"}, {NULL, SIDE, 0, "--strength"},
        {NULL, SIDE, 1.5f, "--strength"}, {NULL, SIDE, NAN, "--strength"},
        {NULL, SIDE, 0.001f, "1000"}};
    struct shoal_request r = request();
    char path[64];

    (void)state;
    snprintf(path, sizeof path, "/tmp/shoal-identity-%d.png", (int)getpid());
    paint_to(&r, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct shoal_plan *plan = NULL;

        r = request();
        r.init = cases[i].init ? cases[i].init : path;
        r.width = cases[i].width;
        r.strength = cases[i].strength;
        assert_int_not_equal(shoal_plan_create(model, &r, &plan, &error), SHOAL_OK);
        if (!strstr(error.text, cases[i].words)) fail_msg("%zu: %s", i, error.text);
    }
    unlink(path);
}

static void test_bad_requests(void **state)
{
    static const char *const few[] = {"a cat", NULL};
    struct shoal_request cases[18];
    static const char *const names[18] = {"prompt", "width", "height", "steps", "count", "cfg",
        "shift", "sampler", "--resident-blocks", "device", "buffer", "wire", "--vae-strips",
        "schedule", "more_prompt_count", "more_prompt_count", "prompt 3",
        "33 pictures of each of 2"};

    (void)state;
    for (int i = 0; i < 18; i++)
        cases[i] = request();
    cases[0].prompt = NULL;
    cases[1].width = 100;
    cases[2].height = 0;
    cases[3].steps = 0;
    cases[4].count = 65;
    cases[5].cfg = -1;
    cases[6].shift = 0;
    cases[7].sampler = "nonesuch";
    cases[8].resident_blocks = 1000;
    cases[9].device = "toaster";
    cases[10].buffer = (enum shoal_buffer)77;
    cases[11].wire = (enum shoal_wire)77;
    cases[12].vae_strips = (enum shoal_strips)77;
    cases[13].schedule = "nonesuch";
    cases[14].more_prompt_count = -1;
    cases[15].more_prompt_count = SHOAL_MAX_PICTURES;
    for (int i = 16; i < 18; i++)
        cases[i].more_prompts = few;
    cases[16].more_prompt_count = 2;
    cases[17].more_prompt_count = 1;
    cases[17].count = 33;
    for (int i = 0; i < 18; i++) {
        struct shoal_error error = {0};
        struct shoal_plan *plan = (struct shoal_plan *)&cases;

        assert_int_not_equal(shoal_plan_create(model, &cases[i], &plan, &error), SHOAL_OK);
        assert_non_null(strstr(error.text, names[i]));
        assert_null(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_slots_and_buffers),
        cmocka_unit_test(test_residents),
        cmocka_unit_test(test_lanes_and_counts),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_hard_cap),
        cmocka_unit_test(test_least_budget_of_options),
        cmocka_unit_test(test_vae_strips),
        cmocka_unit_test(test_cancel_anywhere),
        cmocka_unit_test(test_nothing_given),
        cmocka_unit_test(test_huge_requests),
        cmocka_unit_test(test_least_ram),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_noise_is_each_picture_s),
        cmocka_unit_test(test_picture_to_begin_with),
        cmocka_unit_test(test_bad_pictures),
        cmocka_unit_test(test_bad_requests),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
