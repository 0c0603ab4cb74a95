/* Files: opened read-only with their size known, and written so that they appear whole or not at
 * all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

struct file {
    int fd;
    uint64_t bytes;
    int64_t modified_ns, changed_ns;
    uint64_t device, inode;
    uint64_t names;     /* links to it */
    char *path;         /* owned */
    const char *memory; /* where its bytes lie, if it is none on a drive; see file_of_memory */
};

/* Regular files only: a folder, a FIFO or a device is refused by name, without blocking on it. */
enum shoal_status file_open(
    const char *path, struct file *file, struct shoal_error *error) SHOAL_CHECKED;
/* Memory as a file, for messages called `name`: both must outlive it, and it needs no closing. */
struct file file_of_memory(const char *name, const void *memory, uint64_t bytes);
void file_close(struct file *file); /* accepts a zeroed or closed one */

/* Takes its length and its times anew: what was written since belongs to it. */
enum shoal_status file_look_again(struct file *file, struct shoal_error *error) SHOAL_CHECKED;

/* Exactly `bytes` bytes from `offset`; a short read is SHOAL_E_IO. Thread-safe. */
enum shoal_status file_read_at(const struct file *file, uint64_t offset, void *data, uint64_t bytes,
    struct shoal_error *error) SHOAL_CHECKED;

/* SHOAL_E_IO if the file's length, time of modification or time of change is no longer what it was
 * when opened. A name more or less is no change. */
enum shoal_status file_check_unchanged(
    const struct file *file, struct shoal_error *error) SHOAL_CHECKED;

/* Whether both are the same file, unchanged from one to the other. Times alone do not tell: those
 * of two files that are written within a few milliseconds may be the same. */
bool file_same(const struct file *a, const struct file *b);

/* The whole file with a 0 byte after it; at most `limit` bytes. *data is mem_free'd by the caller.
 */
enum shoal_status file_read_all(const char *path, uint64_t limit, char **data, size_t *bytes,
    struct shoal_error *error) SHOAL_CHECKED;

/*
 * Writes a temporary file beside `path` and renames it. Where `path` is a link, the file that it
 * points to is replaced, not the link.
 */
enum shoal_status file_write_whole(
    const char *path, const void *data, size_t bytes, struct shoal_error *error) SHOAL_CHECKED;

/* Accepts that there is none. */
enum shoal_status file_remove(const char *path, struct shoal_error *error) SHOAL_CHECKED;

enum file_kind { FILE_NONE, FILE_REGULAR, FILE_FOLDER, FILE_OTHER };
enum file_kind file_kind(const char *path);

/* Whether the path itself is a link, wherever that leads. */
bool file_is_link(const char *path);

/* What may still be written to a folder's file system; UINT64_MAX if it cannot be told. */
uint64_t file_free_bytes(const char *folder);

/* Names in a folder, sorted, without "." and "..". *names is one mem_free'd block of pointers and
 * text. */
enum shoal_status file_list(
    const char *folder, char ***names, size_t *count, struct shoal_error *error) SHOAL_CHECKED;

#endif
