/* Norms on the CUDA device: see gpu_support.h. */
#include "cuda/gpu_support.h"

#include <stdlib.h>

#define F32 DTYPE_F32
#define BF16 DTYPE_BF16
#define F16 DTYPE_F16

/* Of results and operands, as they come. */
static const enum dtype types[][2] = {
    {F32, F32}, {BF16, BF16}, {F16, F16}, {BF16, F32}, {F32, F16}};
#define TYPES (int)(sizeof types / sizeof *types)

/* Rows and columns, of which a block does not hold the last ones. */
static const int64_t shapes[][2] = {
    {2, 1}, {70, 7}, {3, 40}, {11, 192}, {3, 258}, {2, 520}, {1, 601}, {1, 2560}, {1, 8292}};
#define SHAPES (int)(sizeof shapes / sizeof *shapes)

static void test_rms_norm(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1];
            struct operand *y = gpu_output(types[t][0], rows, cols);
            struct operand *x = gpu_input(types[t][1], rows, cols);
            struct operand *gamma = gpu_input(gpu_activations[(s + t) % 3], 1, cols);
            struct operand *scale = gpu_input(gpu_activations[t % 3], 1, cols);

            GPU_CHECK(2e-6, rms_norm, on(y), on(x), on(gamma), on(scale), 1e-5f);
            y = gpu_inout(types[t][0], rows, cols);
            gamma = gpu_input(F32, 1, cols);
            GPU_CHECK(2e-6, rms_norm, on(y), on(y), on(gamma), MATRIX_NONE, 1e-6f);
            y = gpu_inout(types[t][0], rows, cols);
            GPU_CHECK(2e-6, rms_norm, on(y), on(y), MATRIX_NONE, MATRIX_NONE, 1e-6f);
        }
}

static void test_norm_add(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1];
            struct operand *y = gpu_inout(types[t][0], rows, cols);
            struct operand *x = gpu_input(types[t][1], rows, cols);
            struct operand *gamma = gpu_input(gpu_activations[(s + t) % 3], 1, cols);
            struct operand *gate = gpu_input(gpu_activations[t % 3], 1, cols);

            GPU_CHECK(2e-6, gated_add, on(y), on(gate), on(x), on(gamma), 1e-5f);
            y = gpu_inout(types[t][1], rows, cols);
            x = gpu_input(types[t][0], rows, cols);
            gamma = gpu_input(BF16, 1, cols);
            GPU_CHECK(2e-6, gated_add, on(y), MATRIX_NONE, on(x), on(gamma), 1e-6f);
        }
}

static void check_norm_rope(enum dtype dtype, enum dtype gammas, int64_t heads, int64_t dim,
    int64_t rows, enum rope_layout layout)
{
    struct operand *x = gpu_inout(dtype, rows, heads * dim);
    struct operand *gamma = gpu_input(gammas, 1, dim), *table = gpu_input(F32, rows, dim);

    GPU_CHECK(2e-6, rms_norm_rope, on(x), on(gamma), 1e-5f, on(table), layout);
    x = gpu_inout(dtype, rows, heads * dim);
    gamma = gpu_input(gammas, 1, dim);
    GPU_CHECK(2e-6, rms_norm_rope, on(x), on(gamma), 1e-5f, MATRIX_NONE, layout);
    x = gpu_inout(dtype, rows, heads * dim);
    table = gpu_input(F32, rows, dim);
    GPU_CHECK(2e-6, rms_norm_rope, on(x), MATRIX_NONE, 0, on(table), layout);
}

static void test_norm_rope(void **state)
{
    /* Heads, columns, rows: runs that are whole or not, idle lanes and lines, more heads than a
     * block has groups for, and more columns than a warp has lanes for. */
    const int64_t sizes[][3] = {{3, 2, 70}, {1, 6, 3}, {5, 10, 3}, {3, 64, 11}, {30, 128, 3},
        {9, 96, 5}, {70, 16, 3}, {300, 4, 2}, {150, 8, 2}, {2, 256, 3}, {2, 520, 2}, {2, 1100, 1}};

    (void)state;
    for (int s = 0; s < 12; s++)
        for (int layout = ROPE_INTERLEAVED; layout <= ROPE_HALF; layout++)
            for (int t = 0; t < 3; t++)
                check_norm_rope(gpu_activations[t], gpu_activations[(s + t) % 3], sizes[s][0],
                    sizes[s][1], sizes[s][2], (enum rope_layout)layout);
    check_norm_rope(BF16, DTYPE_Q8_0, 3, 64, 5, ROPE_HALF);
}

/* Keys lie beside values. */
static void test_columns(void **state)
{
    (void)state;
    for (int layout = ROPE_INTERLEAVED; layout <= ROPE_HALF; layout++) {
        struct operand *x = gpu_inout(BF16, 5, 2 * 3 * 64);
        struct operand *gamma = gpu_input(BF16, 1, 64), *table = gpu_input(F32, 5, 64);

        GPU_CHECK(2e-6, rms_norm_rope, on_cols(x, 0, 3 * 64), on(gamma), 1e-6f, on(table),
            (enum rope_layout)layout);
    }
}

static void test_layer_norm(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1];
            struct operand *y = gpu_output(types[t][0], rows, cols);
            struct operand *x = gpu_input(types[t][1], rows, cols);
            struct operand *scale = gpu_input(gpu_activations[(s + t) % 3], 1, cols);
            struct operand *gamma, *shift;

            GPU_CHECK(4e-6, layer_norm, on(y), on(x), MATRIX_NONE, on(scale), MATRIX_NONE, 1e-5f);
            y = gpu_inout(types[t][0], rows, cols);
            GPU_CHECK(4e-6, layer_norm, on(y), on(y), MATRIX_NONE, MATRIX_NONE, MATRIX_NONE, 1e-6f);
            y = gpu_inout(types[t][0], rows, cols);
            gamma = gpu_input(gpu_activations[t % 3], 1, cols);
            scale = gpu_input(gpu_activations[(s + t) % 3], 1, cols);
            shift = gpu_input(gpu_activations[s % 3], 1, cols);
            GPU_CHECK(4e-6, layer_norm, on(y), on(y), on(gamma), on(scale), on(shift), 1e-6f);
            y = gpu_output(types[t][0], rows, cols);
            x = gpu_input(types[t][1], rows, cols);
            shift = gpu_input(F32, 1, cols);
            GPU_CHECK(4e-6, layer_norm, on(y), on(x), MATRIX_NONE, MATRIX_NONE, on(shift), 1e-6f);
        }
}

static void test_match_norms(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1];
            struct operand *y = gpu_inout(types[t][0], rows, cols);
            struct operand *x = gpu_input(types[t][1], rows, cols);

            GPU_CHECK(4e-6, match_norms, on(y), on(x));
        }
}

static void test_match_norms_of_nothing(void **state)
{
    const float nothing[6] = {0};
    struct operand *y = gpu_inout(F32, 2, 3), *x = gpu_input(F32, 2, 3);

    (void)state;
    gpu_set(y, nothing);
    GPU_CHECK(0, match_norms, on(y), on(x));
    y = gpu_inout(F32, 2, 3), x = gpu_input(F32, 2, 3);
    gpu_set(x, nothing);
    GPU_CHECK(0, match_norms, on(y), on(x));
}

/* Channels, pixels: lines without a channel, lanes without a pixel, several blocks. */
static void test_channel_norm(void **state)
{
    const int64_t sizes[][2] = {{1, 1}, {3, 40}, {8, 128}, {96, 35}, {17, 300}, {20, 1100}};

    (void)state;
    for (int s = 0; s < 6; s++)
        for (int t = 0; t < TYPES; t++) {
            int64_t channels = sizes[s][0], pixels = sizes[s][1];
            struct operand *y = gpu_output(types[t][0], channels, pixels);
            struct operand *x = gpu_input(types[t][1], channels, pixels);
            struct operand *gamma = gpu_input(gpu_activations[(s + t) % 3], 1, channels);

            GPU_CHECK(4e-6, channel_norm, on(y), on(x), on(gamma), ACTIVATION_NONE);
            y = gpu_inout(types[t][0], channels, pixels);
            gamma = gpu_input(BF16, 1, channels);
            GPU_CHECK(4e-6, channel_norm, on(y), on(y), on(gamma), ACTIVATION_SILU);
        }
}

/* Strips change no bit: what follows from them, taken in turns, is the same bytes. */
static void test_channel_strips(void **state)
{
    enum { PIXELS = 700 };

    (void)state;
    for (int t = 0; t < 3; t++) {
        struct operand *y = gpu_output(gpu_activations[t], 20, PIXELS);
        struct operand *x = gpu_input(gpu_activations[t], 20, PIXELS);
        struct operand *gamma = gpu_input(F32, 1, 20);
        int turn = 0;

        for (gpu_begin("channel norm in strips", 4e-6); gpu_next(); turn++) {
            int64_t strip = turn % 3 ? turn % 3 * 133 : PIXELS;

            for (int64_t first = 0; first < PIXELS; first += strip) {
                int64_t count = PIXELS - first < strip ? PIXELS - first : strip;

                gpu.ops->channel_norm(gpu.stream, on_cols(y, first, count),
                    on_cols(x, first, count), on(gamma), ACTIVATION_SILU);
            }
        }
    }
}

/* Values about `mean`, within 1 of it. */
static void set_about(struct operand *o, int64_t count, float mean)
{
    float *values = malloc((size_t)count * sizeof *values);
    uint64_t seed = (uint64_t)count;

    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = mean + (float)test_random(&seed) * 0x1p-30f - 1;
    gpu_set(o, values);
    free(values);
}

/* Far from 0 the variance must not cancel. */
static void test_far_from_0(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct operand *y = gpu_output(F32, 2, 700), *x = gpu_input(types[t][1], 2, 700);

        set_about(x, 2 * 700, 50);
        GPU_CHECK(1e-5, layer_norm, on(y), on(x), MATRIX_NONE, MATRIX_NONE, MATRIX_NONE, 1e-6f);
    }
}

/* One group norm's operands. */
struct group_case {
    struct operand *affine, *moments, *x, *gamma, *beta;
    struct group_norm norm;
};

/* For gpu.ops: moments in strips of `strip` pixels, and their fold. */
static void group_norm(const struct group_case *c, int64_t strip)
{
    for (int64_t first = 0; first < c->norm.pixels; first += strip) {
        int64_t left = c->norm.pixels - first, count = left < strip ? left : strip;

        gpu.ops->group_moments(gpu.stream,
            on_cols(c->moments, 2 * (first / c->norm.run), 2 * group_runs(count, c->norm.run)),
            on_cols(c->x, first, count), c->norm.run);
    }
    gpu.ops->group_fold(
        gpu.stream, on(c->affine), on(c->moments), on(c->gamma), on(c->beta), &c->norm);
}

static struct group_case group_case(
    enum dtype dtype, int64_t channels, int64_t pixels, int32_t groups, int64_t run)
{
    return (struct group_case){.affine = gpu_output(F32, 2, channels),
        .moments = gpu_output(F32, channels, 2 * group_runs(pixels, run)),
        .x = gpu_input(dtype, channels, pixels),
        .gamma = gpu_input(BF16, 1, channels),
        .beta = gpu_input(dtype, 1, channels),
        .norm = {groups, pixels, run, 1e-6f}};
}

static void test_group_norm(void **state)
{
    /* Channels, groups, pixels, run: of one run, of several with a ragged end, one value each; runs
     * that begin anywhere, and that a block does not hold. */
    const int64_t sizes[][4] = {{4, 4, 1, 1}, {8, 2, 100, 100}, {6, 3, 257, 31}, {2, 1, 8192, 8192},
        {3, 3, 20000, 8192}, {2, 2, 20000, 9999}};

    (void)state;
    for (int i = 0; i < 6; i++)
        for (int t = 0; t < 3; t++)
            for (int far = 0; far < 2; far++) {
                int64_t channels = sizes[i][0], pixels = sizes[i][2];
                struct group_case c = group_case(
                    gpu_activations[t], channels, pixels, (int32_t)sizes[i][1], sizes[i][3]);

                if (far) set_about(c.x, channels * pixels, 50);
                for (gpu_begin("group norm", far ? 2e-5 : 4e-6); gpu_next();)
                    group_norm(&c, pixels);
            }
}

/* Vectors may be quantised, both of a norm at once. */
static void test_quantised(void **state)
{
    const enum dtype quantised[] = {
        DTYPE_Q8_0, DTYPE_Q5_0, DTYPE_Q2_K, DTYPE_Q6_K, DTYPE_F8_E4M3, DTYPE_F8_E5M2};

    (void)state;
    for (int q = 0; q < 6; q++) {
        const int64_t cols = q == 4 ? 515 : 512; /* then both are of 8 bits */
        struct operand *y = gpu_output(F32, 3, cols), *x = gpu_input(BF16, 3, cols);
        struct operand *gamma = gpu_input(quantised[q], 1, cols);
        struct operand *scale = gpu_input(quantised[(q + 1) % 6], 1, cols), *shift;
        struct group_case c;

        GPU_CHECK(2e-6, rms_norm, on(y), on(x), on(gamma), on(scale), 1e-5f);
        y = gpu_inout(F32, 3, cols), x = gpu_input(BF16, 3, cols);
        gamma = gpu_input(quantised[q], 1, cols);
        scale = gpu_input(quantised[(q + 1) % 6], 1, cols);
        GPU_CHECK(2e-6, gated_add, on(y), on(scale), on(x), on(gamma), 1e-5f);
        y = gpu_output(BF16, 3, cols), x = gpu_input(F32, 3, cols);
        scale = gpu_input(quantised[q], 1, cols);
        gamma = gpu_input(quantised[(q + 1) % 6], 1, cols);
        shift = gpu_input(quantised[q], 1, cols);
        GPU_CHECK(4e-6, layer_norm, on(y), on(x), on(gamma), on(scale), on(shift), 1e-5f);
        c = group_case(F32, 256, 30, 32, 30);
        c.gamma = gpu_input(quantised[q], 1, 256);
        c.beta = gpu_input(quantised[5 - q], 1, 256);
        for (gpu_begin("group norm", 4e-6); gpu_next();)
            group_norm(&c, 30);
    }
}

/* Strips change no bit: what follows from them all, taken in turns, is the same bytes. */
static void test_group_strips(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        struct group_case c = group_case(gpu_activations[t], 4, 24 * 50 + 20, 2, 50);
        int turn = 0;

        for (gpu_begin("group norm in strips", 4e-6); gpu_next(); turn++)
            group_norm(&c, turn % 3 ? turn % 3 * 150 : c.norm.pixels);
    }
}

/* Z-Image's, Qwen3's and the VAE's shapes. */
static void test_times(void **state)
{
    const int64_t tokens = 4224, dim = 3840, n = tokens * dim, pixels = 1 << 20;
    struct operand *y = gpu_output(BF16, tokens, dim), *x = gpu_input(F32, tokens, dim);
    struct operand *gamma = gpu_input(BF16, 1, dim), *scale = gpu_input(F32, 1, dim);

    (void)state;
    GPU_TIME(0, 6 * n, 2e-6, rms_norm, on(y), on(x), on(gamma), on(scale), 1e-5f);
    y = gpu_inout(BF16, tokens, dim);
    gamma = gpu_input(BF16, 1, dim);
    GPU_TIME(0, 4 * n, 2e-6, rms_norm, on(y), on(y), on(gamma), MATRIX_NONE, 1e-5f);
    y = gpu_inout(F32, tokens, dim);
    x = gpu_input(BF16, tokens, dim);
    gamma = gpu_input(BF16, 1, dim);
    scale = gpu_input(F32, 1, dim);
    GPU_TIME(0, 10 * n, 2e-6, gated_add, on(y), on(scale), on(x), on(gamma), 1e-5f);
    for (int layout = ROPE_INTERLEAVED; layout <= ROPE_HALF; layout++)
        for (int t = 0; t < 2; t++) {
            y = gpu_inout(t ? F32 : BF16, tokens, dim);
            gamma = gpu_input(BF16, 1, 128);
            x = gpu_input(F32, tokens, 128);
            GPU_TIME(0, (t ? 8 : 4) * n + 4 * tokens * 128, 2e-6, rms_norm_rope, on(y), on(gamma),
                1e-5f, on(x), (enum rope_layout)layout);
        }
    y = gpu_output(BF16, 512, 2560);
    x = gpu_input(F32, 512, 2560);
    gamma = gpu_input(BF16, 1, 2560);
    GPU_TIME(0, 6 * 512 * 2560, 2e-6, rms_norm, on(y), on(x), on(gamma), MATRIX_NONE, 1e-6f);
    y = gpu_inout(F32, 4096, dim);
    scale = gpu_input(F32, 1, dim);
    GPU_TIME(0, 8 * 4096 * dim, 4e-6, layer_norm, on(y), on(y), MATRIX_NONE, on(scale), MATRIX_NONE,
        1e-6f);
    y = gpu_inout(BF16, 4096, 3072);
    scale = gpu_input(F32, 1, 3072);
    x = gpu_input(F32, 1, 3072);
    GPU_TIME(
        0, 4 * 4096 * 3072, 4e-6, layer_norm, on(y), on(y), MATRIX_NONE, on(scale), on(x), 1e-6f);
    y = gpu_inout(F32, 4096, 64);
    x = gpu_input(F32, 4096, 64);
    GPU_TIME(0, 12 * 4096 * 64, 4e-6, match_norms, on(y), on(x));
    for (int t = 0; t < 3; t++) { /* Wan's VAE */
        int64_t channels = t == 2 ? 384 : 96, count = t == 2 ? 16384 : pixels;

        y = gpu_output(gpu_activations[t % 2], channels, count);
        x = gpu_input(gpu_activations[t % 2], channels, count);
        gamma = gpu_input(F32, 1, channels);
        GPU_TIME(0, (t % 2 ? 4 : 8) * channels * count, 4e-6, channel_norm, on(y), on(x), on(gamma),
            ACTIVATION_SILU);
    }
    for (int t = 0; t < 3; t++) {
        int64_t channels = t == 2 ? 512 : 128, elements = channels * (t == 2 ? 16384 : pixels);
        struct group_case c = group_case(
            gpu_activations[t % 2], channels, elements / channels, 32, 8 * (t == 2 ? 128 : 1024));

        for (gpu_begin_timed("group norm", 2e-5, 0, (double)((t ? 2 : 4) * elements)); gpu_next();)
            group_norm(&c, c.norm.pixels);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rms_norm),
    cmocka_unit_test(test_norm_add),
    cmocka_unit_test(test_norm_rope),
    cmocka_unit_test(test_columns),
    cmocka_unit_test(test_layer_norm),
    cmocka_unit_test(test_match_norms),
    cmocka_unit_test(test_match_norms_of_nothing),
    cmocka_unit_test(test_channel_norm),
    cmocka_unit_test(test_channel_strips),
    cmocka_unit_test(test_far_from_0),
    cmocka_unit_test(test_group_norm),
    cmocka_unit_test(test_quantised),
    cmocka_unit_test(test_group_strips),
    cmocka_unit_test(test_times),
};

GPU_MAIN(tests)
