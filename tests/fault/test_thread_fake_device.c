/*
 * The streamer and whole pictures on a device whose work is late, out of order between streams, or
 * fails: the same bits as on the CPU device; any failure is told, and nothing is left behind.
 */
#include "fault/fake_device.h"
#include "fault/scenario.h"

#include "pipeline/links.h"
#include "pipeline/run.h"
#include "stream/noise_model.h"
#include "unit/mini_adapter.h"

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

#define STAGING (CARGO_CHUNK_BYTES + 8192)

/* Gives copies of a block's weights to seen[0..1], without waiting for them. */
static void look_later(struct rig *rig, int index, char **seen)
{
    struct shoal_error error = {0};
    struct matrix weights[2];

    if (index == BLOCKS)
        assert_ok(streamer_globals(rig->streamer, weights, &error));
    else
        assert_ok(streamer_acquire(rig->streamer, index, weights, &error));
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = rig->model->weights[2 * index + i].bytes;

        seen[i] = malloc(bytes);
        rig->device->ops->copy_out(rig->compute, seen[i], weights[i].addr, bytes);
    }
    if (index < BLOCKS) streamer_release(rig->streamer, index);
}

static void compare(const struct noise_model *m, int index, char **seen)
{
    for (int i = 0; i < 2; i++) {
        if (memcmp(seen[i], m->data[2 * index + i], m->weights[2 * index + i].bytes))
            fail_msg("block %d, weight %d", index, i);
        free(seen[i]);
    }
}

struct loading {
    enum shoal_pin pin;
    enum reader_backend backend;
    int threads;
};

/* Nothing is looked at before all is given: the device is as late as it can be. Returns what was
 * pinned. */
static uint64_t walk_late_with(struct noise_model *m, const struct streamer_place *places,
    uint64_t ring_bytes, uint64_t staging_bytes, struct fake_options options, struct loading how)
{
    uint64_t pinned;
    char *seen[WALKS * (BLOCKS + 1)][2];
    struct shoal_error error = {0};
    struct rig rig;

    watchdog_set("the streamer on a late device", SECONDS);
    rig_open(&rig, m, fake(options), places, ring_bytes, staging_bytes);
    rig.setup.pin = how.pin;
    rig.setup.backend = how.backend;
    rig.setup.threads = how.threads;
    assert_ok(rig_start(&rig, &error));
    for (int walk = 0; walk < WALKS; walk++) {
        look_later(&rig, BLOCKS, seen[walk * (BLOCKS + 1) + BLOCKS]);
        for (int i = 0; i < BLOCKS; i++)
            look_later(&rig, i, seen[walk * (BLOCKS + 1) + i]);
    }
    assert_ok(rig.device->ops->stream_synchronize(rig.compute, &error));
    assert_ok(streamer_check(rig.streamer, &error));
    pinned = streamer_stats(rig.streamer).pinned_bytes;
    assert_true(pinned <= streamer_stats(rig.streamer).host_bytes);
    assert_int_equal(streamer_stats(rig.streamer).unpinned.status != SHOAL_OK,
        how.pin != SHOAL_PIN_OFF && options.failing_pin &&
            fake_counts(rig.device).pins >= options.failing_pin);
    streamer_destroy(&rig.streamer);
    rig.device->ops->stream_destroy(&rig.compute);
    arena_close(&rig.arena);
    discard(&rig.device);
    for (int i = 0; i < WALKS * (BLOCKS + 1); i++)
        compare(m, i % (BLOCKS + 1), seen[i]);
    watchdog_clear();
    return pinned;
}

static void walk_late(struct noise_model *m, const struct streamer_place *places,
    uint64_t ring_bytes, uint64_t staging_bytes)
{
    (void)walk_late_with(
        m, places, ring_bytes, staging_bytes, lateness(), (struct loading){.threads = 8});
}

/* How the blocks' files are, and whether some cross packed though these are plain. */
enum kind { PLAIN, PACKED, PACKING };

static void stream(enum kind kind)
{
    const bool packed = kind != PLAIN;
    struct streamer_place places[BLOCKS] = {0};
    struct noise_model m;

    noise_open(&m, 4, kind == PACKED);
    if (kind == PACKING) noise_pack(&m);
    for (int k = 0; k < LATENESSES; k += SCENARIO_THINNER) {
        for (int i = 0; i < BLOCKS; i++)
            places[i] =
                (struct streamer_place){.disk = i % 2, .packed = kind == PACKING && i % 2 == 0};
        walk_late(&m, places, m.largest, STAGING);
        walk_late(&m, places, m.largest * 3, 3 * STAGING);
        for (int i = 0; i < BLOCKS; i += 3)
            places[i] = (struct streamer_place){.resident = true, .packed = packed && i % 2};
        walk_late(&m, places, m.largest * 2, 2 * STAGING);
    }
    noise_close(&m);
}

static void test_streamer(void **state)
{
    (void)state;
    stream(PLAIN);
    stream(PACKED);
    stream(PACKING);
}

/* The same bytes whatever is pinned, and from whichever image on the system refuses; also if a read
 * is under way when the next walk wants what it brings. What is not pinned is copied by a half of
 * the threads, through rings that hold few chunks and many. */
static void pin_some(bool packs)
{
    const struct loading loadings[] = {{.backend = READER_AUTO, .threads = 2},
        {.backend = READER_THREADS, .threads = 8}, {.backend = READER_AUTO, .threads = 4}};
    const int apart = SCENARIO_THINNER > 4 ? 2 : 1;
    struct streamer_place places[BLOCKS] = {0};
    struct noise_model m;

    noise_open(&m, 5, false);
    if (packs) noise_pack(&m);
    for (int i = 0; i < BLOCKS; i++)
        places[i].packed = packs && i != 2 && i % 4;
    places[2].disk = places[7].resident = true;
    places[7].packed = false;
    for (int i = 0; i < 3; i += apart) {
        const uint64_t ring = m.largest * 2, staging = (i ? 5 * (uint64_t)i : 2) * STAGING;
        struct loading how = loadings[i];
        uint64_t all = walk_late_with(&m, places, ring, staging, lateness(), how);

        how.pin = SHOAL_PIN_OFF;
        assert_int_equal(walk_late_with(&m, places, ring, staging, lateness(), how), 0);
        how.pin = SHOAL_PIN_STAGING;
        assert_int_equal(walk_late_with(&m, places, ring, staging, lateness(), how), staging);
        how.pin = SHOAL_PIN_ON;
        for (int64_t failing = 1 + i; failing < BLOCKS; failing += 2 + failing) {
            struct fake_options options = lateness();
            uint64_t some;

            options.failing_pin = failing;
            some = walk_late_with(&m, places, ring, staging, options, how);
            assert_true(some < all && (failing == 1 ? some == 0 : some >= staging));
        }
    }
    noise_close(&m);
}

static void test_pins(void **state)
{
    (void)state;
    pin_some(false);
    pin_some(true);
}

/* Whoever stops while threads copy to the staging ring, or while it is full, leaves nothing. */
static void test_stopped_while_bouncing(void **state)
{
    const struct streamer_place places[BLOCKS] = {0};
    struct noise_model m;

    (void)state;
    noise_open(&m, 6, false);
    for (int blocks = 0; blocks < 2 * BLOCKS; blocks += SCENARIO_THINNER) {
        struct shoal_error error = {0};
        struct rig rig;

        watchdog_set("stopping while weights bounce", SECONDS);
        rig_open(&rig, &m, fake(lateness()), places, m.largest * 2, 4 * STAGING);
        rig.setup.pin = SHOAL_PIN_STAGING;
        rig.setup.threads = 8;
        assert_ok(rig_start(&rig, &error));
        rig_expect(&rig, BLOCKS);
        for (int i = 0; i < BLOCKS + blocks; i++)
            rig_expect(&rig, i % BLOCKS);
        streamer_destroy(&rig.streamer);
        rig.device->ops->stream_destroy(&rig.compute);
        arena_close(&rig.arena);
        discard(&rig.device);
    }
    watchdog_clear();
    noise_close(&m);
}

/* What plans go by without pins, also where nothing can be pinned; the CPU makes no difference. */
static void test_unpinned_rates(void **state)
{
    struct shoal_error error = {0};
    struct device *device;

    (void)state;
    for (int64_t failing = SCENARIO_THINNER > 4; failing < 2; failing++) {
        struct links_figures figures = {.rates.link_bytes = 1};

        device = fake((struct fake_options){.pace = FAKE_EAGER, .failing_pin = failing});
        assert_ok(links_measure_unpinned(device, 2, &figures, &error));
        assert_true(figures.rates.unpinned_bytes > 1e6 && figures.rates.bounce_bytes > 1e6);
        discard(&device);
    }
    struct links_figures figures = {.rates.link_bytes = 3};
    device = fake((struct fake_options){.pace = FAKE_EAGER, .failing_copy = 3});
    assert_int_equal(links_measure_unpinned(device, 2, &figures, &error), SHOAL_E_DEVICE);
    discard(&device);
    assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 1, &error));
    assert_ok(links_measure_unpinned(device, 2, &figures, &error));
    assert_true(figures.rates.unpinned_bytes == 3 && figures.rates.bounce_bytes == 3);
    device_destroy(&device);
}

/* ---- pictures: the same bits as on the CPU device, whatever the plan ---- */

static uint64_t picture_on_cpu(const struct shoal_request *request)
{
    struct shoal_plan *plan = scenario_plan(model, request);
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    uint64_t hash;

    assert_ok(shoal_run(plan, NULL, &result, &error));
    hash = scenario_hash(result);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
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

static void expect_picture(const struct shoal_request *request, uint64_t reference)
{
    struct shoal_plan *plan = scenario_plan(model, request);

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

/* The same, of a plan that packs what it reads. */
static void expect_packed(const struct shoal_request *request, uint64_t reference)
{
    struct shoal_plan *plan = scenario_plan(model, request);
    struct shoal_plan_summary summary;

    shoal_plan_summarise(plan, &summary);
    assert_true(summary.packs && summary.packed_blocks > 0);
    shoal_plan_destroy(&plan);
    expect_picture(request, reference);
}

static void test_pictures(void **state)
{
    struct shoal_request r = scenario_request(model);
    uint64_t reference;

    (void)state;
    r.count = 2;
    expect_picture(&r, picture_on_cpu(&r));
    r.count = 1;
    r.steps = 2;
    reference = picture_on_cpu(&r);
    r.resident_blocks = 0;
    expect_picture(&r, reference);
    r.prefetch_slots = 2;
    r.lanes = 1;
    expect_picture(&r, reference);
    r.prefetch_slots = SHOAL_AUTO;
    r.buffer = SHOAL_BUFFER_SINGLE;
    expect_picture(&r, reference);
    r.buffer = SHOAL_BUFFER_AUTO;
    r.resident_blocks = 5;
    expect_picture(&r, reference);
    r.wire = SHOAL_WIRE_PACKED;
    expect_packed(&r, reference);
    r.resident_blocks = 0;
    expect_packed(&r, reference);
    scenario_least(model, &r);
    expect_packed(&r, reference);
    r.wire = SHOAL_WIRE_AUTO;
    r.ram_bytes = SHOAL_UNLIMITED;
    r.resident_blocks = SHOAL_AUTO;
    scenario_least(model, &r);
    expect_picture(&r, reference);
}

/* With an adapter: patched at each use, and once where they are resident, and baked. */
static void test_adapted_pictures(void **state)
{
    struct shoal_request r = scenario_request(model);
    char path[MINI_ADAPTER_PATH];
    struct shoal_lora lora = {path, 1.25f};
    struct shoal_error error = {0};
    uint64_t reference;

    (void)state;
    assert_ok(mini_adapter_write(path, &error));
    r.loras = &lora;
    r.lora_count = 1;
    r.steps = 2;
    reference = picture_on_cpu(&r);
    expect_picture(&r, reference);
    r.resident_blocks = 0;
    expect_picture(&r, reference);
    r.host_format = SHOAL_HOST_FORMAT_COMPUTE;
    expect_picture(&r, reference);
    r.resident_blocks = 5;
    r.pin = SHOAL_PIN_STAGING;
    expect_picture(&r, reference);
    r.host_format = SHOAL_HOST_FORMAT_STORAGE;
    r.resident_blocks = SHOAL_AUTO;
    scenario_least(model, &r);
    expect_picture(&r, reference);
    remove(path);
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

/* Each of the first `dense` fails, then every `stride`-th; fewer in slow builds. */
static void sweep(enum failing what, const char *name, int64_t dense, int64_t stride)
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
    for (int64_t n = 1; n <= total; n += SCENARIO_THINNER * (n < dense ? 1 : stride), points++) {
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
    sweep(COPY, "a failing copy", 20, 11);
}

static void test_failing_operations(void **state)
{
    (void)state;
    sweep(OPERATION, "a failing operation", 5, 29);
}

static void test_failing_creations(void **state)
{
    (void)state;
    sweep(CREATION, "a failing arena, stream or event", 20, 13);
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
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_stopped_while_bouncing),
        cmocka_unit_test(test_unpinned_rates),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_adapted_pictures),
        cmocka_unit_test(test_failing_copies),
        cmocka_unit_test(test_failing_operations),
        cmocka_unit_test(test_failing_creations),
        cmocka_unit_test(test_cancelled_with_work_under_way),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
