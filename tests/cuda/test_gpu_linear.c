/*
 * Products of matrices on the CUDA device: every type, tails, strides, panels; that no bit depends
 * on tiles, panels or where operands lie; and on a card how fast the sizes of a real model are.
 */
#include "cuda/gpu_support.h"

#include "device/cuda/blas.h"
#include "device/cuda/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT(array) ((int)(sizeof array / sizeof *array))

static const enum dtype weights[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1,
    DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
    DTYPE_F8_E4M3, DTYPE_F8_E5M2};

/* The device, while it is its turn; NULL: the reference's. */
static struct cuda_device *card(void)
{
    struct device *device = gpu.stream->device;

    return device->traits.activation == DTYPE_F32 ? NULL : cuda_device(device);
}

/* Other tiles and other panels every time; the harness wants the same bytes. */
static void linear_variously(
    struct matrix y, struct matrix x, struct matrix w, struct matrix bias, bool panels)
{
    static const int32_t processors[] = {1, 1000, 6};
    static int turn;
    struct cuda_device *cuda = card();
    struct cuda_device before;

    if (!cuda) {
        gpu.ops->linear(gpu.stream, y, x, w, bias);
        return;
    }
    before = *cuda;
    turn++;
    cuda->blas = NULL;
    cuda->processors = processors[turn % COUNT(processors)];
    if (panels && turn % 2) cuda->workspace_bytes = (uint64_t)(x.cols + 8) * 2 * 40;
    gpu.ops->linear(gpu.stream, y, x, w, bias);
    cuda->blas = before.blas;
    cuda->processors = before.processors;
    cuda->workspace_bytes = before.workspace_bytes;
}

/* ---- shapes and types ---- */

static void check(const int64_t shape[3], enum dtype y_type, enum dtype x_type, enum dtype w_type,
    enum dtype bias_type, double tolerance)
{
    struct operand *x = gpu_input(x_type, shape[0], shape[2]);
    struct operand *w = gpu_input(w_type, shape[1], shape[2]);
    struct operand *bias =
        shape[1] % dtype_block_elements(bias_type) || (w_type != DTYPE_F32 && shape[1] == 64)
            ? NULL
            : gpu_input(bias_type, 1, shape[1]);
    struct operand *y = gpu_output(y_type, shape[0], shape[1]);

    for (gpu_begin("linear", tolerance); gpu_next();)
        linear_variously(on(y), on(x), on(w), on(bias), w_type != DTYPE_BF16);
}

static void test_tails(void **state)
{
    static const int64_t shapes[][3] = {{9, 1, 1}, {9, 64, 8}, {12, 3, 16}, {17, 37, 31},
        {63, 65, 33}, {64, 64, 96}, {65, 64, 40}, {130, 257, 24}, {129, 70, 136}, {120, 250, 72}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        check(shapes[i], DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 1e-5);
        check(shapes[i], DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 1e-5);
    }
}

static void test_plain_types(void **state)
{
    static const int64_t shapes[][3] = {{20, 33, 72}, {70, 90, 35}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        for (int t = 0; t < 27; t++)
            check(shapes[i], gpu_activations[t % 3], gpu_activations[t / 3 % 3], weights[t / 9],
                gpu_activations[(t + i) % 3], 1e-2);
}

static void test_f16(void **state)
{
    static const int64_t shapes[][3] = {{9, 70, 40}, {130, 65, 72}, {40, 20, 19}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        for (int t = 0; t < 2; t++) {
            struct operand *x = gpu_input(t ? DTYPE_F32 : DTYPE_F16, shapes[i][0], shapes[i][2]);
            struct operand *w = gpu_input(DTYPE_F16, shapes[i][1], shapes[i][2]);
            struct operand *y = gpu_output(t ? DTYPE_F16 : DTYPE_F32, shapes[i][0], shapes[i][1]);

            for (gpu_begin("linear", t ? 1e-3 : 1e-5); gpu_next();) {
                struct cuda_device *cuda = card();

                if (cuda) cuda->base.traits.activation = DTYPE_F16;
                linear_variously(on(y), on(x), on(w), MATRIX_NONE, true);
                if (cuda) cuda->base.traits.activation = cuda->sm >= 80 ? DTYPE_BF16 : DTYPE_F16;
            }
        }
}

static void test_quantised(void **state)
{
    static const int64_t shapes[][3] = {{20, 33, 256}, {9, 64, 512}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        for (int t = 3; t < COUNT(weights); t++)
            check(shapes[i], DTYPE_F32, i ? DTYPE_F32 : DTYPE_BF16, weights[t],
                i ? DTYPE_Q8_0 : DTYPE_BF16, 1e-2);
    /* Codes of 8 bits come in rows of any length. */
    for (int64_t m = 1; m < 20; m += 6) {
        check(
            (const int64_t[]){m, 37, 75}, DTYPE_F32, DTYPE_F32, DTYPE_F8_E4M3, DTYPE_F8_E5M2, 1e-2);
        check((const int64_t[]){m, 9, 1003}, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E5M2, DTYPE_F8_E4M3,
            1e-2);
    }
}

static void test_few_rows(void **state)
{
    static const int64_t columns[][2] = {{1, 1}, {4, 8}, {7, 35}, {5, 1100}, {9, 256}};

    (void)state;
    for (int i = 0; i < COUNT(columns); i++)
        for (int64_t m = 1; m <= FEW_ROWS; m++) {
            const int64_t shape[3] = {m, columns[i][0], columns[i][1]};

            for (int t = 0; t < COUNT(weights); t++)
                if (columns[i][1] % dtype_block_elements(weights[t]) == 0)
                    check(shape, gpu_activations[(t + m) % 3], gpu_activations[m % 3], weights[t],
                        gpu_activations[t % 3], 1e-5);
        }
}

/* A matrix that picks columns `first` to `first + rows` of w: the product is they. */
static struct operand *picking(int64_t rows, int64_t cols, int64_t first)
{
    struct operand *x = gpu_input(DTYPE_F32, rows, cols);
    float *values = calloc((size_t)(rows * cols), sizeof *values);

    assert_non_null(values);
    for (int64_t r = 0; r < rows; r++)
        values[r * cols + first + r] = 1;
    gpu_set(x, values);
    free(values);
    return x;
}

/* Quantised weights are what tensor/quant.c says, bit for bit; rounded where they are multiplied in
 * the activation type (F16 is then rounded to y's BF16 once more). */
static void test_quantised_exactly(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(weights); t++) {
        struct operand *x, *w, *y;

        for (int64_t first = 0; first < 256; first += FEW_ROWS) {
            x = picking(FEW_ROWS, 256, first);
            w = gpu_input(weights[t], 5, 256);
            y = gpu_output(DTYPE_F32, FEW_ROWS, 5);
            GPU_CHECK(0, linear, on(y), on(x), on(w), MATRIX_NONE);
        }
        x = picking(256, 256, 0);
        w = gpu_input(weights[t], 5, 256);
        y = gpu_output(DTYPE_BF16, 256, 5);
        GPU_CHECK(3e-4, linear, on(y), on(x), on(w), MATRIX_NONE);
    }
}

/* y is some columns of a wider matrix, x of another. */
static void test_slices(void **state)
{
    (void)state;
    for (int64_t first = 0; first < 10; first += 3) {
        struct operand *x = gpu_input(DTYPE_BF16, 20, 60), *w = gpu_input(DTYPE_BF16, 30, 40);
        struct operand *y = gpu_inout(DTYPE_BF16, 20, 50);

        for (gpu_begin("linear", 1e-5); gpu_next();)
            linear_variously(
                on_cols(y, first, 30), on_cols(x, first, 40), on(w), MATRIX_NONE, true);
    }
}

/* ---- a real model's sizes, on a card ---- */

/* Quantised weights are multiplied panel by panel, those that come widened all at once, by a
 * library that chooses how by the shape. What the host keeps must not show in y. */
static void check_widened(int64_t m, int64_t n, int64_t k, enum dtype w_type)
{
    struct operand *x = gpu_input(DTYPE_BF16, m, k), *w = gpu_input(w_type, n, k);
    struct operand *wide = gpu_output(DTYPE_BF16, n, k), *y = gpu_output(DTYPE_BF16, m, n);
    int turn = 0;

    for (gpu_begin_timed("linear, widened", 1e-2, 0, 0); gpu_next(); turn++) {
        gpu.ops->copy(gpu.stream, on(wide), on(w));
        gpu.ops->linear(gpu.stream, on(y), on(x), turn % 2 ? on(wide) : on(w), MATRIX_NONE);
    }
}

static void test_widened(void **state)
{
    static const int64_t shapes[][2] = {{12288, 3072}, {3072, 12288}, {5120, 20480}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        check_widened(4096, shapes[i][0], shapes[i][1], DTYPE_F8_E4M3);
        check_widened(40, shapes[i][0], shapes[i][1], DTYPE_F8_E4M3);
    }
    check_widened(512, 12288, 3072, DTYPE_Q8_0);
}

static void time_linear(
    int64_t m, int64_t n, int64_t k, enum dtype y_type, enum dtype x_type, enum dtype w_type)
{
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    const double bytes = (double)(dtype_bytes(w_type, n * k) + dtype_bytes(x_type, m * k) +
                                  dtype_bytes(y_type, m * n));
    static char what[2][96];

    for (int own = 0; own < 2; own++) {
        struct operand *x = gpu_input(x_type, m, k), *w = gpu_input(w_type, n, k);
        struct operand *y = gpu_output(y_type, m, n);

        snprintf(what[own], sizeof what[own], "linear %lldx%lldx%lld %s %s -> %s%s", (long long)m,
            (long long)n, (long long)k, dtype_name(x_type), dtype_name(w_type), dtype_name(y_type),
            own ? ", own" : "");
        for (gpu_begin_timed(what[own], 1e-2, flops, bytes); gpu_next();) {
            struct cuda_device *cuda = card();
            struct cuda_blas *blas = cuda ? cuda->blas : NULL;

            if (cuda && own) cuda->blas = NULL;
            gpu.ops->linear(gpu.stream, on(y), on(x), on(w), MATRIX_NONE);
            if (cuda) cuda->blas = blas;
        }
    }
}

static void test_speed(void **state)
{
    (void)state;
    /* Z-Image: 1024 x 1024 and a short prompt. */
    time_linear(4224, 3840, 3840, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(4224, 10240, 3840, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(4224, 3840, 10240, DTYPE_F32, DTYPE_BF16, DTYPE_BF16);
    time_linear(4224, 10240, 3840, DTYPE_BF16, DTYPE_BF16, DTYPE_Q8_0);
    time_linear(4224, 10240, 3840, DTYPE_BF16, DTYPE_BF16, DTYPE_Q4_K);
    time_linear(4224, 3840, 3840, DTYPE_BF16, DTYPE_F32, DTYPE_BF16);
    time_linear(4096, 3840, 64, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    time_linear(4096, 64, 3840, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    /* Qwen-Image, Cosmos-Predict2 14B. */
    time_linear(4096, 12288, 3072, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(4096, 12288, 3072, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E4M3);
    time_linear(4096, 3072, 12288, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(4096, 3072, 12288, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E4M3);
    time_linear(40, 12288, 3072, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(40, 12288, 3072, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E4M3);
    time_linear(4096, 5120, 20480, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(4096, 5120, 20480, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E4M3);
    /* Modulation. */
    time_linear(1, 15360, 256, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    time_linear(1, 10240, 3840, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    time_linear(2, 10240, 3840, DTYPE_F32, DTYPE_F32, DTYPE_Q8_0);
    time_linear(8, 10240, 3840, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    /* Qwen3-4B. */
    time_linear(40, 9728, 2560, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(40, 2560, 9728, DTYPE_F32, DTYPE_BF16, DTYPE_BF16);
    time_linear(512, 9728, 2560, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(512, 2560, 9728, DTYPE_F32, DTYPE_BF16, DTYPE_BF16);
    /* shoal-mini, and the VAE's attention in the middle. */
    time_linear(256, 576, 192, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
    time_linear(16384, 512, 512, DTYPE_BF16, DTYPE_BF16, DTYPE_F32);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tails),
    cmocka_unit_test(test_plain_types),
    cmocka_unit_test(test_f16),
    cmocka_unit_test(test_quantised),
    cmocka_unit_test(test_few_rows),
    cmocka_unit_test(test_quantised_exactly),
    cmocka_unit_test(test_slices),
    cmocka_unit_test(test_widened),
    cmocka_unit_test(test_speed),
};

GPU_MAIN(tests)
