/*
 * One GGUF file, version 2 or 3: a binary header of typed metadata and tensor descriptions, then
 * the tensors' bytes, each at a multiple of the file's alignment.
 *
 * As in safetensors.h nothing here touches tensor bytes, and the parser works on memory. Shapes
 * come out as safetensors has them, rows first, where GGUF stores them the other way round; a
 * tensor that was reshaped to be quantised has its original shape again
 * (comfy.gguf.orig_shape.NAME). Names that llama.cpp gives are replaced: see keys_canonical.
 */
#ifndef CHECKPOINT_GGUF_H
#define CHECKPOINT_GGUF_H

#include "checkpoint/checkpoint.h"

#define GGUF_MAGIC_BYTES 4
/* Ours; the metadata of the largest vocabularies take a tenth of it. */
#define GGUF_MAX_HEADER_BYTES 100000000u

/* Of metadata values, by the format's numbers. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

struct gguf_pair {
    const char *key;
    enum gguf_type type; /* of an array: of its items, which are no arrays */
    bool is_array;
    uint64_t count;   /* items; 1 if it is no array */
    const char *data; /* as stored, in the header */
    const char *text; /* of a single string with a 0 after it, else NULL */
};

/* A checked header. Zero-initialise it; gguf_fini releases it. */
struct gguf {
    struct checkpoint_tensor *tensors; /* sorted by name; .file is NULL */
    size_t count;
    struct gguf_pair *pairs; /* sorted by key */
    size_t pair_count;
    char *text;   /* what keys, names and texts point into */
    char *header; /* gguf_read's own */
    size_t bytes; /* of it */
};

bool gguf_is(const void *start, size_t count);

/*
 * The header's length, from the first `bytes` bytes of a file of `file_bytes`. *more: it goes on
 * beyond them. Whether the values make sense is gguf_parse's business.
 */
enum shoal_status gguf_header_bytes(const char *path, const char *start, size_t bytes,
    uint64_t file_bytes, size_t *header_bytes, bool *more, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Checks a header of `bytes` bytes, which must outlive *parsed. `path` is for messages. On failure
 * *parsed is left empty.
 */
enum shoal_status gguf_parse(const char *path, const char *header, size_t bytes,
    uint64_t file_bytes, struct gguf *parsed, struct shoal_error *error) SHOAL_CHECKED;

/* The same from an open file, within an allowance or NULL; sets every tensor's .file. */
enum shoal_status gguf_read(const struct file *file, struct allowance *allowance,
    struct gguf *parsed, struct shoal_error *error) SHOAL_CHECKED;

void gguf_fini(struct gguf *parsed);

/* NULL: there is none of that key. */
const struct gguf_pair *gguf_find(const struct gguf *parsed, const char *key);

/* Host memory that gguf_value takes for it at the most. */
uint64_t gguf_value_bytes(const struct gguf_pair *pair);

/* The value as JSON, the caller's to json_decref. SHOAL_E_FORMAT: text that is not UTF-8, or a
 * number that is not finite. */
enum shoal_status gguf_value(const char *path, const struct gguf_pair *pair, json_t **value,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
