/* The CPU device's arena, streams and events: order, and nothing but order. Also run under TSan. */
#include "ops_support.h"

#include <sys/syscall.h>
#include <unistd.h>

static struct device *device;
static const struct device_ops *ops;
static struct stream *compute, *up, *down;

static struct event *event_new(void)
{
    struct shoal_error error = {0};
    struct event *event;

    assert_ok(ops->event_create(device, &event, &error));
    return event;
}

static int open_streams(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    assert_ok(cpu_create(&device, CPU_KERNELS_FAST, 2, &error));
    ops = device->ops;
    assert_ok(ops->arena_reserve(device, 1 << 20, &error));
    ops->arena_mark(device, device->arena, 1 << 20, true);
    assert_ok(ops->stream_create(device, false, &compute, &error));
    assert_ok(ops->stream_create(device, true, &up, &error));
    assert_ok(ops->stream_create(device, true, &down, &error));
    return 0;
}

static int close_streams(void **state)
{
    (void)state;
    ops->stream_destroy(&up);
    ops->stream_destroy(&down);
    ops->stream_destroy(&compute);
    assert_null(up);
    device_destroy(&device);
    assert_null(device);
    return 0;
}

/* The kernel says so without anybody being hurt. */
static bool readable(device_addr addr)
{
    int ends[2];
    bool taken;

    assert_int_equal(pipe(ends), 0);
    taken = syscall(SYS_write, ends[1], addr, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return taken;
}

static void test_arena(void **state)
{
    struct shoal_error error = {0};
    struct device *other;

    (void)state;
    assert_int_equal(device->arena % 4096, 0);
    assert_int_equal(device->arena_bytes, 1 << 20);
    assert_int_equal(ops->arena_reserve(device, 1, &error), SHOAL_E_DEVICE);
    assert_int_equal(device->arena_bytes, 1 << 20);

    assert_ok(cpu_create(&other, CPU_KERNELS_REFERENCE, 0, &error));
    assert_int_equal(ops->arena_reserve(other, UINT64_MAX - 5, &error), SHOAL_E_MEMORY);
    assert_int_equal(other->arena, 0);
    assert_ok(ops->arena_reserve(other, 5000, &error));
    assert_int_equal(other->arena_bytes, 5000);
    assert_true(readable(other->arena + 4999));
    assert_false(readable(other->arena + 4999 + (uint64_t)sysconf(_SC_PAGESIZE)));
    ops->arena_release(other);
    ops->arena_release(other);
    assert_ok(ops->arena_reserve(other, 0, &error));
    device_destroy(&other);
    assert_int_equal(cpu_create(&other, CPU_KERNELS_FAST, -1, &error), SHOAL_E_INVALID);
    assert_null(other);
    assert_non_null(cpu_describe());
}

/* A ring of slots: copied in, used by the compute stream, and copied in again only after that. */
static void test_ring(void **state)
{
    enum { SLOTS = 3, BLOCKS = 500, FLOATS = 700 };
    struct shoal_error error = {0};
    struct event *ready[SLOTS], *done[SLOTS];
    float *blocks = malloc(BLOCKS * FLOATS * sizeof *blocks);
    struct matrix sum = matrix_at(device->arena + 65536, DTYPE_F32, 1, FLOATS);

    (void)state;
    for (int i = 0; i < BLOCKS * FLOATS; i++)
        blocks[i] = (float)(i / FLOATS);
    for (int s = 0; s < SLOTS; s++) {
        ready[s] = event_new();
        done[s] = event_new();
    }
    memset((void *)(uintptr_t)sum.addr, 0, matrix_bytes(sum));
    for (int k = 0; k < BLOCKS + SLOTS - 1; k++) {
        if (k < BLOCKS) {
            int slot = k % SLOTS;

            ops->event_wait(up, done[slot]);
            ops->copy_in(up, device->arena + (device_addr)slot * 4096, blocks + k * FLOATS,
                FLOATS * sizeof *blocks);
            ops->event_record(up, ready[slot]);
        }
        if (k >= SLOTS - 1) {
            int slot = (k - SLOTS + 1) % SLOTS;

            ops->event_wait(compute, ready[slot]);
            ops->compute->gated_add(compute, sum, MATRIX_NONE,
                matrix_at(device->arena + (device_addr)slot * 4096, DTYPE_F32, 1, FLOATS),
                MATRIX_NONE, 0);
            ops->event_record(compute, done[slot]);
        }
    }
    assert_ok(ops->stream_synchronize(up, &error));
    for (int i = 0; i < FLOATS; i++)
        assert_true(row_of(sum, 0)[i] == (float)BLOCKS * (BLOCKS - 1) / 2);
    for (int s = 0; s < SLOTS; s++) {
        ops->event_destroy(&ready[s]);
        ops->event_destroy(&done[s]);
    }
    free(blocks);
}

/* Up on one stream, down on the other, ordered by events alone; far more than a queue holds. */
static void test_two_copy_streams(void **state)
{
    enum { COUNT = 5000 };
    struct shoal_error error = {0};
    struct event *there = event_new(), *back = event_new();
    static int from[COUNT], to[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        from[i] = i * 7 + 1;
        to[i] = -1;
        ops->event_wait(up, back);
        ops->copy_in(up, device->arena, &from[i], sizeof from[i]);
        ops->event_record(up, there);
        ops->event_wait(down, there);
        ops->copy_out(down, &to[i], device->arena, sizeof to[i]);
        ops->event_record(down, back);
    }
    assert_ok(ops->stream_synchronize(down, &error));
    assert_memory_equal(from, to, sizeof from);
    ops->event_destroy(&there);
    ops->event_destroy(&back);
}

/* Whoever waits, waits for the record that was the latest then. */
static void test_recording_again(void **state)
{
    enum { BIG = 1 << 19 };
    struct shoal_error error = {0};
    struct event *event = event_new();
    char *data = calloc(1, BIG), seen = 0;

    (void)state;
    data[BIG - 1] = 42;
    ops->event_wait(compute, event); /* never recorded: has happened */
    ops->copy_in(up, device->arena, data, BIG);
    ops->event_record(up, event);
    ops->event_wait(down, event);
    ops->event_record(compute, event); /* later, and in a stream that is done at once */
    ops->copy_out(down, &seen, device->arena + BIG - 1, 1);
    ops->event_wait(compute, event);
    assert_ok(ops->stream_synchronize(down, &error));
    assert_int_equal(seen, 42);
    ops->event_destroy(&event);
    free(data);
}

/* Destroying a stream waits for its work; its events have happened and may be awaited. */
static void test_destroying(void **state)
{
    enum { MANY = 300, BYTES = 1 << 18 };
    struct shoal_error error = {0};
    struct stream *stream, *other;
    struct event *events[MANY];
    char *data = malloc(BYTES);

    (void)state;
    memset(data, 9, BYTES);
    assert_ok(ops->stream_create(device, true, &stream, &error));
    assert_ok(ops->stream_create(device, true, &other, &error));
    for (int i = 0; i < MANY; i++) {
        events[i] = event_new();
        ops->copy_in(stream, device->arena + (device_addr)i * 64, data, 64);
        ops->event_record(stream, events[i]);
    }
    ops->copy_in(stream, device->arena + BYTES, data, BYTES);
    ops->event_wait(other, events[MANY - 1]);
    ops->stream_destroy(&stream);
    assert_null(stream);
    assert_int_equal(((char *)(uintptr_t)device->arena)[2 * BYTES - 1], 9);
    ops->event_wait(compute, events[0]);
    ops->event_wait(other, events[7]);
    assert_ok(ops->stream_synchronize(other, &error));
    ops->stream_destroy(&other); /* idle */
    for (int i = 0; i < MANY; i++)
        ops->event_destroy(&events[i]);
    assert_ok(ops->stream_create(device, true, &stream, &error));
    ops->stream_destroy(&stream); /* never used */
    ops->stream_destroy(&stream); /* NULL */
    free(data);
}

/* The compute stream copies inside the call. */
static void test_compute_copies(void **state)
{
    struct shoal_error error = {0};
    int in = 5, out = 0;

    (void)state;
    ops->copy_in(compute, device->arena, &in, sizeof in);
    in = 6;
    ops->copy_out(compute, &out, device->arena, sizeof out);
    assert_int_equal(out, 5);
    assert_ok(ops->stream_synchronize(compute, &error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_two_copy_streams),
        cmocka_unit_test(test_recording_again),
        cmocka_unit_test(test_destroying),
        cmocka_unit_test(test_compute_copies),
    };

    return cmocka_run_group_tests(tests, open_streams, close_streams);
}
