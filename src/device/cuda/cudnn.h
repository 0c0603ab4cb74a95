/*
 * Attention by NVIDIA's cuDNN, which is no part of the driver, where the environment asks for it:
 * with SHOAL_CUDA_ATTENTION=cudnn, on cards that have BF16. Then it is an error if there is none or
 * if it refuses what it is asked for; SHOAL_CUDNN may name its file. Otherwise it is not looked
 * for, and kernels/attention.cu attends: the library compiles a kernel for every shape when it
 * first meets it, in 0.3 to 0.5 s, and takes 270 MiB of the host's memory.
 */
#ifndef DEVICE_CUDA_CUDNN_H
#define DEVICE_CUDA_CUDNN_H

#include "device/cuda/internal.h"

/*
 * Opens the library for a device that has its context, kernels and workspace, and runs it, so that
 * what it takes on the card is taken before it is measured. Leaves cuda->cudnn NULL if the
 * environment does not ask for it; SHOAL_E_DEVICE if it does and the library cannot be used.
 */
enum shoal_status cuda_cudnn_open(
    struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;
/* Nothing of it may be under way. */
void cuda_cudnn_close(struct cuda_cudnn **cudnn);

/* "cuDNN 9.15", or of NULL "own kernels". */
const char *cuda_cudnn_name(const struct cuda_cudnn *cudnn);

/*
 * Attention that is not causal, with a positive scale. False, and nothing done, where the library
 * is not asked: then attention.c must. It is asked for BF16 (results of F16 would not saturate) and
 * long enough sequences, if all operands and their rows are aligned to 16 bytes; the engine follows
 * from shapes and strides. What it refuses then fails the device. For the thread that gives work to
 * the compute stream.
 */
bool cuda_cudnn_attend(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, int32_t heads, int32_t kv_heads, float scale);

#endif
