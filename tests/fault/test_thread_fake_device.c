/*
 * The streamer and whole pictures on a device whose work is late, out of order between streams, or
 * fails: the same bits as on the CPU device; any failure is told, and nothing is left behind.
 */
#include "fault/fake_device.h"
#include "fault/scenario.h"

#include "device/cpu/cpu.h"
#include "pipeline/job.h"
#include "pipeline/run.h"
#include "stream/streamer.h"

#include <stdio.h>
#include <stdlib.h>

#define SECONDS 60 /* that anything may take, in the slowest build */

static struct shoal_model *model;

static int set_up(void **state)
{
    (void)state;
    model = scenario_model();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    shoal_model_close(&model);
    return 0;
}

static struct device *fake(struct fake_options options)
{
    struct shoal_error error = {0};
    struct device *device = NULL;

    assert_ok(fake_create(&device, &options, &error));
    return device;
}

/* Nothing is left on it, and nothing was done with it that must not be. */
static void discard(struct device **device)
{
    struct fake_counts counts = fake_counts(*device);

    if (counts.violation) fail_msg("%s", counts.violation);
    assert_int_equal(counts.things, 0);
    device_destroy(device);
}

/*
 * The next of the ways to be late. Tests try all, one after another; slow builds leave most out and
 * go on with the next one at the next case.
 */
#define LATENESSES 4

static struct fake_options lateness(void)
{
    static const struct fake_options all[LATENESSES] = {
        {.pace = FAKE_LAZY},
        {.pace = FAKE_RANDOM, .seed = 1},
        {.pace = FAKE_EAGER},
        {.pace = FAKE_RANDOM, .seed = 2},
    };
    static size_t turn;

    return all[turn++ % LATENESSES];
}

/* ---- the fake itself ---- */

struct bench {
    struct device *device;
    const struct device_ops *ops;
    struct stream *compute, *copy;
    struct event *event[2];
    float host[64], back[64];
};

static void bench_open(struct bench *b, struct fake_options options)
{
    struct shoal_error error = {0};

    *b = (struct bench){.device = fake(options)};
    b->ops = b->device->ops;
    assert_ok(b->ops->arena_reserve(b->device, 4096, &error));
    assert_ok(b->ops->stream_create(b->device, false, &b->compute, &error));
    assert_ok(b->ops->stream_create(b->device, true, &b->copy, &error));
    for (int i = 0; i < 2; i++)
        assert_ok(b->ops->event_create(b->device, &b->event[i], &error));
    for (int i = 0; i < 64; i++)
        b->host[i] = (float)i;
}

static void bench_close(struct bench *b)
{
    b->ops->stream_destroy(&b->copy);
    b->ops->stream_destroy(&b->compute);
    for (int i = 0; i < 2; i++)
        b->ops->event_destroy(&b->event[i]);
    b->ops->arena_release(b->device);
    discard(&b->device);
}

static struct matrix row_at(const struct bench *b, int row)
{
    return matrix_at(b->device->arena + (uint64_t)row * 256, DTYPE_F32, 1, 64);
}

/* Row 1 = row 0 + row 0, by the compute stream. */
static void give_double(struct bench *b)
{
    b->device->ops->compute->blend(b->compute, row_at(b, 1), 2, row_at(b, 0), 0);
}

static void read_row(struct bench *b, int row)
{
    struct shoal_error error = {0};

    b->ops->copy_out(b->compute, b->back, row_at(b, row).addr, sizeof b->back);
    assert_ok(b->ops->stream_synchronize(b->compute, &error));
}

/* A copy lands when it must, with what its source holds then, and its place is lost until then. */
static void test_copies_are_late(void **state)
{
    struct shoal_error error = {0};
    struct bench b;

    (void)state;
    bench_open(&b, (struct fake_options){.pace = FAKE_LAZY});
    b.ops->copy_in(b.compute, row_at(&b, 1).addr, b.host, sizeof b.host);
    assert_ok(b.ops->stream_synchronize(b.compute, &error));
    b.ops->copy_in(b.copy, row_at(&b, 0).addr, b.host, sizeof b.host);
    b.ops->event_record(b.copy, b.event[0]);
    assert_memory_equal(
        (void *)(uintptr_t)row_at(&b, 0).addr, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    b.host[3] = 7; /* too early, and so it shows */
    b.ops->event_wait(b.compute, b.event[0]);
    give_double(&b);
    read_row(&b, 1);
    assert_true(b.back[3] == 14 && b.back[5] == 10);
    assert_true(b.ops->event_happened(b.event[0]) && b.ops->event_time_ns(b.event[0]));
    bench_close(&b);
}

/* What this file proves of the streamer it would also disprove: a wait left out is seen. */
static void test_missing_waits_show(void **state)
{
    struct shoal_error error = {0};
    struct bench b;

    (void)state;
    for (int wait = 0; wait < 2; wait++) {
        bench_open(&b, (struct fake_options){.pace = FAKE_LAZY});
        /* Reading before the copy has landed. */
        b.ops->copy_in(b.compute, row_at(&b, 1).addr, b.host, sizeof b.host);
        b.ops->copy_in(b.copy, row_at(&b, 0).addr, b.host, sizeof b.host);
        b.ops->event_record(b.copy, b.event[0]);
        if (wait) b.ops->event_wait(b.compute, b.event[0]);
        give_double(&b);
        read_row(&b, 1);
        assert_int_equal(b.back[3] == 6, wait);
        /* Overwriting what is still to be read. */
        assert_ok(b.ops->stream_synchronize(b.copy, &error));
        give_double(&b);
        b.ops->event_record(b.compute, b.event[1]);
        if (wait) b.ops->event_wait(b.copy, b.event[1]);
        b.ops->copy_in(b.copy, row_at(&b, 0).addr, b.host, sizeof b.host);
        read_row(&b, 1);
        assert_int_equal(b.back[3] == 6, wait);
        bench_close(&b);
    }
}

static void test_failures_stay_in_their_stream(void **state)
{
    struct shoal_error error = {0};
    struct bench b;

    (void)state;
    bench_open(&b, (struct fake_options){.pace = FAKE_LAZY, .failing_copy = 2});
    for (int row = 0; row < 3; row++)
        b.ops->copy_in(b.copy, row_at(&b, row).addr, b.host, sizeof b.host);
    b.ops->event_record(b.copy, b.event[0]);
    b.ops->event_synchronize(b.event[0]);
    assert_true(b.ops->event_happened(b.event[0]));
    assert_int_equal(b.ops->stream_synchronize(b.copy, &error), SHOAL_E_DEVICE);
    assert_clean_failure(SHOAL_E_DEVICE, &error);
    assert_non_null(strstr(error.text, "copying to the device"));
    read_row(&b, 0);
    assert_true(b.back[3] == 3);
    read_row(&b, 2);
    assert_false(b.back[3] == 3);
    bench_close(&b);
}

static void test_misuse_is_noticed(void **state)
{
    struct shoal_error error = {0};
    struct bench b;
    struct event *event;

    (void)state;
    bench_open(&b, (struct fake_options){.pace = FAKE_LAZY});
    assert_ok(b.ops->event_create(b.device, &event, &error));
    b.ops->event_record(b.compute, event);
    b.ops->event_destroy(&event);
    assert_non_null(fake_counts(b.device).violation);
    b.ops->stream_destroy(&b.copy);
    b.ops->stream_destroy(&b.compute);
    for (int i = 0; i < 2; i++)
        b.ops->event_destroy(&b.event[i]);
    assert_int_equal(fake_counts(b.device).things, 1);
    b.ops->arena_release(b.device);
    device_destroy(&b.device);
}

/* ---- the streamer ---- */

#define WALKS 3

struct walk {
    struct phase_pass pass;
    bool *resident;
    uint64_t ring_bytes, arena_bytes;
    char **expected; /* by block of the model; NULL: not of this pass */
    char **seen;     /* by visit */
};

/* The block's weights as the checkpoint has them, at their places in the block. */
static char *read_block(const struct block *block)
{
    struct shoal_error error = {0};
    char *bytes = calloc(1, block->bytes);

    for (int32_t w = 0; w < block->weight_count; w++) {
        char *to = bytes + block->weights[w].offset;

        for (int32_t p = 0; p < block->weights[w].piece_count; p++) {
            assert_ok(checkpoint_read(block->weights[w].pieces[p], to, &error));
            to += block->weights[w].pieces[p]->bytes;
        }
    }
    return bytes;
}

/* Every `every`-th block of the DiT's steps is resident (0: none); `slots` of the largest. */
static void walk_init(struct walk *w, const struct job *job, int every, int slots)
{
    uint64_t largest = 0;
    const struct pass *pass;
    const struct model *dit;

    *w = (struct walk){.pass = job_phase(job, SHOAL_PHASE_STEPS)};
    pass = w->pass.pass;
    dit = w->pass.model;
    w->resident = calloc((size_t)pass->count, sizeof *w->resident);
    w->expected = calloc((size_t)dit->block_count, sizeof *w->expected);
    w->seen = calloc((size_t)pass->count * WALKS, sizeof *w->seen);
    w->arena_bytes = dit->blocks[pass->globals].bytes;
    for (int32_t i = 0; i < pass->count; i++) {
        const struct block *block = &dit->blocks[pass->first + i];

        w->expected[pass->first + i] = read_block(block);
        w->resident[i] = every && i % every == 0;
        if (w->resident[i])
            w->arena_bytes += block->bytes;
        else if (block->bytes > largest)
            largest = block->bytes;
    }
    w->ring_bytes = largest * (uint64_t)slots;
    w->arena_bytes += w->ring_bytes;
}

static void walk_fini(struct walk *w)
{
    for (int32_t i = 0; i < w->pass.model->block_count; i++)
        free(w->expected[i]);
    for (int32_t i = 0; i < w->pass.pass->count * WALKS; i++)
        free(w->seen[i]);
    free(w->resident);
    free(w->expected);
    free(w->seen);
}

/* Compares the values only: between weights anything may lie. */
static void expect_same(const struct block *block, const char *seen, const char *expected)
{
    for (int32_t i = 0; i < block->weight_count; i++) {
        const struct weight *w = &block->weights[i];

        if (memcmp(seen + w->offset, expected + w->offset, w->bytes))
            fail_msg("%s, %s", block->name, w->name);
    }
}

static void walk_on(struct walk *w, struct fake_options options)
{
    const struct pass *pass = w->pass.pass;
    const struct block *blocks = &w->pass.model->blocks[pass->first];
    struct shoal_error error = {0};
    struct device *device = fake(options);
    struct streamer *streamer = NULL;
    struct stream *compute = NULL;
    struct arena arena;

    assert_ok(arena_open(&arena, device, w->arena_bytes, &error));
    assert_ok(device->ops->stream_create(device, false, &compute, &error));
    assert_ok(streamer_create(&streamer,
        &(struct streamer_setup){.arena = &arena,
            .compute = compute,
            .model = w->pass.model,
            .pass = pass,
            .resident = w->resident,
            .ring_bytes = w->ring_bytes,
            .walks = WALKS},
        &error));
    /* Nothing is looked at before all is given: the device is as late as it can be. */
    for (int32_t v = 0; v < pass->count * WALKS; v++) {
        int32_t i = v % pass->count;

        if (!w->seen[v]) w->seen[v] = malloc(blocks[i].bytes);
        device->ops->copy_out(
            compute, w->seen[v], streamer_acquire(streamer, pass->first + i), blocks[i].bytes);
        streamer_release(streamer, pass->first + i);
    }
    assert_ok(device->ops->stream_synchronize(compute, &error));
    assert_ok(streamer_check(streamer, &error));
    streamer_destroy(&streamer);
    device->ops->stream_destroy(&compute);
    arena_close(&arena);
    discard(&device);
    for (int32_t v = 0; v < pass->count * WALKS; v++)
        expect_same(
            &blocks[v % pass->count], w->seen[v], w->expected[pass->first + v % pass->count]);
}

static void test_streamer(void **state)
{
    static const struct {
        int every, slots;
    } layouts[] = {{0, 1}, {0, 2}, {3, 2}, {2, 5}, {1, 0}};
    const struct shoal_request request = scenario_request(model);
    struct shoal_error error = {0};
    struct job job;

    (void)state;
    assert_ok(job_init(&job, model, &request, &error));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct walk w;

        walk_init(&w, &job, layouts[i].every, layouts[i].slots);
        watchdog_set("the streamer on a late device", SECONDS);
        for (int k = 0; k < LATENESSES; k += SCENARIO_THINNER)
            walk_on(&w, lateness());
        walk_fini(&w);
    }
    watchdog_clear();
    job_fini(&job);
}

/* ---- pictures ---- */

static uint64_t picture_on_cpu(const struct shoal_plan *plan)
{
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    uint64_t hash;

    assert_ok(shoal_run(plan, NULL, &result, &error));
    hash = scenario_hash(result);
    shoal_result_destroy(&result);
    return hash;
}

/* Runs it; what the fake counted goes to *counts. */
static enum shoal_status picture(const struct shoal_plan *plan, struct fake_options options,
    uint64_t *hash, struct fake_counts *counts, struct shoal_error *error)
{
    struct device *device = fake(options);
    struct shoal_result *result = NULL;
    enum shoal_status status = run_on_device(plan, device, NULL, &result, error);

    *counts = fake_counts(device);
    discard(&device);
    if (status)
        assert_null(result);
    else
        *hash = scenario_hash(result);
    shoal_result_destroy(&result);
    return status;
}

/* The same bits as on the CPU device. */
static void expect_picture(const struct shoal_request *request)
{
    struct shoal_plan *plan = scenario_plan(model, request);
    uint64_t reference = picture_on_cpu(plan);

    for (int k = 0; k < LATENESSES; k += SCENARIO_THINNER) {
        struct shoal_error error = {0};
        struct fake_counts counts;
        uint64_t hash = 0;

        watchdog_set("a picture on a late device", SECONDS);
        assert_ok(picture(plan, lateness(), &hash, &counts, &error));
        assert_int_equal(hash, reference);
    }
    watchdog_clear();
    shoal_plan_destroy(&plan);
}

static void test_pictures(void **state)
{
    struct shoal_request r = scenario_request(model);

    (void)state;
    r.count = 2;
    expect_picture(&r);
    r.count = 1;
    r.steps = 2;
    r.resident_blocks = 0;
    expect_picture(&r);
    r.prefetch_slots = 2;
    r.lanes = 1;
    expect_picture(&r);
    r.prefetch_slots = SHOAL_AUTO;
    r.buffer = SHOAL_BUFFER_SINGLE;
    expect_picture(&r);
    r.buffer = SHOAL_BUFFER_AUTO;
    r.resident_blocks = 5;
    expect_picture(&r);
    r.resident_blocks = SHOAL_AUTO;
    scenario_least(model, &r);
    expect_picture(&r);
}

/* ---- failures ---- */

/* The counter that `what` names of the options, and of the counts. */
enum failing { COPY, OPERATION, CREATION };

static void fail_at(enum failing what, struct fake_options *options, int64_t n)
{
    *(what == COPY          ? &options->failing_copy
        : what == OPERATION ? &options->failing_operation
                            : &options->failing_creation) = n;
}

static int64_t counted(enum failing what, const struct fake_counts *counts)
{
    return what == COPY        ? counts->copies
           : what == OPERATION ? counts->operations
                               : counts->creations;
}

/* Each of them fails, or every `stride`-th; fewer in slow builds. */
static void sweep(enum failing what, const char *name, int64_t stride)
{
    struct shoal_request r = scenario_request(model);
    struct fake_options options = {.pace = FAKE_LAZY};
    struct shoal_error error = {0};
    struct fake_counts counts;
    struct shoal_plan *plan;
    uint64_t reference = 0, hash;
    int64_t total, points = 0;

    r.threads = 1;
    scenario_least(model, &r);
    plan = scenario_plan(model, &r);
    assert_ok(picture(plan, options, &reference, &counts, &error));
    total = counted(what, &counts);
    for (int64_t n = 1; n <= total; n += stride * SCENARIO_THINNER, points++) {
        enum shoal_status status;

        error = (struct shoal_error){0};
        options.pace = (enum fake_pace)(n % 3);
        options.seed = (uint64_t)n;
        fail_at(what, &options, n);
        watchdog_set(name, SECONDS);
        status = picture(plan, options, &hash, &counts, &error);
        if (status != SHOAL_E_DEVICE)
            fail_msg("%s %lld: status %d, %s", name, (long long)n, (int)status, error.text);
        assert_clean_failure(status, &error);
        assert_non_null(strstr(error.text, "as it was told to"));
    }
    watchdog_clear();
    printf("%lld of %lld: %s\n", (long long)points, (long long)total, name);
    shoal_plan_destroy(&plan);
}

static void test_failing_copies(void **state)
{
    (void)state;
    sweep(COPY, "a failing copy", 1);
}

static void test_failing_operations(void **state)
{
    (void)state;
    sweep(OPERATION, "a failing operation", 19);
}

static void test_failing_creations(void **state)
{
    (void)state;
    sweep(CREATION, "a failing arena, stream or event", 1);
}

/* ---- cancelling ---- */

static bool stop_after(void *user)
{
    return --*(int *)user < 0;
}

static void test_cancelled_with_work_under_way(void **state)
{
    struct shoal_request r = scenario_request(model);
    struct shoal_plan *plan;

    (void)state;
    scenario_least(model, &r);
    plan = scenario_plan(model, &r);
    for (int polls = 0; polls < 60; polls += 7 * SCENARIO_THINNER) {
        struct device *device = fake(
            (struct fake_options){.pace = (enum fake_pace)(polls % 3), .seed = (uint64_t)polls});
        struct shoal_error error = {0};
        struct shoal_result *result = NULL;
        int left = polls;
        enum shoal_status status = run_on_device(plan, device,
            &(struct shoal_callbacks){.user = &left, .cancelled = stop_after}, &result, &error);

        assert_int_equal(status, left < 0 ? SHOAL_E_CANCELLED : SHOAL_OK);
        shoal_result_destroy(&result);
        discard(&device);
    }
    shoal_plan_destroy(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_are_late),
        cmocka_unit_test(test_missing_waits_show),
        cmocka_unit_test(test_failures_stay_in_their_stream),
        cmocka_unit_test(test_misuse_is_noticed),
        cmocka_unit_test(test_streamer),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_failing_copies),
        cmocka_unit_test(test_failing_operations),
        cmocka_unit_test(test_failing_creations),
        cmocka_unit_test(test_cancelled_with_work_under_way),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
