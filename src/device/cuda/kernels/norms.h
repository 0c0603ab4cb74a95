/* The kernels of norms.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_NORMS_H
#define DEVICE_CUDA_KERNELS_NORMS_H

#include "device/cuda/kernels/args.h"

#define NORMS_KERNELS(X)                                                                           \
    X(norms, rms_norm_short)                                                                       \
    X(norms, rms_norm_long)                                                                        \
    X(norms, layer_norm)                                                                           \
    X(norms, group_moments)                                                                        \
    X(norms, group_fold)

#define NORM_HELD 16     /* elements that a thread holds of what it sums up, at most */
#define NORM_THREADS 512 /* of a block, at most */

/*
 * y = (x - mean) / sqrt(var + eps) * gamma * (1 + scale) for each run of `length` columns, where
 * rms norms take the mean for 0.
 */
struct norm_operands {
    struct gpu_matrix y, x, gamma, scale;
    float eps;
    int32_t length;
    int32_t width; /* as of struct gpu_layout */
};

/* A run a block. */
struct rms_norm_long_args {
    struct norm_operands of;
};

struct layer_norm_args {
    struct norm_operands of;
};

/* A run a group of `lanes` lanes, a power of two up to a warp's; groups lie over a row's runs,
 * `slots_of_row` of them, in as many lines as there are groups for. */
struct rms_norm_short_args {
    struct norm_operands of;
    int32_t lanes, slots_of_row;
};

/* Mean and sum of squares about it of each run: see compute_ops. A run a block, which holds so
 * many elements a thread. */
#define GROUP_THREADS 256
#define GROUP_HELD 32
struct group_moments_args {
    struct gpu_matrix x, moments;
    int32_t run; /* pixels */
    int32_t width;
};

/* Folds them: a group a block. */
struct group_fold_args {
    struct gpu_matrix affine, gamma, beta, moments;
    int64_t channels, pixels, run; /* of a group, of a channel */
    float eps;
};

#endif
