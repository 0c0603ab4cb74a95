/*
 * Patching weights: every set of kernels and the host's own passes give the reference's bits, of
 * every type, term and tile; and the reference gives those of the definition, written out here.
 */
#include "device/cpu/patch.h"

#include "ops_support.h"

static const enum dtype bases[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2,
    DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K};

static struct matrix random_base(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct matrix m;

    if (!dtype_is_quantised(dtype)) return random_matrix(dtype, rows, cols, cols);
    m = matrix_new(dtype, rows, cols, cols);
    for (size_t i = 0; i < matrix_bytes(m); i++)
        ((uint8_t *)(uintptr_t)m.addr)[i] = (uint8_t)(test_random(&seed) & 0xb3);
    if (dtype_is_f8(dtype)) m.scale = 0.0371f;
    return m;
}

static struct patch_factor low_rank(int64_t rows, int64_t cols, int64_t rank)
{
    return (struct patch_factor){random_weights(rows, rank), random_weights(rank, cols)};
}

static struct patch_factor dense(int64_t rows, int64_t cols)
{
    return (struct patch_factor){.b = random_weights(rows, cols)};
}

static void term_drop(struct patch_term *t)
{
    for (int f = 0; f < 2; f++) {
        if (t->factors[f].b.addr) matrix_drop(t->factors[f].b);
        if (t->factors[f].a.addr) matrix_drop(t->factors[f].a);
    }
}

/* Of a weight [rows, cols], of which the difference has two rows more. */
static struct patch_term random_term(int kind, int64_t rows, int64_t cols)
{
    struct patch_term t = {.scale = random_float(), .row = 2};
    const int64_t high = rows + 2;

    switch (kind) {
    case 0:
        t.factors[0] = low_rank(high, cols, random_int(1, 90));
        break;
    case 1:
        t.factors[0] = dense(high, cols);
        break;
    case 2: /* Hadamard */
        t.factors[0] = low_rank(high, cols, 3);
        t.factors[1] = low_rank(high, cols, 5);
        break;
    case 3: /* Kronecker */
        t.kron = true;
        t.factors[0] = dense(high / 2, cols / 32);
        t.factors[1] = low_rank(2, 32, 7);
        break;
    default:
        t.kron = true;
        t.factors[0] = low_rank(high / 2, 2, 3);
        t.factors[1] = dense(2, cols / 2);
    }
    return t;
}

static void check_against_reference(enum dtype dtype, int64_t rows, int64_t cols, int32_t terms)
{
    struct matrix x = random_base(dtype, rows, cols);
    struct matrix want = matrix_new(patch_dtype(dtype), rows, cols, cols);
    struct matrix got = matrix_clone(want);
    struct patch patch = {.count = terms};

    for (int32_t i = 0; i < terms; i++)
        patch.terms[i] = random_term((int)random_int(0, 4), rows, cols);
    patch_reference(want, x, &patch);
    for (int i = 0; cpu_kernels_at(i); i++) {
        struct bench b = bench_open(cpu_kernels_at(i), 3);

        memset((void *)(uintptr_t)got.addr, GAP_BYTE, matrix_bytes(got));
        b.ops->patch(b.stream, got, x, &patch);
        assert_same_bytes(got, want);
        bench_close(&b);
    }
    memset((void *)(uintptr_t)got.addr, GAP_BYTE, matrix_bytes(got));
    patch_on_host(NULL, got, x, &patch);
    assert_same_bytes(got, want);
    if (x.dtype == want.dtype) { /* in place */
        patch_on_host(NULL, x, x, &patch);
        assert_same_bytes(x, want);
    }
    for (int32_t i = 0; i < terms; i++)
        term_drop(&patch.terms[i]);
    matrix_drop(x);
    matrix_drop(want);
    matrix_drop(got);
}

static void test_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        for (int32_t terms = 0; terms <= 3; terms++)
            check_against_reference(bases[i], 2 * random_int(1, 20), 512, terms);
    for (int i = 0; i < 40; i++)
        check_against_reference(
            random_dtype(), 2 * random_int(1, 20), 32 * random_int(1, 9), PATCH_TERMS);
}

/* One element by hand: what is fused, and what is rounded when. */
static void test_definition(void **state)
{
    float w = 1.5f, b[2] = {0x1.000002p0f, 3.0f}, a[2] = {0x1.fffffep-1f, -0x1p-30f}, d = 0x1p-25f;
    float y, t, want;
    struct patch patch = {.count = 2};

    (void)state;
    patch.terms[0] = (struct patch_term){.scale = 0x1.8p-2f};
    patch.terms[0].factors[0].b = matrix_at((device_addr)(uintptr_t)b, DTYPE_F32, 1, 2);
    patch.terms[0].factors[0].a = matrix_at((device_addr)(uintptr_t)a, DTYPE_F32, 2, 1);
    patch.terms[1] = (struct patch_term){.scale = -7};
    patch.terms[1].factors[0].b = matrix_at((device_addr)(uintptr_t)&d, DTYPE_F32, 1, 1);
    patch_reference(matrix_at((device_addr)(uintptr_t)&y, DTYPE_F32, 1, 1),
        matrix_at((device_addr)(uintptr_t)&w, DTYPE_F32, 1, 1), &patch);
    t = fmaf(b[1], a[1], b[0] * a[0]);
    want = fmaf(-7, d, fmaf(0x1.8p-2f, t, w));
    assert_memory_equal(&y, &want, sizeof y);
}

/* Halves of every value, ties and what is beyond the range. */
static void test_f16_rounding(void **state)
{
    static const struct {
        float value;
        uint16_t half;
    } cases[] = {{1, 0x3c00}, {0x1.002p0f, 0x3c00}, {0x1.006p0f, 0x3c02}, {0x1.0021p0f, 0x3c01},
        {65504, 0x7bff}, {65519, 0x7bff}, {65520, 0x7bff}, {1e30f, 0x7bff}, {-1e30f, 0xfbff},
        {0x1p-14f, 0x0400}, {0x1p-24f, 1}, {0x1p-25f, 0}, {0x1.8p-25f, 1}, {0x1.8p-24f, 2},
        {-0x1.ff8p-15f, 0x83ff}, {0x1.ffep-15f, 0x0400}, {-0.0f, 0x8000}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float difference = cases[i].value;
        uint16_t zero = 0x8000, y;
        struct patch patch = {.count = 1};

        patch.terms[0] = (struct patch_term){.scale = 1};
        patch.terms[0].factors[0].b =
            matrix_at((device_addr)(uintptr_t)&difference, DTYPE_F32, 1, 1);
        patch_reference(matrix_at((device_addr)(uintptr_t)&y, DTYPE_F16, 1, 1),
            matrix_at((device_addr)(uintptr_t)&zero, DTYPE_F16, 1, 1), &patch);
        assert_int_equal(y, cases[i].half);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_f16_rounding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
