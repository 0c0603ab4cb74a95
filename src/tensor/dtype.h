/* Element types of tensors: every one that safetensors names. F32, F16 and BF16 are computed with.
 */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* X(id, safetensors name, bits) */
#define DTYPES(X)                                                                                  \
    X(DTYPE_F32, "F32", 32)                                                                        \
    X(DTYPE_F16, "F16", 16)                                                                        \
    X(DTYPE_BF16, "BF16", 16)                                                                      \
    X(DTYPE_F64, "F64", 64)                                                                        \
    X(DTYPE_F8_E4M3, "F8_E4M3", 8)                                                                 \
    X(DTYPE_F8_E5M2, "F8_E5M2", 8)                                                                 \
    X(DTYPE_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                                         \
    X(DTYPE_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                                         \
    X(DTYPE_F8_E8M0, "F8_E8M0", 8)                                                                 \
    X(DTYPE_F6_E2M3, "F6_E2M3", 6)                                                                 \
    X(DTYPE_F6_E3M2, "F6_E3M2", 6)                                                                 \
    X(DTYPE_F4, "F4", 4)                                                                           \
    X(DTYPE_C64, "C64", 64)                                                                        \
    X(DTYPE_I64, "I64", 64)                                                                        \
    X(DTYPE_I32, "I32", 32)                                                                        \
    X(DTYPE_I16, "I16", 16)                                                                        \
    X(DTYPE_I8, "I8", 8)                                                                           \
    X(DTYPE_U64, "U64", 64)                                                                        \
    X(DTYPE_U32, "U32", 32)                                                                        \
    X(DTYPE_U16, "U16", 16)                                                                        \
    X(DTYPE_U8, "U8", 8)                                                                           \
    X(DTYPE_BOOL, "BOOL", 8)

enum dtype {
#define DTYPE_ENUM(id, name, bits) id,
    DTYPES(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_COUNT
};

const char *dtype_name(enum dtype dtype);
unsigned dtype_bits(enum dtype dtype);
bool dtype_parse(const char *name, enum dtype *dtype); /* false: no such type */

/* Whether this build computes with it: F32, F16, BF16. */
bool dtype_computes(enum dtype dtype);

#endif
