/* The kernels of convert.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_CONVERT_H
#define DEVICE_CUDA_KERNELS_CONVERT_H

#include "device/cuda/kernels/args.h"

#define CONVERT_KERNELS(X) X(convert, convert)

/* A thread takes 8 columns of some rows. Blocks: x = rows of `to` / CONVERT_ROWS, y = runs of
 * columns. */
#define CONVERT_THREADS 256
#define CONVERT_ROWS 4

/*
 * to = from in to's type (F32, F16 or BF16), rounded once. `from` is of any computed type; columns
 * of `to` beyond those of `from` become zeros. `to` is aligned to 16 bytes, its columns and stride
 * are multiples of 8.
 */
struct convert_args {
    struct gpu_matrix to, from;
};

#endif
