/*
 * Making calls to the system fail, one by one, in a library that knows nothing of it: the linker
 * puts the functions of inject.c between the library and the C library (--wrap, see meson.build).
 *
 * Between inject_begin and inject_end calls are counted by kind, the one that was asked for fails,
 * and what is allocated, opened or started is remembered until it is given back; what is still
 * there at the end was lost. Counting is exact if one thread makes the calls, near if several do.
 */
#ifndef TESTS_FAULT_INJECT_H
#define TESTS_FAULT_INJECT_H

#include <stdbool.h>
#include <stdint.h>

enum inject_call {
    INJECT_ALLOC,  /* malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap */
    INJECT_THREAD, /* pthread_create */
    INJECT_OPEN,   /* open, opendir */
    INJECT_LOOK,   /* stat, lstat, fstat, realpath */
    INJECT_READ,   /* read, pread, and reads given to io_uring */
    INJECT_WRITE,  /* write, pwrite, ftruncate, posix_fallocate */
    INJECT_SYNC,   /* fsync, fdatasync */
    INJECT_CLOSE,  /* close: closed all the same */
    INJECT_RENAME, /* rename, link, mkdir */
    INJECT_CALLS
};

enum inject_how {
    INJECT_ERROR,   /* it fails with `code` */
    INJECT_SHORT,   /* reads and writes: half of the bytes, which is legal */
    INJECT_NOTHING, /* reads: 0 bytes, as at a file's end */
};

struct inject_fault {
    enum inject_call call;
    int64_t at;   /* the call that fails, counted from 1 */
    bool onwards; /* and all after it */
    enum inject_how how;
    int code; /* an errno */
};

/* What can be lost. */
enum inject_thing {
    INJECT_MEMORY,
    INJECT_PAGES,
    INJECT_FILES,
    INJECT_FOLDERS,
    INJECT_THREADS,
    INJECT_THINGS
};

struct inject_report {
    int64_t calls[INJECT_CALLS];
    int64_t hits;                /* calls that failed */
    int64_t lost[INJECT_THINGS]; /* taken and not given back */
};

/* NULL: nothing fails, it is only counted. */
void inject_begin(const struct inject_fault *fault);
/* From here on nothing fails or is counted; what is given back still counts as given back. */
void inject_pause(void);
struct inject_report inject_end(void);

/*
 * How files are read between begin and end. `uring`: io_uring is to be had; else reads are made by
 * threads. `cached`: the page cache is asked first; else it has nothing. Both false at first.
 */
void inject_reading(bool uring, bool cached);

/* jansson allocates in its own library, out of the linker's reach: whether it does so through here.
 */
void inject_into_jansson(bool on);

const char *inject_call_name(enum inject_call call);

#endif
