/*
 * The inner loop of patch.c: chains of fused multiply-adds, see patch_chain.h. This file is
 * compiled once for each instruction set, as kernels.c is. Every element is one chain, so the bits
 * are the same whatever the vectors' width; where the CPU has no fused product, the C library has
 * one.
 */
#include "device/cpu/patch_chain.h"

#include <math.h>
#include <string.h>

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

#define WIDTH (4 * LANES) /* sums that are kept in registers */

typedef float vf __attribute__((vector_size(LANES * 4)));

static inline vf fused(vf a, vf b, vf c)
{
#if LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    for (int i = 0; i < LANES; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

static void chain_wide(float *t, const float *b, const float *a, int64_t a_stride, int64_t depth)
{
    vf sum[4], row[4];

    memcpy(sum, t, sizeof sum);
    for (int64_t k = 0; k < depth; k++) {
        const vf factor = b[k] - (vf){0};

        memcpy(row, a + k * a_stride, sizeof row);
        for (int i = 0; i < 4; i++)
            sum[i] = fused(factor, row[i], sum[i]);
    }
    memcpy(t, sum, sizeof sum);
}

void PATCH_CHAIN(float *t, int64_t t_stride, const float *b, int64_t b_stride, const float *a,
    int64_t a_stride, int64_t rows, int64_t cols, int64_t depth)
{
    const int64_t wide = cols / WIDTH * WIDTH;

    for (int64_t c = 0; c < wide; c += WIDTH)
        for (int64_t r = 0; r < rows; r++)
            chain_wide(t + r * t_stride + c, b + r * b_stride, a + c, a_stride, depth);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t c = wide; c < cols; c++)
                t[r * t_stride + c] =
                    fmaf(b[r * b_stride + k], a[k * a_stride + c], t[r * t_stride + c]);
}
