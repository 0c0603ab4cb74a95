/* Writes small GGUF files for tests, whole and broken. */
#ifndef TESTS_UNIT_GGUF_FILE_H
#define TESTS_UNIT_GGUF_FILE_H

#include "base/error.h"
#include "checkpoint/gguf.h"

struct gguf_bytes {
    char *data;
    size_t used, room;
};

/* Zero-initialise it; gguf_file_bytes leaves it zeroed. Running out of memory ends the program. */
struct gguf_file {
    struct gguf_bytes pairs, infos, data;
    uint64_t pair_count, tensor_count;
};

void gguf_put_number(struct gguf_bytes *to, uint64_t value, int bytes); /* little-endian */
void gguf_put_text(struct gguf_bytes *to, const char *text);            /* length, then text */

/* Metadata. `bits`: of the value, as many as the type has. */
void gguf_file_scalar(struct gguf_file *f, const char *key, enum gguf_type type, uint64_t bits);
void gguf_file_f32(struct gguf_file *f, const char *key, float value);
void gguf_file_string(struct gguf_file *f, const char *key, const char *value);
void gguf_file_i32s(struct gguf_file *f, const char *key, const int32_t *values, size_t count);

/* `number`: the format's of its type. The shape is rows first; `data` may be NULL: zeros. */
void gguf_file_tensor(struct gguf_file *f, const char *name, uint32_t number, enum dtype dtype,
    struct shape shape, const void *data);

/* The file's bytes, free()d by the caller. */
char *gguf_file_bytes(struct gguf_file *f, size_t *bytes);
enum shoal_status gguf_file_write(
    struct gguf_file *f, const char *path, struct shoal_error *error) SHOAL_CHECKED;

/* The format's number of a computed type. */
uint32_t gguf_number(enum dtype dtype);

/*
 * `count` values, whole blocks, in F32, F16, BF16, Q8_0, Q4_0 or Q5_1. For any other type random
 * bits with finite scales, which say nothing of `from`.
 */
void gguf_quantise(void *to, enum dtype dtype, const float *from, int64_t count);

#endif
