/* A matrix: the view that the compute table works on. It never owns memory. */
#ifndef TENSOR_MATRIX_H
#define TENSOR_MATRIX_H

#include "tensor/dtype.h"

#include <stdint.h>

/* An address in a device's own space: a pointer for the CPU, a CUdeviceptr, a mere number when
 * counting. */
typedef uint64_t device_addr;

/*
 * rows x cols elements, row-major, `stride` elements from one row to the next. Sequences are
 * [tokens, features], pictures [channels, height * width], vectors [1, n], convolution weights
 * [out, in * kernel * kernel]. Of quantised types each row is whole blocks, the stride included.
 */
struct matrix {
    device_addr addr; /* 0: no matrix (an optional operand left out) */
    enum dtype dtype;
    int64_t rows, cols, stride;
    float scale; /* of F8 types: what an element's code is multiplied by, see quant.h; else 1 */
};

static inline struct matrix matrix_at(
    device_addr addr, enum dtype dtype, int64_t rows, int64_t cols)
{
    return (struct matrix){addr, dtype, rows, cols, cols, 1.0f};
}

/* Rows [first, first + count). */
static inline struct matrix matrix_rows(struct matrix m, int64_t first, int64_t count)
{
    m.addr += (uint64_t)dtype_bytes(m.dtype, first * m.stride);
    m.rows = count;
    return m;
}

/* Columns [first, first + count) of every row; of quantised ones, whole blocks. */
static inline struct matrix matrix_cols(struct matrix m, int64_t first, int64_t count)
{
    m.addr += (uint64_t)dtype_bytes(m.dtype, first);
    m.cols = count;
    return m;
}

#define MATRIX_NONE ((struct matrix){0})

#endif
