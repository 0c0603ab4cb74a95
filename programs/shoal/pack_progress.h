/* Progress of packing on standard error, and what came of each part. */
#ifndef PACK_PROGRESS_H
#define PACK_PROGRESS_H

#include "cli.h"

struct pack_progress {
    bool terminal;
    double drawn_at; /* seconds of the run */
    bool quiet;      /* parts are said on standard error */
    FILE *json;      /* else, if not NULL, as elements of a JSON array here */
    int parts;
    uint64_t bytes, written_bytes; /* of all parts */
    double seconds;
};

void pack_progress_start(struct pack_progress *progress, FILE *json, bool quiet);

/* The callbacks for shoal_convert and shoal_cache_prepare; `user` is a struct pack_progress. */
void pack_progress_update(void *user, const struct shoal_pack_progress *now);
void pack_progress_written(void *user, const struct shoal_packed_part *part);
void pack_progress_waiting(void *user, const char *path);

#endif
