/* The reference operations against cases worked out by hand. */
#include "ops_support.h"

static struct bench b;

static struct matrix of(int64_t rows, int64_t cols, const float *values)
{
    struct matrix m = matrix_new(DTYPE_F32, rows, cols, cols);

    memcpy((void *)(uintptr_t)m.addr, values, matrix_bytes(m));
    return m;
}

#define OF(rows, cols, ...) of(rows, cols, (const float[]){__VA_ARGS__})

/* Compares with `want` and drops both. */
static void check(struct matrix got, struct matrix want)
{
    assert_close("reference", got, want, 1e-6);
    matrix_drop(got);
    matrix_drop(want);
}

static void test_linear(void **state)
{
    struct matrix y = matrix_new(DTYPE_F32, 2, 2, 2), x = OF(2, 3, 1, 2, 3, 4, 5, 6);
    struct matrix w = matrix_new(DTYPE_BF16, 2, 3, 3), bias = matrix_new(DTYPE_F16, 1, 2, 2);
    const uint16_t weights[] = {0x3f80, 0x0000, 0xbf80, 0x4000, 0x3f00, 0x0000}; /* 1 0 -1 2 .5 0 */
    const uint16_t biases[] = {0x4900, 0xb800};                                  /* 10 -0.5 */

    (void)state;
    memcpy((void *)(uintptr_t)w.addr, weights, sizeof weights);
    memcpy((void *)(uintptr_t)bias.addr, biases, sizeof biases);
    b.ops->linear(b.stream, y, x, w, bias);
    check(y, OF(2, 2, 8, 2.5f, 8, 10));
    matrix_drop(x);
    matrix_drop(w);
    matrix_drop(bias);
}

static void test_norms(void **state)
{
    struct matrix x = OF(1, 4, 3, 4, 0, 5), gamma = OF(1, 4, 1, 2, 1, 2),
                  scale = OF(1, 4, 0, 1, 0, -1), shift = OF(1, 4, 10, 20, 30, 40);
    struct matrix y = matrix_new(DTYPE_F32, 1, 4, 4);

    (void)state;
    /* Mean square 12.5. */
    b.ops->rms_norm(b.stream, y, x, gamma, scale, 0);
    check(y, OF(1, 4, 3 / sqrtf(12.5f), 16 / sqrtf(12.5f), 0, 0));
    y = matrix_new(DTYPE_F32, 1, 4, 4);
    /* No gamma; eps 12.5. */
    b.ops->rms_norm(b.stream, y, x, MATRIX_NONE, MATRIX_NONE, 12.5f);
    check(y, OF(1, 4, 0.6f, 0.8f, 0, 1));
    /* Mean 3, variance (0 + 1 + 9 + 4) / 4 = 3.5; in place. */
    b.ops->layer_norm(b.stream, x, x, MATRIX_NONE, scale, MATRIX_NONE, 0.5f);
    check(x, OF(1, 4, 0, 1, -1.5f, 0));
    x = OF(1, 4, 3, 4, 0, 5);
    b.ops->layer_norm(b.stream, x, x, gamma, scale, shift, 0.5f);
    check(x, OF(1, 4, 10, 22, 28.5f, 40));
    matrix_drop(gamma);
    matrix_drop(scale);
    matrix_drop(shift);
}

/* A row of norm 5 gets one of 10, a row of nothing stays; pixels of norms 5, 0 and 1. */
static void test_other_norms(void **state)
{
    struct matrix y = OF(2, 2, 3, 4, 0, 0), x = OF(2, 2, 0, 10, 1, 1), gamma = OF(1, 2, 5, 10);

    (void)state;
    b.ops->match_norms(b.stream, y, x);
    check(y, OF(2, 2, 6, 8, 0, 0));
    matrix_drop(x);
    x = OF(2, 3, 3, 0, 0, 4, 0, -1);
    b.ops->channel_norm(b.stream, x, x, gamma, ACTIVATION_NONE);
    check(x, OF(2, 3, 3 * sqrtf(2), 0, 0, 8 * sqrtf(2), 0, -10 * sqrtf(2)));
    x = OF(2, 1, 0, 1);
    b.ops->channel_norm(b.stream, x, x, gamma, ACTIVATION_SILU);
    check(x, OF(2, 1, 0, 10 * sqrtf(2)));
    matrix_drop(gamma);
}

static void test_group_norm(void **state)
{
    struct matrix x = OF(4, 2, 1, 3, 5, 7, 0, 0, 2, 2), affine;
    struct matrix gamma = OF(1, 4, 1, 2, 3, 4), beta = OF(1, 4, 0, 1, 2, 3);

    (void)state;
    /* Group 1: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5, + 4 = 9; group 2: 1, 1, + 4 = 5. */
    for (int run = 2; run >= 1; run--) { /* a channel, then a pixel */
        affine = matrix_new(DTYPE_F32, 2, 4, 4);
        group_norm(
            &b, affine, x, gamma, beta, (struct group_norm){.groups = 2, .run = run, .eps = 4}, 2);
        check(affine, OF(2, 4, 1 / 3.0f, 2 / 3.0f, 3 / sqrtf(5), 4 / sqrtf(5), -4 / 3.0f,
                          1 - 8 / 3.0f, 2 - 3 / sqrtf(5), 3 - 4 / sqrtf(5)));
    }
    affine = OF(2, 4, 1, 2, 3, 4, 10, 20, 30, 40);
    b.ops->affine(b.stream, x, x, affine, ACTIVATION_NONE);
    check(x, OF(4, 2, 11, 13, 30, 34, 30, 30, 48, 48));
    matrix_drop(affine);
    matrix_drop(gamma);
    matrix_drop(beta);
}

static void test_elements(void **state)
{
    struct matrix x = OF(1, 3, 0, 1, -2), y = matrix_new(DTYPE_F32, 1, 3, 3);
    struct matrix gate = OF(1, 3, 2, 3, 4);

    (void)state;
    b.ops->activate(b.stream, y, x, ACTIVATION_SILU);
    check(y, OF(1, 3, 0, 0.7310586f, -0.2384058f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->activate(b.stream, y, x, ACTIVATION_TANH);
    check(y, OF(1, 3, 0, 0.7615942f, -0.9640276f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->activate(b.stream, y, x, ACTIVATION_GELU_ERF);
    check(y, OF(1, 3, 0, 0.8413447f, -0.0455003f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->activate(b.stream, y, x, ACTIVATION_GELU_TANH);
    check(y, OF(1, 3, 0, 0.8411920f, -0.0454023f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->gated(b.stream, y, x, gate, ACTIVATION_SILU);
    check(y, OF(1, 3, 0, 2.1931758f, -0.9536234f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->gated(b.stream, y, x, gate, ACTIVATION_GELU_TANH);
    check(y, OF(1, 3, 0, 2.5235760f, -0.1816092f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->activate(b.stream, y, x, ACTIVATION_RELU);
    check(y, OF(1, 3, 0, 1, 0));
    y = OF(1, 3, 1, 1, 1);
    b.ops->gated_add(b.stream, y, gate, x, MATRIX_NONE, 0);
    check(y, OF(1, 3, 1, 4, -7));
    y = OF(1, 3, 1, 1, 1);
    b.ops->gated_add(b.stream, y, MATRIX_NONE, x, MATRIX_NONE, 0);
    check(y, OF(1, 3, 1, 2, -1));
    y = OF(1, 3, 1, 1, 1);
    b.ops->blend(b.stream, y, 2, x, 0.5f);
    check(y, OF(1, 3, 0.5f, 2.5f, -3.5f));
    y = matrix_new(DTYPE_F32, 1, 3, 3);
    b.ops->guide(b.stream, y, x, gate, 3);
    check(y, OF(1, 3, -6, -5, -20));
    matrix_drop(x);
    matrix_drop(gate);
}

/* Mean square 24, eps 1. */
static void test_norm_add(void **state)
{
    struct matrix x = OF(1, 3, 2, 2, -8), gamma = OF(1, 3, 5, 10, 5), gate = OF(1, 3, 2, 3, 4);
    struct matrix y = OF(1, 3, 1, 1, 1);

    (void)state;
    b.ops->gated_add(b.stream, y, gate, x, gamma, 1);
    check(y, OF(1, 3, 5, 13, -31));
    y = OF(1, 3, 1, 1, 1);
    b.ops->gated_add(b.stream, y, MATRIX_NONE, x, gamma, 1);
    check(y, OF(1, 3, 3, 5, -7));
    matrix_drop(x);
    matrix_drop(gamma);
    matrix_drop(gate);
}

/* Heads (1, 2, -3, 4) and (1, -2, 3, 4) when normed. */
static void test_norm_rope(void **state)
{
    struct matrix table = OF(1, 4, 0, 1, 1, 0); /* cosines 0 1, sines 1 0: 90 and 0 degrees */
    struct matrix gamma = OF(1, 4, 2, 4, 6, 8);
    struct matrix x = OF(1, 8, 1, 1, -1, 1, 1, -1, 1, 1);

    (void)state;
    b.ops->rms_norm_rope(b.stream, x, gamma, 3, table, ROPE_INTERLEAVED);
    check(x, OF(1, 8, -2, 1, -3, 4, 2, 1, 3, 4));
    x = OF(1, 8, 3, 3, -3, 3, 3, -3, 3, 3);
    b.ops->rms_norm_rope(b.stream, x, gamma, 27, table, ROPE_HALF);
    check(x, OF(1, 8, 3, 2, 1, 4, -3, -2, 1, 4));
    /* Only normed, only rotated. */
    x = OF(1, 8, 3, 3, -3, 3, 3, -3, 3, 3);
    b.ops->rms_norm_rope(b.stream, x, gamma, 27, MATRIX_NONE, ROPE_HALF);
    check(x, OF(1, 8, 1, 2, -3, 4, 1, -2, 3, 4));
    x = OF(1, 8, 1, 2, -3, 4, 1, -2, 3, 4);
    b.ops->rms_norm_rope(b.stream, x, MATRIX_NONE, 0, table, ROPE_HALF);
    check(x, OF(1, 8, 3, 2, 1, 4, -3, -2, 1, 4));
    matrix_drop(table);
    matrix_drop(gamma);
}

static void test_attention(void **state)
{
    /* Two heads of two columns share one key head. ln 3 makes shares of 3/4 and 1/4. */
    const float l = 1.0986123f;
    struct attention how = {.heads = 2, .kv_heads = 1, .scale = 0.5f};
    struct matrix q = OF(2, 4, 0, 0, l, 0, 0, l, l, 0), k = OF(2, 2, 2, 0, 0, 2);
    struct matrix v = OF(2, 2, 4, 8, 0, 16), out = matrix_new(DTYPE_F32, 2, 4, 4);

    (void)state;
    b.ops->attention(b.stream, out, q, k, v, &how);
    check(out, OF(2, 4, 2, 12, 3, 10, 1, 14, 3, 10));
    out = matrix_new(DTYPE_F32, 2, 4, 4);
    how.causal = true;
    b.ops->attention(b.stream, out, q, k, v, &how);
    check(out, OF(2, 4, 4, 8, 4, 8, 1, 14, 3, 10));
    /* The first head looks back, the second ahead: columns are s - t + 1. */
    out = matrix_new(DTYPE_F32, 2, 4, 4);
    how.causal = false;
    how.bias = OF(2, 3, l, 0, 0, 0, 0, l);
    b.ops->attention(b.stream, out, q, k, v, &how);
    check(out, OF(2, 4, 2, 12, 2, 12, 2, 12, 3, 10));
    matrix_drop(how.bias);
    matrix_drop(q);
    matrix_drop(k);
    matrix_drop(v);
}

static void test_moves(void **state)
{
    struct matrix x = OF(2, 4, 1, 2, 3, 4, 5, 6, 7, 8), y = matrix_new(DTYPE_F32, 4, 2, 2);

    (void)state;
    b.ops->transpose(b.stream, y, x);
    check(y, OF(4, 2, 1, 5, 2, 6, 3, 7, 4, 8));
    y = matrix_new(DTYPE_F32, 2, 4, 4);
    b.ops->copy(b.stream, y, matrix_rows(x, 1, 1));
    check(y, OF(2, 4, 5, 6, 7, 8, 5, 6, 7, 8));
    /* A picture of 2 channels, 2 high and 2 wide, is one patch: pixels first, then channels. */
    y = matrix_new(DTYPE_F32, 1, 8, 8);
    b.ops->patchify(b.stream, y, x, 2, 2, 2, PATCH_CHANNELS_LAST);
    b.ops->unpatchify(b.stream, x, y, 2, 2, 2, PATCH_CHANNELS_LAST);
    check(y, OF(1, 8, 1, 5, 2, 6, 3, 7, 4, 8));
    check(x, OF(2, 4, 1, 2, 3, 4, 5, 6, 7, 8));
    /* Channels first: the picture as it is. */
    x = OF(2, 4, 1, 2, 3, 4, 5, 6, 7, 8);
    y = matrix_new(DTYPE_F32, 1, 8, 8);
    b.ops->patchify(b.stream, y, x, 2, 2, 2, PATCH_CHANNELS_FIRST);
    b.ops->unpatchify(b.stream, x, y, 2, 2, 2, PATCH_CHANNELS_FIRST);
    check(y, OF(1, 8, 1, 2, 3, 4, 5, 6, 7, 8));
    check(x, OF(2, 4, 1, 2, 3, 4, 5, 6, 7, 8));
    /* 1 channel, 2 high, 4 wide: two patches from left to right. */
    x = OF(1, 8, 1, 2, 3, 4, 5, 6, 7, 8);
    y = matrix_new(DTYPE_F32, 2, 4, 4);
    b.ops->patchify(b.stream, y, x, 2, 4, 2, PATCH_CHANNELS_LAST);
    check(y, OF(2, 4, 1, 2, 5, 6, 3, 4, 7, 8));
    matrix_drop(x);
}

static void test_conv(void **state)
{
    struct conv conv = {.height = 2, .width = 2, .kernel = 3, .upsample = 1};
    struct matrix x = OF(1, 4, 1, 2, 3, 4), bias = OF(1, 1, 100), y;
    struct matrix w = OF(1, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9);

    (void)state;
    /* Not flipped: top left = 5*1 + 6*2 + 8*3 + 9*4. */
    y = matrix_new(DTYPE_F32, 1, 4, 4);
    b.ops->conv2d(b.stream, y, x, w, MATRIX_NONE, &conv);
    check(y, OF(1, 4, 77, 67, 47, 37));
    /* The last of two planes, for each of two channels, of which the other one weighs nothing. */
    y = matrix_new(DTYPE_F32, 1, 4, 4);
    matrix_drop(x);
    matrix_drop(w);
    x = OF(2, 4, 9, 9, 9, 9, 1, 2, 3, 4);
    w = OF(1, 36, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7,
        1, 2, 3, 4, 5, 6, 7, 8, 9);
    b.ops->conv2d(b.stream, y, x, w, MATRIX_NONE, &conv);
    check(y, OF(1, 4, 77, 67, 47, 37));
    matrix_drop(x);
    matrix_drop(w);
    x = OF(1, 4, 1, 2, 3, 4);
    w = OF(1, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    y = OF(1, 4, 1, 1, 1, 1);
    conv.accumulate = true;
    conv.affine = OF(2, 1, 2, 1); /* 3 5 7 9; the padding stays 0 */
    b.ops->conv2d(b.stream, y, x, w, bias, &conv);
    check(y, OF(1, 4, 101 + 15 + 30 + 56 + 81, 101 + 12 + 25 + 49 + 72, 101 + 6 + 15 + 35 + 54,
                 101 + 3 + 10 + 28 + 45));
    matrix_drop(conv.affine);
    matrix_drop(w);
    matrix_drop(x);
    /* The middle row of three: x has the others too. */
    x = OF(1, 3, 1, 10, 100);
    w = OF(1, 9, 0, 1, 0, 0, 1, 0, 0, 1, 0);
    y = matrix_new(DTYPE_F32, 1, 1, 1);
    conv =
        (struct conv){.height = 1, .width = 1, .above = 1, .below = 1, .kernel = 3, .upsample = 1};
    b.ops->conv2d(b.stream, y, x, w, MATRIX_NONE, &conv);
    check(y, OF(1, 1, 111));
    matrix_drop(w);
    matrix_drop(x);
    /* Rows 1 and 2 of four that are two, read as if upsampled: 1 1 100 100. */
    x = OF(1, 2, 1, 100);
    y = matrix_new(DTYPE_F32, 1, 4, 4);
    w = OF(1, 9, 0, 1, 0, 0, 1, 0, 0, 1, 0);
    conv =
        (struct conv){.height = 2, .width = 2, .above = 1, .below = 1, .kernel = 3, .upsample = 2};
    b.ops->conv2d(b.stream, y, x, w, MATRIX_NONE, &conv);
    check(y, OF(1, 4, 102, 102, 201, 201));
    matrix_drop(w);
    matrix_drop(x);
    /* 1x1 over an upsampled pixel. */
    x = OF(1, 1, 3);
    w = OF(1, 1, 2);
    y = matrix_new(DTYPE_F32, 1, 4, 4);
    conv = (struct conv){.height = 2, .width = 2, .kernel = 1, .upsample = 2};
    b.ops->conv2d(b.stream, y, x, w, bias, &conv);
    check(y, OF(1, 4, 106, 106, 106, 106));
    matrix_drop(x);
    matrix_drop(w);
    matrix_drop(bias);
}

static int open_bench(void **state)
{
    (void)state;
    b = bench_open(NULL, 1);
    return 0;
}

static int close_bench(void **state)
{
    (void)state;
    bench_close(&b);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_other_norms),
        cmocka_unit_test(test_group_norm),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_norm_add),
        cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_conv),
    };

    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
