/* The kernels of unpack.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_UNPACK_H
#define DEVICE_CUDA_KERNELS_UNPACK_H

#include "device/cuda/kernels/args.h"

#define UNPACK_KERNELS(X)

#endif
