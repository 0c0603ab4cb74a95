/* Operands for tests of the compute table: exactly as big as they say, with guarded gaps. */
#ifndef TESTS_OPS_SUPPORT_H
#define TESTS_OPS_SUPPORT_H

#include "../support.h"

#include "base/number.h"
#include "device/cpu/internal.h"
#include "wire/wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GAP_BYTE 0x5a

static uint64_t seed = 1;

static inline int64_t random_int(int64_t low, int64_t high)
{
    return low + test_random(&seed) % (high - low + 1);
}

static inline float random_float(void)
{
    return (float)test_random(&seed) * 0x1p-30f - 1;
}

static inline size_t matrix_bytes(struct matrix m)
{
    return (size_t)dtype_bytes(m.dtype, (m.rows - 1) * m.stride + m.cols);
}

/* No padding after the last row, so that ASan sees a read too far. */
static inline struct matrix matrix_new(enum dtype dtype, int64_t rows, int64_t cols, int64_t stride)
{
    struct matrix m = {0, dtype, rows, cols, stride, 1.0f};
    void *data = malloc(matrix_bytes(m));

    assert_non_null(data);
    memset(data, GAP_BYTE, matrix_bytes(m));
    m.addr = (device_addr)(uintptr_t)data;
    return m;
}

static inline void matrix_drop(struct matrix m)
{
    free((void *)(uintptr_t)m.addr);
}

/* Values in (-1, 1), a few of them tiny (in f16 subnormal) or large. */
static inline void set_random(struct matrix m, int64_t row, int64_t col)
{
    uint32_t pick = test_random(&seed) % 64;
    float value = random_float() * (pick == 0 ? 1e-5f : pick == 1 ? 30.0f : 1.0f);
    uint32_t bits = float_to_bits(value), half;

    if (m.dtype == DTYPE_F32) {
        row_of(m, row)[col] = value;
        return;
    }
    if (m.dtype == DTYPE_BF16)
        half = bits >> 16;
    else if (fabsf(value) < 0x1p-14f)
        half = (bits >> 16 & 0x8000) | (uint32_t)(fabsf(value) * 0x1p24f);
    else
        half = (bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - (112u << 23)) >> 13);
    ((uint16_t *)(uintptr_t)m.addr)[row * m.stride + col] = (uint16_t)half;
}

static inline struct matrix random_matrix(
    enum dtype dtype, int64_t rows, int64_t cols, int64_t stride)
{
    struct matrix m = matrix_new(dtype, rows, cols, stride);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            set_random(m, r, c);
    return m;
}

/* Dense or with gaps. */
static inline struct matrix random_floats(int64_t rows, int64_t cols)
{
    return random_matrix(DTYPE_F32, rows, cols, cols + (random_int(0, 1) ? random_int(1, 19) : 0));
}

static inline enum dtype random_dtype(void)
{
    const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

    return dtypes[random_int(0, 2)];
}

static inline struct matrix random_weights(int64_t rows, int64_t cols)
{
    return random_matrix(
        random_dtype(), rows, cols, cols + (random_int(0, 1) ? random_int(1, 9) : 0));
}

static inline struct matrix random_vector(int64_t cols, bool optional)
{
    if (optional && random_int(0, 2) == 0) return MATRIX_NONE;
    return random_matrix(random_dtype(), 1, cols, cols);
}

static inline struct matrix matrix_clone(struct matrix m)
{
    struct matrix copy = matrix_new(m.dtype, m.rows, m.cols, m.stride);

    memcpy((void *)(uintptr_t)copy.addr, (void *)(uintptr_t)m.addr, matrix_bytes(m));
    return copy;
}

static inline void assert_same_bytes(struct matrix a, struct matrix b)
{
    assert_memory_equal((void *)(uintptr_t)a.addr, (void *)(uintptr_t)b.addr, matrix_bytes(a));
}

/* |got - want| <= tolerance * the largest |want| (or 1e-6), and the gaps between rows are
 * untouched. */
static inline void assert_close(
    const char *what, struct matrix got, struct matrix want, double tolerance)
{
    double largest = 1e-6;

    for (int64_t r = 0; r < want.rows; r++)
        for (int64_t c = 0; c < want.cols; c++)
            largest = fmax(largest, fabs((double)row_of(want, r)[c]));
    for (int64_t r = 0; r < want.rows; r++)
        for (int64_t c = 0; c < want.cols; c++) {
            double off = fabs((double)row_of(got, r)[c] - (double)row_of(want, r)[c]);

            if (!(off <= tolerance * largest))
                fail_msg("%s: [%lld, %lld] of [%lld, %lld] is %g, not %g", what, (long long)r,
                    (long long)c, (long long)want.rows, (long long)want.cols,
                    (double)row_of(got, r)[c], (double)row_of(want, r)[c]);
        }
    for (int64_t r = 0; r + 1 < got.rows; r++)
        for (const uint8_t *p = (const uint8_t *)(row_of(got, r) + got.cols);
             p < (const uint8_t *)row_of(got, r + 1); p++)
            if (*p != GAP_BYTE) fail_msg("%s: wrote between the rows", what);
}

/* A dense matrix of weights, packed: aligned, and exactly as big as it is. */
static inline void *pack_matrix(struct matrix m, uint64_t *bytes)
{
    uint64_t count = (uint64_t)(m.rows * m.cols), bound = wire_bound(m.dtype, count);
    void *room = aligned_alloc(WIRE_ALIGNMENT, bound), *payload;

    assert_non_null(room);
    *bytes = wire_encode(NULL, m.dtype, (const void *)(uintptr_t)m.addr, count, room);
    payload = aligned_alloc(WIRE_ALIGNMENT, *bytes);
    assert_non_null(payload);
    memcpy(payload, room, *bytes);
    free(room);
    return payload;
}

/* A device and its compute stream. */
struct bench {
    struct device *device;
    struct stream *stream;
    const struct compute_ops *ops;
};

static inline struct bench bench_open(const struct kernels *kernels, int threads)
{
    struct shoal_error error = {0};
    struct bench b = {0};

    assert_ok(cpu_create_with(&b.device, kernels, threads, &error));
    assert_ok(b.device->ops->stream_create(b.device, false, &b.stream, &error));
    b.ops = b.device->ops->compute;
    return b;
}

static inline void bench_close(struct bench *b)
{
    b->device->ops->stream_destroy(&b->stream);
    device_destroy(&b->device);
}

/* A group norm of x in runs of `run` pixels, taken in strips of `strip` pixels, whole runs. */
static inline void group_norm(const struct bench *b, struct matrix affine, struct matrix x,
    struct matrix gamma, struct matrix beta, struct group_norm norm, int64_t strip)
{
    struct matrix moments = matrix_new(
        DTYPE_F32, x.rows, 2 * group_runs(x.cols, norm.run), 2 * group_runs(x.cols, norm.run));

    norm.pixels = x.cols;
    for (int64_t first = 0; first < x.cols; first += strip) {
        int64_t count = least(strip, x.cols - first);

        b->ops->group_moments(b->stream,
            matrix_cols(moments, 2 * (first / norm.run), 2 * group_runs(count, norm.run)),
            matrix_cols(x, first, count), norm.run);
    }
    b->ops->group_fold(b->stream, affine, moments, gamma, beta, &norm);
    matrix_drop(moments);
}

#endif
