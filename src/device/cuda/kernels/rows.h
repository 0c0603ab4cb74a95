/* The kernels of rows.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_ROWS_H
#define DEVICE_CUDA_KERNELS_ROWS_H

#include "device/cuda/kernels/args.h"

#define ROWS_KERNELS(X)

#endif
