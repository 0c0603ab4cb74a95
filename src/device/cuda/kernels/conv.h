/* The kernels of conv.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_CONV_H
#define DEVICE_CUDA_KERNELS_CONV_H

#include "device/cuda/kernels/args.h"

/* A block makes a tile: `outs` output channels of a rectangle of pixels, `rows` high and
 * CONV_COLUMNS wide. Each warp has four of the rows. */
#define CONV_COLUMNS 16
#define CONV_WIDE_OUTS 128 /* four warps: two sets of channels by two of rows */
#define CONV_WIDE_ROWS 8
#define CONV_NARROW_OUTS 32 /* four warps by rows */
#define CONV_NARROW_ROWS 16
#define CONV_THREADS 128
#define CONV_PACK_THREADS 256

#define CONV_CHANNELS 32 /* input channels at a time */
#define CONV_STAGES 3    /* of the ring of weights */

/* X(module, kernel): those that convolve. */
#define CONV_TILE_KERNELS(X)                                                                       \
    X(conv, conv3_wide_bf16)                                                                       \
    X(conv, conv3_narrow_bf16)                                                                     \
    X(conv, conv1_wide_bf16)                                                                       \
    X(conv, conv1_narrow_bf16)                                                                     \
    X(conv, conv3_wide_f16)                                                                        \
    X(conv, conv3_narrow_f16)                                                                      \
    X(conv, conv1_wide_f16)                                                                        \
    X(conv, conv1_narrow_f16)

#define CONV_KERNELS(X)                                                                            \
    X(conv, conv_pack)                                                                             \
    CONV_TILE_KERNELS(X)

/* Shared memory of a block: two pieces of the input with its border, the ring, each warp's part of
 * the affine map. */
#define CONV_PIECE_BYTES(rows, kernel)                                                             \
    (((rows) + (kernel)-1) * (CONV_COLUMNS + (kernel)-1) * CONV_CHANNELS * 2)
#define CONV_STAGE_BYTES(outs) ((outs)*CONV_CHANNELS * 2)
#define CONV_AFFINE_BYTES (CONV_THREADS / 32 * 16 * 4)
#define CONV_SHARED_BYTES(outs, rows, kernel)                                                      \
    (2 * CONV_PIECE_BYTES(rows, kernel) + CONV_STAGES * CONV_STAGE_BYTES(outs) + CONV_AFFINE_BYTES)

/*
 * Weights [out, in planes taps], of whose planes the last, to what the tiles copy: for each `outs`
 * output channels, each CONV_CHANNELS input channels and each tap a stage [outs, CONV_CHANNELS] as
 * it lies in shared memory. Channels that are not there are zeros.
 */
struct conv_pack_args {
    struct gpu_matrix w;
    void *to;        /* of type `product` */
    int32_t product; /* GPU_BF16 or GPU_F16 */
    int32_t inputs;  /* channels */
    int32_t taps;    /* kernel kernel */
    int32_t planes;
    int32_t outs; /* of a tile */
    int32_t out_tiles, chunks;
};

struct conv_work {
    struct gpu_matrix y, x, bias, affine; /* see compute_ops */
    const void *weights;                  /* packed */
    int32_t height, width;                /* of the output */
    int32_t above, rows; /* of the input, counted as the output's: before its first, in all */
    int32_t upsample;    /* log2 */
    int32_t chunks;      /* of CONV_CHANNELS input channels */
    int32_t out_tiles, tiles_across;
    int32_t silu, accumulate;
    int32_t plain;  /* x is of the products' type and multiplied as it is */
    int32_t paired; /* two neighbours in y can be stored at once */
};

#define CONV_ARGS(module, name)                                                                    \
    struct name##_args {                                                                           \
        struct conv_work work;                                                                     \
    };
CONV_TILE_KERNELS(CONV_ARGS)
#undef CONV_ARGS

#endif
