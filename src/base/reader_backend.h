/*
 * Inside the reader: one read on its way, and what reader.c and its back ends know of each other.
 *
 * A back end begins a request, aims it, reads what it is aimed at, and tells it the result, until
 * request_took says that it is over. How files are opened and what short reads mean is decided in
 * reader.c alone.
 */
#ifndef BASE_READER_BACKEND_H
#define BASE_READER_BACKEND_H

#include "base/reader.h"

/* A file as the reader knows it. */
struct source {
    uint64_t device, inode;
    int fd;              /* the same file opened past the page cache, or -1 */
    _Atomic bool direct; /* fd is there and has not been refused */
    /* The file mapped, and never touched: for asking what the page cache holds. NULL: not asked. */
    void *map;
    uint64_t map_bytes;
    struct source *next;
};

struct request {
    struct read read;
    struct source *source;
    uint64_t done; /* bytes that came, from the read's begin */
    int code;      /* the errno that it failed with, or 0 */
    bool again;    /* the system asked for the same once more */
    /* What it is aimed at. */
    bool direct;
    int fd;
    uint64_t offset, bytes;
    void *to;
    struct request *next;  /* in the queue that it is in */
    struct request *older; /* among all of its reader */
};

void request_begin(struct request *request);
/* Sets what to read next, and past what: not `direct` is what the page cache holds. */
void request_aim(struct request *request);
/* Takes the result, bytes or a negative errno. False: more is needed, aim again. */
bool request_took(struct request *request, int64_t result);

struct request_queue {
    struct request *first, *last;
};

static inline void queue_push(struct request_queue *queue, struct request *request)
{
    request->next = NULL;
    if (queue->first)
        queue->last->next = request;
    else
        queue->first = request;
    queue->last = request;
}

static inline struct request *queue_pop(struct request_queue *queue)
{
    struct request *request = queue->first;

    if (request) queue->first = request->next;
    return request;
}

struct backend {
    void (*submit)(void *state, struct request *request);
    /* NULL: woken, or nothing is complete and `wait` is false. */
    struct request *(*next)(void *state, bool wait);
    void (*wake)(void *state);
    /* Waits for what the system was given; what it was not is dropped. */
    void (*destroy)(void *state);
};

extern const struct backend uring_backend, threads_backend;

/* SHOAL_E_UNSUPPORTED where there is no io_uring. */
enum shoal_status uring_create(void **state, int depth, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status threads_create(
    void **state, int threads, struct shoal_error *error) SHOAL_CHECKED;

#endif
