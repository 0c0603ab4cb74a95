/* All kernels. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_LIST_H
#define DEVICE_CUDA_KERNELS_LIST_H

#include "device/cuda/kernels/attention.h"
#include "device/cuda/kernels/conv.h"
#include "device/cuda/kernels/convert.h"
#include "device/cuda/kernels/few.h"
#include "device/cuda/kernels/linear.h"
#include "device/cuda/kernels/norms.h"
#include "device/cuda/kernels/patch.h"
#include "device/cuda/kernels/rows.h"
#include "device/cuda/kernels/unpack.h"

/* X(module, kernel): a module is one .cu file, and one fatbin. */
#define CUDA_KERNELS(X)                                                                            \
    ATTENTION_KERNELS(X)                                                                           \
    CONV_KERNELS(X)                                                                                \
    CONVERT_KERNELS(X)                                                                             \
    FEW_KERNELS(X)                                                                                 \
    LINEAR_KERNELS(X)                                                                              \
    NORMS_KERNELS(X)                                                                               \
    PATCH_KERNELS(X)                                                                               \
    ROWS_KERNELS(X)                                                                                \
    UNPACK_KERNELS(X)

#endif
