/*
 * The streamer on the CPU device: whatever is resident, however small the ring, every visit sees
 * its own block's bytes, copies run ahead, and the arena's peak is what was asked for.
 */
#include "support.h"

#include "base/memory.h"
#include "device/cpu/cpu.h"
#include "stream/streamer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 12
#define WALKS 5

/* A model of blocks of F32 noise with no forwards, over a file of its own. */
struct fixture {
    struct file file;
    struct checkpoint_tensor tensors[BLOCKS + 1];
    struct weight weights[BLOCKS + 1];
    struct block blocks[BLOCKS + 1]; /* the last one: globals */
    struct model model;
    uint32_t *data[BLOCKS + 1];
    uint64_t largest, total;
};

static void set_up(struct fixture *f, uint64_t seed)
{
    struct shoal_error error = {0};
    char path[] = "/tmp/shoal-streamer.XXXXXX";
    int fd = mkstemp(path);
    uint64_t offset = 0;

    *f = (struct fixture){0};
    assert_true(fd >= 0);
    for (int i = 0; i <= BLOCKS; i++) {
        uint64_t count = 64 * (1 + test_random(&seed) % 2000);

        f->data[i] = malloc(count * 4);
        for (uint64_t k = 0; k < count; k++)
            f->data[i][k] = test_random(&seed) & 0x3fffffff; /* finite */
        assert_int_equal(write(fd, f->data[i], count * 4), count * 4);
        f->tensors[i] = (struct checkpoint_tensor){.name = "noise",
            .dtype = DTYPE_F32,
            .shape = {1, {(int64_t)count}},
            .offset = offset,
            .bytes = count * 4,
            .file = &f->file};
        offset += count * 4;
        f->weights[i] = (struct weight){.name = "noise",
            .dtype = DTYPE_F32,
            .rows = 1,
            .cols = (int64_t)count,
            .bytes = count * 4,
            .pieces = {&f->tensors[i]},
            .piece_count = 1};
        f->blocks[i] = (struct block){
            .weights = &f->weights[i], .weight_count = 1, .bytes = count * 4, .index = i};
        snprintf(f->blocks[i].name, sizeof f->blocks[i].name, "block %d", i);
        if (i < BLOCKS && count * 4 > f->largest) f->largest = count * 4;
        f->total += count * 4;
    }
    close(fd);
    assert_ok(file_open(path, &f->file, &error));
    unlink(path);
    f->model = (struct model){.family = "noise",
        .blocks = f->blocks,
        .block_count = BLOCKS + 1,
        .passes = {{.name = "walk", .first = 0, .count = BLOCKS, .globals = BLOCKS}},
        .pass_count = 1};
}

static void tear_down(struct fixture *f)
{
    for (int i = 0; i <= BLOCKS; i++)
        free(f->data[i]);
    file_close(&f->file);
}

static void expect_block(
    struct fixture *f, struct device *device, struct stream *stream, device_addr addr, int index)
{
    struct shoal_error error = {0};
    uint64_t bytes = f->blocks[index].bytes;
    uint32_t *seen = malloc(bytes);

    device->ops->copy_out(stream, seen, addr, bytes);
    assert_ok(device->ops->stream_synchronize(stream, &error));
    assert_memory_equal(seen, f->data[index], bytes);
    free(seen);
}

static void walk(struct fixture *f, const bool *resident, uint64_t ring_bytes)
{
    struct shoal_error error = {0};
    struct device *device = NULL;
    struct stream *compute = NULL;
    struct streamer *streamer = NULL;
    struct arena arena;
    uint64_t bytes = ring_bytes + f->blocks[BLOCKS].bytes, streamed = 0;

    for (int i = 0; i < BLOCKS; i++)
        if (resident[i])
            bytes += f->blocks[i].bytes;
        else
            streamed += f->blocks[i].bytes;
    assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 2, &error));
    assert_ok(arena_open(&arena, device, bytes, &error));
    assert_ok(device->ops->stream_create(device, false, &compute, &error));
    assert_ok(streamer_create(&streamer,
        &(struct streamer_setup){&arena, compute, &f->model, &f->model.passes[0], resident,
            ring_bytes, WALKS, NULL, NULL},
        &error));
    expect_block(f, device, compute, streamer_globals(streamer), BLOCKS);
    for (int n = 0; n < WALKS; n++)
        for (int i = 0; i < BLOCKS; i++) {
            device_addr addr = streamer_acquire(streamer, i);

            expect_block(f, device, compute, addr, i);
            streamer_release(streamer, i);
        }
    assert_ok(streamer_check(streamer, &error));
    assert_int_equal(streamer_stats(streamer).copied_bytes, f->total - streamed + streamed * WALKS);
    streamer_destroy(&streamer);
    assert_int_equal(arena_peak(&arena), bytes);
    device->ops->stream_destroy(&compute);
    arena_close(&arena);
    device_destroy(&device);
}

static void test_rings_and_residents(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct fixture f;
        bool resident[BLOCKS] = {0};

        set_up(&f, seed);
        for (int slots = 1; slots <= 6; slots++)
            walk(&f, resident, f.largest * (uint64_t)slots);
        walk(&f, resident, f.largest + 4096);
        for (int n = 0; n < BLOCKS; n++) {
            resident[(n * 7) % BLOCKS] = true;
            walk(&f, resident, n == BLOCKS - 1 ? 0 : f.largest * 2);
        }
        tear_down(&f);
    }
}

/* Destroyed in the middle of a walk, with copies under way: nothing leaks, nothing hangs. */
static void test_cancel_midway(void **state)
{
    struct fixture f;
    bool resident[BLOCKS] = {0};

    (void)state;
    set_up(&f, 9);
    for (int stop = 0; stop < BLOCKS; stop++) {
        struct shoal_error error = {0};
        struct device *device = NULL;
        struct stream *compute = NULL;
        struct streamer *streamer = NULL;
        struct arena arena;

        assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 2, &error));
        assert_ok(arena_open(&arena, device, f.largest * 3 + f.blocks[BLOCKS].bytes, &error));
        assert_ok(device->ops->stream_create(device, false, &compute, &error));
        assert_ok(streamer_create(&streamer,
            &(struct streamer_setup){&arena, compute, &f.model, &f.model.passes[0], resident,
                f.largest * 3, WALKS, NULL, NULL},
            &error));
        for (int i = 0; i < stop; i++) {
            streamer_acquire(streamer, i);
            streamer_release(streamer, i);
        }
        streamer_destroy(&streamer);
        device->ops->stream_destroy(&compute);
        arena_close(&arena);
        device_destroy(&device);
    }
    tear_down(&f);
}

static bool yes(void *user)
{
    (void)user;
    return true;
}

static void test_failures_leave_nothing(void **state)
{
    struct shoal_error error = {0};
    struct device *device = NULL;
    struct stream *compute = NULL;
    struct streamer *streamer = NULL;
    struct arena arena;
    struct fixture f;
    bool resident[BLOCKS] = {0};

    (void)state;
    set_up(&f, 5);
    assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 2, &error));
    assert_ok(arena_open(&arena, device, f.largest * 2 + f.blocks[BLOCKS].bytes, &error));
    assert_ok(device->ops->stream_create(device, false, &compute, &error));
    struct streamer_setup setup = {
        &arena, compute, &f.model, &f.model.passes[0], resident, f.largest * 2, WALKS, NULL, NULL};

    setup.cancelled = yes;
    assert_int_equal(streamer_create(&streamer, &setup, &error), SHOAL_E_CANCELLED);
    setup.cancelled = NULL;
    arena_clear_bottom(&arena);
    setup.ring_bytes = f.largest * 3; /* more than the arena has */
    assert_int_equal(streamer_create(&streamer, &setup, &error), SHOAL_E_BUDGET);
    arena_clear_bottom(&arena);
    f.tensors[4].offset = f.file.bytes - 4; /* as if the file had been cut */
    setup.ring_bytes = f.largest * 2;
    assert_int_equal(streamer_create(&streamer, &setup, &error), SHOAL_E_IO);
    assert_null(streamer);
    device->ops->stream_destroy(&compute);
    arena_close(&arena);
    device_destroy(&device);
    tear_down(&f);
}

/* A weight that is no number is found while loading, and named. */
static void test_nan_weight(void **state)
{
    static const struct {
        enum dtype dtype;
        uint32_t bits;
    } cases[] = {{DTYPE_F32, 0x7fc00000}, {DTYPE_F32, 0xff800000}, {DTYPE_BF16, 0x7fc0},
        {DTYPE_F16, 0x7e00}, {DTYPE_F16, 0xfc00}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct store *store = NULL;
        struct fixture f;
        char path[] = "/tmp/shoal-nan.XXXXXX";
        int fd;

        set_up(&f, 3);
        file_close(&f.file);
        fd = mkstemp(path);
        f.data[0][3] = cases[i].bits;
        memset(f.data[0], 0, 12);
        assert_int_equal(write(fd, f.data[0], f.tensors[0].bytes), f.tensors[0].bytes);
        close(fd);
        assert_ok(file_open(path, &f.file, &error));
        unlink(path);
        f.tensors[0].dtype = f.weights[0].dtype = cases[i].dtype;
        assert_ok(store_create(&store, &f.model, &error));
        assert_int_equal(store_load(store, 0, &error), SHOAL_E_NUMERIC);
        assert_non_null(strstr(error.text, "noise"));
        assert_int_equal(store_peak_bytes(store), 0);
        store_destroy(&store);
        tear_down(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings_and_residents),
        cmocka_unit_test(test_cancel_midway),
        cmocka_unit_test(test_failures_leave_nothing),
        cmocka_unit_test(test_nan_weight),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
