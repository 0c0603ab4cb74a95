/* Shapes of tensors in checkpoints. */
#ifndef TENSOR_SHAPE_H
#define TENSOR_SHAPE_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define SHAPE_MAX_RANK 8

struct shape {
    int32_t rank; /* 0: a scalar */
    int64_t dim[SHAPE_MAX_RANK];
};

/* Elements, and bytes in `dtype`. False: overflow, a negative dimension, or a count that makes no
 * whole blocks. */
bool shape_count(const struct shape *shape, uint64_t *count);
bool shape_bytes(const struct shape *shape, enum dtype dtype, uint64_t *bytes);
bool shape_equal(const struct shape *a, const struct shape *b);

/* "[3840, 2560]": into `text`, which is returned. */
#define SHAPE_TEXT_BYTES 200
char *shape_format(char text[SHAPE_TEXT_BYTES], const struct shape *shape);

#endif
