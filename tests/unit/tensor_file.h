/* Writes small safetensors files for tests. */
#ifndef TESTS_UNIT_TENSOR_FILE_H
#define TESTS_UNIT_TENSOR_FILE_H

#include "base/error.h"
#include "tensor/shape.h"

struct tensor_spec {
    const char *name;
    enum dtype dtype;
    struct shape shape;
};

#define SHAPE1(a)                                                                                  \
    {                                                                                              \
        .rank = 1, .dim = { a }                                                                    \
    }
#define SHAPE2(a, b)                                                                               \
    {                                                                                              \
        .rank = 2, .dim = { a, b }                                                                 \
    }
#define SHAPE4(a, b, c, d)                                                                         \
    {                                                                                              \
        .rank = 4, .dim = { a, b, c, d }                                                           \
    }

/*
 * data[i] holds tensor i's bytes. If data is NULL they are made up: all are i + 1 if `random` is
 * false, else random numbers of a few hundredths (F32 and BF16 only).
 */
enum shoal_status tensor_file_write(const char *path, const struct tensor_spec *tensors,
    size_t count, const void *const *data, bool random, struct shoal_error *error) SHOAL_CHECKED;

#endif
