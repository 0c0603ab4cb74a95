/*
 * One safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes.
 *
 * Nothing here touches tensor bytes, and the parser works on memory, so that it can be fuzzed
 * without files. Several files that make one checkpoint are checkpoint.c's business.
 */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include "checkpoint/checkpoint.h"

#define SAFETENSORS_LENGTH_BYTES 8
#define SAFETENSORS_MAX_HEADER_BYTES 100000000u /* the format's own limit */

struct safetensors_pair {
    const char *key, *value;
};

/* A checked header. Zero-initialise it; safetensors_fini releases it. */
struct safetensors {
    struct checkpoint_tensor *tensors; /* sorted by name; .file is NULL */
    size_t count;
    struct safetensors_pair *metadata; /* in the header's order, less the container's own */
    size_t metadata_count;
    char *text;   /* what the names, keys and values above point into */
    size_t bytes; /* of the header */
};

/* The header's length from the file's first bytes, `count` of them (8 unless it is shorter). */
enum shoal_status safetensors_header_bytes(const char *path, const void *start, size_t count,
    uint64_t file_bytes, size_t *bytes, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Checks a header of `bytes` bytes in a file of `file_bytes` and lists its tensors. `path` is for
 * messages. On failure *parsed is left empty.
 */
enum shoal_status safetensors_parse(const char *path, const char *header, size_t bytes,
    uint64_t file_bytes, struct safetensors *parsed, struct shoal_error *error) SHOAL_CHECKED;

/* The same from an open file, within an allowance or NULL; sets every tensor's .file. */
enum shoal_status safetensors_read(const struct file *file, struct allowance *allowance,
    struct safetensors *parsed, struct shoal_error *error) SHOAL_CHECKED;

void safetensors_fini(struct safetensors *parsed);

#endif
