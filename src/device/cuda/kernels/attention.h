/* The kernels of attention.cu and their arguments. Plain C and CUDA C. */
#ifndef DEVICE_CUDA_KERNELS_ATTENTION_H
#define DEVICE_CUDA_KERNELS_ATTENTION_H

#include "device/cuda/kernels/args.h"

#define ATTENTION_KERNELS(X)

#endif
