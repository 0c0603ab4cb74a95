/* The kernels of linear.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_LINEAR_H
#define DEVICE_CUDA_KERNELS_LINEAR_H

#include "device/cuda/kernels/args.h"

/*
 * T(type, rows and columns of y that a block makes, and that a warp of it makes, stages of the
 * pipeline, blocks that a multiprocessor should hold).
 */
#define LINEAR_TILES(T, type)                                                                      \
    T(type, 128, 256, 64, 64, 4, 1)                                                                \
    T(type, 128, 128, 64, 64, 3, 2)                                                                \
    T(type, 64, 64, 32, 32, 4, 4)

#define LINEAR_KERNELS(X)                                                                          \
    X(linear, linear_bf16_128_256)                                                                 \
    X(linear, linear_bf16_128_128)                                                                 \
    X(linear, linear_bf16_64_64)                                                                   \
    X(linear, linear_f16_128_256)                                                                  \
    X(linear, linear_f16_128_128)                                                                  \
    X(linear, linear_f16_64_64)

/* Of k, that a stage holds. */
#define LINEAR_DEPTH 32
/* Rows of tiles that blocks pass through column by column, so that what they read stays in L2. */
#define LINEAR_GROUP 8

#define LINEAR_THREADS(m, n, warp_m, warp_n) ((m) / (warp_m) * ((n) / (warp_n)) * 32)
#define LINEAR_SHARED_BYTES(m, n, stages) (((m) + (n)) * LINEAR_DEPTH * 2 * (stages))

/*
 * y[m, n] = x[m, k] w[n, k]^T + bias[n]. x and w of the kernel's type, aligned to 16 bytes, k and
 * their strides multiples of 8; y and bias of any plain type. Each element is one sum over k in
 * steps of 16, in order, whatever the tile: so no bit depends on which kernel is taken. Blocks: x =
 * tiles.
 */
struct linear_args {
    struct gpu_matrix y, x, w, bias;
    int32_t pairs; /* of y's columns may be stored as one */
};

/* They all take the same. */
#define linear_bf16_128_256_args linear_args
#define linear_bf16_128_128_args linear_args
#define linear_bf16_64_64_args linear_args
#define linear_f16_128_256_args linear_args
#define linear_f16_128_128_args linear_args
#define linear_f16_64_64_args linear_args

#endif
