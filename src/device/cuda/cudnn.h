/*
 * Attention by NVIDIA's cuDNN, which is no part of the driver: it is used if it can be opened, on
 * cards whose matrix instructions our own kernels do not use, and kernels/attention.cu attends
 * elsewhere.
 *
 * Two variables of the environment say otherwise. SHOAL_CUDA_ATTENTION: "own" leaves the library
 * alone; "cudnn" uses it on every card that has BF16, for shorter sequences too, and makes it an
 * error if there is none or if it refuses what it is asked for. SHOAL_CUDNN: the library's file.
 */
#ifndef DEVICE_CUDA_CUDNN_H
#define DEVICE_CUDA_CUDNN_H

#include "device/cuda/internal.h"

/*
 * Opens the library for a device that has its context, kernels and workspace, and runs it, so that
 * what it takes on the card is taken before it is measured. Leaves cuda->cudnn NULL if there is
 * none or if it is not for this card; SHOAL_E_DEVICE if the environment asks for one that cannot be
 * used.
 */
enum shoal_status cuda_cudnn_open(
    struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;
/* Nothing of it may be under way. */
void cuda_cudnn_close(struct cuda_cudnn **cudnn);

/* "cuDNN 9.15", or of NULL "own kernels". */
const char *cuda_cudnn_name(const struct cuda_cudnn *cudnn);

/*
 * Attention that is not causal, with a positive scale. False, and nothing done, where the library
 * cannot or where it is not worth it: then attention.c must. That, and the engine, follow from
 * type, shapes and strides, if all operands and their rows are aligned to 16 bytes; others are not
 * taken. BF16 only: results of F16 would not saturate. For the thread that gives work to the
 * compute stream.
 */
bool cuda_cudnn_attend(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, int32_t heads, int32_t kv_heads, float scale);

#endif
