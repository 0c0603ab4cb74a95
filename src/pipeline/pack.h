/*
 * Writing a checkpoint's tensors to one file, packed or plain, in the order in which a run uses
 * them. docs/formats.md, "The packed container", says what the file looks like. Which files, and
 * what lies beside them, is convert.c's and cache.c's business.
 */
#ifndef PIPELINE_PACK_H
#define PIPELINE_PACK_H

#include "base/thread.h"
#include "base/writer.h"
#include "checkpoint/checkpoint.h"

#include <jansson.h>

struct pack_item {
    const struct checkpoint_tensor *tensor;
    int32_t group; /* the block that uses it; all of a block lie together */
    int32_t order; /* in the group */
    bool packs;    /* worth a try */
};

/* All tensors, in the order in which they shall lie. Zero-initialise it. */
struct pack_list {
    struct pack_item *items;
    size_t count;
    uint64_t bytes; /* of all values */
};

/*
 * Of a model that this build runs the blocks of passes, which stream, are packed, and the rest is
 * left as it is, since its rows may be read one by one. Of others every tensor is that is large
 * enough. `config_path` may be NULL.
 */
enum shoal_status pack_list_init(struct pack_list *list, const struct checkpoint *checkpoint,
    const char *config_path, struct shoal_error *error) SHOAL_CHECKED;
void pack_list_fini(struct pack_list *list);

struct pack_result {
    uint64_t tensors, packed; /* of these */
    uint64_t bytes;           /* of all values */
    uint64_t file_bytes;
};

/* What a writing does beside writing. */
struct pack_work {
    struct pool *pool; /* to encode on */
    bool packed;       /* else plain */
    json_t *metadata;  /* for the header, an object; NULL: none */
    /* Called often, with what was read since the last time. False: SHOAL_E_CANCELLED. */
    bool (*go_on)(void *user, uint64_t read_bytes, uint64_t written_bytes);
    void *user;
};

/*
 * Writes those of the list that lie in `file`, called as they are there, or all (NULL), called as
 * in the checkpoint; and the header. Holds two tensors and a payload in memory at most. The writer
 * is the caller's to commit.
 */
enum shoal_status pack_write(const struct pack_list *list, const struct file *file,
    const struct pack_work *work, struct writer *writer, struct pack_result *result,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
