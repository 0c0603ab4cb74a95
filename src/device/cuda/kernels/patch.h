/* The kernel of patch.cu and its arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_PATCH_H
#define DEVICE_CUDA_KERNELS_PATCH_H

#include "device/cuda/kernels/args.h"

#define PATCH_KERNELS(X) X(patch, patch)

/* A block takes a tile, a thread 8 columns of some rows of it. Blocks: x = rows, y = columns. */
#define PATCH_TILE_ROWS 64
#define PATCH_TILE_COLS 128
#define PATCH_OWN_ROWS 4
#define PATCH_THREADS (PATCH_TILE_ROWS / PATCH_OWN_ROWS * PATCH_TILE_COLS / 8)
#define PATCH_DEPTH 16 /* of a chain, in shared memory at once */
/* There: [depth, columns] of a, [depth, rows] of b, whose rows begin in banks of their own. */
#define PATCH_B_STRIDE (PATCH_TILE_ROWS + 4)
#define PATCH_SHARED_BYTES (PATCH_DEPTH * (PATCH_TILE_COLS + PATCH_B_STRIDE) * 4)
#define PATCH_MOST_TERMS 8

/* As struct patch_factor and patch_term. */
struct gpu_patch_factor {
    struct gpu_matrix b, a;
};

struct gpu_patch_term {
    struct gpu_patch_factor factors[2];
    int64_t row, col;
    float scale;
    int32_t kron;
};

struct patch_args {
    struct gpu_matrix y, x; /* x of any computed type */
    struct gpu_patch_term terms[PATCH_MOST_TERMS];
    int32_t count;
};

#endif
