/* The exponential and what follows from it, of vectors: a part of kernels.c, included there once
 * for each instruction set. */
#ifndef DEVICE_CPU_FUNCTIONS_H
#define DEVICE_CPU_FUNCTIONS_H

/*
 * e^x: x = n ln 2 + r, e^r by a polynomial (fitted to 1e-8). Clamped to where the result is a
 * normal number, so that it never overflows; NaN stays NaN.
 */
INLINE vf exp_of(vf x)
{
    const vf magic = splat(0x1.8p23f); /* adding it rounds to an integer in the low bits */
    vf n, r, p;
    vi power;

    x = smaller(splat(88.0f), larger(splat(-87.0f), x));
    n = fused(x, splat(1.44269504089f), magic);
    power = ((vi)n - (vi)magic + 127) << 23;
    n -= magic;
    r = fused(n, splat(-0.693359375f), x); /* ln 2 in two parts, the first one short */
    r = fused(n, splat(2.12194440e-4f), r);
    p = fused(splat(0.00139263759958f), r, splat(0.00836333308218f));
    p = fused(p, r, splat(0.0416665534587f));
    p = fused(p, r, splat(0.166665760623f));
    p = fused(p, r, splat(0.5f));
    p = fused(p, r * r, r) + 1;
    return p * (vf)power;
}

INLINE vf silu_of(vf x)
{
    return x / (1 + exp_of(-x));
}

INLINE vf magnitude(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

INLINE vf with_sign(vf size, vf sign)
{
    return (vf)((vi)size | ((vi)sign & splat_int(INT32_MIN)));
}

/* Near 0 a polynomial in x^2, because 1 - 2 / (e^2x + 1) would cancel. */
INLINE vf tanh_of(vf x)
{
    vf a = magnitude(x), z = x * x, near, far;

    near = fused(splat(-0.00606214808019f), z, splat(0.0209732343859f));
    near = fused(near, z, splat(-0.0538458226741f));
    near = fused(near, z, splat(0.133327360159f));
    near = fused(near, z, splat(-0.33333328607f));
    near = fused(near, z * x, x);
    far = with_sign(1 - 2 / (exp_of(a + a) + 1), x);
    return select_by(a < 0.63f, near, far);
}

/* Below 1 x times a polynomial in x^2; above, erfc is e to a polynomial, up to 4, where it is
 * nothing. */
INLINE vf erf_of(vf x)
{
    vf a = magnitude(x), z = x * x, near, far;

    near = fused(splat(7.87587506269e-5f), z, splat(-0.000801686428717f));
    near = fused(near, z, splat(0.00518908742343f));
    near = fused(near, z, splat(-0.0268542120106f));
    near = fused(near, z, splat(0.112835947152f));
    near = fused(near, z, splat(-0.376126266667f));
    near = fused(near, z, splat(1.12837916585f)) * x;
    a = smaller(splat(4.0f), a);
    far = fused(splat(-1.32723618112e-5f), a, splat(0.000316937022491f));
    far = fused(far, a, splat(-0.0034323513807f));
    far = fused(far, a, splat(0.022604772238f));
    far = fused(far, a, splat(-0.103281117598f));
    far = fused(far, a, splat(-0.639141257647f));
    far = fused(far, a, splat(-1.12589365241f));
    far = fused(far, a, splat(-0.000765897779698f));
    far = with_sign(1 - exp_of(far), x);
    return select_by(a < 1.0f, near, far);
}

INLINE vf activated(enum activation activation, vf x)
{
    switch (activation) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_SILU:
        return silu_of(x);
    case ACTIVATION_TANH:
        return tanh_of(x);
    case ACTIVATION_GELU_ERF:
        return x * 0.5f * (1 + erf_of(x * 0.707106781187f));
    case ACTIVATION_GELU_TANH: /* (1 + tanh u) / 2 = 1 / (1 + e^-2u), u = sqrt(2 / pi) (x + ...) */
        return x / (1 + exp_of(-1.59576912161f * fused(x * x, x * 0.044715f, x)));
    case ACTIVATION_RELU:
        return larger(splat(0), x);
    }
    return x;
}

#endif
