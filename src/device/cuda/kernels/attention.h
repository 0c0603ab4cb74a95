/* The kernels of attention.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_ATTENTION_H
#define DEVICE_CUDA_KERNELS_ATTENTION_H

#include "device/cuda/kernels/args.h"

struct attention_any_args {
    struct gpu_matrix out, q, k, v, bias;
    int32_t heads, kv_heads;
    float scale;
    int32_t causal;
    int32_t aligned; /* rows of q, k and v start at multiples of 16 bytes, those of out of 4 */
};

/*
 * The kernels that use matrix instructions, F(X, name, dim, columns, tiles, warps, keys, card,
 * biased): for
 * heads of `dim` columns, of which a block computes `columns`; each of its warps has 16 * tiles
 * queries, which meet `keys` keys and values at a time. For cards whose blocks may have `card` KiB
 * of shared memory or more; of one dim's the first that fits is taken. Where there is room two
 * blocks share a multiprocessor, so that one multiplies while the other exponentiates: the smaller
 * of two kernels leaves it on cards with 99 KiB, the larger reads less of shared memory.
 */
#define ATTENTION_SHAPES(F, X)                                                                     \
    F(X, 32, 32, 32, 2, 4, 64, 0, false)                                                           \
    F(X, 64, 64, 64, 2, 4, 64, 0, false)                                                           \
    F(X, 64_biased, 64, 64, 2, 4, 64, 0, true)                                                     \
    F(X, 96, 96, 96, 2, 4, 64, 48, false)                                                          \
    F(X, 128, 128, 128, 2, 4, 64, 160, false)                                                      \
    F(X, 128_small, 128, 128, 2, 4, 32, 48, false)                                                 \
    F(X, 256, 256, 256, 1, 4, 64, 64, false)                                                       \
    F(X, 512, 512, 256, 1, 4, 64, 96, false)                                                       \
    F(X, 512_small, 512, 256, 1, 2, 64, 64, false)

/* Keys and values pass through shared memory in slabs of so many columns. */
#define ATTENTION_SLAB(dim) ((dim) < 128 ? (dim) : 128)
#define ATTENTION_MOST_STRIDE (1 << 24) /* offsets within a slab are of 32 bits */
#define ATTENTION_SLABS 2               /* one is computed with while the next comes */

/* Shared memory of a block: its queries, and the slabs. */
#define ATTENTION_SHARED(dim, tiles, warps, keys)                                                  \
    (2 * (16 * (tiles) * (warps) * (dim) + ATTENTION_SLABS * (keys)*ATTENTION_SLAB(dim)))

/* The kernel for all else: a warp a query and head, ATTENTION_ANY_COLUMNS of its columns. */
#define ATTENTION_ANY_WARPS 4
#define ATTENTION_ANY_COLUMNS 512

#define ATTENTION_SHAPE_ARGS(X, name, ...)                                                         \
    struct attention_bf16_##name##_args {                                                          \
        struct attention_any_args args;                                                            \
    };                                                                                             \
    struct attention_f16_##name##_args {                                                           \
        struct attention_any_args args;                                                            \
    };
ATTENTION_SHAPES(ATTENTION_SHAPE_ARGS, )

#define ATTENTION_SHAPE_KERNELS(X, name, ...)                                                      \
    X(attention, attention_bf16_##name)                                                            \
    X(attention, attention_f16_##name)
#define ATTENTION_KERNELS(X)                                                                       \
    X(attention, attention_any)                                                                    \
    ATTENTION_SHAPES(ATTENTION_SHAPE_KERNELS, X)

#endif
