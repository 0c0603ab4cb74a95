/* The kernels of few.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_FEW_H
#define DEVICE_CUDA_KERNELS_FEW_H

#include "device/cuda/kernels/args.h"

/* By the type of the weights. */
#define FEW_KERNELS(X)                                                                             \
    X(few, few_f32)                                                                                \
    X(few, few_f16)                                                                                \
    X(few, few_bf16)                                                                               \
    X(few, few_quantised)

#define FEW_ROWS 8 /* at most */
#define FEW_THREADS 128
/* Of y, that a block makes. Blocks: x = columns / FEW_COLS. */
#define FEW_COLS 4

/*
 * y[m, n] = x[m, k] w[n, k]^T + bias[n] for m <= FEW_ROWS: bound by the reading of w, which is not
 * rounded. Each sum is taken in an order that depends on k alone. The bias is of a plain type.
 */
struct few_args {
    struct gpu_matrix y, x, w, bias;
};

/* They all take the same. */
#define few_f32_args few_args
#define few_f16_args few_args
#define few_bf16_args few_args
#define few_quantised_args few_args

#endif
