/* The kernels of unpack.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_UNPACK_H
#define DEVICE_CUDA_KERNELS_UNPACK_H

#include "device/cuda/kernels/args.h"

#define UNPACK_KERNELS(X)                                                                          \
    X(unpack, unpack_bf16)                                                                         \
    X(unpack, unpack_f16)                                                                          \
    X(unpack, unpack_e4m3)                                                                         \
    X(unpack, unpack_plain)

#define UNPACK_THREADS 256 /* a warp for each tile */
#define UNPACK_TILES 8     /* of a block */
#define UNPACK_TILE 1024   /* elements */
#define UNPACK_SHARED_BYTES (UNPACK_TILES * UNPACK_TILE)
#define UNPACK_PLAIN_BYTES 16384 /* that a block copies of what was not packed */
#define UNPACK_WORKS 16

/* A payload (docs/formats.md, "The wire payload") and where its elements go; or plain bytes. */
struct unpack_work {
    const uint8_t *payload;
    uint8_t *y;
    int64_t count, tiles;   /* plain: `count` bytes, no more */
    int64_t records, parts; /* offsets in the payload */
    int64_t parts_bytes;    /* from `parts` to the payload's end */
    uint32_t first_block;   /* of the grid, that does it */
};

/* Several of one kind. */
struct unpack_works {
    struct unpack_work list[UNPACK_WORKS];
    int32_t count;
};

#define UNPACK_ARGS(module, name)                                                                  \
    struct name##_args {                                                                           \
        struct unpack_works works;                                                                 \
    };
UNPACK_KERNELS(UNPACK_ARGS)
#undef UNPACK_ARGS

#endif
