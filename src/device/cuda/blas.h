/*
 * Matrix products by NVIDIA's cuBLASLt, which is no part of the driver: it is used if it can be
 * opened, and kernels/linear.cu multiplies where it cannot.
 *
 * Two variables of the environment say otherwise. SHOAL_CUDA_MULTIPLY: "own" leaves the library
 * alone, "cublaslt" makes it an error if there is none. SHOAL_CUBLASLT: the library's file.
 */
#ifndef DEVICE_CUDA_BLAS_H
#define DEVICE_CUDA_BLAS_H

#include "device/cuda/internal.h"

/* Of the end of the device's workspace; what is before it is for those who call: panels of weights
 * that they convert, larger ones being faster. Only sums of few rows are split, and take it. */
#define CUDA_BLAS_WORKSPACE_BYTES ((uint64_t)20 << 20)

/*
 * Opens the library for a device that has its context, kernels and workspace, and runs it, so that
 * what it takes on the card is taken before it is measured. Leaves cuda->blas NULL if there is no
 * library; SHOAL_E_DEVICE if the environment asks for one that cannot be used.
 */
enum shoal_status cuda_blas_open(struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;
/* Nothing of it may be under way. */
void cuda_blas_close(struct cuda_blas **blas);

/* "cuBLASLt 13.0", or of NULL "own kernels". */
const char *cuda_blas_name(const struct cuda_blas *blas);

/* A product's columns: in all, and of each panel but the last, if it is made panel by panel. That
 * depends on what w is stored in, and must not show in y: all take the algorithm of the whole. */
struct cuda_columns {
    int64_t all, panel;
};

/*
 * y[m, n] = x[m, k] w[n, k]^T + bias[n]: all of `columns`, or a panel. x and w are of one 16-bit
 * type, y F32 or of that type, the bias of y's. False, and nothing done, where the library cannot,
 * the whole or a panel of it, as with a y of F16, in which what it writes does not saturate: then
 * linear.cu must. That, and the algorithm, follow from types, shapes and strides, if all operands
 * and their rows are aligned to 16 bytes; others are not taken. For the thread that gives work to
 * the compute stream.
 */
bool cuda_blas_multiply(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, struct cuda_columns columns);

#endif
