/* Chains of fused multiply-adds, built for several instruction sets; the bits are the same. */
#ifndef DEVICE_CPU_PATCH_CHAIN_H
#define DEVICE_CPU_PATCH_CHAIN_H

#include <stdint.h>

/* t[rows, cols]: each element goes through t = fma(b[row, k], a[k, col], t), k = 0 .. depth - 1. */
typedef void patch_chain(float *t, int64_t t_stride, const float *b, int64_t b_stride,
    const float *a, int64_t a_stride, int64_t rows, int64_t cols, int64_t depth);

patch_chain patch_chain_generic;
#ifdef __x86_64__
patch_chain patch_chain_avx2, patch_chain_avx512;
#endif

#endif
