/*
 * The streaming loop on the CUDA device: whatever is resident, packed, pinned or read again, the
 * activations are those of resident weights. Emulated; with the argument `gpu`, on this machine's
 * card, with blocks that are large enough to be under way for a while. Not under TSan, which loses
 * its way in the emulation's fibres.
 */
#include "support.h"

#include "base/size.h"
#include "cuda/fake_driver.h"
#include "cuda/faulty_driver.h"
#include "device/cuda/internal.h"
#include "fault/scenario.h"
#include "pipeline/bench_loop.h"

#include <stdlib.h>

#define BLOCKS 6
#define WAYS_APART (SCENARIO_THINNER > 1 ? 3 : 1) /* slow builds leave cases out */
#define MIB ((uint64_t)1 << 20)

static bool real;
static struct bench_model model;
static struct packing packing;
static struct streamer_place places[BLOCKS];
static uint64_t scratch_bytes;

static struct device *open_device(enum fake_pace pace)
{
    const struct fake_driver_options options = {.pace = pace, .seed = 1};
    struct shoal_error error = {0};
    struct cuda_driver driver;
    struct device *device;

    if (real)
        assert_ok(cuda_open_driver(&driver, &error));
    else
        fake_driver_open(&driver, &options);
    assert_ok(cuda_create_with(&device, &driver, 0, &error));
    return device;
}

static void close_device(struct device *device)
{
    device_destroy(&device);
    if (real) return;
    assert_null(fake_driver_counts().violation);
    assert_null(fake_driver_counts().kernel_error);
    assert_int_equal(fake_driver_counts().things, 0);
}

static uint64_t run(struct bench_loop loop)
{
    struct bench_loop_result result;
    struct shoal_error error = {0};

    loop.model = &model;
    loop.packing = &packing;
    loop.threads = 2;
    loop.steps = 3;
    assert_ok(bench_loop_run(&loop, &result, &error));
    assert_int_equal(result.peak_bytes, loop.arena_bytes);
    assert_true(result.times.first_seconds > 0 && result.times.mean_seconds > 0);
    assert_true(result.times.best_seconds <= result.times.mean_seconds * 1.0001);
    if (loop.pin == SHOAL_PIN_OFF) assert_int_equal(result.stats.pinned_bytes, 0);
    if (loop.pin == SHOAL_PIN_ON && loop.pass == BENCH_MODEL_STEP)
        assert_true(result.stats.pinned_bytes > 0);
    return result.checksum;
}

/* The arena that places take, and the ring and the buffer in it. */
static void lay_out(struct bench_loop *loop, int slots)
{
    struct shoal_error error = {0};
    uint64_t largest = 0;

    loop->arena_bytes = scratch_bytes;
    for (int i = 0; i < BLOCKS; i++) {
        const struct cargo_room *rooms = places[i].packed ? packing_rooms(&packing, i) : NULL;
        struct cargo_size size;

        assert_ok(cargo_measure(&model.blocks[i], rooms, NULL, &size, &error));
        if (places[i].packed) loop->unpack_bytes = model.blocks[i].bytes;
        if (places[i].resident)
            loop->arena_bytes += size.bytes;
        else
            largest = max_u64(largest, size.bytes);
    }
    loop->ring_bytes = largest * (uint64_t)slots;
    loop->arena_bytes += loop->ring_bytes + loop->unpack_bytes;
}

static uint64_t run_resident(struct device *device)
{
    const struct bench_loop loop = {.device = device,
        .pass = BENCH_MODEL_RESIDENT,
        .places = places,
        .arena_bytes = BENCH_MODEL_DISTINCT * model.blocks[0].bytes + scratch_bytes,
        .staging_bytes = 2 * MIB};

    for (int i = 0; i < BLOCKS; i++)
        places[i] = (struct streamer_place){.resident = true};
    return run(loop);
}

/* The first `count` ways. */
static void stream(enum fake_pace pace, size_t count)
{
    static const struct {
        int slots, residents, packed, disk; /* of the first blocks; the rest are none of these */
        enum shoal_pin pin;
    } ways[] = {{2, 0, 0, 0, SHOAL_PIN_ON}, {1, 0, 0, 0, SHOAL_PIN_ON}, {3, 2, 0, 0, SHOAL_PIN_ON},
        {2, 0, 0, 3, SHOAL_PIN_STAGING}, {2, 0, 0, 0, SHOAL_PIN_OFF}, {2, 0, 6, 0, SHOAL_PIN_ON},
        {1, 1, 6, 0, SHOAL_PIN_ON}, {2, 1, 3, 0, SHOAL_PIN_STAGING}};
    struct device *device = open_device(pace);
    const uint64_t sum = run_resident(device);

    for (size_t k = 0; k < count && k < sizeof ways / sizeof *ways; k += WAYS_APART) {
        struct bench_loop loop = {.device = device,
            .pass = BENCH_MODEL_STEP,
            .places = places,
            .staging_bytes = 4 * MIB,
            .pin = ways[k].pin};

        for (int i = 0; i < BLOCKS; i++)
            places[i] = (struct streamer_place){.resident = i < ways[k].residents,
                .packed = i < ways[k].packed,
                .disk = i < ways[k].disk};
        lay_out(&loop, ways[k].slots);
        assert_int_equal(run(loop), sum);
    }
    close_device(device);
}

static void test_streams_the_same(void **state)
{
    (void)state;
    stream(PACE_RANDOM, SIZE_MAX);
    if (real) return;
    stream(PACE_LATE, 2);
    stream(PACE_EAGER, 1);
}

static bool at_third(void *user)
{
    return ++*(int *)user >= 3; /* as whoever cancels goes on saying */
}

static void test_cancelled(void **state)
{
    struct device *device = open_device(PACE_LATE);
    struct shoal_error error = {0};
    struct bench_loop_result result;
    int asked = 0;
    struct bench_loop loop = {.device = device,
        .model = &model,
        .pass = BENCH_MODEL_STEP,
        .places = places,
        .packing = &packing,
        .staging_bytes = 4 * MIB,
        .threads = 2,
        .steps = 3,
        .cancelled = at_third,
        .user = &asked};

    (void)state;
    memset(places, 0, sizeof places);
    lay_out(&loop, 2);
    assert_int_equal(bench_loop_run(&loop, &result, &error), SHOAL_E_CANCELLED);
    close_device(device);
}

static int set_up(void **state)
{
    const char *folder = getenv("TMPDIR");
    const struct bench_model_spec spec = {.blocks = BLOCKS,
        .block_bytes = real ? 64 * MIB : MIB / 4,
        .tokens = real ? 512 : 3,
        .folder = folder ? folder : "/var/tmp"};
    struct shoal_error error = {0};
    const struct weight *up;

    (void)state;
    assert_ok(bench_model_open(&model, &spec, &error));
    assert_ok(bench_model_write(&model, &spec, &error));
    assert_ok(packing_init(&packing, &model.model, &model.model.passes[BENCH_MODEL_STEP], &error));
    up = &model.blocks[0].weights[0];
    /* [tokens, hidden] in F32, then the norm's and the product's results in BF16. */
    scratch_bytes = size_align((uint64_t)(model.tokens * model.hidden) * 4, REGION_ALIGNMENT) +
                    size_align((uint64_t)(model.tokens * model.hidden) * 2, REGION_ALIGNMENT) +
                    size_align((uint64_t)(model.tokens * up->rows) * 2, REGION_ALIGNMENT);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    packing_fini(&packing);
    bench_model_close(&model);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_the_same),
        cmocka_unit_test(test_cancelled),
    };

    real = argc > 1 && strcmp(argv[1], "gpu") == 0;
    if (real && !faulty_has_card()) return 77;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
