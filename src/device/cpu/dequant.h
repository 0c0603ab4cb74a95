/*
 * Widening and packing quantised weights, a part of kernels.c: included there once for each
 * instruction set.
 * Plain loops over a block that compilers turn into vectors; each does the arithmetic of quant.c in
 * the same order, so that the bits are the same.
 */
#ifndef DEVICE_CPU_DEQUANT_H
#define DEVICE_CPU_DEQUANT_H

#include "base/number.h"

INLINE float scale_at(const uint8_t *bytes)
{
    uint16_t half;

    memcpy(&half, bytes, sizeof half);
    return f16_to_float(half);
}

/* Bits [shift, shift + 1) or [shift, shift + 2) of each byte, moved up to `to`. */
#define BITS(byte, shift, mask, to) (((byte) >> (shift) & (mask)) << (to))

static void widen_q8_0(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b);

    for (int i = 0; i < 32; i++)
        to[i] = (float)(int8_t)b[2 + i] * d;
}

static void widen_q4_0(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b);

    for (int i = 0; i < 16; i++) {
        to[i] = (float)((b[2 + i] & 15) - 8) * d;
        to[16 + i] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void widen_q4_1(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b), m = scale_at(b + 2);

    for (int i = 0; i < 16; i++) {
        to[i] = (float)(b[4 + i] & 15) * d + m;
        to[16 + i] = (float)(b[4 + i] >> 4) * d + m;
    }
}

static void widen_q5_0(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b);
    uint32_t high;

    memcpy(&high, b + 2, sizeof high);
    for (int i = 0; i < 16; i++) {
        to[i] = (float)((int)((b[6 + i] & 15) | BITS(high, i, 1, 4)) - 16) * d;
        to[16 + i] = (float)((int)((b[6 + i] >> 4) | BITS(high, i + 16, 1, 4)) - 16) * d;
    }
}

static void widen_q5_1(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b), m = scale_at(b + 2);
    uint32_t high;

    memcpy(&high, b + 4, sizeof high);
    for (int i = 0; i < 16; i++) {
        to[i] = (float)(int)((b[8 + i] & 15) | BITS(high, i, 1, 4)) * d + m;
        to[16 + i] = (float)(int)((b[8 + i] >> 4) | BITS(high, i + 16, 1, 4)) * d + m;
    }
}

static void widen_q2_k(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b + 80), e = scale_at(b + 82);

    for (int group = 0; group < 16; group++, to += 16) {
        const uint8_t *q = b + 16 + group / 8 * 32 + group % 2 * 16;
        const float scale = d * (float)(b[group] & 15), least = e * (float)(b[group] >> 4);
        const int shift = group % 8 / 2 * 2;

        for (int i = 0; i < 16; i++)
            to[i] = scale * (float)(q[i] >> shift & 3) - least;
    }
}

static void widen_q3_k(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b + 108);

    for (int group = 0; group < 16; group++, to += 16) {
        const uint8_t *q = b + 32 + group / 8 * 32 + group % 2 * 16, *high = b + group % 2 * 16;
        const int low = group < 8 ? b[96 + group] & 15 : b[88 + group] >> 4;
        const float scale = d * (float)((low | BITS(b[104 + group % 4], group / 4 * 2, 3, 4)) - 32);
        const int shift = group % 8 / 2 * 2, bit = group / 2;

        for (int i = 0; i < 16; i++)
            to[i] = scale * (float)((q[i] >> shift & 3) - 4 + BITS(high[i], bit, 1, 2));
    }
}

/* Scale and least value of group i of 32, of Q4_K and Q5_K. */
INLINE void group_scales(const uint8_t *b, int i, float *scale, float *least)
{
    const uint8_t *s = b + 4;
    int q = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    int m = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;

    *scale = scale_at(b) * (float)q;
    *least = scale_at(b + 2) * (float)m;
}

static void widen_q4_k(float *restrict to, const uint8_t *restrict b)
{
    for (int run = 0; run < 4; run++, to += 64) {
        const uint8_t *q = b + 16 + run * 32;
        float scale[2], least[2];

        group_scales(b, 2 * run, &scale[0], &least[0]);
        group_scales(b, 2 * run + 1, &scale[1], &least[1]);
        for (int i = 0; i < 32; i++) {
            to[i] = scale[0] * (float)(q[i] & 15) - least[0];
            to[32 + i] = scale[1] * (float)(q[i] >> 4) - least[1];
        }
    }
}

static void widen_q5_k(float *restrict to, const uint8_t *restrict b)
{
    for (int run = 0; run < 4; run++, to += 64) {
        const uint8_t *q = b + 48 + run * 32, *high = b + 16;
        float scale[2], least[2];

        group_scales(b, 2 * run, &scale[0], &least[0]);
        group_scales(b, 2 * run + 1, &scale[1], &least[1]);
        for (int i = 0; i < 32; i++) {
            to[i] = scale[0] * (float)((q[i] & 15) | BITS(high[i], 2 * run, 1, 4)) - least[0];
            to[32 + i] =
                scale[1] * (float)((q[i] >> 4) | BITS(high[i], 2 * run + 1, 1, 4)) - least[1];
        }
    }
}

static void widen_q6_k(float *restrict to, const uint8_t *restrict b)
{
    const float d = scale_at(b + 208);

    for (int group = 0; group < 16; group++, to += 16) {
        const int run = group % 8; /* of 8 groups of 16 in each half */
        const uint8_t *low = b + group / 8 * 64 + run % 4 * 16;
        const uint8_t *high = b + 128 + group / 8 * 32 + run % 2 * 16;
        const float scale = d * (float)(int8_t)b[192 + group];
        const int shift = run / 4 * 4, high_shift = run / 2 * 2;

        for (int i = 0; i < 16; i++)
            to[i] = scale * (float)((low[i] >> shift & 15) - 32 + BITS(high[i], high_shift, 3, 4));
    }
}

/* bf16_from_float and back without a branch: a NaN that comes of a code has no bits to lose. */
INLINE float rounded_bf16(float value)
{
    const uint32_t bits = float_to_bits(value);

    return float_from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

static void widen_f8_e4m3(float *restrict to, const uint8_t *restrict code, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = rounded_bf16(f8_e4m3_to_float(code[i]) * scale);
}

static void widen_f8_e5m2(float *restrict to, const uint8_t *restrict code, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = rounded_bf16(f8_e5m2_to_float(code[i]) * scale);
}

/* n elements, a whole number of blocks. */
static void widen_quantised(float *to, const void *from, enum dtype dtype, float scale, int64_t n)
{
    void (*block)(float *restrict, const uint8_t *restrict) = widen_q8_0;
    const int64_t elements = dtype_block_elements(dtype), bytes = dtype_block_bytes(dtype);
    const uint8_t *at = from;

    switch (dtype) {
    case DTYPE_F8_E4M3:
        widen_f8_e4m3(to, from, scale, n);
        return;
    case DTYPE_F8_E5M2:
        widen_f8_e5m2(to, from, scale, n);
        return;
    case DTYPE_Q4_0:
        block = widen_q4_0;
        break;
    case DTYPE_Q4_1:
        block = widen_q4_1;
        break;
    case DTYPE_Q5_0:
        block = widen_q5_0;
        break;
    case DTYPE_Q5_1:
        block = widen_q5_1;
        break;
    case DTYPE_Q2_K:
        block = widen_q2_k;
        break;
    case DTYPE_Q3_K:
        block = widen_q3_k;
        break;
    case DTYPE_Q4_K:
        block = widen_q4_k;
        break;
    case DTYPE_Q5_K:
        block = widen_q5_k;
        break;
    case DTYPE_Q6_K:
        block = widen_q6_k;
        break;
    default:
        break;
    }
    for (int64_t i = 0; i < n; i += elements, at += bytes)
        block(to + i, at);
}

#define WIDE 256 /* a multiple of every type's block */

/* Rows of whole blocks, `row_bytes` apart. */
static void pack_block_quantised(float *to, const char *from, enum dtype dtype, float scale,
    int64_t row_bytes, int64_t rows, int64_t depth)
{
    float wide[LANES * WIDE];

    if (rows > LANES) rows = LANES;
    for (int64_t k = 0; k < depth; k += WIDE) {
        int64_t left = depth - k < WIDE ? depth - k : WIDE;

        for (int64_t i = 0; i < rows; i++)
            widen_quantised(
                wide + i * WIDE, from + i * row_bytes + dtype_bytes(dtype, k), dtype, scale, left);
        pack_block_float(to + k * STRIP, wide, WIDE, rows, left);
    }
}

#endif
