/*
 * Whole tensors, one after another, read ahead by a thread of its own: past the page cache, with
 * many reads under way, checked, and unpacked if they are packed.
 */
#ifndef PIPELINE_FETCH_H
#define PIPELINE_FETCH_H

#include "base/reader.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"

#define FETCH_BUFFERS 2 /* one that is worked on, one that is being filled */

struct fetch {
    const struct checkpoint_tensor *const *tensors; /* the caller's */
    size_t count;
    struct reader *reader;
    char *stored[FETCH_BUFFERS]; /* pages of the file */
    char *values[FETCH_BUFFERS]; /* of a packed tensor, unpacked */
    uint64_t stored_room, values_room;
    const void *data[FETCH_BUFFERS];
    struct thread thread;
    bool started;

    struct mutex mutex;
    struct cond cond;
    uint64_t ready, taken; /* so many were read, so many given back */
    bool quit;
    enum shoal_status status; /* of reading; no more is read after a failure */
    struct shoal_error error;
};

/* fetch_stop is due, whatever comes of it. */
enum shoal_status fetch_start(struct fetch *fetch, const struct checkpoint_tensor *const *tensors,
    size_t count, struct shoal_error *error) SHOAL_CHECKED;
void fetch_stop(struct fetch *fetch);

/* The next tensor's values, until fetch_give. */
enum shoal_status fetch_take(
    struct fetch *fetch, const void **data, struct shoal_error *error) SHOAL_CHECKED;
void fetch_give(struct fetch *fetch);

#endif
