/* The CUDA device from several threads at once, as the intake and the streamer use it; also run
 * under TSan. With the argument `gpu`: on this machine's card. */
#include "support.h"

#include "base/thread.h"
#include "cuda/fake_driver.h"
#include "cuda/faulty_driver.h"
#include "device/cuda/internal.h"

#include <stdio.h>
#include <string.h>

#define THREADS 3
#define ROUNDS 200
#define PIECE_BYTES 512

static struct cuda_driver driver;
static struct device *device;
static bool real;

struct worker {
    struct thread thread;
    struct event *done; /* recorded by the worker, looked at by others */
    int index;
    enum shoal_status status;
};

/* Copies its piece in and out again, each time other bytes; a failure of any thread ends it. */
static void copy_in_and_out(void *arg)
{
    struct worker *w = arg;
    const struct device_ops *ops = device->ops;
    const device_addr piece = device->arena + (device_addr)w->index * PIECE_BYTES;
    struct shoal_error error = {0};
    struct stream *up = NULL, *down = NULL;
    struct event *there = NULL;
    unsigned char in[PIECE_BYTES], out[PIECE_BYTES];
    enum shoal_status status = SHOAL_OK;

    TRY_OR_FAIL(ops->stream_create(device, true, &up, &error));
    TRY_OR_FAIL(ops->stream_create(device, true, &down, &error));
    TRY_OR_FAIL(ops->event_create(device, &there, &error));
    for (int i = 0; i < ROUNDS; i++) {
        memset(in, w->index + i, sizeof in);
        ops->copy_in(up, piece, in, sizeof in);
        ops->event_record(up, there);
        ops->event_wait(down, there);
        ops->copy_out(down, out, piece, sizeof out);
        ops->event_record(down, w->done);
        TRY_OR_FAIL(ops->stream_synchronize(down, &error));
        if (memcmp(in, out, sizeof in) != 0) status = SHOAL_E_NUMERIC;
        /* There is none either once another thread has lost the device. */
        if (!ops->event_time_ns(there))
            status = ops->stream_synchronize(down, &error) ? SHOAL_E_DEVICE : SHOAL_E_NUMERIC;
        if (status) break;
    }
fail:
    if (there) ops->event_destroy(&there);
    ops->stream_destroy(&down);
    ops->stream_destroy(&up);
    w->status = status;
}

static void run_threads(struct worker workers[THREADS])
{
    struct shoal_error error = {0};

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.index = i};
        assert_ok(device->ops->event_create(device, &workers[i].done, &error));
    }
    for (int i = 0; i < THREADS; i++)
        assert_ok(thread_start(&workers[i].thread, copy_in_and_out, &workers[i], &error));
    for (int i = 0; i < ROUNDS; i++)
        for (int j = 0; j < THREADS; j++)
            if (!device->ops->event_happened(workers[j].done))
                device->ops->event_synchronize(workers[j].done);
    for (int i = 0; i < THREADS; i++)
        thread_join(&workers[i].thread);
    for (int i = 0; i < THREADS; i++)
        device->ops->event_destroy(&workers[i].done);
}

static void open_device(enum fake_pace pace)
{
    const struct fake_driver_options options = {.pace = pace, .seed = 1};
    struct shoal_error error = {0};
    struct cuda_driver inner;

    if (real)
        assert_ok(cuda_open_driver(&inner, &error));
    else
        fake_driver_open(&inner, &options);
    faulty_driver(&driver, &inner);
    assert_ok(cuda_create_with(&device, &driver, 0, &error));
    assert_ok(device->ops->arena_reserve(device, THREADS * PIECE_BYTES, &error));
}

static void test_copies_from_threads(void **state)
{
    struct worker workers[THREADS];

    (void)state;
    for (enum fake_pace pace = PACE_EAGER; pace <= PACE_RANDOM; pace++) {
        open_device(pace);
        run_threads(workers);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(workers[i].status, SHOAL_OK);
        device_destroy(&device);
        assert_int_equal(fake_driver_counts().things, 0);
        assert_null(fake_driver_counts().violation);
    }
}

/* The device is lost to one thread: the others hear of it. */
static void test_lost_to_all(void **state)
{
    struct shoal_error error = {0};
    struct worker workers[THREADS];

    (void)state;
    open_device(PACE_RANDOM);
    faults.at = faults.calls + 300;
    faults.for_good = true;
    faults.result = 700;
    run_threads(workers);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(workers[i].status, SHOAL_E_DEVICE);
    assert_int_equal(cuda_failure(cuda_device(device), &error), SHOAL_E_DEVICE);
    assert_non_null(strstr(error.text, "700"));
    device_destroy(&device);
    assert_int_equal(fake_driver_counts().things, 0);
}

/* ---- one device is opened while another of the same card reserves its arena ---- */

#define OTHER_ARENA_BYTES ((uint64_t)96 << 20)
#define PATIENCE_MS 300 /* that opening waits for the other, which may have to wait for it */

static struct meeting {
    CUresult (*load)(CUmodule *module, const void *image); /* the driver's own */
    struct mutex mutex;
    struct cond cond;
    struct thread thread;
    bool begun, reserved;
    enum shoal_status status;
} meeting;

static void reserve_meanwhile(void *arg)
{
    struct shoal_error error = {0};

    (void)arg;
    meeting.status = device->ops->arena_reserve(device, OTHER_ARENA_BYTES, &error);
    mutex_lock(&meeting.mutex);
    meeting.reserved = true;
    cond_wake_all(&meeting.cond);
    mutex_unlock(&meeting.mutex);
}

/* In the middle of what opening measures. */
static CUresult load_and_meet(CUmodule *module, const void *image)
{
    struct shoal_error error = {0};

    if (!meeting.begun) {
        meeting.begun = true;
        assert_ok(thread_start(&meeting.thread, reserve_meanwhile, NULL, &error));
        mutex_lock(&meeting.mutex);
        if (!meeting.reserved) cond_wait_for(&meeting.cond, &meeting.mutex, PATIENCE_MS);
        mutex_unlock(&meeting.mutex);
    }
    return meeting.load(module, image);
}

static void test_overhead_is_not_anothers_arena(void **state)
{
    struct shoal_error error = {0};
    struct device *second;
    uint64_t overhead_bytes;

    (void)state;
    open_device(PACE_EAGER);
    device->ops->arena_release(device);
    overhead_bytes = cuda_info(device).overhead_bytes;
    meeting = (struct meeting){.load = driver.module_load};
    mutex_init(&meeting.mutex);
    cond_init(&meeting.cond);
    driver.module_load = load_and_meet;
    assert_ok(cuda_create_with(&second, &driver, 0, &error));
    thread_join(&meeting.thread);
    assert_int_equal(meeting.status, SHOAL_OK);
    assert_int_equal(device->arena_bytes, OTHER_ARENA_BYTES);
    if (!real) assert_int_equal(cuda_info(second).overhead_bytes, overhead_bytes);
    assert_true(cuda_info(second).overhead_bytes < overhead_bytes + OTHER_ARENA_BYTES);
    cond_fini(&meeting.cond);
    mutex_fini(&meeting.mutex);
    device_destroy(&second);
    device_destroy(&device);
    assert_int_equal(fake_driver_counts().things, 0);
    assert_null(fake_driver_counts().violation);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_from_threads),
        cmocka_unit_test(test_overhead_is_not_anothers_arena),
        cmocka_unit_test(test_lost_to_all),
    };

    real = argc > 1 && strcmp(argv[1], "gpu") == 0;
    if (real && !faulty_has_card()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
