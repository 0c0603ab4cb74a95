/* The types that the host and kernels share in their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_ARGS_H
#define DEVICE_CUDA_KERNELS_ARGS_H

#include <stdint.h>

/* A matrix as kernels see it; `at` is NULL for operands that were left out. */
struct gpu_matrix {
    void *at;
    int64_t rows, cols, stride; /* elements */
    int32_t dtype;              /* enum dtype */
    float scale;                /* of F8 types */
};

#endif
