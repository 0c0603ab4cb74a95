/* Folders with all that is in them: made, moved to their place and removed. */
#ifndef BASE_TREE_H
#define BASE_TREE_H

#include "base/error.h"

/* `made` (NULL allowed): whether it was not there before. Its parent must be there. */
enum shoal_status tree_make(const char *path, bool *made, struct shoal_error *error) SHOAL_CHECKED;

/* A new folder whose name is `prefix`, this process's number and ".part". *path is mem_free'd by
 * the caller. */
enum shoal_status tree_make_temporary(
    const char *prefix, char **path, struct shoal_error *error) SHOAL_CHECKED;

/* Gives what is in `from` the place of what is in `to`: a file or folder that is not there yet, or
 * a folder in which files of the same names are replaced. On the same file system. */
enum shoal_status tree_move(
    const char *from, const char *to, struct shoal_error *error) SHOAL_CHECKED;

/* With everything in it; links in it are removed, not followed. */
void tree_remove(const char *path);

/* Only if nothing is in it. */
void tree_remove_empty(const char *path);

/* The path from the root, all links followed; mem_free'd by the caller. */
enum shoal_status tree_real(const char *path, char **real, struct shoal_error *error) SHOAL_CHECKED;

/* Whether both lead to one file or folder. */
bool tree_same(const char *a, const char *b);

/* Whether `path` is, or once it exists will be, somewhere in the folder `folder`. */
bool tree_holds(const char *folder, const char *path);

#endif
