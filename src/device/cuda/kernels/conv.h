/* The kernels of conv.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_CONV_H
#define DEVICE_CUDA_KERNELS_CONV_H

#include "device/cuda/kernels/args.h"

#define CONV_KERNELS(X)

#endif
