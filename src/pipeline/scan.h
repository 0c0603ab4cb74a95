/*
 * A tensor's bytes as they are stored, in order, piece by piece, the next pieces being read
 * meanwhile: past the page cache, on the caller's thread.
 */
#ifndef PIPELINE_SCAN_H
#define PIPELINE_SCAN_H

#include "base/reader.h"
#include "checkpoint/checkpoint.h"

#define SCAN_BUFFERS 4

/* Zero-initialise it; used for one tensor after another. */
struct scan {
    struct reader *reader;
    char *buffers[SCAN_BUFFERS];

    const struct checkpoint_tensor *tensor;
    uint64_t begin, end;   /* the pages it lies in, but for the last one's rest */
    uint64_t asked, taken; /* pieces */
    bool here[SCAN_BUFFERS];
};

enum shoal_status scan_init(struct scan *scan, struct shoal_error *error) SHOAL_CHECKED;
void scan_fini(struct scan *scan); /* accepts a zeroed one */

void scan_begin(struct scan *scan, const struct checkpoint_tensor *tensor);

/* The next bytes, valid until the next call; *bytes is 0 at the end. After a failure nothing is to
 * be done with it but scan_fini. */
enum shoal_status scan_next(
    struct scan *scan, const char **data, uint64_t *bytes, struct shoal_error *error) SHOAL_CHECKED;

#endif
