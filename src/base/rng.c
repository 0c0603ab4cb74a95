/*
 * The Mersenne twister (MT19937) and PyTorch's two ways from its words to normal values.
 *
 * Draws of 16 values or more are Box-Muller in single precision over blocks of 16, with Cephes'
 * logf, sinf and cosf polynomials; fewer are Box-Muller in double precision over pairs. Which
 * sums are fused (fmaf) is what PyTorch's AVX2 build does, not a choice: every rounding shows in
 * the result. So this file must be compiled without contraction of a * b + c (-ffp-contract=off).
 * PyTorch on processors without AVX2 has other last digits.
 */
#include "base/rng.h"

#include "base/number.h"

#include <math.h>

#define MT_SHIFT 397

void rng_init(struct rng *rng, uint64_t seed)
{
    rng->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < RNG_WORDS; i++) {
        uint32_t last = rng->state[i - 1];

        rng->state[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    rng->used = RNG_WORDS;
    rng->has_spare = false;
    rng->spare = 0;
}

static void refill(struct rng *rng)
{
    uint32_t *s = rng->state;

    for (uint32_t i = 0; i < RNG_WORDS; i++) {
        uint32_t mixed = (s[i] & 0x80000000) | (s[(i + 1) % RNG_WORDS] & 0x7fffffff);

        s[i] = s[(i + MT_SHIFT) % RNG_WORDS] ^ mixed >> 1 ^ (mixed & 1 ? 0x9908b0df : 0);
    }
    rng->used = 0;
}

uint32_t rng_next(struct rng *rng)
{
    uint32_t word;

    if (rng->used == RNG_WORDS) refill(rng);
    word = rng->state[rng->used++];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680;
    word ^= word << 15 & 0xefc60000;
    return word ^ word >> 18;
}

/* In [0, 1), a multiple of 2^-24. */
static float uniform_float(struct rng *rng)
{
    return (float)(rng_next(rng) & 0xffffff) * 0x1p-24f;
}

/* In [0, 1), a multiple of 2^-53; the first word is the upper half. */
static double uniform_double(struct rng *rng)
{
    uint64_t high = rng_next(rng);
    uint64_t word = high << 32 | rng_next(rng);

    return (double)(word & ((1ull << 53) - 1)) * 0x1p-53;
}

/* Natural logarithm of x in (0, 1]; Cephes' polynomial on [sqrt(1/2), sqrt(2)). */
static float log_poly(float x)
{
    static const float p[] = {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
        -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
        3.3333331174e-1f};
    uint32_t bits = float_to_bits(x);
    float exponent = (float)((int32_t)(bits >> 23) - 126);
    float m = float_from_bits((bits & 0x007fffff) | 0x3f000000); /* in [0.5, 1) */
    float y = p[0], square;

    if (m < 0.707106781186547524f) {
        exponent -= 1;
        m = m - 1 + m;
    } else {
        m = m - 1;
    }
    square = m * m;
    for (int i = 1; i < 9; i++)
        y = fmaf(y, m, p[i]);
    y = fmaf(y * m, square, exponent * -2.12194440e-4f);
    y = fmaf(square, -0.5f, y);
    return fmaf(exponent, 0.693359375f, m + y);
}

/* Sine and cosine of x >= 0; Cephes' polynomials on [0, pi / 4] after reduction by octants. */
static void sincos_poly(float x, float *sine, float *cosine)
{
    uint32_t octant = ((uint32_t)(int32_t)(x * 1.27323954473516f) + 1) & ~1u;
    float turns = (float)octant;
    float square, s, c;

    x = fmaf(turns, -0.78515625f, x);
    x = fmaf(turns, -2.4187564849853515625e-4f, x);
    x = fmaf(turns, -3.77489497744594108e-8f, x);
    square = x * x;
    c = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
    c = fmaf(c, square, 4.166664568298827e-2f);
    c = fmaf(c * square, square, square * -0.5f) + 1;
    s = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
    s = fmaf(s, square, -1.6666654611e-1f);
    s = fmaf(s * square, x, x);
    *sine = octant & 2 ? c : s;
    *cosine = octant & 2 ? s : c;
    if (octant & 4) *sine = -*sine;
    if (((octant - 2) & 4) == 0) *cosine = -*cosine;
}

/* Sixteen uniform values in place: the first eight give radii, the others angles. */
static void normal_block(float block[16])
{
    for (int i = 0; i < 8; i++) {
        float radius = sqrtf(-2 * log_poly(1 - block[i]));
        float sine, cosine;

        sincos_poly(6.283185307179586f * block[i + 8], &sine, &cosine);
        block[i] = radius * cosine;
        block[i + 8] = radius * sine;
    }
}

static void uniform_fill(struct rng *rng, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = uniform_float(rng);
}

static float normal_pair(struct rng *rng)
{
    double angle, radius;

    if (rng->has_spare) {
        rng->has_spare = false;
        return (float)rng->spare;
    }
    angle = 2 * 3.14159265358979323846 * uniform_double(rng);
    radius = sqrt(-2 * log1p(-uniform_double(rng)));
    rng->spare = radius * sin(angle);
    rng->has_spare = true;
    return (float)(radius * cos(angle));
}

void rng_normal(struct rng *rng, float *out, size_t count)
{
    if (count < 16) {
        for (size_t i = 0; i < count; i++)
            out[i] = normal_pair(rng);
        return;
    }
    uniform_fill(rng, out, count);
    for (size_t i = 0; i + 16 <= count; i += 16)
        normal_block(out + i);
    if (count % 16) {
        /* The last sixteen are drawn anew, over some that were finished. */
        uniform_fill(rng, out + count - 16, 16);
        normal_block(out + count - 16);
    }
}
