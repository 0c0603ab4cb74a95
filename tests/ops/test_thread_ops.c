/*
 * The fast operations give the same bytes whatever the number of threads, wherever the operands
 * lie, and however many rows are given at a time. Also run under TSan.
 */
#include "ops_support.h"

/* The operands of one round, at addresses that begin `shift` floats into their memory. */
struct operands {
    struct matrix x, w, bias, y; /* linear: several tiles of tokens and of features */
    struct matrix qkv, out;      /* attention: several tiles of queries and of keys */
    struct matrix picture, kernel, decoded;
    struct matrix normed, affine;
    struct matrix distances; /* what attention adds to scores */
};

static struct matrix shifted(enum dtype dtype, int64_t rows, int64_t cols, int64_t shift)
{
    struct matrix m = random_matrix(dtype, 1, rows * cols + shift, rows * cols + shift);

    m.addr += (uint64_t)dtype_bytes(dtype, shift);
    m.rows = rows;
    m.cols = cols;
    m.stride = cols;
    return m;
}

static void unshift(struct matrix m, int64_t shift)
{
    m.addr -= (uint64_t)dtype_bytes(m.dtype, shift);
    matrix_drop(m);
}

enum { TOKENS = 1100, IN = 300, OUT = 150, HEADS = 3, DIM = 40, HEIGHT = 21, WIDTH = 70 };

/* Everything is filled with the same numbers whatever the shift: `seed` is set again, and every
 * value takes the same two draws. */
static struct operands operands_new(int64_t shift)
{
    struct operands o;
    const struct matrix *all[] = {&o.x, &o.w, &o.bias, &o.y, &o.qkv, &o.out, &o.picture, &o.kernel,
        &o.decoded, &o.normed, &o.affine, &o.distances};

    o.x = shifted(DTYPE_F32, TOKENS, IN, shift);
    o.w = shifted(DTYPE_BF16, OUT, IN, shift);
    o.bias = shifted(DTYPE_F16, 1, OUT, shift);
    o.y = shifted(DTYPE_F32, TOKENS, OUT, shift);
    o.qkv = shifted(DTYPE_F32, 400, 3 * HEADS * DIM, shift);
    o.out = shifted(DTYPE_F32, 400, HEADS * DIM, shift);
    o.picture = shifted(DTYPE_F32, 70, HEIGHT * WIDTH, shift);
    o.kernel = shifted(DTYPE_F32, 140, 70 * 9, shift);
    o.decoded = shifted(DTYPE_F32, 140, HEIGHT * WIDTH, shift);
    o.normed = shifted(DTYPE_F32, TOKENS, IN, shift);
    o.affine = shifted(DTYPE_F32, 2, 70, shift);
    o.distances = shifted(DTYPE_F32, HEADS, 2 * 400 - 1, shift);
    seed = 77;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int64_t r = 0; r < all[i]->rows; r++)
            for (int64_t c = 0; c < all[i]->cols; c++)
                set_random(*all[i], r, c);
    return o;
}

static void operands_drop(struct operands *o, int64_t shift)
{
    struct matrix all[] = {o->x, o->w, o->bias, o->y, o->qkv, o->out, o->picture, o->kernel,
        o->decoded, o->normed, o->affine, o->distances};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        unshift(all[i], shift);
}

static void run_all(const struct bench *b, struct operands *o)
{
    struct conv conv = {.height = HEIGHT, .width = WIDTH, .kernel = 3, .upsample = 1};

    b->ops->linear(b->stream, o->y, o->x, o->w, o->bias);
    b->ops->attention(b->stream, o->out, matrix_cols(o->qkv, 0, HEADS * DIM),
        matrix_cols(o->qkv, HEADS * DIM, HEADS * DIM),
        matrix_cols(o->qkv, 2 * HEADS * DIM, HEADS * DIM),
        &(struct attention){HEADS, HEADS, 0.2f, false, o->distances});
    b->ops->rms_norm(b->stream, o->normed, o->x, MATRIX_NONE, MATRIX_NONE, 1e-6f);
    b->ops->activate(b->stream, o->normed, o->normed, ACTIVATION_SILU);
    group_norm(b, o->affine, o->picture, matrix_cols(matrix_rows(o->x, 0, 1), 0, 70),
        matrix_cols(matrix_rows(o->x, 1, 1), 0, 70),
        (struct group_norm){.groups = 7, .run = 2 * WIDTH, .eps = 1e-6f}, 4 * WIDTH);
    conv.affine = o->affine;
    conv.activation = ACTIVATION_SILU;
    b->ops->conv2d(b->stream, o->decoded, o->picture, o->kernel, MATRIX_NONE, &conv);
}

static void assert_same_results(const struct operands *a, const struct operands *b)
{
    assert_same_bytes(a->y, b->y);
    assert_same_bytes(a->out, b->out);
    assert_same_bytes(a->normed, b->normed);
    assert_same_bytes(a->affine, b->affine);
    assert_same_bytes(a->decoded, b->decoded);
}

static void test_threads_and_addresses(void **state)
{
    const int threads[] = {2, 3, 8};

    (void)state;
    for (int set = 0; cpu_kernels_at(set); set++) {
        struct bench one = bench_open(cpu_kernels_at(set), 1);
        struct operands want = operands_new(0);

        run_all(&one, &want);
        for (int i = 0; i < 3; i++) {
            int64_t shift = i * 3;
            struct bench many = bench_open(cpu_kernels_at(set), threads[i]);
            struct operands got = operands_new(shift);

            run_all(&many, &got);
            assert_same_results(&want, &got);
            operands_drop(&got, shift);
            bench_close(&many);
        }
        operands_drop(&want, 0);
        bench_close(&one);
    }
}

/* Rows are independent of one another, so any split gives the same bytes. */
static void test_split_rows(void **state)
{
    const int64_t cuts[] = {512, 1, 13, 600};

    (void)state;
    for (int set = 0; cpu_kernels_at(set); set++) {
        struct bench b = bench_open(cpu_kernels_at(set), 2);
        struct operands want = operands_new(0), got = operands_new(0);

        run_all(&b, &want);
        for (int i = 0; i < 4; i++) {
            int64_t cut = cuts[i], queries = cut < 400 ? cut : 200;
            struct matrix q = matrix_cols(got.qkv, 0, HEADS * DIM);
            struct matrix key = matrix_cols(got.qkv, HEADS * DIM, HEADS * DIM);
            struct matrix value = matrix_cols(got.qkv, 2 * HEADS * DIM, HEADS * DIM);

            for (int part = 0; part < 2; part++) {
                int64_t first = part ? cut : 0, rows = part ? TOKENS - cut : cut;
                int64_t q_first = part ? queries : 0, q_rows = part ? 400 - queries : queries;

                b.ops->linear(b.stream, matrix_rows(got.y, first, rows),
                    matrix_rows(got.x, first, rows), got.w, got.bias);
                b.ops->attention(b.stream, matrix_rows(got.out, q_first, q_rows),
                    matrix_rows(q, q_first, q_rows), key, value,
                    &(struct attention){HEADS, HEADS, 0.2f, false,
                        matrix_cols(got.distances, 400 - q_first - q_rows, q_rows + 399)});
            }
            assert_same_bytes(want.y, got.y);
            assert_same_bytes(want.out, got.out);
        }
        operands_drop(&want, 0);
        operands_drop(&got, 0);
        bench_close(&b);
    }
}

/* Several groups of tiles, the last of them short. */
static void test_unpack(void **state)
{
    struct matrix w = random_matrix(DTYPE_BF16, 1, 150001, 150001);
    uint64_t bytes;
    void *payload = pack_matrix(w, &bytes);

    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct bench b = bench_open(cpu_kernels_at(0), threads);
        struct matrix y = matrix_new(DTYPE_BF16, 1, 150001, 150001);

        b.ops->unpack(
            b.stream, &(struct crossed){y, (device_addr)(uintptr_t)payload, bytes, true}, 1);
        assert_same_bytes(y, w);
        matrix_drop(y);
        bench_close(&b);
    }
    free(payload);
    matrix_drop(w);
}

/* AVX2 and AVX-512 sum up in the same order. */
static void test_kernels_agree(void **state)
{
    struct bench a, b;
    struct operands want = operands_new(0), got = operands_new(0);

    (void)state;
    if (cpu_kernels_at(1) && cpu_kernels_at(2)) {
        a = bench_open(cpu_kernels_at(1), 2);
        b = bench_open(cpu_kernels_at(2), 2);
        run_all(&a, &want);
        run_all(&b, &got);
        assert_same_results(&want, &got);
        bench_close(&a);
        bench_close(&b);
    }
    operands_drop(&want, 0);
    operands_drop(&got, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_addresses),
        cmocka_unit_test(test_split_rows),
        cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_kernels_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
