/* Tensors of every kind that the wire's tests pack. */
#ifndef TESTS_UNIT_WIRE_SUPPORT_H
#define TESTS_UNIT_WIRE_SUPPORT_H

#include "support.h"

#include "base/number.h"
#include "wire/wire.h"

#include <math.h>
#include <stdlib.h>

static uint64_t seed = 1;

static inline double wire_uniform(void)
{
    return ((double)test_random(&seed) + 0.5) * 0x1p-31;
}

static inline float wire_gaussian(void)
{
    return (float)(sqrt(-2 * log(wire_uniform())) * cos(6.283185307179586 * wire_uniform()));
}

/* A float as the type's nearest number or near to it: only the distribution matters here. */
static inline uint16_t wire_element(enum dtype dtype, float value)
{
    uint32_t bits = float_to_bits(value), sign = bits >> 31;
    unsigned mantissa_bits = dtype == DTYPE_F16 ? 10 : 3;
    unsigned width = dtype == DTYPE_F16 ? 16 : 8, most = (1u << (width - 1)) - 2;
    int bias = dtype == DTYPE_F8_E4M3 ? 7 : 15;
    float scaled = ldexpf(fabsf(value), bias - 127);
    uint32_t rounded;

    if (dtype == DTYPE_BF16) return bf16_from_float(value);
    /* With the exponent moved, the type's numbers are a float's first bits, subnormal ones too. */
    rounded = (float_to_bits(scaled) + (1u << (22 - mantissa_bits))) >> (23 - mantissa_bits);
    if (rounded > most) rounded = most;
    return (uint16_t)(sign << (width - 1) | rounded);
}

static inline void wire_put(enum dtype dtype, void *data, uint64_t i, uint16_t element)
{
    if (dtype_bytes(dtype, 1) == 2)
        ((uint16_t *)data)[i] = element;
    else
        ((uint8_t *)data)[i] = (uint8_t)element;
}

enum filling {
    FILL_GAUSSIAN,
    FILL_BITS,     /* uniform */
    FILL_CONSTANT, /* one value */
    FILL_RARE,     /* every exponent as often as any other, in order: nearly all escapes */
    FILL_ZEROS,    /* Gaussian, most of it 0 */
    FILL_SCALES,   /* Gaussian, each 700 of another scale */
    FILL_MIXED,    /* stretches of the others */
    FILLINGS
};

static inline void wire_fill(
    enum dtype dtype, void *data, uint64_t first, uint64_t count, enum filling filling)
{
    float scale = 0.02f;

    for (uint64_t i = first; i < first + count; i++) {
        uint16_t element;

        if (filling == FILL_MIXED && i % 1500 == 0) {
            uint64_t left = first + count - i;

            wire_fill(dtype, data, i, left < 1500 ? left : 1500,
                (enum filling)(test_random(&seed) % FILL_MIXED));
            i += 1499;
            continue;
        }
        if (filling == FILL_SCALES && i % 700 == 0) scale = expf(wire_gaussian()) * 0.02f;
        element = wire_element(dtype, scale * wire_gaussian());
        if (filling == FILL_BITS) element = (uint16_t)test_random(&seed);
        if (filling == FILL_CONSTANT) element = 0x3c3c;
        if (filling == FILL_RARE) element = (uint16_t)(i << (dtype_bytes(dtype, 1) == 2 ? 7 : 2));
        if (filling == FILL_ZEROS && test_random(&seed) % 4) element = 0;
        wire_put(dtype, data, i, element);
    }
}

/* Aligned, and exactly as big as it says, so that ASan sees what reaches too far. */
static inline void *wire_room(uint64_t bytes)
{
    void *room = NULL;

    assert_int_equal(posix_memalign(&room, WIRE_ALIGNMENT, bytes ? bytes : 1), 0);
    return room;
}

#endif
