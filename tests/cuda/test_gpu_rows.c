/* Operations over rows without sums, on the CUDA device: see gpu_support.h. */
#include "cuda/gpu_support.h"

#include "device/cuda/internal.h"

#include <math.h>
#include <stdlib.h>

#define F32 DTYPE_F32
#define BF16 DTYPE_BF16
#define F16 DTYPE_F16

/* One column; less than a run; many rows; several blocks across with a ragged end. */
static const struct {
    int64_t rows, cols;
} shapes[] = {{1, 1}, {3, 5}, {7, 24}, {300, 8}, {5, 520}, {2, 4203}};
#define SHAPES (int)(sizeof shapes / sizeof *shapes)

/* Results, first and second operands: in a block, at its edges, all F32, and as they may come. */
static const enum dtype types[][3] = {
    {F32, F32, F32}, {BF16, BF16, BF16}, {F16, F16, F16}, {F32, BF16, BF16}, {BF16, F32, F16}};
#define TYPES (int)(sizeof types / sizeof *types)

#define EACH_SHAPE_AND_TYPES(s, t)                                                                 \
    for (int s = 0; s < SHAPES; s++)                                                               \
        for (int t = 0; t < TYPES; t++)

static void test_gated(void **state)
{
    (void)state;
    EACH_SHAPE_AND_TYPES(s, t)
    {
        int64_t rows = shapes[s].rows, cols = shapes[s].cols;
        struct operand *y = gpu_output(types[t][0], rows, cols);
        struct operand *a = gpu_input(types[t][1], rows, cols);
        struct operand *b = gpu_input(types[t][2], rows, cols);

        GPU_CHECK(1e-6, gated, on(y), on(a), on(b), ACTIVATION_SILU);
        y = gpu_inout(types[t][1], rows, cols);
        b = gpu_input(types[t][2], rows, cols);
        GPU_CHECK(1e-6, gated, on(y), on(y), on(b), ACTIVATION_GELU_TANH);
        a = gpu_input(types[t][2], rows, cols);
        y = gpu_inout(types[t][1], rows, cols);
        GPU_CHECK(1e-6, gated, on(y), on(a), on(y), ACTIVATION_SILU);
    }
}

/* Beyond F16 there is its largest number, from which one goes on; what is no number stays none. */
static void test_f16_saturates(void **state)
{
    const float gates[] = {300, -300, 1000, 250, NAN, INFINITY, 40};
    const float values[] = {300, 60000, -300, 250, 1, 1, INFINITY};
    const float sums[] = {60000, -60000, 1, -65504, NAN, 7, 0};
    struct operand *y = gpu_output(F16, 1, 7), *a = gpu_input(F16, 1, 7), *b = gpu_input(F16, 1, 7);

    (void)state;
    gpu_set(a, gates);
    gpu_set(b, values);
    GPU_CHECK(1e-6, gated, on(y), on(a), on(b), ACTIVATION_SILU);
    y = gpu_inout(F16, 1, 7);
    gpu_set(y, sums);
    b = gpu_input(F32, 1, 7);
    gpu_set(b, sums);
    GPU_CHECK(1e-6, gated_add, on(y), MATRIX_NONE, on(b), MATRIX_NONE, 0);
}

static void test_gated_add(void **state)
{
    const enum dtype gates[] = {F32, BF16, F16};

    (void)state;
    EACH_SHAPE_AND_TYPES(s, t)
    {
        int64_t rows = shapes[s].rows, cols = shapes[s].cols;
        struct operand *y = gpu_inout(types[t][0], rows, cols);
        struct operand *x = gpu_input(types[t][1], rows, cols);
        struct operand *gate = gpu_input(gates[(s + t) % 3], 1, cols);

        GPU_CHECK(1e-6, gated_add, on(y), on(gate), on(x), MATRIX_NONE, 0);
        y = gpu_inout(types[t][0], rows, cols);
        x = gpu_input(types[t][1], rows, cols);
        GPU_CHECK(1e-6, gated_add, on(y), MATRIX_NONE, on(x), MATRIX_NONE, 0);
    }
}

static void test_blend_and_guide(void **state)
{
    (void)state;
    EACH_SHAPE_AND_TYPES(s, t)
    {
        int64_t rows = shapes[s].rows, cols = shapes[s].cols;
        struct operand *y = gpu_inout(types[t][0], rows, cols);
        struct operand *a = gpu_input(types[t][1], rows, cols), *b;

        GPU_CHECK(1e-6, blend, on(y), 0.3f, on(a), -1.7f);
        y = gpu_output(types[t][0], rows, cols);
        a = gpu_input(types[t][1], rows, cols);
        b = gpu_input(types[t][2], rows, cols);
        GPU_CHECK(1e-6, guide, on(y), on(a), on(b), 2.5f);
        y = gpu_inout(types[t][0], rows, cols);
        b = gpu_input(types[t][2], rows, cols);
        GPU_CHECK(1e-6, guide, on(y), on(y), on(b), 2.5f);
        y = gpu_inout(types[t][0], rows, cols);
        b = gpu_input(types[t][2], rows, cols);
        GPU_CHECK(1e-6, guide, on(y), on(b), on(y), 2.5f);
    }
}

static void test_copy(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < 9; t++) {
            int64_t rows = shapes[s].rows, cols = shapes[s].cols;
            struct operand *y = gpu_output(gpu_activations[t / 3], rows, cols);
            struct operand *x = gpu_input(gpu_activations[t % 3], rows, cols);

            GPU_CHECK(0, copy, on(y), on(x));
            y = gpu_output(gpu_activations[t / 3], rows, cols);
            x = gpu_input(gpu_activations[t % 3], 1, cols);
            GPU_CHECK(0, copy, on(y), on(x));
        }
}

/* Gates and what is copied may be quantised: of blocks of 32 and of 256, in turns if need be. */
static void test_quantised(void **state)
{
    const enum dtype quantised[] = {
        DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    struct cuda_device *cuda = cuda_device(gpu_device());
    const uint64_t workspace_bytes = cuda->workspace_bytes;

    (void)state;
    for (int q = 0; q < 7; q++)
        for (int t = 0; t < 3; t++) {
            int64_t cols = 256 * (1 + t) + (dtype_is_f8(quantised[q]) ? 3 * t : 0);
            struct operand *y = gpu_inout(gpu_activations[t], 3, cols);
            struct operand *x = gpu_input(F32, 3, cols);
            struct operand *w = gpu_input(quantised[q], 1, cols);

            GPU_CHECK(1e-6, gated_add, on(y), on(w), on(x), MATRIX_NONE, 0);
            y = gpu_output(gpu_activations[t], 5, cols);
            w = gpu_input(quantised[q], 1, cols);
            GPU_CHECK(1e-6, copy, on(y), on(w));
            cuda->workspace_bytes = (uint64_t)(t + 2) * (uint64_t)(cols + 7) * 4; /* 2, 3, 4 rows */
            y = gpu_output(gpu_activations[t], 7, cols);
            w = gpu_input(quantised[q], 7, cols);
            GPU_CHECK(1e-6, copy, on(y), on(w));
            cuda->workspace_bytes = workspace_bytes;
        }
}

static void test_activate(void **state)
{
    (void)state;
    for (int a = ACTIVATION_NONE; a <= ACTIVATION_RELU; a++)
        EACH_SHAPE_AND_TYPES(s, t)
        {
            int64_t rows = shapes[s].rows, cols = shapes[s].cols;
            struct operand *y = gpu_output(types[t][0], rows, cols);
            struct operand *x = gpu_input(types[t][1], rows, cols);

            if (cols > 1000 && a != ACTIVATION_SILU) continue;
            GPU_CHECK(1e-6, activate, on(y), on(x), (enum activation)a);
            y = gpu_inout(types[t][0], rows, cols);
            GPU_CHECK(1e-6, activate, on(y), on(y), (enum activation)a);
        }
}

/* Where the functions bend and where their exponentials run over, in spans that are judged by
 * their own largest value. */
static void test_functions(void **state)
{
    static const float spans[][2] = {
        {-1e-3f, 1e-3f}, {-1, 1}, {-4, -1}, {-6, -4}, {-14, -6}, {1, 20}, {-120, -80}, {80, 120}};
    const float ends[] = {INFINITY, -INFINITY, NAN, 0, 1, 3e38f, -3e38f, 1e-40f};
    enum { COUNT = 300 };

    (void)state;
    for (int a = ACTIVATION_NONE; a <= ACTIVATION_RELU; a++) {
        struct operand *y, *x;

        for (size_t s = 0; s < sizeof spans / sizeof *spans; s++) {
            float values[COUNT];

            for (int i = 0; i < COUNT; i++)
                values[i] = spans[s][0] + (spans[s][1] - spans[s][0]) * (float)i / COUNT;
            y = gpu_output(F32, 1, COUNT);
            x = gpu_input(F32, 1, COUNT);
            gpu_set(x, values);
            GPU_CHECK(2e-6, activate, on(y), on(x), (enum activation)a);
        }
        for (int i = 0; i < 8; i++) {
            y = gpu_output(F32, 1, 1);
            x = gpu_input(F32, 1, 1);
            gpu_set(x, &ends[i]);
            GPU_CHECK(2e-6, activate, on(y), on(x), (enum activation)a);
        }
    }
}

static void test_affine(void **state)
{
    const enum activation activations[] = {ACTIVATION_NONE, ACTIVATION_SILU};

    (void)state;
    EACH_SHAPE_AND_TYPES(s, t)
    {
        int64_t rows = shapes[s].rows, cols = shapes[s].cols;
        struct operand *y = gpu_output(types[t][0], rows, cols);
        struct operand *x = gpu_input(types[t][1], rows, cols);
        struct operand *affine = gpu_input(F32, 2, rows);

        GPU_CHECK(1e-6, affine, on(y), on(x), on(affine), activations[t % 2]);
        y = gpu_inout(types[t][0], rows, cols);
        affine = gpu_input(F32, 2, rows);
        GPU_CHECK(1e-6, affine, on(y), on(y), on(affine), activations[(t + 1) % 2]);
    }
}

static void test_transpose(void **state)
{
    const int64_t sizes[][2] = {{1, 1}, {1, 130}, {130, 1}, {64, 64}, {65, 63}, {70, 200}};

    (void)state;
    for (int i = 0; i < 6; i++)
        for (int t = 0; t < TYPES; t++) {
            struct operand *y = gpu_output(types[t][0], sizes[i][1], sizes[i][0]);
            struct operand *x = gpu_input(types[t][1], sizes[i][0], sizes[i][1]);

            GPU_CHECK(0, transpose, on(y), on(x));
        }
}

static void test_patches(void **state)
{
    const struct {
        int64_t channels, height, width;
        int32_t patch;
    } pictures[] = {{1, 1, 1, 1}, {16, 4, 6, 2}, {3, 9, 3, 3}, {5, 2, 40, 1}};

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 2 * TYPES; t++) {
            enum patch_order order = (enum patch_order)(t / TYPES);
            int64_t channels = pictures[i].channels, height = pictures[i].height;
            int64_t width = pictures[i].width, area = pictures[i].patch * pictures[i].patch;
            int64_t count = height * width / area;
            struct operand *y = gpu_output(types[t % TYPES][0], count, area * channels);
            struct operand *x = gpu_input(types[t % TYPES][1], channels, height * width);

            GPU_CHECK(0, patchify, on(y), on(x), height, width, pictures[i].patch, order);
            y = gpu_output(types[t % TYPES][0], channels, height * width);
            x = gpu_input(types[t % TYPES][1], count, area * channels);
            GPU_CHECK(0, unpatchify, on(y), on(x), height, width, pictures[i].patch, order);
        }
}

/* Z-Image's and its VAE's shapes. */
static void test_times(void **state)
{
    const int64_t tokens = 4224, dim = 3840, ffn = 10240, n = tokens * dim, pixels = 1 << 20;
    struct operand *y = gpu_inout(BF16, tokens, ffn), *x = gpu_input(BF16, tokens, ffn), *z;

    (void)state;
    GPU_TIME(0, 6 * tokens * ffn, 1e-6, gated, on(y), on(y), on(x), ACTIVATION_SILU);
    y = gpu_inout(BF16, 512, ffn);
    x = gpu_input(BF16, 512, ffn);
    GPU_TIME(0, 6 * 512 * ffn, 1e-6, gated, on(y), on(y), on(x), ACTIVATION_GELU_TANH);
    y = gpu_inout(F32, tokens, dim);
    x = gpu_input(BF16, tokens, dim);
    z = gpu_input(F32, 1, dim);
    GPU_TIME(0, 10 * n, 1e-6, gated_add, on(y), on(z), on(x), MATRIX_NONE, 0);
    y = gpu_output(F32, tokens, dim);
    x = gpu_input(F32, tokens, dim);
    GPU_TIME(0, 8 * n, 0, copy, on(y), on(x));
    y = gpu_output(BF16, tokens, dim);
    x = gpu_input(BF16, tokens, dim);
    GPU_TIME(0, 4 * n, 0, copy, on(y), on(x));
    y = gpu_output(BF16, 128, pixels);
    x = gpu_input(F32, 128, pixels);
    z = gpu_input(F32, 2, 128);
    GPU_TIME(0, 6 * 128 * pixels, 1e-6, affine, on(y), on(x), on(z), ACTIVATION_SILU);
    y = gpu_output(BF16, 16384, 512);
    x = gpu_input(BF16, 512, 16384);
    GPU_TIME(0, 4 * 512 * 16384, 0, transpose, on(y), on(x));
    y = gpu_output(BF16, 4096, 64);
    x = gpu_input(F32, 16, 16384);
    GPU_TIME(0, 6 * 16 * 16384, 0, patchify, on(y), on(x), 128, 128, 2, PATCH_CHANNELS_LAST);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_gated),
    cmocka_unit_test(test_f16_saturates),
    cmocka_unit_test(test_gated_add),
    cmocka_unit_test(test_blend_and_guide),
    cmocka_unit_test(test_copy),
    cmocka_unit_test(test_quantised),
    cmocka_unit_test(test_activate),
    cmocka_unit_test(test_functions),
    cmocka_unit_test(test_affine),
    cmocka_unit_test(test_transpose),
    cmocka_unit_test(test_patches),
    cmocka_unit_test(test_times),
};

GPU_MAIN(tests)
