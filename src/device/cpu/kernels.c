/*
 * The inner loops, see kernels.h. This file is compiled once for each instruction set, with the
 * compiler's flags, KERNELS_TABLE, and KERNELS_AVX2, KERNELS_AVX512 or neither.
 *
 * Vectors are the compiler's own (vector_size), so that one text serves all; intrinsics appear only
 * in the few helpers for which C has no operator: fused products, minimum and maximum, masked
 * loads.
 */
#include "device/cpu/kernels.h"

#include <string.h>

#if defined(KERNELS_AVX512)
#include <immintrin.h>
#define NAME "AVX-512"
#define LANES 16
#define TILE_ROWS 12 /* 24 sums, 2 packed vectors, 1 of x: 27 of 32 registers */
#define LOW_INDICES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LANE_INDICES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define SWAP_INDICES 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define HIGH_INDICES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(KERNELS_AVX2)
#include <immintrin.h>
#define NAME "AVX2"
#define LANES 8
#define TILE_ROWS 6 /* 12 sums, 2 packed vectors, 1 of x: 15 of 16 registers */
#define LOW_INDICES 0, 8, 1, 9, 2, 10, 3, 11
#define LANE_INDICES 0, 1, 2, 3, 4, 5, 6, 7
#define SWAP_INDICES 1, 0, 3, 2, 5, 4, 7, 6
#define HIGH_INDICES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define NAME "128-bit vectors"
#define LANES 4
#define TILE_ROWS 6
#define LOW_INDICES 0, 4, 1, 5
#define LANE_INDICES 0, 1, 2, 3
#define SWAP_INDICES 1, 0, 3, 2
#define HIGH_INDICES 2, 6, 3, 7
#endif

#define STRIP (2 * LANES)
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

/* Elements of a, then b, by index. GCC before 12 has only its own name for it. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

/* ---- vectors ---- */

INLINE vf fused(vf a, vf b, vf c)
{
#if defined(KERNELS_AVX512)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(KERNELS_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE vf splat(float x)
{
    return x - (vf){0};
}

INLINE vi splat_int(int32_t x)
{
    return x - (vi){0};
}

/* a where the mask is all ones, b where it is 0. */
INLINE vf select_by(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* All ones in the first `left` lanes (any number of them), 0 in the others. */
INLINE vi first_lanes(int64_t left)
{
    const vi lane = {LANE_INDICES};

    return lane < (int32_t)(left < LANES ? left : LANES);
}

/* a if it is larger, else b; so b if a is not a number. */
INLINE vf larger(vf a, vf b)
{
#if defined(KERNELS_AVX512)
    return _mm512_max_ps(a, b);
#elif defined(KERNELS_AVX2)
    return _mm256_max_ps(a, b);
#else
    return select_by(a > b, a, b);
#endif
}

INLINE vf smaller(vf a, vf b)
{
#if defined(KERNELS_AVX512)
    return _mm512_min_ps(a, b);
#elif defined(KERNELS_AVX2)
    return _mm256_min_ps(a, b);
#else
    return select_by(a < b, a, b);
#endif
}

INLINE vf load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* The first `left` elements (at least 1), the others 0; or all. */
INLINE vf load_some(const float *p, int64_t left)
{
    if (left >= LANES) return load(p);
#if defined(KERNELS_AVX512)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << left) - 1), p);
#elif defined(KERNELS_AVX2)
    return _mm256_maskload_ps(p, (__m256i)first_lanes(left));
#else
    vf v = {0};

    memcpy(&v, p, (size_t)left * sizeof *p);
    return v;
#endif
}

INLINE void store_some(float *p, vf v, int64_t left)
{
    if (left >= LANES) {
        store(p, v);
        return;
    }
#if defined(KERNELS_AVX512)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << left) - 1), v);
#elif defined(KERNELS_AVX2)
    _mm256_maskstore_ps(p, (__m256i)first_lanes(left), v);
#else
    memcpy(p, &v, (size_t)left * sizeof *p);
#endif
}

#define EACH_VECTOR(i, n) for (int64_t i = 0; i < (n); i += LANES)

#include "device/cpu/functions.h"

/* ---- widening ---- */

/* IEEE binary16 in the low halves; see f16_to_float for the formula. */
INLINE vf f16_widened(vu half)
{
    vu sign = (half & 0x8000) << 16, size = half & 0x7fff;
    vu normal = (size << 13) + (112u << 23);
    vf tiny = __builtin_convertvector((vi)size, vf) * 0x1p-24f;
    vi is_tiny = (vi)size < 0x400, is_huge = (vi)size >= 0x7c00;
    vu bits = (vu)select_by(is_tiny, tiny, (vf)normal);

    bits += (vu)is_huge & (112u << 23);
    return (vf)(bits | sign);
}

/* The lower and upper halves of 32-bit lanes, which hold two 16-bit elements each. */
INLINE vf even_widened(vu pairs, bool bf16)
{
    return bf16 ? (vf)(pairs << 16) : f16_widened(pairs & 0xffff);
}

INLINE vf odd_widened(vu pairs, bool bf16)
{
    return bf16 ? (vf)(pairs & 0xffff0000) : f16_widened(pairs >> 16);
}

INLINE void widen_half(float *to, const uint16_t *from, bool bf16, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vh half = {0};

        if (n - i >= LANES)
            memcpy(&half, from + i, sizeof half);
        else
            memcpy(&half, from + i, (size_t)(n - i) * sizeof *from);
        store_some(to + i, even_widened(__builtin_convertvector(half, vu), bf16), n - i);
    }
}

/* ---- packing ---- */

INLINE vu interleave_low(vu a, vu b)
{
    return SHUFFLE(a, b, LOW_INDICES);
}

INLINE vu interleave_high(vu a, vu b)
{
    return SHUFFLE(a, b, HIGH_INDICES);
}

/* Each pass rotates the bits of an element's place (row, lane) by one; after all, they have
 * changed sides. */
INLINE void transpose(vu v[LANES])
{
#pragma GCC unroll 4
    for (int pass = 1; pass < LANES; pass *= 2) {
        vu old[LANES];

#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            old[i] = v[i];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            v[2 * i] = interleave_low(old[i], old[i + LANES / 2]);
            v[2 * i + 1] = interleave_high(old[i], old[i + LANES / 2]);
        }
    }
}

/* Up to LANES rows and LANES 32-bit words of each, transposed; what is missing is 0. */
INLINE void load_block(
    vu v[LANES], const char *from, int64_t stride_bytes, int64_t rows, int64_t bytes)
{
    if (rows >= LANES && bytes >= (int64_t)sizeof(vu)) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            memcpy(&v[i], from + i * stride_bytes, sizeof(vu));
    } else {
        if (bytes > (int64_t)sizeof(vu)) bytes = sizeof(vu);
        for (int i = 0; i < LANES; i++) {
            v[i] = (vu){0};
            if (i < rows) memcpy(&v[i], from + i * stride_bytes, (size_t)bytes);
        }
    }
    transpose(v);
}

static void pack_block_half(
    float *to, const uint16_t *from, bool bf16, int64_t stride, int64_t rows, int64_t depth)
{
    for (int64_t k = 0; k < depth; k += 2 * LANES) {
        int64_t left = depth - k;
        vu v[LANES];

        load_block(v, (const char *)(from + k), stride * 2, rows, left * 2);
        if (left >= 2 * LANES) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                store(to + (k + 2 * i) * STRIP, even_widened(v[i], bf16));
                store(to + (k + 2 * i + 1) * STRIP, odd_widened(v[i], bf16));
            }
        } else {
            for (int i = 0; i < (left + 1) / 2; i++) {
                store(to + (k + 2 * i) * STRIP, even_widened(v[i], bf16));
                if (2 * i + 1 < left) store(to + (k + 2 * i + 1) * STRIP, odd_widened(v[i], bf16));
            }
        }
    }
}

static void pack_block_float(
    float *to, const float *from, int64_t stride, int64_t rows, int64_t depth)
{
    for (int64_t k = 0; k < depth; k += LANES) {
        int64_t left = depth - k < LANES ? depth - k : LANES;
        vu v[LANES];

        load_block(v, (const char *)(from + k), stride * 4, rows, (depth - k) * 4);
        if (left == LANES) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                store(to + (k + i) * STRIP, (vf)v[i]);
        } else {
            for (int i = 0; i < left; i++)
                store(to + (k + i) * STRIP, (vf)v[i]);
        }
    }
}

#include "device/cpu/dequant.h"

static void widen(float *to, const void *from, enum dtype dtype, float scale, int64_t n)
{
    if (dtype == DTYPE_BF16)
        widen_half(to, from, true, n);
    else if (dtype == DTYPE_F16)
        widen_half(to, from, false, n);
    else if (dtype_is_quantised(dtype))
        widen_quantised(to, from, dtype, scale, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static void pack(float *to, const void *w, enum dtype dtype, float scale, int64_t stride,
    int64_t rows, int64_t depth)
{
    for (int64_t r = 0; r < rows; r += STRIP, to += STRIP * depth)
        for (int64_t half = 0; half < STRIP; half += LANES) {
            int64_t first = r + half, left = rows - first > 0 ? rows - first : 0;
            int64_t offset = left ? first * stride : 0;

            if (dtype == DTYPE_BF16)
                pack_block_half(to + half, (const uint16_t *)w + offset, true, stride, left, depth);
            else if (dtype == DTYPE_F16)
                pack_block_half(
                    to + half, (const uint16_t *)w + offset, false, stride, left, depth);
            else if (dtype_is_quantised(dtype))
                pack_block_quantised(to + half, (const char *)w + dtype_bytes(dtype, offset), dtype,
                    scale, dtype_bytes(dtype, stride), left, depth);
            else
                pack_block_float(to + half, (const float *)w + offset, stride, left, depth);
        }
}

static void pack_columns(float *to, const float *from, int64_t stride, int64_t cols, int64_t depth)
{
    for (int64_t c = 0; c < cols; c += STRIP)
        for (int64_t k = 0; k < depth; k++, to += STRIP) {
            const float *row = from + k * stride + c;

            if (cols - c >= STRIP) {
                store(to, load(row));
                store(to + LANES, load(row + LANES));
            } else {
                memset(to, 0, STRIP * sizeof *to);
                memcpy(to, row, (size_t)(cols - c) * sizeof *to);
            }
        }
}

static void spread(float *strips, int64_t depth, int64_t at, int64_t pitch, const float *from,
    int64_t from_stride, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++, from += from_stride) {
        uint64_t pixel = (uint64_t)(r * pitch);

        for (int64_t c = 0; c < cols;) {
            int64_t lane = (int64_t)(pixel % STRIP), n = STRIP - lane;
            float *to = strips + ((int64_t)pixel - lane) * depth + at * STRIP + lane;

            if (n > cols - c) n = cols - c;
            store_some(to, load_some(from + c, n), n);
            if (n > LANES)
                store_some(to + LANES, load_some(from + c + LANES, n - LANES), n - LANES);
            c += n;
            pixel += (uint64_t)n;
        }
    }
}

/* ---- multiplying ---- */

/* `rows` rows (a constant, at most TILE_ROWS) by one strip. */
INLINE void multiply_tile(int rows, float *y, int64_t y_stride, const float *x, int64_t x_stride,
    const float *packed, int64_t depth, bool add)
{
    vf sum[TILE_ROWS][2];
    const float *from[(TILE_ROWS + 2) / 3]; /* x's rows by threes: few pointers fit registers */

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = (vf){0};
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += 3)
        from[i / 3] = x + i * x_stride;
    for (int64_t k = 0; k < depth; k++) {
        vf left = load(packed), right = load(packed + LANES);

        packed += STRIP;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf factor = splat(from[i / 3][i % 3 * x_stride]);

            sum[i][0] = fused(factor, left, sum[i][0]);
            sum[i][1] = fused(factor, right, sum[i][1]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i += 3)
            from[i / 3]++;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, y += y_stride) {
        store(y, add ? load(y) + sum[i][0] : sum[i][0]);
        store(y + LANES, add ? load(y + LANES) + sum[i][1] : sum[i][1]);
    }
}

static void multiply_rows(int64_t rows, float *y, int64_t y_stride, const float *x,
    int64_t x_stride, const float *packed, int64_t depth, bool add)
{
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        multiply_tile(n, y, y_stride, x, x_stride, packed, depth, add);                            \
        break;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if TILE_ROWS == 12
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
#endif
    }
#undef CASE
}

static void copy_tile(float *to, int64_t to_stride, const float *from, int64_t from_stride,
    int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, (size_t)cols * sizeof *to);
}

static void multiply(float *y, int64_t y_stride, const float *x, int64_t x_stride,
    const float *packed, int64_t rows, int64_t cols, int64_t depth, bool add)
{
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        int64_t tile_rows = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;

        for (int64_t c = 0; c < cols; c += STRIP) {
            float *to = y + r * y_stride + c, edge[TILE_ROWS * STRIP];

            if (cols - c >= STRIP) {
                multiply_rows(tile_rows, to, y_stride, x + r * x_stride, x_stride,
                    packed + c * depth, depth, add);
            } else {
                multiply_rows(tile_rows, edge, STRIP, x + r * x_stride, x_stride,
                    packed + c * depth, depth, false);
                for (int64_t i = 0; add && i < tile_rows; i++)
                    for (int64_t j = 0; j < cols - c; j++)
                        edge[i * STRIP + j] += to[i * y_stride + j];
                copy_tile(to, y_stride, edge, STRIP, tile_rows, cols - c);
            }
        }
    }
}

/* ---- sums over a row ---- */

#define PARTS (16 / LANES)
#define SUM_BLOCK 2048 /* floats summed up in float before going into the double */

/* The 16 lanes, halved until one is left. */
INLINE double total_of(const vf part[PARTS])
{
    float lane[16];
    double half[8];

    memcpy(lane, part, sizeof lane);
    for (int i = 0; i < 8; i++)
        half[i] = (double)lane[i] + (double)lane[i + 8];
    for (int i = 0; i < 4; i++)
        half[i] += half[i + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

/* Sums (x - about) or its square; `left` elements, at most SUM_BLOCK. */
INLINE double sum_block(const float *x, float about, bool square, int64_t left)
{
    vf part[PARTS];

#pragma GCC unroll 4
    for (int j = 0; j < PARTS; j++)
        part[j] = (vf){0};
    for (int64_t i = 0; i < left; i += 16)
#pragma GCC unroll 4
        for (int j = 0; j < PARTS; j++) {
            int64_t at = i + j * LANES;
            vf v;

            if (at >= left) break;
            v = load_some(x + at, left - at) - about;
            if (left - at < LANES) /* what is missing counts nothing, not `about` */
                v = select_by(first_lanes(left - at), v, (vf){0});
            part[j] = square ? fused(v, v, part[j]) : part[j] + v;
        }
    return total_of(part);
}

INLINE double sum_row(const float *x, float about, bool square, int64_t n)
{
    double total = 0;

    for (int64_t i = 0; i < n; i += SUM_BLOCK)
        total += sum_block(x + i, about, square, n - i < SUM_BLOCK ? n - i : SUM_BLOCK);
    return total;
}

static double sum(const float *x, int64_t n)
{
    return sum_row(x, 0, false, n);
}

static double sum_squares(const float *x, float about, int64_t n)
{
    return sum_row(x, about, true, n);
}

/* ---- elements of a row ---- */

static void normalise(float *y, const float *x, float about, float factor, const float *gamma,
    const float *scale, const float *shift, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf v = (load_some(x + i, n - i) - about) * factor;

        if (gamma) v *= load_some(gamma + i, n - i);
        if (scale) v *= 1 + load_some(scale + i, n - i);
        if (shift) v += load_some(shift + i, n - i);
        store_some(y + i, v, n - i);
    }
}

static void activate(float *y, const float *x, enum activation activation, int64_t n)
{
    EACH_VECTOR(i, n)
    store_some(y + i, activated(activation, load_some(x + i, n - i)), n - i);
}

static void affine(
    float *y, const float *x, float slope, float offset, enum activation activation, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf v = fused(load_some(x + i, n - i), splat(slope), splat(offset));

        store_some(y + i, activated(activation, v), n - i);
    }
}

static void gated(float *y, const float *a, const float *b, enum activation activation, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf v = activated(activation, load_some(a + i, n - i));

        store_some(y + i, v * load_some(b + i, n - i), n - i);
    }
}

static void gated_add(float *y, const float *gate, const float *x, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf old = load_some(y + i, n - i), v = load_some(x + i, n - i);

        store_some(y + i, gate ? fused(load_some(gate + i, n - i), v, old) : old + v, n - i);
    }
}

static void blend(float *y, float a, const float *x, float b, const float *z, int64_t n)
{
    EACH_VECTOR(i, n)
    store_some(y + i, fused(splat(a), load_some(x + i, n - i), load_some(z + i, n - i) * b), n - i);
}

static void guide(float *y, const float *cond, const float *uncond, float scale, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf with = load_some(cond + i, n - i);

        store_some(y + i, fused(splat(scale), with - load_some(uncond + i, n - i), with), n - i);
    }
}

static void rope_half(float *a, float *b, const float *cosines, const float *sines, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        int64_t left = n - i;
        vf cosine = load_some(cosines + i, left), sine = load_some(sines + i, left);
        vf va = load_some(a + i, left), vb = load_some(b + i, left);

        store_some(a + i, fused(va, cosine, -(vb * sine)), left);
        store_some(b + i, fused(vb, cosine, va * sine), left);
    }
}

/* Elements (a, b) of neighbouring lanes: x cos2 + swapped(x) sin2, where cos2 repeats each cosine
 * and sin2 each sine, the first time negated. */
static void rope_interleaved(float *a, const float *cosines, const float *sines, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t left = n - i;
        vf cosine = load_some(cosines + i, left), sine = load_some(sines + i, left);

        for (int half = 0; half < 2; half++) {
            int64_t at = 2 * i + half * LANES;
            vf pair_cosine, pair_sine, x, swapped;

            if (at >= 2 * n) break;
            pair_cosine = (vf)(half ? interleave_high((vu)cosine, (vu)cosine)
                                    : interleave_low((vu)cosine, (vu)cosine));
            pair_sine = (vf)(half ? interleave_high((vu)-sine, (vu)sine)
                                  : interleave_low((vu)-sine, (vu)sine));
            x = load_some(a + at, 2 * n - at);
            swapped = SHUFFLE(x, x, SWAP_INDICES);
            store_some(a + at, fused(x, pair_cosine, swapped * pair_sine), 2 * n - at);
        }
    }
}

static void multiply_row(float *y, const float *x, float factor, int64_t n)
{
    EACH_VECTOR(i, n)
    store_some(y + i, load_some(x + i, n - i) * factor, n - i);
}

static void add_squares(float *y, const float *x, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf v = load_some(x + i, n - i);

        store_some(y + i, fused(v, v, load_some(y + i, n - i)), n - i);
    }
}

static void multiply_by(float *y, const float *x, const float *factors, float gain,
    enum activation activation, int64_t n)
{
    EACH_VECTOR(i, n)
    {
        vf v = load_some(x + i, n - i) * load_some(factors + i, n - i) * gain;

        store_some(y + i, activated(activation, v), n - i);
    }
}

/* ---- softmax ---- */

/* The largest of scale x and `start`. NaN is passed over here; it shows in the total. */
INLINE float largest_of(const float *x, float scale, float start, int64_t n)
{
    vf most = splat(start);
    float lane[LANES];

    EACH_VECTOR(i, n)
    {
        vf v = load_some(x + i, n - i) * scale;

        if (n - i < LANES) v = select_by(first_lanes(n - i), v, most);
        most = larger(v, most);
    }
    memcpy(lane, &most, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

static float softmax(float *x, float scale, float *largest, float *total, int64_t n)
{
    float top = largest_of(x, scale, *largest, n);
    vf before = exp_of(splat(*largest - top)), part[PARTS];

#pragma GCC unroll 4
    for (int j = 0; j < PARTS; j++)
        part[j] = (vf){0};
    for (int64_t i = 0; i < n; i += 16)
#pragma GCC unroll 4
        for (int j = 0; j < PARTS; j++) {
            int64_t at = i + j * LANES, left = n - at;
            vf v;

            if (left <= 0) break;
            v = exp_of(load_some(x + at, left) * scale - top);
            store_some(x + at, v, left);
            if (left < LANES) v = select_by(first_lanes(left), v, (vf){0});
            part[j] += v;
        }
    *largest = top;
    *total = (float)((double)*total * (double)before[0] + total_of(part));
    return before[0];
}

const struct kernels KERNELS_TABLE = {
    .name = NAME,
    .strip = STRIP,
    .pack = pack,
    .pack_columns = pack_columns,
    .spread = spread,
    .multiply = multiply,
    .widen = widen,
    .sum = sum,
    .sum_squares = sum_squares,
    .normalise = normalise,
    .activate = activate,
    .affine = affine,
    .gated = gated,
    .gated_add = gated_add,
    .blend = blend,
    .guide = guide,
    .rope_half = rope_half,
    .rope_interleaved = rope_interleaved,
    .softmax = softmax,
    .multiply_row = multiply_row,
    .add_squares = add_squares,
    .multiply_by = multiply_by,
};
