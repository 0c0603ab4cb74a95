/* The kernels of linear.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_LINEAR_H
#define DEVICE_CUDA_KERNELS_LINEAR_H

#include "device/cuda/kernels/args.h"

#define LINEAR_KERNELS(X)

#endif
