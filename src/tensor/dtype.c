/* Element types of tensors. */
#include "tensor/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    int64_t block_elements, block_bytes;
} dtypes[] = {
#define DTYPE_ROW(id, name, elements, bytes) [id] = {name, elements, bytes},
    DTYPES_PLAIN(DTYPE_ROW) DTYPES_GGUF(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

bool dtype_parse(const char *name, enum dtype *dtype)
{
    for (int i = 0; i < DTYPE_PLAIN_COUNT; i++) {
        if (strcmp(name, dtypes[i].name)) continue;
        *dtype = (enum dtype)i;
        return true;
    }
    return false;
}

int64_t dtype_block_elements(enum dtype dtype)
{
    return dtypes[dtype].block_elements;
}

int64_t dtype_block_bytes(enum dtype dtype)
{
    return dtypes[dtype].block_bytes;
}

int64_t dtype_bytes(enum dtype dtype, int64_t elements)
{
    return elements / dtypes[dtype].block_elements * dtypes[dtype].block_bytes;
}

bool dtype_is_f8(enum dtype dtype)
{
    return dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2;
}

bool dtype_is_quantised(enum dtype dtype)
{
    return (dtype >= DTYPE_Q4_0 && dtype <= DTYPE_Q6_K) || dtype_is_f8(dtype);
}

bool dtype_computes(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16 ||
           dtype_is_quantised(dtype);
}
