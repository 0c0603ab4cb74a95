/* Attention on the device: every kernel of it, on cards with little and with much shared memory. */
#include "cuda/gpu_support.h"

#include "device/cuda/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed = 7;

static int64_t pick(int64_t low, int64_t high)
{
    return low + test_random(&seed) % (high - low + 1);
}

/* What chooses between kernels. A card stays what it is where it has less. */
static const struct card {
    int32_t sm, shared_kib;
} cards[] = {{75, 64}, {89, 99}, {80, 163}, {90, 227}};
#define CARD_COUNT (int)(sizeof cards / sizeof *cards)

static struct card own; /* what the device really is */

static void pretend(const struct card *card)
{
    struct cuda_device *cuda = cuda_device(gpu_device());

    if (!own.sm) own = (struct card){cuda->sm, cuda->shared_bytes / 1024};
    if (gpu.real && card->sm > own.sm) card = &own;
    cuda->sm = card->sm;
    cuda->shared_bytes = card->shared_kib * 1024;
}

struct shape {
    enum dtype dtype;
    int64_t queries, keys, dim;
    int32_t heads, kv_heads;
    float scale;
    bool causal;
};

/* What may be off, of the largest result: shares are rounded to the operands' type. */
static double tolerance(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 5e-5 : dtype == DTYPE_F16 ? 2e-3 : 1e-2;
}

/* Keys and values are halves of one matrix, as in a model. */
static void check_with(struct shape s, bool biased)
{
    int64_t q_cols = s.heads * s.dim, kv_cols = s.kv_heads * s.dim;
    struct operand *q = gpu_input(s.dtype, s.queries, q_cols);
    struct operand *kv = gpu_input(s.dtype, s.keys, 2 * kv_cols);
    struct operand *out = gpu_output(s.dtype, s.queries, q_cols);
    struct operand *bias = biased ? gpu_input(DTYPE_F32, s.heads, s.queries + s.keys - 1) : NULL;

    GPU_CHECK(tolerance(s.dtype), attention, on(out), on(q), on_cols(kv, 0, kv_cols),
        on_cols(kv, kv_cols, kv_cols),
        &(struct attention){s.heads, s.kv_heads, s.scale, s.causal, on(bias)});
}

static void check(struct shape s)
{
    check_with(s, false);
}

static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
static const int64_t dims[] = {32, 64, 96, 128, 256, 512};

/* Odd lengths: tails of queries and of keys, several tiles of both. */
static void test_shapes(void **state)
{
    (void)state;
    for (int c = 0; c < CARD_COUNT; c++) {
        pretend(&cards[c]);
        for (int i = 0; i < 12; i++) {
            int64_t dim = dims[i / 2], most = dim > 128 ? 70 : 140;
            struct shape s = {
                halves[i % 2], pick(1, most), pick(1, most), dim, 1, 1, 0, c % 2 == 1};

            s.scale = 1 / sqrtf((float)s.dim);
            if (s.dim <= 128) {
                s.kv_heads = (int32_t)pick(1, 2);
                s.heads = s.kv_heads * (int32_t)pick(1, 2);
            }
            check(s);
            s.causal = !s.causal;
            s.queries = pick(1, 40);
            check(s);
        }
    }
}

static void test_one(void **state)
{
    (void)state;
    pretend(&cards[CARD_COUNT - 1]);
    for (int i = 0; i < 12; i++) {
        check((struct shape){halves[i % 2], 1, 1, dims[i / 2], 2, 1, 1, false});
        check((struct shape){halves[i % 2], 1, 66, dims[i / 2], 1, 1, 0.1f, false});
        check((struct shape){halves[i % 2], 3, 66, dims[i / 2], 1, 1, 0.1f, true});
        check((struct shape){halves[i % 2], 33, 1, dims[i / 2], 1, 1, 0.1f, false});
    }
}

/* What the matrix instructions do not do. */
static void test_any(void **state)
{
    const int64_t odd[] = {1, 7, 33, 40, 80, 300, 512, 515};

    (void)state;
    pretend(&cards[1]);
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < 3; t++) {
            int32_t kv_heads = (int32_t)pick(1, 2), heads = kv_heads * (int32_t)pick(1, 2);

            check((struct shape){gpu_activations[t], pick(1, 9), pick(1, 80), odd[i], heads,
                kv_heads, 1 / sqrtf((float)odd[i]), pick(0, 1)});
        }
    check((struct shape){DTYPE_F32, 10, 70, 128, 4, 2, 0.09f, true});
    check((struct shape){DTYPE_BF16, 10, 70, 64, 2, 1, -0.3f, false});
    check((struct shape){DTYPE_BF16, 10, 70, 64, 2, 1, 0, true});
    pretend(&cards[0]);
    check((struct shape){DTYPE_BF16, 10, 70, 64, 2, 1, 0.1f, true});
}

/* Operands of different types. */
static void test_mixed_types(void **state)
{
    (void)state;
    pretend(&cards[1]);
    for (int i = 0; i < 3; i++) {
        struct operand *q = gpu_input(gpu_activations[i], 5, 64);
        struct operand *k = gpu_input(gpu_activations[(i + 1) % 3], 40, 64);
        struct operand *v = gpu_input(gpu_activations[(i + 2) % 3], 40, 64);
        struct operand *out = gpu_output(DTYPE_F32, 5, 64);

        GPU_CHECK(5e-5, attention, on(out), on(q), on(k), on(v),
            &(struct attention){.heads = 2, .kv_heads = 2, .scale = 0.2f});
    }
}

/*
 * Scores that rise, fall or stay by `step` from key to key, from `first` on: what is taken off them
 * is raised for every tile, for some, or never; the shares of the first keys or of the last vanish.
 */
static void check_scores(enum dtype dtype, int64_t dim, double first, double step)
{
    enum { QUERIES = 20, KEYS = 200 };
    float *q = calloc((size_t)(QUERIES * dim), sizeof *q),
          *k = calloc((size_t)(KEYS * dim), sizeof *k);
    struct operand *query = gpu_input(dtype, QUERIES, dim), *key = gpu_input(dtype, KEYS, dim);
    struct operand *value = gpu_input(dtype, KEYS, dim), *out = gpu_output(dtype, QUERIES, dim);

    assert_non_null(q);
    assert_non_null(k);
    for (int64_t t = 0; t < QUERIES; t++)
        q[t * dim] = q[t * dim + 1] = q[t * dim + dim - 1] = 1;
    for (int64_t s = 0; s < KEYS; s++) { /* in parts that both types hold exactly */
        double score = first + step * (double)s, high = 256 * floor(score / 256);

        k[s * dim + 1] = (float)high;
        k[s * dim] = (float)floor(score - high);
        k[s * dim + dim - 1] = (float)(score - high - floor(score - high));
    }
    gpu_set(query, q);
    gpu_set(key, k);
    free(q);
    free(k);
    GPU_CHECK(tolerance(dtype), attention, on(out), on(query), on(key), on(value),
        &(struct attention){.heads = 1, .kv_heads = 1, .scale = 1});
}

static void test_scores(void **state)
{
    const double steps[] = {0, 0.03125, 0.125, 1, 20};

    (void)state;
    for (int i = 0; i < 2; i++) {
        pretend(&cards[1 + 2 * i]);
        for (int s = 0; s < 5; s++) {
            check_scores(halves[i], 32, 0, steps[s]);
            check_scores(halves[i], 128, -4096, steps[s]);
            check_scores(halves[i], 64, 4096, -steps[s]);
        }
        check_scores(halves[i], 96, 1 << 14, 0);
        check_scores(halves[i], 96, -(1 << 14), 0);
        check_scores(halves[i], 256, -(1 << 13), 64);
        check_scores(halves[i], 512, 1 << 13, -64);
    }
}

/* What one query and head may look like in a model: sharp. */
static void test_sharp(void **state)
{
    (void)state;
    for (int c = 0; c < CARD_COUNT; c++) {
        pretend(&cards[c]);
        check((struct shape){DTYPE_F16, 40, 130, 128, 2, 1, 3, true});
        check((struct shape){DTYPE_F16, 40, 130, 64, 1, 1, 30, false});
    }
}

/* With a bias: by a kernel of its own, or by the one for all else. */
static void test_biased(void **state)
{
    (void)state;
    for (int c = 0; c < CARD_COUNT; c++) {
        enum dtype type = halves[c % 2];

        pretend(&cards[c]);
        check_with((struct shape){type, 150, 150, 64, 2, 2, 1, false}, true);
        check_with((struct shape){type, pick(1, 140), pick(1, 70), 64, 2, 1, 0.1f, true}, true);
        check_with((struct shape){type, pick(1, 9), pick(1, 140), 64, 2, 1, 0.1f, false}, true);
        check_with((struct shape){type, 20, 70, 128, 2, 1, 0.1f, c > 1}, true);
        check_with((struct shape){DTYPE_F32, 20, 70, 64, 2, 1, 1, c > 1}, true);
    }
}

/* However the queries are cut, by whichever kernel: the same bytes. */
static void check_chunks(enum dtype dtype, int64_t dim, bool biased)
{
    enum { QUERIES = 150, KEYS = 70 };
    struct operand *q = gpu_input(dtype, QUERIES, dim), *k = gpu_input(dtype, KEYS, dim);
    struct operand *v = gpu_input(dtype, KEYS, dim), *out = gpu_output(dtype, QUERIES, dim);
    struct operand *bias = biased ? gpu_input(DTYPE_F32, 1, QUERIES + KEYS - 1) : NULL;
    int turn = 0;

    for (gpu_begin("attention in chunks", tolerance(dtype)); gpu_next(); turn++) {
        int64_t step = turn % 3 ? turn % 3 * 43 : QUERIES;

        for (int64_t first = 0; first < QUERIES; first += step) {
            int64_t count = QUERIES - first < step ? QUERIES - first : step;
            struct attention how = {.heads = 1, .kv_heads = 1, .scale = 0.2f};

            if (biased) how.bias = on_cols(bias, QUERIES - first - count, count + KEYS - 1);
            gpu.ops->attention(gpu.stream, on_rows(out, first, count), on_rows(q, first, count),
                on(k), on(v), &how);
        }
    }
}

static void test_chunks(void **state)
{
    (void)state;
    pretend(&cards[1]);
    check_chunks(DTYPE_BF16, 64, true);
    check_chunks(DTYPE_F16, 64, false);
    check_chunks(DTYPE_BF16, 40, true);
}

/* As a picture looks at a prompt. */
static void test_cross(void **state)
{
    (void)state;
    for (int c = 0; c < CARD_COUNT; c++) {
        pretend(&cards[c]);
        check((struct shape){halves[c % 2], 150, 77, 64, 2, 2, 0.125f, false});
        check((struct shape){halves[c % 2], 150, 40, 128, 2, 2, 0.09f, false});
    }
}

static void time_with(struct shape s, bool biased)
{
    int64_t q_cols = s.heads * s.dim, kv_cols = s.kv_heads * s.dim;
    struct operand *q = gpu_input(s.dtype, s.queries, q_cols);
    struct operand *kv = gpu_input(s.dtype, s.keys, 2 * kv_cols);
    struct operand *out = gpu_output(s.dtype, s.queries, q_cols);
    struct operand *bias = biased ? gpu_input(DTYPE_F32, s.heads, s.queries + s.keys - 1) : NULL;
    double flops = 4.0 * (double)s.queries * (double)s.keys * (double)q_cols / (s.causal ? 2 : 1);

    s.scale = 1 / sqrtf((float)s.dim);
    GPU_TIME(flops, 0, tolerance(s.dtype), attention, on(out), on(q), on_cols(kv, 0, kv_cols),
        on_cols(kv, kv_cols, kv_cols),
        &(struct attention){s.heads, s.kv_heads, s.scale, s.causal, on(bias)});
}

#define BIASED 2 /* the last ones */

static void test_times(void **state)
{
    const struct shape shapes[] = {
        {DTYPE_BF16, 4200, 4200, 128, 30, 30, 0, false},   /* Z-Image, 1024 x 1024 */
        {DTYPE_F16, 4200, 4200, 128, 30, 30, 0, false},    /* the same before sm_80 */
        {DTYPE_BF16, 16500, 16500, 128, 30, 30, 0, false}, /* 2048 x 2048 */
        {DTYPE_BF16, 512, 512, 128, 32, 8, 0, true},       /* Qwen3-4B */
        {DTYPE_BF16, 8192, 8192, 128, 32, 8, 0, true},
        {DTYPE_BF16, 16384, 16384, 512, 1, 1, 0, false}, /* the VAE */
        {DTYPE_F16, 16384, 16384, 512, 1, 1, 0, false},
        {DTYPE_BF16, 4096, 4096, 32, 32, 32, 0, false},
        {DTYPE_BF16, 4096, 4096, 64, 32, 32, 0, false},
        {DTYPE_BF16, 4096, 4096, 96, 32, 32, 0, false},
        {DTYPE_BF16, 4096, 4096, 256, 16, 16, 0, false},
        {DTYPE_BF16, 320, 320, 64, 3, 3, 0, false}, /* shoal-mini */
        {DTYPE_F32, 1024, 1024, 128, 4, 4, 0, false},
        {DTYPE_BF16, 4096, 512, 128, 16, 16, 0, false}, /* a picture and its prompt */
        /* Tails and grouped queries: cuDNN's, if SHOAL_CUDA_ATTENTION says so. */
        {DTYPE_BF16, 2112, 4200, 128, 30, 30, 0, false},
        {DTYPE_BF16, 1000, 777, 128, 32, 8, 0, false},
        {DTYPE_BF16, 513, 1025, 64, 6, 2, 0, false},
        {DTYPE_BF16, 512, 512, 64, 64, 64, 0, false}, /* T5-XXL, and with its bias */
        {DTYPE_BF16, 512, 512, 64, 64, 64, 0, false},
        {DTYPE_F16, 512, 512, 64, 64, 64, 0, false},
    };

    (void)state;
    if (!gpu.real) skip();
    for (int c = 0; c < CARD_COUNT; c++) {
        pretend(&cards[c]);
        printf("  %d KiB of shared memory, %s\n", cards[c].shared_kib,
            cuda_info(gpu_device()).attends);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (cards[c].sm >= 80 || shapes[i].dtype == DTYPE_F16)
                time_with(shapes[i], i >= sizeof shapes / sizeof *shapes - BIASED);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_one),
    cmocka_unit_test(test_any),
    cmocka_unit_test(test_mixed_types),
    cmocka_unit_test(test_scores),
    cmocka_unit_test(test_sharp),
    cmocka_unit_test(test_biased),
    cmocka_unit_test(test_chunks),
    cmocka_unit_test(test_cross),
    cmocka_unit_test(test_times),
};
GPU_MAIN(tests)
