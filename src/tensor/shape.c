/* Shapes of tensors in checkpoints. */
#include "tensor/shape.h"

#include "base/size.h"

#include <stdio.h>

bool shape_count(const struct shape *shape, uint64_t *count)
{
    *count = 1;
    for (int32_t i = 0; i < shape->rank; i++)
        if (shape->dim[i] < 0 || !size_mul(*count, (uint64_t)shape->dim[i], count)) return false;
    return true;
}

bool shape_bytes(const struct shape *shape, enum dtype dtype, uint64_t *bytes)
{
    const uint64_t elements = (uint64_t)dtype_block_elements(dtype);

    if (!shape_count(shape, bytes) || *bytes % elements) return false;
    return size_mul(*bytes / elements, (uint64_t)dtype_block_bytes(dtype), bytes);
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->rank != b->rank) return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

char *shape_format(char text[SHAPE_TEXT_BYTES], const struct shape *shape)
{
    int used = snprintf(text, SHAPE_TEXT_BYTES, "[");

    for (int32_t i = 0; i < shape->rank; i++)
        used += snprintf(text + used, (size_t)(SHAPE_TEXT_BYTES - used), i ? ", %lld" : "%lld",
            (long long)shape->dim[i]);
    snprintf(text + used, (size_t)(SHAPE_TEXT_BYTES - used), "]");
    return text;
}
