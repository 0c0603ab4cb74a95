/* Quantised elements, one at a time. */
#include "tensor/quant.h"

#include "base/number.h"

/* ---- small pieces ---- */

static float f16_at(const uint8_t *bytes)
{
    return f16_to_float((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* Element i of 4-bit ones, `half` to a run: low halves of a run's bytes, then their high halves. */
static int nibble(const uint8_t *bytes, int i, int half)
{
    const uint8_t byte = bytes[i / (2 * half) * half + i % half];

    return i / half % 2 ? byte >> 4 : byte & 15;
}

/* Element i of 2-bit ones: each 32 bytes hold four runs of 32. */
static int pair_of_bits(const uint8_t *bytes, int i)
{
    return bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

/* Scale `i` and minimum `i` of 8 each in the 12 bytes of Q4_K and Q5_K. */
static void scales_of(const uint8_t *bytes, int i, int *scale, int *least)
{
    if (i < 4) {
        *scale = bytes[i] & 63;
        *least = bytes[i + 4] & 63;
    } else {
        *scale = (bytes[i + 4] & 15) | bytes[i - 4] >> 6 << 4;
        *least = bytes[i + 4] >> 4 | bytes[i] >> 6 << 4;
    }
}

/* ---- element i of a block ---- */

static float of_q4_0(const uint8_t *b, int i)
{
    return (float)(nibble(b + 2, i, 16) - 8) * f16_at(b);
}

static float of_q4_1(const uint8_t *b, int i)
{
    return (float)nibble(b + 4, i, 16) * f16_at(b) + f16_at(b + 2);
}

static float of_q5_0(const uint8_t *b, int i)
{
    int high = b[2 + i / 8] >> i % 8 & 1;

    return (float)((nibble(b + 6, i, 16) | high << 4) - 16) * f16_at(b);
}

static float of_q5_1(const uint8_t *b, int i)
{
    int high = b[4 + i / 8] >> i % 8 & 1;

    return (float)(nibble(b + 8, i, 16) | high << 4) * f16_at(b) + f16_at(b + 2);
}

static float of_q8_0(const uint8_t *b, int i)
{
    return (float)(int8_t)b[2 + i] * f16_at(b);
}

static float of_q2_k(const uint8_t *b, int i)
{
    float scale = f16_at(b + 80) * (float)(b[i / 16] & 15);
    float least = f16_at(b + 82) * (float)(b[i / 16] >> 4);

    return scale * (float)pair_of_bits(b + 16, i) - least;
}

static float of_q3_k(const uint8_t *b, int i)
{
    const uint8_t *scales = b + 96;
    int group = i / 16;
    int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    int bit = b[i % 32] >> (i / 32) & 1;

    return f16_at(b + 108) * (float)((low | high << 4) - 32) *
           (float)(pair_of_bits(b + 32, i) - (bit ? 0 : 4));
}

static float of_q4_k(const uint8_t *b, int i)
{
    int scale, least;

    scales_of(b + 4, i / 32, &scale, &least);
    return f16_at(b) * (float)scale * (float)nibble(b + 16, i, 32) - f16_at(b + 2) * (float)least;
}

static float of_q5_k(const uint8_t *b, int i)
{
    int high = b[16 + i % 32] >> (i / 32) & 1, scale, least;

    scales_of(b + 4, i / 32, &scale, &least);
    return f16_at(b) * (float)scale * (float)(nibble(b + 48, i, 32) | high << 4) -
           f16_at(b + 2) * (float)least;
}

static float of_q6_k(const uint8_t *b, int i)
{
    int q = nibble(b, i, 64) | pair_of_bits(b + 128, i) << 4;

    return f16_at(b + 208) * (float)(int8_t)b[192 + i / 16] * (float)(q - 32);
}

static float of_f8(float code, float scale)
{
    return bf16_to_float(bf16_from_float(code * scale));
}

static float element(const void *data, enum dtype dtype, float scale, int64_t index)
{
    const int64_t elements = dtype_block_elements(dtype);
    const uint8_t *block = (const uint8_t *)data + index / elements * dtype_block_bytes(dtype);
    const int i = (int)(index % elements);

    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)data)[index];
    case DTYPE_F16:
        return f16_to_float(((const uint16_t *)data)[index]);
    case DTYPE_BF16:
        return bf16_to_float(((const uint16_t *)data)[index]);
    case DTYPE_F8_E4M3:
        return of_f8(f8_e4m3_to_float(*block), scale);
    case DTYPE_F8_E5M2:
        return of_f8(f8_e5m2_to_float(*block), scale);
    case DTYPE_Q4_0:
        return of_q4_0(block, i);
    case DTYPE_Q4_1:
        return of_q4_1(block, i);
    case DTYPE_Q5_0:
        return of_q5_0(block, i);
    case DTYPE_Q5_1:
        return of_q5_1(block, i);
    case DTYPE_Q8_0:
        return of_q8_0(block, i);
    case DTYPE_Q2_K:
        return of_q2_k(block, i);
    case DTYPE_Q3_K:
        return of_q3_k(block, i);
    case DTYPE_Q4_K:
        return of_q4_k(block, i);
    case DTYPE_Q5_K:
        return of_q5_k(block, i);
    default: /* Q6_K: there is no other computed type */
        return of_q6_k(block, i);
    }
}

void quant_widen(
    float *to, const void *data, enum dtype dtype, float scale, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = element(data, dtype, scale, first + i);
}

void quant_f8_to_bf16(
    uint16_t *to, const uint8_t *codes, enum dtype dtype, float scale, uint64_t count)
{
    uint8_t all[256];
    float wide[256];
    uint16_t means[256];

    for (int code = 0; code < 256; code++)
        all[code] = (uint8_t)code;
    quant_widen(wide, all, dtype, scale, 0, 256);
    for (int code = 0; code < 256; code++)
        means[code] = bf16_from_float(wide[code]);
    for (uint64_t i = 0; i < count; i++)
        to[i] = means[codes[i]];
}

/* ---- checking ---- */

/* Plain loops that compilers vectorise. */
static bool any_f32(const uint32_t *value, uint64_t count)
{
    uint32_t found = 0;

    for (uint64_t i = 0; i < count; i++)
        found |= (value[i] & 0x7f800000u) == 0x7f800000u;
    return found != 0;
}

static bool any_half(const uint16_t *value, uint64_t count, uint16_t exponent)
{
    uint16_t found = 0;

    for (uint64_t i = 0; i < count; i++)
        found |= (uint16_t)((value[i] & exponent) == exponent);
    return found != 0;
}

/* E4M3 has no infinity. */
static bool any_f8(const uint8_t *code, uint64_t count, uint8_t least)
{
    uint8_t found = 0;

    for (uint64_t i = 0; i < count; i++)
        found |= (uint8_t)((code[i] & 0x7f) >= least);
    return found != 0;
}

/* Where a block's F16 scales begin, and how many there are. */
static void scale_place(enum dtype dtype, int64_t *at, int64_t *count)
{
    switch (dtype) {
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q6_K: /* at the end */
        *count = dtype == DTYPE_Q2_K ? 2 : 1;
        *at = dtype_block_bytes(dtype) - 2 * *count;
        break;
    default:
        *count = dtype == DTYPE_Q4_0 || dtype == DTYPE_Q5_0 || dtype == DTYPE_Q8_0 ? 1 : 2;
        *at = 0;
    }
}

static bool any_scale(const uint8_t *data, enum dtype dtype, int64_t offset, int64_t bytes)
{
    int64_t block = dtype_block_bytes(dtype), place, count, begin = offset / block * block;
    bool found = false;

    scale_place(dtype, &place, &count);
    for (; begin < offset + bytes; begin += block)
        for (int64_t i = 0; i < count; i++) {
            int64_t at = begin + place + 2 * i - offset;

            if (at < 0 || at + 2 > bytes) continue;
            found |= (data[at + 1] & 0x7c) == 0x7c;
        }
    return found;
}

bool quant_has_nonfinite(const void *data, enum dtype dtype, uint64_t offset, uint64_t bytes)
{
    switch (dtype) {
    case DTYPE_F32:
        return any_f32(data, bytes / 4);
    case DTYPE_F16:
        return any_half(data, bytes / 2, 0x7c00);
    case DTYPE_BF16:
        return any_half(data, bytes / 2, 0x7f80);
    case DTYPE_F8_E4M3:
        return any_f8(data, bytes, 0x7f);
    case DTYPE_F8_E5M2:
        return any_f8(data, bytes, 0x7c);
    default:
        return any_scale(data, dtype, (int64_t)offset, (int64_t)bytes);
    }
}
