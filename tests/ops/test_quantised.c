/*
 * Quantised weights give the bits that F32 weights of the same values give, in every operation that
 * takes weights, with every set of kernels.
 */
#include "ops_support.h"

static const enum dtype dtypes[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
    DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_F8_E4M3, DTYPE_F8_E5M2};

#define EACH_DTYPE(i) for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)

/* Random blocks, `gap` blocks between rows. Bytes with bits of 0x33 only make no scale infinite and
 * no code a NaN. */
static struct matrix random_blocks(enum dtype dtype, int64_t rows, int64_t cols, int64_t gap)
{
    struct matrix m = matrix_new(dtype, rows, cols, cols + gap * dtype_block_elements(dtype));
    uint8_t *data = (uint8_t *)(uintptr_t)m.addr;

    for (size_t i = 0; i < matrix_bytes(m); i++)
        data[i] = (uint8_t)(test_random(&seed) & 0xb3);
    if (dtype_is_f8(dtype)) m.scale = 0.0371f;
    return m;
}

/* The same values in F32, dense. */
static struct matrix widened(struct matrix m)
{
    struct matrix wide = matrix_new(DTYPE_F32, m.rows, m.cols, m.cols);

    for (int64_t r = 0; r < m.rows; r++)
        quant_widen(row_of(wide, r), (const void *)(uintptr_t)m.addr, m.dtype, m.scale,
            r * m.stride, m.cols);
    return wide;
}

/* Several panels and strips, the last ones partly filled, and pieces of the depth. */
static void check_linear_of(
    const struct bench *b, enum dtype dtype, int64_t tokens, int64_t out, int64_t in, int64_t gap)
{
    struct matrix w = random_blocks(dtype, out, in, gap), wide = widened(w);
    struct matrix x = random_floats(tokens, in), bias = random_floats(1, out);
    struct matrix got = matrix_new(DTYPE_F32, tokens, out, out), want = matrix_clone(got);

    bias.stride = bias.cols;
    b->ops->linear(b->stream, got, x, w, bias);
    b->ops->linear(b->stream, want, x, wide, bias);
    assert_same_bytes(got, want);
    /* Some of its rows, as attention takes them of q, k and v in one. */
    b->ops->linear(b->stream, matrix_cols(got, 0, 3), x, matrix_rows(w, 2, 3), MATRIX_NONE);
    b->ops->linear(b->stream, matrix_cols(want, 0, 3), x, matrix_rows(wide, 2, 3), MATRIX_NONE);
    assert_same_bytes(got, want);
    matrix_drop(w);
    matrix_drop(wide);
    matrix_drop(x);
    matrix_drop(bias);
    matrix_drop(got);
    matrix_drop(want);
}

static void linear_with(const struct kernels *kernels)
{
    struct bench b = bench_open(kernels, 2);

    EACH_DTYPE(i)
    {
        int64_t block = dtype_block_elements(dtypes[i]);

        check_linear_of(&b, dtypes[i], 1, 5, block, 0);
        check_linear_of(&b, dtypes[i], 7, 37, 512, 1);
        check_linear_of(&b, dtypes[i], 3, 300, 256 + block, 0);
        if (block == 1) check_linear_of(&b, dtypes[i], 3, 37, 1000 + 7, 3);
    }
    bench_close(&b);
}

static void test_linear(void **state)
{
    (void)state;
    linear_with(NULL);
    for (int set = 0; cpu_kernels_at(set); set++)
        linear_with(cpu_kernels_at(set));
}

/* Vectors, wherever in a block an operation reads them. */
static void check_vectors(const struct bench *b, enum dtype dtype)
{
    struct matrix vector = random_blocks(dtype, 1, 1024, 0), wide = widened(vector);
    struct matrix x = random_floats(1024, 30), tokens = random_floats(3, 1024);
    struct matrix w = random_floats(1024, 5), in = random_floats(2, 5);
    struct matrix got[2], want[2];
    struct matrix *const both[] = {got, want}, vectors[] = {vector, wide};

    for (int i = 0; i < 2; i++) {
        struct matrix *y = both[i], v = vectors[i];

        y[0] = matrix_new(DTYPE_F32, 3, 1024, 1024);
        y[1] = matrix_new(DTYPE_F32, 2, 1024, 1024);
        b->ops->rms_norm(b->stream, y[0], tokens, v, v, 1e-6f);
        b->ops->layer_norm(b->stream, y[0], y[0], v, v, v, 1e-6f);
        b->ops->gated_add(b->stream, y[0], v, tokens, MATRIX_NONE, 0);
        b->ops->gated_add(b->stream, y[0], v, tokens, v, 1e-6f);
        b->ops->rms_norm_rope(b->stream, y[0], v, 1e-6f, MATRIX_NONE, ROPE_HALF);
        b->ops->channel_norm(b->stream, x, x, v, ACTIVATION_NONE);
        group_norm(
            b, y[1], x, v, v, (struct group_norm){.groups = 32, .run = 30, .eps = 1e-6f}, 30);
        b->ops->linear(b->stream, y[1], in, w, v);
        b->ops->copy(b->stream, matrix_rows(y[1], 1, 1), v);
    }
    assert_same_bytes(got[0], want[0]);
    assert_same_bytes(got[1], want[1]);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            matrix_drop(both[i][k]);
    matrix_drop(vector);
    matrix_drop(wide);
    matrix_drop(x);
    matrix_drop(tokens);
    matrix_drop(w);
    matrix_drop(in);
}

/* 256 channels of 3 x 3: taps in pieces that no superblock fits. */
static void check_conv(const struct bench *b, enum dtype dtype, int64_t planes)
{
    struct conv conv = {.height = 5, .width = 6, .kernel = 3, .upsample = 1};
    struct matrix w = random_blocks(dtype, 3, 256 * 9 * planes, 0), wide = widened(w);
    struct matrix x = random_floats(256, 30);
    struct matrix got = matrix_new(DTYPE_F32, 3, 30, 30), want = matrix_clone(got);

    b->ops->conv2d(b->stream, got, x, w, MATRIX_NONE, &conv);
    b->ops->conv2d(b->stream, want, x, wide, MATRIX_NONE, &conv);
    assert_same_bytes(got, want);
    matrix_drop(w);
    matrix_drop(wide);
    matrix_drop(x);
    matrix_drop(got);
    matrix_drop(want);
}

static void test_vectors_and_kernels(void **state)
{
    (void)state;
    for (int set = -1; set < 0 || cpu_kernels_at(set); set++) {
        struct bench b = bench_open(set < 0 ? NULL : cpu_kernels_at(set), 2);

        EACH_DTYPE(i)
        {
            check_vectors(&b, dtypes[i]);
            for (int64_t planes = 1; planes <= CONV_MAX_PLANES; planes += 2)
                check_conv(&b, dtypes[i], planes);
        }
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_vectors_and_kernels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
