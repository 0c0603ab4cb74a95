/* The kernels of rows.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_ROWS_H
#define DEVICE_CUDA_KERNELS_ROWS_H

#include "device/cuda/kernels/args.h"

#define ROWS_KERNELS(X)                                                                            \
    X(rows, copy)                                                                                  \
    X(rows, gated_silu)                                                                            \
    X(rows, gated_gelu)                                                                            \
    X(rows, gated_add)                                                                             \
    X(rows, blend)                                                                                 \
    X(rows, guide)                                                                                 \
    X(rows, activate)                                                                              \
    X(rows, transpose)                                                                             \
    X(rows, move_patches)

/*
 * How a block's threads lie over rows: `lanes` side by side, each with a run of `width` elements,
 * in `slots` lines. Threads from lanes * slots on are idle.
 */
struct gpu_layout {
    int32_t lanes, slots;
    int32_t width; /* 8 where no operand is F32, else 4: 16 bytes of the widest */
};

#define ROWS_THREADS 256 /* of a block, at most */

/* y = of a, b and a vector, element by element. A row that is used for all has a stride of 0. */
struct combine {
    struct gpu_matrix y, a, b, vector;
    struct gpu_layout layout;
    float p, q;
};

#define COMBINE_ARGS(name)                                                                         \
    struct name##_args {                                                                           \
        struct combine of;                                                                         \
    };
COMBINE_ARGS(copy)       /* a */
COMBINE_ARGS(gated_silu) /* silu(a) b */
COMBINE_ARGS(gated_gelu) /* gelu(a) b, by tanh */
COMBINE_ARGS(gated_add)  /* b + vector a; vector optional */
COMBINE_ARGS(blend)      /* p a + q b */
COMBINE_ARGS(guide)      /* a + p (a - b) */
#undef COMBINE_ARGS

/* y = f(x), or f(x affine[0, row] + affine[1, row]). */
struct activate_args {
    struct gpu_matrix y, x, affine;
    struct gpu_layout layout;
    int32_t activation;
};

#define TRANSPOSE_TILE 64
#define TRANSPOSE_THREADS 256

/* A block a tile of x, in raster order. */
struct transpose_args {
    struct gpu_matrix y, x;
};

/* See compute_ops: patchify, or if `back`, unpatchify. */
struct move_patches_args {
    struct gpu_matrix tokens, picture;
    int64_t width;
    int32_t patch, back, channels_first;
};

#endif
