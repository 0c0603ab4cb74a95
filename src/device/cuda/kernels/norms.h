/* The kernels of norms.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_NORMS_H
#define DEVICE_CUDA_KERNELS_NORMS_H

#include "device/cuda/kernels/args.h"

#define NORMS_KERNELS(X)

#endif
