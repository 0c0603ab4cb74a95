/* Patching weights on the CUDA device: the reference's bits, of every type and term. */
#include "cuda/gpu_support.h"

#include "tensor/quant.h"

static const enum dtype bases[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2,
    DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_Q3_K, DTYPE_Q6_K};
static const enum dtype plain[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

struct factor {
    struct operand *b, *a;
};

static struct factor low_rank(enum dtype dtype, int64_t rows, int64_t cols, int64_t rank)
{
    return (struct factor){gpu_input(dtype, rows, rank), gpu_input(dtype, rank, cols)};
}

static struct patch_factor factor_on(struct factor f)
{
    return (struct patch_factor){on(f.b), on(f.a)};
}

/* One check with terms of every kind; the differences have three rows more than the weight. */
static void check_patch_of(
    enum dtype base, enum dtype to, enum dtype dtype, int64_t rows, int64_t cols, int64_t rank)
{
    const int64_t high = rows + 3;
    struct operand *y = gpu_output(to, rows, cols), *x = gpu_input(base, rows, cols);
    const struct factor first = low_rank(dtype, high, cols, rank);
    const struct factor second = low_rank(dtype, high, cols, 2);
    const struct factor dense = {.b = gpu_input(dtype, high, cols)};
    const struct factor left = {.b = gpu_input(dtype, high, cols / 8)};
    const struct factor right = low_rank(dtype, 1, 8, 3);

    for (gpu_begin("patch", 0); gpu_next();) {
        const struct patch patch = {.count = 4,
            .terms = {{.factors = {factor_on(first)}, .scale = 0.37f, .row = 3},
                {.factors = {factor_on(dense)}, .scale = -1.75f},
                {.factors = {factor_on(first), factor_on(second)}, .scale = 0.11f, .row = 1},
                {.factors = {factor_on(left), factor_on(right)},
                    .kron = true,
                    .scale = 0.7f,
                    .row = 2}}};

        gpu.ops->patch(gpu.stream, on(y), on(x), &patch);
    }
}

static void test_types(void **state)
{
    (void)state;
    for (size_t b = 0; b < sizeof bases / sizeof *bases; b++)
        for (size_t f = 0; f < 3; f++) {
            check_patch_of(bases[b], DTYPE_F32, plain[f], 5, 256, 7);
            check_patch_of(bases[b], patch_dtype(bases[b]), plain[f], 5, 256, 7);
        }
}

/* Tiles and chains that are filled in part, of one row too. */
static void test_shapes(void **state)
{
    (void)state;
    check_patch_of(DTYPE_F32, DTYPE_F32, DTYPE_F32, 1, 8, 1);
    check_patch_of(DTYPE_BF16, DTYPE_F32, DTYPE_BF16, 33, 72, 33);
    check_patch_of(DTYPE_BF16, DTYPE_BF16, DTYPE_F16, 70, 136, 65);
}

static void test_in_place(void **state)
{
    struct operand *y = gpu_inout(DTYPE_F32, 9, 70);
    const struct factor f = low_rank(DTYPE_BF16, 9, 70, 4);

    (void)state;
    for (gpu_begin("patch", 0); gpu_next();) {
        const struct patch patch = {
            .count = 1, .terms = {{.factors = {factor_on(f)}, .scale = 2.5f}}};

        gpu.ops->patch(gpu.stream, on(y), on(y), &patch);
    }
}

/* ---- on a card ---- */

static void test_rates(void **state)
{
    const int64_t rows = 3840, cols = 10240, rank = 32;

    (void)state;
    if (!gpu.real) return;
    for (size_t b = 2; b < 7; b++) {
        struct operand *y = gpu_output(DTYPE_BF16, rows, cols);
        struct operand *x = gpu_input(bases[b], rows, cols);
        const struct factor f = low_rank(DTYPE_BF16, rows, cols, rank);

        GPU_TIME(2 * rows * cols * (rank + 1), 4 * rows * cols, 0, patch, on(y), on(x),
            &((struct patch){.count = 1, .terms = {{.factors = {factor_on(f)}, .scale = 1}}}));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_types),
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_in_place),
    cmocka_unit_test(test_rates),
};

GPU_MAIN(tests)
