/*
 * Reading files at the drive's speed: many aligned reads under way at once.
 *
 * Reads go past the page cache (O_DIRECT) through io_uring; where the one or the other is missing,
 * through the page cache or through a pool of threads: reader_describe says which. What the page
 * cache holds already is copied from there, by several of the kernel's threads at a time.
 *
 * A reader belongs to one thread; only reader_wake may be called from others. Reads may complete in
 * any order. Buffers must stay valid until their read has been handed out by reader_next, or the
 * reader is destroyed. It keeps the files that it has seen open until it is destroyed.
 *
 * Files that are memory (file_of_memory) are copied from when they are submitted.
 *
 * Buffers in large pages (pages_want_large) are read to much faster by some drives; a few buffers
 * that are used in turn, faster than many.
 */
#ifndef BASE_READER_H
#define BASE_READER_H

#include "base/file.h"

#define READER_ALIGNMENT 4096 /* of offsets, lengths and addresses */

enum reader_backend { READER_AUTO, READER_URING, READER_THREADS };

struct reader;

/*
 * `depth`: reads that may be under way at once, 1..256; more wait their turn inside.
 * SHOAL_E_UNSUPPORTED if a given back end is not to be had; READER_AUTO falls back to threads.
 */
enum shoal_status reader_create(struct reader **reader, enum reader_backend backend, int depth,
    struct shoal_error *error) SHOAL_CHECKED;
/* Waits for what is under way; nothing writes to any buffer after it. */
void reader_destroy(struct reader **reader);

/* "io_uring, direct", "4 threads, direct", "io_uring, cached": as the last read was made. */
const char *reader_describe(const struct reader *reader);

/* One read: `bytes` from `offset` to `to`, all multiples of READER_ALIGNMENT. */
struct read {
    const struct file *file; /* open until the read has been handed out */
    uint64_t offset, bytes;
    void *to;
    uint64_t least; /* bytes that must come, 1..bytes: fewer where the file may end before */
    void *tag;      /* the caller's */

    /* Filled when it is handed out. */
    enum shoal_status status;
    uint64_t begin_ns, end_ns; /* given to the system, and complete */
};

/*
 * Gives a read and does not wait for it. Failures of the reading come with the completion.
 */
enum shoal_status reader_submit(
    struct reader *reader, const struct read *read, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Waits for the next completion and hands it out in *read: true. False: woken by reader_wake, or
 * `wait` is false and nothing has completed. With nothing under way it waits for reader_wake. Only
 * a call that waits uses up a wake, and it does so before it hands anything out. A failed read has
 * read->status set and `error` filled (a short one, EIO: SHOAL_E_IO, naming the file and the
 * offset).
 */
bool reader_next(struct reader *reader, bool wait, struct read *read, struct shoal_error *error);

/* Before the first read: even what lies in the page cache is read from the drive. */
void reader_go_past_cache(struct reader *reader);

/* From any thread: makes the reader's thread return from reader_next, now or the next time. */
void reader_wake(struct reader *reader);

#endif
