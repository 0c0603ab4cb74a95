/* Where pictures go: checked before anything runs, named when they are written. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "target.h"

enum output_kind {
    OUTPUT_NUMBERED, /* shoal-0001.png and so on in a folder, never replacing a file */
    OUTPUT_FILE,     /* the file that was named; NAME-1.png, NAME-2.png for several pictures */
    OUTPUT_STDOUT,
};

struct output {
    enum output_kind kind;
    const char *path; /* of the file or the folder, "" being the current one */
    int32_t count;
};

/*
 * `path` as the user gave it, or NULL. Fails, having said why, if the pictures could not be
 * written: a missing or read-only folder, something there that is no regular file, another format.
 */
bool output_prepare(const char *path, int32_t count, bool json, struct output *output);

/*
 * True if a picture, or what is printed beside it, could go to the file that `path` leads to, which
 * target_check took; having said so under the name of `option`.
 */
bool output_takes(const struct output *output, const char *option, const char *path);

/* Writes picture `index` and leaves its path in `path`. */
SHOAL_CHECKED enum shoal_status output_write(const struct output *output,
    const struct shoal_result *result, int32_t index, char path[TARGET_PATH_BYTES],
    struct shoal_error *error);

#endif
