/* Every fast operation against the reference, over random shapes, for every set of kernels that
 * this CPU has. */
#include "ops_support.h"

#include <float.h>

static struct bench reference, fast;
static const char *kernels_name;

#define ROUNDS 40

/* Runs `call` on both devices; y is `clone`d for each, so that it may be an operand too. */
#define BOTH(y, tolerance, call)                                                                   \
    do {                                                                                           \
        struct matrix start_ = (y), want_ = matrix_clone(start_);                                  \
        struct matrix got_ = matrix_clone(start_);                                                 \
        struct bench b = reference;                                                                \
        char what_[200];                                                                           \
                                                                                                   \
        snprintf(what_, sizeof what_, "%s, %s", #call, kernels_name);                              \
        (y) = want_;                                                                               \
        call;                                                                                      \
        b = fast;                                                                                  \
        (y) = got_;                                                                                \
        call;                                                                                      \
        assert_close(what_, got_, want_, tolerance);                                               \
        (y) = start_;                                                                              \
        matrix_drop(want_);                                                                        \
        matrix_drop(got_);                                                                         \
    } while (0)

static void drop(int count, const struct matrix *matrices)
{
    for (int i = 0; i < count; i++)
        if (matrices[i].addr) matrix_drop(matrices[i]);
}

#define DROP(...)                                                                                  \
    drop(sizeof((struct matrix[]){__VA_ARGS__}) / sizeof(struct matrix),                           \
        (struct matrix[]){__VA_ARGS__})

static int64_t random_size(int64_t most)
{
    return random_int(0, 3) ? random_int(1, most / 8 + 1) : random_int(1, most);
}

static void test_linear(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t m = random_size(600), n = random_size(300), k = random_size(600);
        struct matrix y = random_floats(m, n), x = random_floats(m, k), w = random_weights(n, k);
        struct matrix bias = random_vector(n, true);

        BOTH(y, 2e-6, b.ops->linear(b.stream, y, x, w, bias));
        DROP(y, x, w, bias);
    }
}

/* Values at the edges of every weight type survive widening: also through packing. */
static void test_widening(void **state)
{
    const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16};

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct matrix x = matrix_new(dtypes[d], 256, 256, 256),
                      one = matrix_new(DTYPE_F32, 1, 1, 1);
        struct matrix y = matrix_new(DTYPE_F32, 256, 256, 256),
                      z = matrix_new(DTYPE_F32, 1, 256, 256);

        row_of(one, 0)[0] = 1;
        for (uint32_t i = 0; i < 65536; i++)
            ((uint16_t *)(uintptr_t)x.addr)[i] = (uint16_t)i;
        fast.ops->copy(fast.stream, y, x);
        for (uint32_t i = 0; i < 65536; i++) {
            float want =
                dtypes[d] == DTYPE_F16 ? f16_to_float((uint16_t)i) : bf16_to_float((uint16_t)i);
            float got = row_of(y, 0)[i];

            if (isnan(want))
                assert_true(isnan(got));
            else
                assert_int_equal(float_to_bits(got), float_to_bits(want));
        }
        /* Each column of x as weights of one input. */
        for (int64_t c = 0; c < 256; c++) {
            struct matrix column = matrix_cols(x, c, 1);

            fast.ops->linear(fast.stream, z, one, column, MATRIX_NONE);
            for (int64_t r = 0; r < 256; r++) {
                float want = row_of(y, r)[c], got = row_of(z, 0)[r];

                assert_true(isnan(want) ? isnan(got) : got == want);
            }
        }
        DROP(x, y, z, one);
    }
}

/* Packed weights come back as they were, from both tables. */
static void test_unpack(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        enum dtype dtype = random_int(0, 1) ? DTYPE_BF16 : DTYPE_F16;
        int64_t rows = random_int(1, 300), cols = random_int(1, 300);
        struct matrix w = random_matrix(dtype, rows, cols, cols);
        struct matrix y = matrix_new(dtype, rows, cols, cols);
        uint64_t bytes;
        void *payload = pack_matrix(w, &bytes);
        struct matrix z = matrix_new(dtype, rows, cols, cols);
        const struct crossed tensors[] = {{y, (device_addr)(uintptr_t)payload, bytes, true},
            {z, w.addr, (uint64_t)dtype_bytes(dtype, rows * cols), false}};

        fast.ops->unpack(fast.stream, tensors, 2);
        assert_same_bytes(y, w);
        assert_same_bytes(z, w);
        memset((void *)(uintptr_t)y.addr, GAP_BYTE, matrix_bytes(y));
        memset((void *)(uintptr_t)z.addr, GAP_BYTE, matrix_bytes(z));
        reference.ops->unpack(reference.stream, tensors, 2);
        assert_same_bytes(y, w);
        assert_same_bytes(z, w);
        free(payload);
        DROP(w, y, z);
    }
}

static void test_norms(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = random_size(70), cols = random_size(3000);
        struct matrix x = random_floats(rows, cols), y = matrix_clone(x);
        struct matrix gamma = random_vector(cols, true), scale = random_vector(cols, true);
        struct matrix shift = random_vector(cols, true);
        float eps = random_int(0, 1) ? 1e-6f : 1e-5f;

        BOTH(y, 2e-6, b.ops->rms_norm(b.stream, y, x, gamma, scale, eps));
        BOTH(y, 2e-6, b.ops->rms_norm(b.stream, y, y, gamma, scale, eps));
        BOTH(y, 4e-6, b.ops->layer_norm(b.stream, y, x, gamma, scale, shift, eps));
        BOTH(y, 4e-6, b.ops->layer_norm(b.stream, y, y, MATRIX_NONE, scale, shift, eps));
        BOTH(y, 4e-6, b.ops->match_norms(b.stream, y, x));
        BOTH(y, 2e-6, b.ops->gated_add(b.stream, y, scale, x, gamma, eps));
        DROP(x, y, gamma, scale, shift);
    }
}

/* The same bytes, whatever the strips. */
static void check_norm_in_strips(
    struct matrix x, struct matrix gamma, struct matrix beta, struct group_norm norm)
{
    const struct bench *const devices[] = {&fast, &reference};

    for (int i = 0; i < 2; i++) {
        struct matrix whole = matrix_new(DTYPE_F32, 2, x.rows, x.rows);
        struct matrix strips = matrix_clone(whole);

        group_norm(devices[i], whole, x, gamma, beta, norm, x.cols);
        group_norm(devices[i], strips, x, gamma, beta, norm, random_int(1, 3) * norm.run);
        assert_same_bytes(whole, strips);
        DROP(whole, strips);
    }
}

static void test_group_norm(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t groups = (int32_t)random_int(1, 8);
        int64_t channels = groups * random_int(1, 8), pixels = random_size(3000);
        struct matrix x = random_floats(channels, pixels), y = matrix_clone(x);
        struct matrix affine = random_floats(2, channels);
        struct matrix gamma = random_vector(channels, false), beta = random_vector(channels, false);

        /* Far from 0: the variance must not cancel. */
        for (int64_t r = 0; r < channels; r++)
            for (int64_t c = 0; c < pixels; c++)
                row_of(x, r)[c] += 50;
        struct group_norm norm = {.groups = groups, .run = random_size(pixels), .eps = 1e-6f};

        BOTH(affine, 2e-5, group_norm(&b, affine, x, gamma, beta, norm, pixels));
        check_norm_in_strips(x, gamma, beta, norm);
        BOTH(y, 1e-6, b.ops->affine(b.stream, y, x, affine, ACTIVATION_SILU));
        BOTH(y, 1e-6, b.ops->affine(b.stream, y, y, affine, ACTIVATION_NONE));
        DROP(x, y, affine, gamma, beta);
    }
}

/* The same bytes, whatever the strips. */
static void test_channel_norm(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t channels = random_size(200), pixels = random_size(3000);
        struct matrix x = random_floats(channels, pixels), y = matrix_clone(x), strips;
        struct matrix gamma = random_vector(channels, false);

        for (int64_t c = 0; c < channels; c++)
            row_of(x, c)[pixels / 2] = 0;
        BOTH(y, 2e-6, b.ops->channel_norm(b.stream, y, x, gamma, ACTIVATION_NONE));
        BOTH(y, 2e-6, b.ops->channel_norm(b.stream, y, y, gamma, ACTIVATION_SILU));
        strips = matrix_clone(y);
        fast.ops->channel_norm(fast.stream, y, x, gamma, ACTIVATION_SILU);
        for (int64_t first = 0, count; first < pixels; first += count) {
            count = random_int(1, pixels - first);
            fast.ops->channel_norm(fast.stream, matrix_cols(strips, first, count),
                matrix_cols(x, first, count), gamma, ACTIVATION_SILU);
        }
        assert_same_bytes(y, strips);
        DROP(x, y, gamma, strips);
    }
}

static void test_elements(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = random_size(100), cols = random_size(900);
        struct matrix x = random_floats(rows, cols), y = random_floats(rows, cols);
        struct matrix z = random_floats(rows, cols), gate = random_vector(cols, true);

        for (int a = ACTIVATION_NONE; a <= ACTIVATION_RELU; a++) {
            BOTH(y, 3e-7, b.ops->activate(b.stream, y, x, (enum activation)a));
            BOTH(y, 3e-7, b.ops->activate(b.stream, y, y, (enum activation)a));
        }
        BOTH(y, 3e-7, b.ops->gated(b.stream, y, x, z, ACTIVATION_SILU));
        BOTH(y, 3e-7, b.ops->gated(b.stream, y, y, z, ACTIVATION_GELU_TANH));
        BOTH(y, 3e-7, b.ops->gated(b.stream, y, x, y, ACTIVATION_SILU));
        BOTH(y, 3e-7, b.ops->gated_add(b.stream, y, gate, x, MATRIX_NONE, 0));
        BOTH(y, 3e-7, b.ops->blend(b.stream, y, 0.3f, x, -1.7f));
        BOTH(y, 3e-7, b.ops->guide(b.stream, y, x, z, 2.5f));
        BOTH(y, 3e-7, b.ops->guide(b.stream, y, y, z, 2.5f));
        BOTH(y, 3e-7, b.ops->guide(b.stream, y, x, y, 2.5f));
        DROP(x, y, z, gate);
    }
}

/* Over the whole range, relative to the value itself where it is not next to nothing. */
static void test_functions(void **state)
{
    enum { COUNT = 40001 };
    struct matrix x = matrix_new(DTYPE_F32, 1, COUNT, COUNT), want = matrix_clone(x);
    struct matrix got = matrix_clone(x);

    (void)state;
    for (int i = 0; i < COUNT; i++)
        row_of(x, 0)[i] = (float)(i - COUNT / 2) / 200;
    for (int a = ACTIVATION_NONE; a <= ACTIVATION_RELU; a++) {
        reference.ops->activate(reference.stream, want, x, (enum activation)a);
        fast.ops->activate(fast.stream, got, x, (enum activation)a);
        for (int i = 0; i < COUNT; i++) {
            double w = (double)row_of(want, 0)[i], off = fabs((double)row_of(got, 0)[i] - w);

            if (!(off <= 1e-6 * fabs(w) + 4e-7))
                fail_msg("%s: activation %d of %g is %g, not %g", kernels_name, a,
                    (double)row_of(x, 0)[i], (double)row_of(got, 0)[i], w);
        }
    }
    DROP(x, want, got);
}

static void test_norm_rope(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = random_size(60), pairs = random_size(100), heads = random_int(1, 6);
        struct matrix x = random_floats(rows, 2 * pairs * heads);
        struct matrix table = random_floats(rows, 2 * pairs);
        struct matrix gamma = random_vector(2 * pairs, false);

        BOTH(x, 2e-6, b.ops->rms_norm_rope(b.stream, x, gamma, 1e-6f, table, ROPE_HALF));
        BOTH(x, 2e-6, b.ops->rms_norm_rope(b.stream, x, gamma, 1e-5f, table, ROPE_INTERLEAVED));
        BOTH(x, 2e-6, b.ops->rms_norm_rope(b.stream, x, gamma, 1e-5f, MATRIX_NONE, ROPE_HALF));
        BOTH(x, 2e-6, b.ops->rms_norm_rope(b.stream, x, MATRIX_NONE, 0, table, ROPE_HALF));
        BOTH(x, 2e-6, b.ops->rms_norm_rope(b.stream, x, MATRIX_NONE, 0, table, ROPE_INTERLEAVED));
        DROP(x, table, gamma);
    }
}

static void test_attention(void **state)
{
    const int64_t dims[] = {32, 64, 128, 40, 7, 1, 96, 300};

    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t kv_heads = (int32_t)random_int(1, 3);
        int32_t heads = kv_heads * (int32_t)random_int(1, 3);
        int64_t dim = dims[random_int(0, 7)],
                most = dim > 64 ? 80 : 300; /* the reference is slow */
        int64_t queries = random_size(most), keys = random_size(2 * most);
        struct attention how = {heads, kv_heads, 1 / sqrtf((float)dim), random_int(0, 1), {0}};
        struct matrix fused = random_floats(queries, heads * dim + 5);
        struct matrix q = matrix_cols(fused, 5, heads * dim);
        struct matrix k = random_floats(keys, kv_heads * dim);
        struct matrix v = random_floats(keys, kv_heads * dim);
        struct matrix out = random_floats(queries, heads * dim);

        /* A score of 100 is good to 1e-5 in float, and so is its exponential. */
        BOTH(out, 5e-5, b.ops->attention(b.stream, out, q, k, v, &how));
        if (random_int(0, 1)) { /* scores so far apart that one key takes all */
            how.scale = 3;
            BOTH(out, 2e-3, b.ops->attention(b.stream, out, q, k, v, &how));
        } else {
            how.bias = random_floats(heads, queries + keys - 1);
            BOTH(out, 2e-4, b.ops->attention(b.stream, out, q, k, v, &how));
        }
        DROP(fused, k, v, out, how.bias);
    }
}

static void test_moves(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = random_size(200), cols = random_size(300);
        int32_t patch = (int32_t)random_int(1, 3);
        enum patch_order order = (enum patch_order)random_int(0, 1);
        int64_t height = patch * random_size(30), width = patch * random_size(30);
        struct matrix x = random_weights(rows, cols), y = random_floats(rows, cols);
        struct matrix t = random_floats(cols, rows), row = random_vector(cols, false);
        struct matrix picture = random_floats(rows / 10 + 1, height * width);
        struct matrix tokens =
            random_floats(height / patch * (width / patch), picture.rows * patch * patch);

        BOTH(y, 0, b.ops->copy(b.stream, y, x));
        BOTH(y, 0, b.ops->copy(b.stream, y, row));
        BOTH(t, 0, b.ops->transpose(b.stream, t, y));
        BOTH(tokens, 0, b.ops->patchify(b.stream, tokens, picture, height, width, patch, order));
        BOTH(picture, 0, b.ops->unpatchify(b.stream, picture, tokens, height, width, patch, order));
        DROP(x, y, t, row, picture, tokens);
    }
}

static void one_conv(int64_t in, int64_t out, int64_t height, int64_t width, int32_t upsample)
{
    struct conv conv = {.kernel = random_int(0, 2) ? 3 : 1, .upsample = upsample};
    int64_t area = conv.kernel * conv.kernel * random_int(1, CONV_MAX_PLANES);
    struct matrix x = random_floats(in, height * width), y, w, bias = random_vector(out, true);

    conv.height = height * upsample;
    conv.width = width * upsample;
    conv.accumulate = random_int(0, 1);
    conv.affine = random_int(0, 1) ? random_floats(2, in) : MATRIX_NONE;
    conv.activation = random_int(0, 1) ? ACTIVATION_SILU : ACTIVATION_NONE;
    y = random_floats(out, conv.height * conv.width);
    w = random_matrix(random_dtype(), out, in * area, in * area);
    BOTH(y, 2e-6, b.ops->conv2d(b.stream, y, x, w, bias, &conv));
    DROP(x, y, w, bias, conv.affine);
}

/* A picture whole, and in strips of rows that begin and end anywhere. */
static void check_conv_in_strips(const struct bench *b, struct conv conv, struct matrix start,
    struct matrix x, struct matrix w, struct matrix bias)
{
    struct matrix whole = matrix_clone(start), strips = matrix_clone(start);
    int64_t height = conv.height, width = conv.width, scale = conv.upsample, end;
    int64_t border = conv.kernel / 2;

    b->ops->conv2d(b->stream, whole, x, w, bias, &conv);
    for (int64_t row = 0; row < height; row = end) {
        int64_t top = (row > border ? row - border : 0) / scale, bottom;

        end = least(row + random_int(1, 11), height);
        bottom = ceil_div(least(end + border, height), scale);
        conv.height = end - row;
        conv.above = row - top * scale;
        conv.below = bottom * scale - end;
        b->ops->conv2d(b->stream, matrix_cols(strips, row * width, (end - row) * width),
            matrix_cols(x, top * (width / scale), (bottom - top) * (width / scale)), w, bias,
            &conv);
    }
    assert_same_bytes(whole, strips);
    DROP(whole, strips);
}

static void test_conv_in_strips(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t in = random_size(90), out = random_size(40), scale = random_int(1, 2);
        int64_t height = random_size(30), width = random_size(80);
        int32_t kernel = random_int(0, 2) ? 3 : 1;
        struct conv conv = {.kernel = kernel,
            .upsample = (int32_t)scale,
            .height = height * scale,
            .width = width * scale,
            .accumulate = random_int(0, 1),
            .affine = random_int(0, 1) ? random_floats(2, in) : MATRIX_NONE,
            .activation = random_int(0, 1) ? ACTIVATION_SILU : ACTIVATION_NONE};
        struct matrix x = random_floats(in, height * width), bias = random_vector(out, true);
        struct matrix y = random_floats(out, conv.height * conv.width);
        struct matrix w =
            random_matrix(random_dtype(), out, in * kernel * kernel, in * kernel * kernel);

        check_conv_in_strips(&fast, conv, y, x, w, bias);
        if (i < ROUNDS / 4) check_conv_in_strips(&reference, conv, y, x, w, bias);
        DROP(x, y, w, bias, conv.affine);
    }
}

static void test_conv(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        one_conv(random_size(90), random_size(40), random_size(24), random_size(40),
            (int32_t)random_int(1, 2));
    one_conv(3, 5, 1, 1, 1);     /* one pixel */
    one_conv(2, 3, 1, 300, 1);   /* one row */
    one_conv(2, 3, 300, 1, 1);   /* one column */
    one_conv(3, 4, 9, 65, 1);    /* just wider than whole rows */
    one_conv(3, 4, 20, 100, 2);  /* many tiles across, the last one narrow */
    one_conv(130, 200, 5, 7, 1); /* several pieces of channels and of outputs */
    one_conv(600, 3, 4, 4, 1);
}

/* Not a number in, not a number out, and nothing hangs; other rows are not touched by it. */
static void test_nan(void **state)
{
    struct matrix x = random_matrix(DTYPE_F32, 40, 64, 64), w = random_weights(32, 64);
    struct matrix y = matrix_new(DTYPE_F32, 40, 32, 32), out = matrix_new(DTYPE_F32, 40, 64, 64);

    (void)state;
    row_of(x, 7)[3] = NAN;
    fast.ops->linear(fast.stream, y, x, w, MATRIX_NONE);
    assert_true(isnan(row_of(y, 7)[0]) && isnan(row_of(y, 7)[31]));
    assert_false(isnan(row_of(y, 6)[0]) || isnan(row_of(y, 8)[31]));
    fast.ops->rms_norm(fast.stream, out, x, MATRIX_NONE, MATRIX_NONE, 1e-6f);
    assert_true(isnan(row_of(out, 7)[60]) && !isnan(row_of(out, 8)[60]));
    for (int a = ACTIVATION_NONE; a <= ACTIVATION_RELU; a++) {
        fast.ops->activate(fast.stream, out, x, (enum activation)a);
        assert_true(isnan(row_of(out, 7)[3]) && !isnan(row_of(out, 7)[4]));
    }
    fast.ops->attention(
        fast.stream, out, x, x, x, &(struct attention){.heads = 1, .kv_heads = 1, .scale = 0.1f});

    assert_true(isnan(row_of(out, 0)[0]) && isnan(row_of(out, 7)[0]));
    DROP(x, w, y, out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_widening),
        cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_group_norm),
        cmocka_unit_test(test_channel_norm),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_in_strips),
        cmocka_unit_test(test_nan),
    };
    int failures = 0;

    for (int i = 0; cpu_kernels_at(i); i++) {
        kernels_name = cpu_kernels_at(i)->name;
        reference = bench_open(NULL, 1);
        fast = bench_open(cpu_kernels_at(i), 2);
        failures += cmocka_run_group_tests_name(kernels_name, tests, NULL, NULL);
        bench_close(&fast);
        bench_close(&reference);
    }
    return failures;
}
