/* The kernels of norms.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_NORMS_H
#define DEVICE_CUDA_KERNELS_NORMS_H

#include "device/cuda/kernels/args.h"

#define NORMS_KERNELS(X)                                                                           \
    X(norms, rms_norm)                                                                             \
    X(norms, rms_norm_add)                                                                         \
    X(norms, layer_norm)                                                                           \
    X(norms, match_norms)                                                                          \
    X(norms, rms_norm_rope_neighbours)                                                             \
    X(norms, rms_norm_rope_halves)                                                                 \
    X(norms, rms_norm_heads)                                                                       \
    X(norms, rope_neighbours)                                                                      \
    X(norms, rope_halves)                                                                          \
    X(norms, group_moments)                                                                        \
    X(norms, group_fold)                                                                           \
    X(norms, channel_norm)

#define NORM_HELD 16     /* elements that a thread holds of what it sums up, at most */
#define NORM_THREADS 512 /* of a block, at most */

/* A row a block. */
struct row_norm {
    struct gpu_matrix y, x, gamma, scale, shift;
    float eps;
    int32_t width; /* as of struct gpu_layout */
};

/* x / sqrt(mean(x^2) + eps) * gamma * (1 + scale) */
struct rms_norm_args {
    struct row_norm of;
};

/* y + scale * x / sqrt(mean(x^2) + eps) * gamma */
struct rms_norm_add_args {
    struct row_norm of;
};

/* (x - mean) / sqrt(var + eps) * gamma * (1 + scale) + shift */
struct layer_norm_args {
    struct row_norm of;
};

/* y * sqrt(sum(x^2) / sum(y^2)) */
struct match_norms_args {
    struct row_norm of;
};

/*
 * Aligned heads of whole runs: a head a group of lanes, 1 << lane_bits of them and a warp at most;
 * groups lie over a row's heads, `slots` of them, in `lines` lines. Others, where lines is 0: a
 * head a warp.
 */
#define HEADS_AT_ONCE 2 /* that a group loads */
#define HEADS_THREADS 256
struct rms_norm_rope {
    struct gpu_matrix x, gamma, table;
    float eps;
    int32_t lane_bits, heads, slots, lines;
};

struct rms_norm_rope_neighbours_args {
    struct rms_norm_rope of;
};

struct rms_norm_rope_halves_args {
    struct rms_norm_rope of;
};
/* Without the table, or gamma: */
struct rms_norm_heads_args {
    struct rms_norm_rope of;
};
struct rope_neighbours_args {
    struct rms_norm_rope of;
};
struct rope_halves_args {
    struct rms_norm_rope of;
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

/* f(x sqrt(channels) / max(|x|, 1e-12) gamma): see compute_ops. A block has a warp's runs of
 * pixels, and each of its warps every so manieth channel of them. */
#define CHANNEL_LINES 8
#define CHANNELS_AT_ONCE 4 /* that a thread loads */
struct channel_norm_args {
    struct gpu_matrix y, x, gamma;
    int32_t activation, width;
};

/* Folds them: a group a block. */
struct group_fold_args {
    struct gpu_matrix affine, gamma, beta, moments;
    int64_t channels, pixels, run; /* of a group, of a channel */
    float eps;
};

#endif
