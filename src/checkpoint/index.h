/*
 * The index of a sharded checkpoint: which shard each tensor is in. Parsed from memory; opening
 * the shards is checkpoint.c's business.
 */
#ifndef CHECKPOINT_INDEX_H
#define CHECKPOINT_INDEX_H

#include "base/error.h"

struct index_entry {
    const char *tensor;
    size_t shard; /* into index.shards */
};

/* Zero-initialise it; index_fini releases it. */
struct index {
    struct index_entry *entries;
    size_t count;
    const char **shards; /* file names beside the index, sorted, each once */
    size_t shard_count;
    char *text; /* what the names above point into */
};

/* `path` is for messages. On failure *index is left empty. */
enum shoal_status index_parse(const char *path, const char *json, size_t bytes, struct index *index,
    struct shoal_error *error) SHOAL_CHECKED;
void index_fini(struct index *index);

#endif
