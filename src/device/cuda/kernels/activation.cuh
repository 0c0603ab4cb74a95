/* The activations, good to a few units in the last place of F32. */
#ifndef DEVICE_CUDA_KERNELS_ACTIVATION_CUH
#define DEVICE_CUDA_KERNELS_ACTIVATION_CUH

#include "device/cuda/kernels/gpu.cuh"

/* As the host's `enum activation` numbers them. */
#define GPU_NONE 0
#define GPU_SILU 1
#define GPU_TANH 2
#define GPU_GELU_ERF 3
#define GPU_GELU_TANH 4
#define GPU_RELU 5

/* x / (1 + e^-slope). Where e^-slope is infinite the result is 0, not the x e^slope that would be
 * below 1e-36. */
DEVICE float gated(float x, float slope)
{
    return x * reciprocal(1.0f + expf(-slope));
}

DEVICE float silu(float x)
{
    return gated(x, x);
}

/* x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): nothing cancels. */
DEVICE float gelu_tanh(float x)
{
    return gated(x, 1.59576912160573071f * (x + 0.044715f * x * x * x));
}

/* x / 2 (1 + erf(x / sqrt 2)). */
DEVICE float gelu_erf(float x)
{
    return 0.5f * x * erfcf(x * -0.70710678118654752f);
}

template <int count> DEVICE void apply(float *x, int activation)
{
    if (activation == GPU_SILU) {
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = silu(x[i]);
    } else if (activation == GPU_TANH) {
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = tanhf(x[i]);
    } else if (activation == GPU_GELU_ERF) {
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = gelu_erf(x[i]);
    } else if (activation == GPU_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = gelu_tanh(x[i]);
    } else if (activation == GPU_RELU) {
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] = x[i] < 0 ? 0 : x[i];
    }
}

#endif
