/*
 * The CUDA device: opening, the arena, streams, and every call that fails. Over a driver without a
 * card, or with the argument `gpu` over this machine's.
 */
#include "support.h"

#include "base/clock.h"
#include "cuda/fake_driver.h"
#include "cuda/faulty_driver.h"
#include "device/cuda/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES 65536

static struct cuda_driver driver;

static bool real;

static void set_up_card(struct fake_driver_options options)
{
    struct cuda_driver inner;
    struct shoal_error error = {0};

    if (real)
        assert_ok(cuda_open_driver(&inner, &error));
    else
        fake_driver_open(&inner, &options);
    faulty_driver(&driver, &inner);
}

static int set_up(void **state)
{
    (void)state;
    set_up_card((struct fake_driver_options){.pace = PACE_LATE});
    return 0;
}

/* Nothing is open any more, and nothing was done that a driver would not like. */
static void assert_clean(void)
{
    struct fake_driver_counts counts = fake_driver_counts();

    if (real) return;
    assert_int_equal(counts.things, 0);
    if (counts.violation) fail_msg("%s", counts.violation);
    if (counts.kernel_error) fail_msg("%s", counts.kernel_error);
}

static struct device *open_device(void)
{
    struct shoal_error error = {0};
    struct device *device;

    assert_ok(cuda_create_with(&device, &driver, 0, &error));
    return device;
}

static void assert_says(const struct shoal_error *error, const char *words)
{
    if (!strstr(error->text, words)) fail_msg("\"%s\" does not say \"%s\"", error->text, words);
}

/* ---- opening ---- */

static void test_open_and_close(void **state)
{
    struct device *device = open_device();
    struct cuda_info info = cuda_info(device);

    (void)state;
    assert_string_equal(device->ops->name, "cuda");
    assert_true(info.name[0] != '\0' && info.sm >= 80 && info.card_bytes > 0);
    assert_true(info.free_bytes > 0 && info.free_bytes <= info.card_bytes);
    assert_true(info.overhead_bytes >= cuda_device(device)->workspace_bytes);
    assert_int_equal(device->traits.activation, DTYPE_BF16);
    assert_int_equal(device->traits.chunk_rows, CUDA_TRAITS.chunk_rows);
    device_destroy(&device);
    assert_null(device);
    assert_clean();
    assert_int_equal(faults.resets, 0);
}

static void test_no_driver(void **state)
{
    struct shoal_error error = {0};
    struct cuda_driver none;

    (void)state;
    assert_int_equal(cuda_driver_open(&none, "libcuda-none.so.1", &error), SHOAL_E_DEVICE);
    assert_says(&error, "no NVIDIA driver (libcuda-none.so.1)");
    assert_says(&error, "--device cpu");
    assert_int_equal(cuda_driver_open(&none, "libm.so.6", &error), SHOAL_E_DEVICE);
    assert_says(&error, "too old: it has no cuInit");
}

static CUresult no_cards(int *count)
{
    *count = 0;
    return CUDA_SUCCESS;
}

static void assert_refused(int32_t ordinal, const char *words)
{
    struct shoal_error error = {0};
    struct device *device;

    assert_int_equal(cuda_create_with(&device, &driver, ordinal, &error), SHOAL_E_DEVICE);
    assert_null(device);
    assert_says(&error, words);
    assert_clean();
}

static void test_unusable_cards(void **state)
{
    struct device *device;

    (void)state;
    if (real) skip();
    assert_refused(7, "no card 7");
    assert_refused(-1, "no card -1");
    set_up_card((struct fake_driver_options){.sm = 61});
    assert_refused(0, "it is sm_61, and the CUDA device needs sm_75");
    set_up_card((struct fake_driver_options){.sm = 75, .cards = 2});
    device = open_device();
    assert_int_equal(device->traits.activation, DTYPE_F16);
    device_destroy(&device);
    set_up_card((struct fake_driver_options){.driver_version = 11040});
    assert_refused(0, "it is for CUDA 11.4 and this build needs 1");
    set_up_card((struct fake_driver_options){.cards = -1});
    assert_refused(0, "finds no card");
    set_up(NULL);
    driver.device_count = no_cards;
    assert_refused(0, "CUDA_VISIBLE_DEVICES");
    faults.always = CALL_init;
    faults.result = 999;
    assert_refused(0, "999");
}

static void test_no_kernels_for_the_card(void **state)
{
    (void)state;
    faults.always = CALL_module_load;
    faults.result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    assert_refused(0, "gpu_archs");
}

static CUresult (*memory_info)(size_t *free_bytes, size_t *bytes);
static int memory_asked;

/* Another process takes half of what is left while the device is opened. */
static CUresult less_each_time(size_t *free_bytes, size_t *bytes)
{
    CUresult result = memory_info(free_bytes, bytes);

    if (memory_asked++) *free_bytes /= 2;
    return result;
}

/* What others took meanwhile is not held against the card for ever. */
static void test_overhead_recovers(void **state)
{
    struct device *device;
    uint64_t overhead_bytes;

    (void)state;
    if (real) skip();
    device = open_device();
    overhead_bytes = cuda_info(device).overhead_bytes;
    device_destroy(&device);
    memory_info = driver.memory_info;
    driver.memory_info = less_each_time;
    memory_asked = 0;
    device = open_device();
    assert_true(cuda_info(device).overhead_bytes > overhead_bytes + ((uint64_t)1 << 30));
    device_destroy(&device);
    driver.memory_info = memory_info;
    device = open_device();
    assert_int_equal(cuda_info(device).overhead_bytes, overhead_bytes);
    device_destroy(&device);
    assert_clean();
}

/* ---- the arena, and the caller's memory ---- */

static void test_arena(void **state)
{
    struct shoal_error error = {0};
    struct device *device = open_device();
    const struct device_ops *ops = device->ops;

    (void)state;
    for (uint64_t bytes = 0; bytes < 9000; bytes += 1000) {
        assert_ok(ops->arena_reserve(device, bytes, &error));
        assert_true(device->arena != 0 && device->arena % 4096 == 0);
        assert_int_equal(device->arena_bytes, bytes);
        assert_int_equal(ops->arena_reserve(device, 1, &error), SHOAL_E_DEVICE);
        ops->arena_release(device);
        assert_int_equal(device->arena, 0);
        ops->arena_release(device);
    }
    faults.always = CALL_memory_alloc;
    faults.result = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(ops->arena_reserve(device, 3 << 20, &error), SHOAL_E_MEMORY);
    assert_says(&error, "could not reserve 3.00 MiB");
    assert_says(&error, "free");
    assert_int_equal(device->arena, 0);
    faults.always = CALL_COUNT;
    assert_ok(ops->arena_reserve(device, 3 << 20, &error));
    device_destroy(&device);
    assert_clean();
}

static void test_pinning(void **state)
{
    struct shoal_error error = {0};
    struct device *device = open_device();
    void *pages = aligned_alloc(4096, 8192);

    (void)state;
    assert_ok(device->ops->host_register(device, pages, 8192, &error));
    device->ops->host_unregister(device, pages);
    faults.always = CALL_host_register;
    faults.result = CUDA_ERROR_OPERATING_SYSTEM;
    assert_int_equal(device->ops->host_register(device, pages, 8192, &error), SHOAL_E_DEVICE);
    assert_says(&error, "pinning 8.00 KiB");
    assert_says(&error, "ulimit -l");
    assert_false(cuda_lost(cuda_device(device)));
    free(pages);
    device_destroy(&device);
    assert_clean();
}

/* ---- streams ---- */

static void test_copies(void **state)
{
    struct shoal_error error = {0};
    struct device *device = open_device();
    const struct device_ops *ops = device->ops;
    struct stream *compute, *copy;
    struct event *there;
    static unsigned char in[ARENA_BYTES / 2], out[ARENA_BYTES / 2];

    (void)state;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7);
    assert_ok(ops->arena_reserve(device, ARENA_BYTES, &error));
    assert_ok(ops->stream_create(device, false, &compute, &error));
    assert_ok(ops->stream_create(device, true, &copy, &error));
    assert_ok(ops->event_create(device, &there, &error));
    ops->copy_in(copy, device->arena, in, sizeof in);
    ops->copy_in(copy, device->arena, in, 0);
    ops->event_record(copy, there);
    ops->event_wait(compute, there);
    ops->copy_within(compute, device->arena + sizeof in, device->arena, sizeof in);
    ops->copy_out(compute, out, device->arena + sizeof in, sizeof out);
    assert_ok(ops->stream_synchronize(compute, &error));
    assert_memory_equal(in, out, sizeof in);
    ops->event_destroy(&there);
    ops->stream_destroy(&copy);
    ops->stream_destroy(&compute);
    assert_null(compute);
    device_destroy(&device);
    assert_clean();
}

/* What copies for others leaves them the memory that only computing needs. */
static void test_stops_computing(void **state)
{
    struct device *device = open_device();
    const uint64_t before = fake_driver_counts().memory_bytes;

    (void)state;
    cuda_stop_computing(device);
    if (!real) assert_true(before - fake_driver_counts().memory_bytes >= 64ull << 20);
    cuda_stop_computing(device); /* once more changes nothing */
    device_destroy(&device);
    assert_clean();
}

static void test_event_times(void **state)
{
    struct shoal_error error = {0};
    struct device *device = open_device();
    const struct device_ops *ops = device->ops;
    struct stream *stream;
    struct event *first, *second;
    uint64_t before, after;

    (void)state;
    assert_ok(ops->stream_create(device, true, &stream, &error));
    assert_ok(ops->event_create(device, &first, &error));
    assert_ok(ops->event_create(device, &second, &error));
    assert_true(ops->event_happened(first));
    assert_true(ops->event_time_ns(first) == 0);
    ops->event_synchronize(first);
    for (int i = 0; i < 2; i++) {
        before = clock_ns();
        ops->event_record(stream, first);
        ops->event_record(stream, second);
        ops->event_synchronize(second);
        after = clock_ns();
        assert_true(ops->event_happened(first));
        assert_true(ops->event_time_ns(first) + 1000000 > before);
        assert_true(ops->event_time_ns(second) >= ops->event_time_ns(first));
        assert_true(ops->event_time_ns(second) < after + 1000000);
        cuda_device(device)->clock_ns -= 1000000001; /* too old: a new reference is taken */
    }
    ops->event_destroy(&second);
    ops->event_destroy(&first);
    ops->stream_destroy(&stream);
    device_destroy(&device);
    assert_clean();
}

/* ---- failing ---- */

/* All that a run does, with the failure that it sees. */
static enum shoal_status use_device(const struct device *d, struct shoal_error *error)
{
    struct device *device = (struct device *)(uintptr_t)d;
    const struct device_ops *ops = device->ops;
    struct stream *compute = NULL, *copy = NULL;
    struct event *event = NULL;
    static char bytes[4096];
    void *pages = aligned_alloc(4096, 4096);
    bool pinned = false;
    enum shoal_status status = SHOAL_OK;

    TRY_OR_FAIL(ops->arena_reserve(device, ARENA_BYTES, error));
    TRY_OR_FAIL(ops->host_register(device, pages, 4096, error));
    pinned = true;
    TRY_OR_FAIL(ops->stream_create(device, false, &compute, error));
    TRY_OR_FAIL(ops->stream_create(device, true, &copy, error));
    TRY_OR_FAIL(ops->event_create(device, &event, error));
    ops->copy_in(copy, device->arena, bytes, sizeof bytes);
    ops->event_record(copy, event);
    ops->event_wait(compute, event);
    ops->copy_within(compute, device->arena + sizeof bytes, device->arena, sizeof bytes);
    ops->copy_out(compute, bytes, device->arena, sizeof bytes);
    ops->event_synchronize(event);
    while (!ops->event_happened(event))
        ;
    (void)ops->event_time_ns(event);
    TRY_OR_FAIL(ops->stream_synchronize(copy, error));
    TRY_OR_FAIL(ops->stream_synchronize(compute, error));
fail:
    if (event) ops->event_destroy(&event);
    ops->stream_destroy(&compute);
    ops->stream_destroy(&copy);
    if (pinned) ops->host_unregister(device, pages);
    free(pages);
    return status;
}

/* Call after call fails, once or for good: it is said, and nothing stays behind. */
static void sweep(bool for_good)
{
    const int step = real ? 7 : 1; /* a card is not opened that quickly */

    for (int at = 1;; at += step) {
        struct shoal_error error = {0};
        struct device *device;
        enum shoal_status status;

        set_up(NULL);
        faults.at = at;
        faults.for_good = for_good;
        faults.result = 700;
        status = cuda_create_with(&device, &driver, 0, &error);
        if (!status) status = use_device(device, &error);
        device_destroy(&device);
        if (!real && fake_driver_counts().things != 0)
            fail_msg(
                "call %d, %s: %d stayed open", at, faults.symbol, (int)fake_driver_counts().things);
        if (!faults.failed) return; /* there are not so many */
        /* What is only called to release at the end has nobody to tell. */
        if (!status && strcmp(faults.symbol, "cuCtxSetCurrent") != 0 &&
            strcmp(faults.symbol, "cuCtxSynchronize") != 0 &&
            strcmp(faults.symbol, "cuStreamSynchronize") != 0 && !faulty_releases(faults.symbol))
            fail_msg("call %d, %s, failed and nothing was said", at, faults.symbol);
        if (status && (status != SHOAL_E_DEVICE || !strstr(error.text, "700")))
            fail_msg("call %d, %s: \"%s\"", at, faults.symbol, error.text);
    }
}

static void test_each_call_fails_once(void **state)
{
    (void)state;
    sweep(false);
}

static void test_each_call_fails_for_good(void **state)
{
    (void)state;
    sweep(true);
}

static void test_lost(void **state)
{
    struct shoal_error error = {0}, again = {0};
    struct device *device = open_device();
    const struct device_ops *ops = device->ops;
    struct stream *compute, *copy, *more;
    struct event *event;
    char bytes[1024] = {0};
    const struct gpu_matrix args = {0};
    int calls;

    (void)state;
    assert_ok(ops->arena_reserve(device, ARENA_BYTES, &error));
    assert_ok(ops->stream_create(device, false, &compute, &error));
    assert_ok(ops->stream_create(device, true, &copy, &error));
    assert_ok(ops->event_create(device, &event, &error));
    ops->event_record(copy, event);
    faults.at = faults.calls + 2; /* the call after the one that makes the context current */
    faults.for_good = true;
    faults.result = 719;
    ops->copy_in(copy, device->arena, bytes, sizeof bytes);
    assert_string_equal(faults.symbol, "cuMemcpyHtoDAsync_v2");

    /* No work, and no waiting for ever; the first failure is what is said. */
    calls = faults.calls;
    cuda_launch(compute, (enum cuda_kernel)0, (struct cuda_grid){1, 1, 1, 32, 0}, &args);
    ops->copy_out(copy, bytes, device->arena, sizeof bytes);
    ops->event_record(compute, event);
    ops->event_wait(compute, event);
    ops->event_synchronize(event);
    assert_true(ops->event_happened(event));
    assert_int_equal(ops->event_time_ns(event), 0);
    assert_int_equal(faults.calls - calls, 7 + 2); /* the context made current; both waits */
    assert_int_equal(ops->stream_synchronize(compute, &error), SHOAL_E_DEVICE);
    assert_says(&error, "copying 1.00 KiB to the device");
    assert_says(&error, "719");
    assert_int_equal(ops->stream_synchronize(copy, &again), SHOAL_E_DEVICE);
    assert_string_equal(error.text, again.text);
    assert_int_equal(ops->stream_create(device, true, &more, &again), SHOAL_E_DEVICE);
    assert_string_equal(error.text, again.text);

    ops->stream_destroy(&compute);
    ops->stream_destroy(&copy);
    ops->event_destroy(&event);
    device_destroy(&device);
    assert_clean();
    assert_int_equal(faults.resets, 1);

    faults.at = 0;
    device = open_device();
    assert_ok(use_device(device, &error));
    device_destroy(&device);
    assert_clean();
}

/* The context is the card's, so all devices on it are lost with one; it is reset when the last one
 * is gone, not from under the others. */
static void test_lost_together(void **state)
{
    struct shoal_error error = {0};
    struct device *first = open_device(), *second = open_device(), *third;
    struct stream *compute;

    (void)state;
    assert_ok(second->ops->stream_create(second, false, &compute, &error));
    faults.at = faults.calls + 1;
    faults.for_good = true;
    faults.result = 719;
    assert_int_equal(first->ops->arena_reserve(first, ARENA_BYTES, &error), SHOAL_E_DEVICE);
    device_destroy(&first);
    assert_int_equal(faults.resets, 0);
    assert_int_equal(second->ops->stream_synchronize(compute, &error), SHOAL_E_DEVICE);
    assert_says(&error, "is lost to this device: ");
    assert_says(&error, "719");
    assert_int_equal(cuda_create_with(&third, &driver, 0, &error), SHOAL_E_DEVICE);
    faults.always = CALL_memory_info; /* as if only the context were dead */
    faults.at = 0;
    assert_int_equal(cuda_create_with(&third, &driver, 0, &error), SHOAL_E_DEVICE);
    assert_says(&error, "another device of this process has");
    assert_says(&error, "719");
    assert_int_equal(faults.resets, 0);
    faults.always = CALL_COUNT;
    second->ops->stream_destroy(&compute);
    device_destroy(&second); /* to which all is well again: what the first one saw counts */
    assert_int_equal(faults.resets, 1);
    assert_clean();
    first = open_device();
    assert_ok(use_device(first, &error));
    device_destroy(&first);
    assert_int_equal(faults.resets, 1);
    assert_clean();
}

static void test_failing_kernel_is_named(void **state)
{
    struct shoal_error error = {0};
    struct device *device = open_device();
    struct stream *compute;
    const struct gpu_matrix args = {0};

    (void)state;
    assert_ok(device->ops->stream_create(device, false, &compute, &error));
    faults.always = CALL_launch;
    faults.result = 1;
    cuda_launch(compute, (enum cuda_kernel)0, (struct cuda_grid){1, 1, 1, 32, 0}, &args);
    assert_int_equal(device->ops->stream_synchronize(compute, &error), SHOAL_E_DEVICE);
    assert_says(&error, "kernel ");
    device->ops->stream_destroy(&compute);
    device_destroy(&device);
    /* The context itself is well: it may be somebody else's too. */
    assert_int_equal(faults.resets, 0);
    assert_clean();
}

/* A kernel that reads where nothing is takes the context with it, and the driver gives the process
 * no other. */
static void test_wild_address(void **state)
{
    struct shoal_error error = {0};
    struct device *device;
    struct stream *compute;

    (void)state;
    if (!real) skip();
    device = open_device();
    assert_ok(device->ops->stream_create(device, false, &compute, &error));
    assert_ok(device->ops->arena_reserve(device, ARENA_BYTES, &error));
    device->ops->compute->copy(compute, matrix_at(device->arena, DTYPE_F32, 1, 64),
        matrix_at((device_addr)1 << 50, DTYPE_F32, 1, 64));
    assert_int_equal(device->ops->stream_synchronize(compute, &error), SHOAL_E_DEVICE);
    print_message("%s\n", error.text);
    assert_says(&error, "the last kernel given was copy");
    device->ops->stream_destroy(&compute);
    device_destroy(&device);
    assert_int_equal(cuda_create_with(&device, &driver, 0, &error), SHOAL_E_DEVICE);
    assert_says(&error, "until it ends");
    assert_null(device);
}

/* What opening takes; for people. */
static void test_overhead(void **state)
{
    struct device *device = open_device();
    struct cuda_info info = cuda_info(device);

    (void)state;
    print_message("%s, sm_%d: %llu MiB, %llu free, %llu taken beside the arena (%llu by the "
                  "driver's count), multiplying by %s, "
                  "attending by %s\n",
        info.name, info.sm, (unsigned long long)info.card_bytes >> 20,
        (unsigned long long)info.free_bytes >> 20, (unsigned long long)info.overhead_bytes >> 20,
        (unsigned long long)cuda_process_bytes(device) >> 20, info.multiplies, info.attends);
    device_destroy(&device);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_open_and_close, set_up),
        cmocka_unit_test_setup(test_overhead, set_up), cmocka_unit_test(test_no_driver),
        cmocka_unit_test_setup(test_unusable_cards, set_up),
        cmocka_unit_test_setup(test_no_kernels_for_the_card, set_up),
        cmocka_unit_test_setup(test_overhead_recovers, set_up),
        cmocka_unit_test_setup(test_arena, set_up), cmocka_unit_test_setup(test_pinning, set_up),
        cmocka_unit_test_setup(test_copies, set_up),
        cmocka_unit_test_setup(test_stops_computing, set_up),
        cmocka_unit_test_setup(test_event_times, set_up),
        cmocka_unit_test(test_each_call_fails_once),
        cmocka_unit_test(test_each_call_fails_for_good), cmocka_unit_test_setup(test_lost, set_up),
        cmocka_unit_test_setup(test_lost_together, set_up),
        cmocka_unit_test_setup(test_failing_kernel_is_named, set_up),
        cmocka_unit_test_setup(test_wild_address, set_up), /* the card's last */
    };

    real = argc > 1 && strcmp(argv[1], "gpu") == 0;
    if (real && !faulty_has_card()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
