/* Numbers of 16 and 8 bits as float: the scalar definitions that faster code is checked against. */
#ifndef BASE_NUMBER_H
#define BASE_NUMBER_H

#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* bfloat16: the upper half of a float. */
static inline float bf16_to_float(uint16_t half)
{
    return float_from_bits((uint32_t)half << 16);
}

/* IEEE binary16: 5 exponent bits (bias 15), 10 mantissa bits. */
static inline float f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = half & 0x7fff;

    if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    /* Subnormal: magnitude * 2^-24, exact in float. */
    return float_from_bits(sign | float_to_bits((float)magnitude * 0x1p-24f));
}

/*
 * E4M3: 4 exponent bits (bias 7), 3 mantissa bits; no infinity, and NaN only where all seven bits
 * are set. E5M2 is the upper half of an F16. Both without branches, so that loops become vectors.
 */
static inline float f8_e4m3_to_float(uint8_t code)
{
    uint32_t magnitude = code & 0x7f;
    uint32_t normal = magnitude == 0x7f ? 0x7fc00000u : (magnitude << 20) + (120u << 23);
    uint32_t small = float_to_bits((float)(int32_t)magnitude * 0x1p-9f);

    return float_from_bits((magnitude < 8 ? small : normal) | (uint32_t)(code & 0x80) << 24);
}

static inline float f8_e5m2_to_float(uint8_t code)
{
    uint32_t magnitude = code & 0x7f;
    uint32_t normal = (magnitude << 21) + ((magnitude < 0x7c ? 112u : 224u) << 23);
    uint32_t small = float_to_bits((float)(int32_t)magnitude * 0x1p-16f);

    return float_from_bits((magnitude < 4 ? small : normal) | (uint32_t)(code & 0x80) << 24);
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits = float_to_bits(value);

    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
