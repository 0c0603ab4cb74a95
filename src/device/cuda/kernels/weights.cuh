/*
 * Weights as kernels read them: eight elements at a time, widened to F32. Every product, sum and
 * difference is rounded as tensor/quant.c, which describes the types, rounds it.
 */
#ifndef DEVICE_CUDA_KERNELS_WEIGHTS_CUH
#define DEVICE_CUDA_KERNELS_WEIGHTS_CUH

#include "device/cuda/kernels/gpu.cuh"
#include "tensor/dtype.h"

static_assert(GPU_F32 == DTYPE_F32 && GPU_F16 == DTYPE_F16 && GPU_BF16 == DTYPE_BF16,
    "kernels number types as the host does");

/* ---- plain types ---- */

DEVICE void widen_bits(float to[8], uint4 bits, int dtype)
{
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};

#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint16_t half = (uint16_t)(words[i / 2] >> i % 2 * 16);

        to[i] = dtype == GPU_BF16 ? bf16_as_float(half) : f16_as_float(half);
    }
}

/*
 * Elements [index, index + count) of a run, count <= 8, and zeros after them. Whether the address
 * allows wide loads changes nothing but the speed.
 */
DEVICE void load_plain(float to[8], const void *run, int64_t index, int count, int dtype)
{
    const char *at = (const char *)run + index * (dtype == GPU_F32 ? 4 : 2);

    if (count == 8 && (uintptr_t)at % 16 == 0) {
        if (dtype == GPU_F32) {
            float4 low = ((const float4 *)at)[0], high = ((const float4 *)at)[1];

            to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
            to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
        } else
            widen_bits(to, *(const uint4 *)at, dtype);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = i < count ? load_float(run, index + i, dtype) : 0;
}

/* ---- quantised types: elements [i, i + 8) of a block, i a multiple of 8 ---- */

DEVICE float f16_at(const uint8_t *bytes)
{
    return f16_as_float((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* Q4_0, Q4_1, Q5_0 and Q5_1: `halves` after the scales (and the high bits, if `high`), with a
 * minimum or with a fixed `middle`. */
DEVICE void load_q4_q5(float to[8], const uint8_t *b, int i, bool least, bool high)
{
    const uint8_t *halves = b + (least ? 4 : 2) + (high ? 4 : 0) + i % 16;
    float d = f16_at(b), m = least ? f16_at(b + 2) : 0;
    int bits = high ? b[(least ? 4 : 2) + i / 8] : 0, middle = high ? 16 : 8;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        int q = (halves[j] >> i / 16 * 4 & 15) | (bits >> j & 1) << 4;

        to[j] = least ? rounded_product((float)q, d) + m : (float)(q - middle) * d;
    }
}

DEVICE void load_q8_0(float to[8], const uint8_t *b, int i)
{
    float d = f16_at(b);

#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = (float)(int8_t)b[2 + i + j] * d;
}

/* Two bits of each element: each 32 bytes hold four runs of 32. */
DEVICE int pair_of_bits(const uint8_t *bytes, int i, int j)
{
    return bytes[i / 128 * 32 + i % 32 + j] >> i / 32 % 4 * 2 & 3;
}

DEVICE void load_q2_k(float to[8], const uint8_t *b, int i)
{
    float scale = f16_at(b + 80) * (float)(b[i / 16] & 15);
    float least = rounded_product(f16_at(b + 82), (float)(b[i / 16] >> 4));

#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = rounded_product(scale, (float)pair_of_bits(b + 16, i, j)) - least;
}

DEVICE void load_q3_k(float to[8], const uint8_t *b, int i)
{
    const uint8_t *scales = b + 96;
    int group = i / 16;
    int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    int high = scales[8 + group % 4] >> group / 4 * 2 & 3;
    float scale = f16_at(b + 108) * (float)((low | high << 4) - 32);

#pragma unroll
    for (int j = 0; j < 8; j++) {
        int bit = b[i % 32 + j] >> i / 32 & 1;

        to[j] = scale * (float)(pair_of_bits(b + 32, i, j) - (bit ? 0 : 4));
    }
}

/* Q4_K and, with a fifth bit, Q5_K. */
DEVICE void load_q4_q5_k(float to[8], const uint8_t *b, int i, bool high)
{
    const uint8_t *packed = b + 4, *halves = b + (high ? 48 : 16) + i / 64 * 32 + i % 32;
    int group = i / 32, s, t;
    float scale, least;

    if (group < 4) {
        s = packed[group] & 63;
        t = packed[group + 4] & 63;
    } else {
        s = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        t = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
    scale = f16_at(b) * (float)s;
    least = rounded_product(f16_at(b + 2), (float)t);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int q = halves[j] >> group % 2 * 4 & 15;

        if (high) q |= (b[16 + i % 32 + j] >> group & 1) << 4;
        to[j] = rounded_product(scale, (float)q) - least;
    }
}

DEVICE void load_q6_k(float to[8], const uint8_t *b, int i)
{
    const uint8_t *halves = b + i / 128 * 64 + i % 64;
    float scale = f16_at(b + 208) * (float)(int8_t)b[192 + i / 16];

#pragma unroll
    for (int j = 0; j < 8; j++) {
        int q = (halves[j] >> i / 64 % 2 * 4 & 15) | pair_of_bits(b + 128, i, j) << 4;

        to[j] = scale * (float)(q - 32);
    }
}

/* ---- codes of 8 bits ---- */

/* Two codes, in the upper bytes of each half or, shifted, in the lower ones, as F16 of each half.
 * An E5M2's bits are an F16's upper half; an E4M3's make its value but for the exponents' biases,
 * which lie 8 apart. `nans`: 0x80 in the byte of an E4M3 that is one. */
DEVICE uint32_t f8_as_f16(uint32_t upper, uint32_t nans, int dtype)
{
    if (dtype == DTYPE_F8_E5M2) return upper & 0xff00ff00u;
    return (upper & 0x80008000u) | (upper & 0x7f007f00u) >> 1 | ((nans & 0x80008000u) >> 8) * 0xfc;
}

/* Four codes, the first the lowest byte, as BF16: its product with the scale, rounded. */
DEVICE uint2 f8_as_bf16(uint32_t codes, int dtype, float scale)
{
    const float unbias = dtype == DTYPE_F8_E5M2 ? 1.0f : 256.0f;
    const uint32_t nans = ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    const uint32_t even = f8_as_f16(codes << 8, nans << 8, dtype);
    const uint32_t odd = f8_as_f16(codes, nans, dtype);
    float values[4] = {f16_as_float((uint16_t)even), f16_as_float((uint16_t)odd),
        f16_as_float((uint16_t)(even >> 16)), f16_as_float((uint16_t)(odd >> 16))};

#pragma unroll
    for (int i = 0; i < 4; i++)
        values[i] = rounded_product(values[i] * unbias, scale);
    return make_uint2(floats_as_bf16(values[0], values[1]), floats_as_bf16(values[2], values[3]));
}

/* Codes [index, index + count) of a run, count <= 8, and zeros after them. */
DEVICE uint2 load_f8_codes(const uint8_t *run, int64_t index, int count)
{
    const uint8_t *at = run + index;
    uint32_t words[2] = {0, 0};

    if (count == 8 && (uintptr_t)at % 8 == 0) return *(const uint2 *)at;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) words[i / 4] |= (uint32_t)at[i] << i % 4 * 8;
    return make_uint2(words[0], words[1]);
}

/* Eight codes as eight BF16. */
DEVICE uint4 f8_row_as_bf16(uint2 codes, int dtype, float scale)
{
    const uint2 low = f8_as_bf16(codes.x, dtype, scale), high = f8_as_bf16(codes.y, dtype, scale);

    return make_uint4(low.x, low.y, high.x, high.y);
}

/* Elements [index, index + count) of a quantised matrix, and zeros after them if it is of F8; else
 * index is a multiple of 8, and count is 8. */
DEVICE void load_quantised(float to[8], const struct gpu_matrix &m, int64_t index, int count)
{
    const uint8_t *bytes = (const uint8_t *)m.at;
    const int64_t block = index / 32, superblock = index / 256;
    const int i = (int)(index % 32), k = (int)(index % 256);

    switch (m.dtype) {
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        return widen_bits(
            to, f8_row_as_bf16(load_f8_codes(bytes, index, count), m.dtype, m.scale), GPU_BF16);
    case DTYPE_Q4_0:
        return load_q4_q5(to, bytes + block * 18, i, false, false);
    case DTYPE_Q4_1:
        return load_q4_q5(to, bytes + block * 20, i, true, false);
    case DTYPE_Q5_0:
        return load_q4_q5(to, bytes + block * 22, i, false, true);
    case DTYPE_Q5_1:
        return load_q4_q5(to, bytes + block * 24, i, true, true);
    case DTYPE_Q8_0:
        return load_q8_0(to, bytes + block * 34, i);
    case DTYPE_Q2_K:
        return load_q2_k(to, bytes + superblock * 84, k);
    case DTYPE_Q3_K:
        return load_q3_k(to, bytes + superblock * 110, k);
    case DTYPE_Q4_K:
        return load_q4_q5_k(to, bytes + superblock * 144, k, false);
    case DTYPE_Q5_K:
        return load_q4_q5_k(to, bytes + superblock * 176, k, true);
    default: /* Q6_K: there is no other computed type */
        return load_q6_k(to, bytes + superblock * 210, k);
    }
}

/* Columns [col, col + count) of a row, count <= 8, and zeros after them; of a quantised type but
 * F8, col is a multiple of 8, and count is 8. */
DEVICE void load_columns(
    float to[8], const struct gpu_matrix &m, int64_t row, int64_t col, int count)
{
    if (m.dtype <= GPU_BF16)
        load_plain(to, m.at, row * m.stride + col, count, m.dtype);
    else
        load_quantised(to, m, row * m.stride + col, count);
}

#endif
