/* Files that the program writes: whether they may be, and that they appear whole or not at all. */
#ifndef TARGET_H
#define TARGET_H

#include "cli.h"

#define TARGET_PATH_BYTES 4096

/* What a target may replace: a file of its own kind, told by what is near its beginning. */
enum target_kind { TARGET_PNG, TARGET_TRACE, TARGET_SVG, TARGET_RATES };

/*
 * Each fails, having said why under the name of `option`, if a file could not be written there: a
 * missing or read-only folder, something there that is no regular file, a device, a file of another
 * kind. A slip of the keyboard must not cost a model.
 */
bool target_check(const char *option, enum target_kind kind, const char *path);
bool target_check_folder(const char *option, const char *folder);

/*
 * True if both paths lead to one file: the one that is there, or the one that would be made. Of
 * paths that target_check took.
 */
bool target_same(const char *a, const char *b);

/* True if `path` lies in `folder`, which is there. */
bool target_in_folder(const char *path, const char *folder);

/*
 * Writes a temporary file beside `path` and renames it; of a link, the file that it points to is
 * replaced. False, having said why.
 */
bool target_write(const char *path, const void *data, size_t bytes);

/* The part after the last slash. */
const char *target_base_name(const char *path);

/* Prints into `path`; false if it does not fit. */
bool target_name(char path[TARGET_PATH_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
