/*
 * The packed container: a safetensors file in which tensors may be payloads of the lossless wire.
 * docs/formats.md, "The packed container". Here are the marks in its header by which they are
 * known; pipeline/pack.c writes such files.
 */
#ifndef CHECKPOINT_CONTAINER_H
#define CHECKPOINT_CONTAINER_H

#include "checkpoint/checkpoint.h"

#include <jansson.h>

#define CONTAINER_KEY                                                                              \
    "shoal.wire" /* of the version; with a '.' and its name, of a tensor's mark                    \
                  */
#define CONTAINER_VERSION "1"
#define CONTAINER_BLOCK_BYTES 4096 /* blocks begin on multiples, in the file */

/* Whether a key of __metadata__ is the container's own. */
bool container_owns(const char *key);

/*
 * Reads the marks, if the file is such a container: gives packed tensors their real types and
 * shapes, and each its checksum. `tensors` are checked as a plain file's, sorted by name, and lie
 * where the file says.
 */
enum shoal_status container_read(const char *path, json_t *metadata,
    struct checkpoint_tensor *tensors, size_t count, struct shoal_error *error) SHOAL_CHECKED;

/* A tensor in a file that is being made. */
struct container_entry {
    const struct checkpoint_tensor *tensor; /* its name, type and shape */
    bool unprefixed;                        /* the name less its prefix_bytes */
    bool packed;
    uint64_t offset;       /* from the first byte after the header */
    uint64_t bytes;        /* in the file, with what follows a payload */
    uint64_t stored_bytes; /* the payload's, or the same */
    uint64_t checksum;     /* of those */
};

/*
 * The header of a file with these tensors: JSON, in the order given. `marked`: it is a container.
 * Takes `metadata`, an object of what else it shall say (NULL: nothing). NULL when out of memory;
 * else mem_free'd by the caller.
 */
char *container_header(
    const struct container_entry *entries, size_t count, json_t *metadata, bool marked);

/* The most bytes that it can take, whatever the offsets, sizes and checksums; 0: out of memory. */
size_t container_header_bound(
    const struct container_entry *entries, size_t count, json_t *metadata);

#endif
