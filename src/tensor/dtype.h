/*
 * Element types of tensors: every one that safetensors or GGUF names.
 *
 * Elements come in blocks: one element for plain types, several that share a scale for quantised
 * ones. A run of elements that begins and ends at blocks has a whole number of bytes; all that is
 * stored is such runs.
 */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* X(id, name, elements of a block, bytes of a block). The names that safetensors has. */
#define DTYPES_PLAIN(X)                                                                            \
    X(DTYPE_F32, "F32", 1, 4)                                                                      \
    X(DTYPE_F16, "F16", 1, 2)                                                                      \
    X(DTYPE_BF16, "BF16", 1, 2)                                                                    \
    X(DTYPE_F64, "F64", 1, 8)                                                                      \
    X(DTYPE_F8_E4M3, "F8_E4M3", 1, 1)                                                              \
    X(DTYPE_F8_E5M2, "F8_E5M2", 1, 1)                                                              \
    X(DTYPE_F8_E4M3FNUZ, "F8_E4M3FNUZ", 1, 1)                                                      \
    X(DTYPE_F8_E5M2FNUZ, "F8_E5M2FNUZ", 1, 1)                                                      \
    X(DTYPE_F8_E8M0, "F8_E8M0", 1, 1)                                                              \
    X(DTYPE_F6_E2M3, "F6_E2M3", 4, 3)                                                              \
    X(DTYPE_F6_E3M2, "F6_E3M2", 4, 3)                                                              \
    X(DTYPE_F4, "F4", 2, 1)                                                                        \
    X(DTYPE_C64, "C64", 1, 8)                                                                      \
    X(DTYPE_I64, "I64", 1, 8)                                                                      \
    X(DTYPE_I32, "I32", 1, 4)                                                                      \
    X(DTYPE_I16, "I16", 1, 2)                                                                      \
    X(DTYPE_I8, "I8", 1, 1)                                                                        \
    X(DTYPE_U64, "U64", 1, 8)                                                                      \
    X(DTYPE_U32, "U32", 1, 4)                                                                      \
    X(DTYPE_U16, "U16", 1, 2)                                                                      \
    X(DTYPE_U8, "U8", 1, 1)                                                                        \
    X(DTYPE_BOOL, "BOOL", 1, 1)

/* GGUF's own, see quant.h for those that are computed with. */
#define DTYPES_GGUF(X)                                                                             \
    X(DTYPE_Q4_0, "Q4_0", 32, 18)                                                                  \
    X(DTYPE_Q4_1, "Q4_1", 32, 20)                                                                  \
    X(DTYPE_Q5_0, "Q5_0", 32, 22)                                                                  \
    X(DTYPE_Q5_1, "Q5_1", 32, 24)                                                                  \
    X(DTYPE_Q8_0, "Q8_0", 32, 34)                                                                  \
    X(DTYPE_Q2_K, "Q2_K", 256, 84)                                                                 \
    X(DTYPE_Q3_K, "Q3_K", 256, 110)                                                                \
    X(DTYPE_Q4_K, "Q4_K", 256, 144)                                                                \
    X(DTYPE_Q5_K, "Q5_K", 256, 176)                                                                \
    X(DTYPE_Q6_K, "Q6_K", 256, 210)                                                                \
    X(DTYPE_Q8_1, "Q8_1", 32, 40)                                                                  \
    X(DTYPE_Q8_K, "Q8_K", 256, 292)                                                                \
    X(DTYPE_IQ1_S, "IQ1_S", 256, 50)                                                               \
    X(DTYPE_IQ1_M, "IQ1_M", 256, 56)                                                               \
    X(DTYPE_IQ2_XXS, "IQ2_XXS", 256, 66)                                                           \
    X(DTYPE_IQ2_XS, "IQ2_XS", 256, 74)                                                             \
    X(DTYPE_IQ2_S, "IQ2_S", 256, 82)                                                               \
    X(DTYPE_IQ3_XXS, "IQ3_XXS", 256, 98)                                                           \
    X(DTYPE_IQ3_S, "IQ3_S", 256, 110)                                                              \
    X(DTYPE_IQ4_NL, "IQ4_NL", 32, 18)                                                              \
    X(DTYPE_IQ4_XS, "IQ4_XS", 256, 136)                                                            \
    X(DTYPE_TQ1_0, "TQ1_0", 256, 54)                                                               \
    X(DTYPE_TQ2_0, "TQ2_0", 256, 66)                                                               \
    X(DTYPE_MXFP4, "MXFP4", 32, 17)                                                                \
    X(DTYPE_NVFP4, "NVFP4", 64, 36)                                                                \
    X(DTYPE_Q1_0, "Q1_0", 128, 18)

enum dtype {
#define DTYPE_ENUM(id, name, elements, bytes) id,
    DTYPES_PLAIN(DTYPE_ENUM) DTYPES_GGUF(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_COUNT
};

#define DTYPE_PLAIN_COUNT DTYPE_Q4_0

const char *dtype_name(enum dtype dtype);
bool dtype_parse(const char *name, enum dtype *dtype); /* a plain type; false: no such type */

int64_t dtype_block_elements(enum dtype dtype);
int64_t dtype_block_bytes(enum dtype dtype);
/* Of `elements`, a whole number of blocks. */
int64_t dtype_bytes(enum dtype dtype, int64_t elements);

/* Whether this build computes with it: F32, F16, BF16, two of 8 bits and most of GGUF's. */
bool dtype_computes(enum dtype dtype);
#define DTYPES_COMPUTED_TEXT                                                                       \
    "F32, F16, BF16, F8_E4M3, F8_E5M2, and in GGUF files Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, "     \
    "Q3_K, Q4_K, Q5_K, Q6_K"

/* Those of 8 bits that are computed with: codes, with a scale for a whole tensor beside them. */
bool dtype_is_f8(enum dtype dtype);

/* Whether it is one of those computed types whose elements share scales: see quant.h. */
bool dtype_is_quantised(enum dtype dtype);

#endif
