/* Element types of tensors. */
#include "tensor/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
#define DTYPE_ROW(id, name, bits) [id] = {name, bits},
    DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}
unsigned dtype_bits(enum dtype dtype)
{
    return dtypes[dtype].bits;
}

bool dtype_parse(const char *name, enum dtype *dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name)) continue;
        *dtype = (enum dtype)i;
        return true;
    }
    return false;
}

bool dtype_computes(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}
