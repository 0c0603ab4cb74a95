/*
 * A new file that is written piece by piece under a temporary name, and appears under its own when
 * it is whole. A writer that is closed without that leaves nothing.
 */
#ifndef BASE_WRITER_H
#define BASE_WRITER_H

#include "base/file.h"

struct writer {
    int fd;
    char *path;      /* as it was given; owned */
    char *target;    /* where it will be: where `path` is a link, what it points to; owned */
    char *temporary; /* beside the target; NULL: none is there. Owned */
};

/* The temporary is this process's alone; of several writers of one path the last to finish wins. */
enum shoal_status writer_open(
    const char *path, struct writer *writer, struct shoal_error *error) SHOAL_CHECKED;

/*
 * The temporary is locked, and is the path's own: `path`.part. *busy: another process (or another
 * writer of this one) writes it now, and nothing was opened. What a process that died has left of
 * one is written over; anything but a file is refused, without blocking on it.
 */
enum shoal_status writer_open_locked(
    const char *path, struct writer *writer, bool *busy, struct shoal_error *error) SHOAL_CHECKED;

enum shoal_status writer_put(struct writer *writer, uint64_t offset, const void *data,
    uint64_t bytes, struct shoal_error *error) SHOAL_CHECKED;

/* Gives the file its name and closes the writer. `durable`: it is on the drive before that. */
enum shoal_status writer_commit(
    struct writer *writer, bool durable, struct shoal_error *error) SHOAL_CHECKED;

/*
 * A file in `folder` that no name leads to: it is gone when both are closed, however the process
 * ends. `name` is for messages. `file` has nothing in it until writer_commit_nameless.
 */
enum shoal_status writer_open_nameless(const char *folder, const char *name, struct writer *writer,
    struct file *file, struct shoal_error *error) SHOAL_CHECKED;

/* All of it can be read from `file`, and comes from the drive: it has left the page cache. Closes
 * the writer. */
enum shoal_status writer_commit_nameless(
    struct writer *writer, struct file *file, struct shoal_error *error) SHOAL_CHECKED;

/* Removes what was written unless it was committed. Accepts a zeroed or closed one. */
void writer_close(struct writer *writer);

/*
 * Bytes that follow one another, past the page cache where the file system can: what is written
 * once need not push out what is read often. Zero-initialise it.
 */
struct appender {
    struct writer *writer;
    int direct; /* a file descriptor, or -1 */
    char *buffer;
    uint64_t offset; /* of the buffer's bytes in the file */
    size_t used;
};

/* `offset`: of the first byte, a multiple of 4096. */
enum shoal_status appender_init(struct appender *appender, struct writer *writer, uint64_t offset,
    struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status appender_put(struct appender *appender, const void *data, uint64_t bytes,
    struct shoal_error *error) SHOAL_CHECKED;
/* Writes what is still in the buffer; nothing is put after it. */
enum shoal_status appender_finish(
    struct appender *appender, struct shoal_error *error) SHOAL_CHECKED;
void appender_fini(struct appender *appender); /* accepts a zeroed one */

#endif
