/* The counting device: operations and bytes worked out by hand, and it touches no memory. */
#include "../support.h"

#include "device/count/count.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

static struct device *device;
static struct stream *stream;

/* Far from anything mapped. */
static struct matrix at(enum dtype dtype, int64_t rows, int64_t cols)
{
    static device_addr next = (device_addr)1 << 41;

    next += 1 << 20;
    return matrix_at(next, dtype, rows, cols);
}

/* What has been added since the last call. */
static void assert_added(uint64_t operations, uint64_t traffic)
{
    static struct count_totals before;
    struct count_totals now = count_read(device);

    assert_int_equal(now.operations - before.operations, operations);
    assert_int_equal(now.traffic - before.traffic, traffic);
    before = now;
}

static void test_operations(void **state)
{
    const struct compute_ops *ops = device->ops->compute;
    struct matrix x = at(DTYPE_F32, 10, 8), y = at(DTYPE_F32, 10, 4), z = at(DTYPE_F32, 10, 8);
    struct matrix w = at(DTYPE_BF16, 4, 8), bias = at(DTYPE_F16, 1, 4);
    struct attention how = {.heads = 2, .kv_heads = 2, .scale = 1};
    struct conv conv = {.height = 4, .width = 4, .kernel = 3, .upsample = 2};

    (void)state;
    ops->linear(stream, y, x, w, MATRIX_NONE);
    assert_added(2 * 10 * 4 * 8, 320 + 160 + 64);
    ops->linear(stream, y, x, w, bias);
    assert_added(2 * 10 * 4 * 8 + 40, 320 + 160 + 64 + 8);
    ops->gated_add(stream, z, MATRIX_NONE, x, MATRIX_NONE, 0);
    assert_added(80, 640);
    ops->gated_add(stream, z, at(DTYPE_F32, 1, 8), x, at(DTYPE_BF16, 1, 8), 1e-6f);
    assert_added(6 * 80, 640 + 32 + 16);
    /* Two heads of 4. */
    ops->rms_norm_rope(stream, x, bias, 1e-6f, y, ROPE_HALF);
    assert_added(7 * 80, 320 + 8 + 160);
    ops->activate(stream, x, x, ACTIVATION_SILU); /* in place: once */
    assert_added(320, 320);
    /* Two heads of 4 over 10 keys. */
    ops->attention(stream, z, x, x, x, &how);
    assert_added(4 * 10 * 10 * 4 * 2, 4 * 320);
    how.causal = true;
    how.bias = at(DTYPE_F32, 2, 19);
    ops->attention(stream, z, x, x, x, &how);
    assert_added(4 * 10 * 10 * 4 * 2 / 2, 4 * 320 + 152);
    ops->rms_norm_rope(stream, x, bias, 1e-6f, MATRIX_NONE, ROPE_HALF);
    assert_added(4 * 80, 320 + 8);
    ops->layer_norm(stream, z, x, MATRIX_NONE, at(DTYPE_F32, 1, 8), at(DTYPE_BF16, 1, 8), 1e-6f);
    assert_added(8 * 80, 640 + 32 + 16);
    ops->match_norms(stream, z, x);
    assert_added(5 * 80, 640);
    ops->gated(stream, z, x, z, ACTIVATION_SILU);
    assert_added(5 * 80, 640);
    ops->channel_norm(stream, z, x, at(DTYPE_F32, 1, 10), ACTIVATION_SILU);
    assert_added(8 * 80, 640 + 40);
    /* 3 channels of 2 x 2 to 5 of 4 x 4. */
    ops->conv2d(stream, at(DTYPE_F32, 5, 16), at(DTYPE_F32, 3, 4), at(DTYPE_BF16, 5, 27),
        MATRIX_NONE, &conv);
    assert_added(2 * 5 * 3 * 9 * 16, 4 * 80 + 4 * 12 + 2 * 135);
    /* Of kernels of three planes the last is used; all are read. */
    ops->conv2d(stream, at(DTYPE_F32, 5, 16), at(DTYPE_F32, 3, 4), at(DTYPE_BF16, 5, 81),
        MATRIX_NONE, &conv);
    assert_added(2 * 5 * 3 * 9 * 16, 4 * 80 + 4 * 12 + 2 * 405);
    /* Two rows of those four, from all of the input's. */
    conv.height = conv.below = 2;
    ops->conv2d(stream, at(DTYPE_F32, 5, 8), at(DTYPE_F32, 3, 4), at(DTYPE_BF16, 5, 27),
        MATRIX_NONE, &conv);
    assert_added(2 * 5 * 3 * 9 * 8, 4 * 40 + 4 * 12 + 2 * 135);
    /* Two runs of 4 pixels for each of 10 channels. */
    ops->group_moments(stream, at(DTYPE_F32, 10, 4), z, 4);
    assert_added(4 * 80, 320 + 160);
    ops->unpack(stream, &(struct crossed){w, (device_addr)1 << 40, 640, true}, 1);
    assert_added(0, 64 + 640);
}

static void test_arena_and_copies(void **state)
{
    struct shoal_error error = {0};
    struct event *event;
    struct count_totals before = count_read(device), now;

    (void)state;
    assert_ok(device->ops->arena_reserve(device, (uint64_t)1 << 45, &error));
    assert_true(device->arena && device->arena % 4096 == 0);
    assert_int_equal(device->arena_bytes, (uint64_t)1 << 45);
    assert_int_equal(device->ops->arena_reserve(device, 1, &error), SHOAL_E_DEVICE);
    device->ops->arena_release(device);
    assert_int_equal(device->arena, 0);

    assert_ok(device->ops->event_create(device, &event, &error));
    device->ops->copy_in(stream, (device_addr)1 << 40, NULL, 100);
    device->ops->event_record(stream, event);
    device->ops->event_wait(stream, event);
    device->ops->copy_out(stream, NULL, (device_addr)1 << 40, 7);
    device->ops->event_destroy(&event);
    assert_null(event);
    assert_ok(device->ops->stream_synchronize(stream, &error));
    now = count_read(device);
    assert_int_equal(now.copied_in - before.copied_in, 100);
    assert_int_equal(now.copied_out - before.copied_out, 7);
    assert_int_equal(now.operations, before.operations);
}

/* A product of many rows takes its weights in anew for every so many; of a card's, once. */
static void test_weights_taken_in(void **state)
{
    const struct device_traits traits[] = {CPU_TRAITS, CUDA_TRAITS};
    const double times[] = {5, 1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct shoal_error error = {0};
        struct device *counting;
        struct stream *compute;

        assert_ok(count_create(&counting, traits[i], &error));
        assert_ok(counting->ops->stream_create(counting, false, &compute, &error));
        counting->ops->compute->linear(compute, at(DTYPE_F32, 2112, 8), at(DTYPE_F32, 2112, 16),
            at(DTYPE_BF16, 8, 16), MATRIX_NONE);
        assert_true(count_read(counting).weight_traffic == times[i] * 8 * 16 * 2);
        counting->ops->stream_destroy(&compute);
        device_destroy(&counting);
    }
}

/* A card converts F8 in memory for more than a few rows, and takes in what it made of them. */
static void test_weights_converted(void **state)
{
    const struct {
        struct device_traits traits;
        int64_t rows;
        double taken, other;
    } cases[] = {{CUDA_TRAITS, 8, 1, 0}, {CUDA_TRAITS, 9, 2, 3}, {CPU_TRAITS, 9, 1, 0}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct shoal_error error = {0};
        struct device *counting;
        struct stream *compute;
        struct count_totals totals;

        assert_ok(count_create(&counting, cases[i].traits, &error));
        assert_ok(counting->ops->stream_create(counting, false, &compute, &error));
        counting->ops->compute->linear(compute, at(DTYPE_F32, cases[i].rows, 8),
            at(DTYPE_F32, cases[i].rows, 16), at(DTYPE_F8_E4M3, 8, 16), MATRIX_NONE);
        totals = count_read(counting);
        assert_true(totals.weight_traffic == cases[i].taken * 8 * 16);
        assert_true(totals.other_traffic == cases[i].other * 8 * 16);
        counting->ops->stream_destroy(&compute);
        device_destroy(&counting);
    }
}

static int open_device(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    assert_ok(count_create(&device, CPU_TRAITS, &error));
    assert_ok(device->ops->stream_create(device, false, &stream, &error));
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    device->ops->stream_destroy(&stream);
    device_destroy(&device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_weights_taken_in),
        cmocka_unit_test(test_weights_converted),
        cmocka_unit_test(test_arena_and_copies),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
