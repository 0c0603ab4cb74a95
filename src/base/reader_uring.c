/*
 * The reader's back end over io_uring: all reads are given to the kernel by the reader's thread,
 * which also waits for them. No threads. A wake is a read of an eventfd in the same ring.
 */
#include "base/reader_backend.h"

#ifndef SHOAL_URING

enum shoal_status uring_create(void **state, int depth, struct shoal_error *error)
{
    (void)state, (void)depth;
    FAIL(error, SHOAL_E_UNSUPPORTED, "built without io_uring: read through threads");
}

const struct backend uring_backend = {0};

#else

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct uring {
    struct io_uring ring;
    int depth, under_way; /* under_way: in the ring */
    struct request_queue waiting, complete;
    int code;            /* the errno with which the kernel refuses more reads, or 0 */
    uint64_t refused_ns; /* since when it says that it has too little, and does nothing; 0: not */

    int event;
    uint64_t count; /* of wakes; where the eventfd is read to */
    bool armed;     /* the eventfd's read is in the ring */
    bool woken;
};

/*
 * Rings are made and dropped one at a time: the next one may be mapped where the last one was, and
 * a race detector, which sees no system call of liburing, learns their order from this lock.
 */
static struct mutex mapping = MUTEX_STATIC;

static int map_ring(struct uring *u, struct io_uring_params *params)
{
    int code;

    mutex_lock(&mapping);
    code = -io_uring_queue_init_params((unsigned)u->depth + 1, &u->ring, params);
    mutex_unlock(&mapping);
    return code;
}

static void unmap_ring(struct uring *u)
{
    mutex_lock(&mapping);
    io_uring_queue_exit(&u->ring);
    mutex_unlock(&mapping);
}

/* How long the kernel may say that it has too little, before the ring is made and later. */
#define TRY_NS ((uint64_t)100000000)
#define PATIENCE_NS ((uint64_t)3000000000)

static const struct timespec moment = {.tv_nsec = 1000000};

/* What the kernel may say when it has too little at the moment; what is queued goes later. */
static bool passes(int code)
{
    return code == EINTR || code == EAGAIN || code == EBUSY || code == ENOMEM;
}

static struct io_uring_sqe *queued_at(const struct uring *u, unsigned index)
{
    return &u->ring.sq.sqes[(u->ring.sq.sqe_tail - 1 - index) & *u->ring.sq.kring_mask];
}

/* The reads that are queued for the kernel, which has not taken them. */
static int count_queued(const struct uring *u)
{
    int count = 0;

    for (unsigned i = 0; i < io_uring_sq_ready(&u->ring); i++)
        count += queued_at(u, i)->user_data != 0;
    return count;
}

static void fail_request(struct uring *u, struct request *request)
{
    request->code = u->code;
    request->read.end_ns = clock_ns();
    u->under_way--;
    queue_push(&u->complete, request);
}

/* From here on the kernel is asked for nothing more. What it has not taken, it never will. */
static void give_up(struct uring *u, int code)
{
    u->code = code;
    for (unsigned i = io_uring_sq_ready(&u->ring); i-- > 0;) {
        struct request *request = (struct request *)(uintptr_t)queued_at(u, i)->user_data;

        if (request)
            fail_request(u, request);
        else
            u->armed = false;
    }
    /* No wake can arrive: nobody may be left waiting for one. */
    if (!u->armed) u->woken = true;
}

/*
 * What came of asking the kernel. It may have too little for a while, but not for ever: where none
 * of the reads under way are the kernel's, none will end, and what it lacks will not come of them.
 */
static void hear(struct uring *u, int result)
{
    if (result >= 0 || result == -EINTR || u->under_way > count_queued(u))
        u->refused_ns = 0;
    else if (!u->refused_ns)
        u->refused_ns = clock_ns();
    if (result < 0 &&
        (!passes(-result) || (u->refused_ns && clock_ns() - u->refused_ns > PATIENCE_NS)))
        give_up(u, -result);
}

/* Gives a read to the kernel. A place is free: the ring has one for each read and for the wake. */
static void give(
    struct uring *u, int fd, void *to, uint64_t bytes, uint64_t offset, struct request *request)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    io_uring_prep_read(sqe, fd, to, (unsigned)bytes, offset);
    io_uring_sqe_set_data(sqe, request);
    /*
     * What the page cache holds, or could not be begun at once, is read by the kernel's own
     * threads: several copy at a time, where it would be copied, or even waited for, right here.
     */
    if (request && (!request->direct || request->again)) sqe->flags |= IOSQE_ASYNC;
    hear(u, io_uring_submit(&u->ring));
}

static void arm(struct uring *u)
{
    u->woken = u->code != 0; /* where no wake can arrive any more */
    u->armed = !u->code;
    if (u->armed) give(u, u->event, &u->count, sizeof u->count, 0, NULL);
}

/* The next of a request's reads. */
static void advance(struct uring *u, struct request *request)
{
    if (u->code) {
        fail_request(u, request);
        return;
    }
    request_aim(request);
    give(u, request->fd, request->to, request->bytes, request->offset, request);
}

/* Begins what waits while there is room. */
static void begin(struct uring *u)
{
    while (u->waiting.first && u->under_way < u->depth) {
        struct request *request = queue_pop(&u->waiting);

        request_begin(request);
        u->under_way++;
        advance(u, request);
    }
}

/* What the kernel makes no thread for (a user may have only so many) is read by this one. */
static int64_t read_here(const struct request *request)
{
    ssize_t got = pread(request->fd, request->to, (size_t)request->bytes, (off_t)request->offset);

    return got < 0 ? -errno : got;
}

/* Takes what is complete out of the ring. */
static void reap(struct uring *u)
{
    struct io_uring_cqe *cqe;

    while (!io_uring_peek_cqe(&u->ring, &cqe)) {
        struct request *request = io_uring_cqe_get_data(cqe);
        int64_t result = cqe->res;

        io_uring_cqe_seen(&u->ring, cqe);
        if (request && result == -ECANCELED) result = read_here(request);
        if (!request) {
            u->armed = false;
            u->woken = true;
        } else if (request_took(request, result)) {
            u->under_way--;
            queue_push(&u->complete, request);
        } else {
            advance(u, request);
        }
    }
}

static void wait_for_news(struct uring *u)
{
    int result = u->code ? -u->code : io_uring_submit_and_wait(&u->ring, 1);

    if (!u->code) hear(u, result);
    /* What the kernel has already completes all the same. */
    if (result < 0 && result != -EINTR) nanosleep(&moment, NULL);
}

static void uring_submit(void *state, struct request *request)
{
    struct uring *u = state;

    queue_push(&u->waiting, request);
    begin(u);
}

static struct request *uring_next(void *state, bool wait)
{
    struct uring *u = state;

    for (;;) {
        struct request *request;

        reap(u);
        begin(u);
        /* Only who waits uses up a wake: it cannot be lost to a look in passing. */
        if (wait && u->woken) {
            arm(u);
            return NULL;
        }
        request = queue_pop(&u->complete);
        if (request || !wait) return request;
        wait_for_news(u);
    }
}

static void uring_wake(void *state)
{
    struct uring *u = state;
    uint64_t one = 1;

    /* An eventfd takes 2^64 - 2 wakes before it refuses one, and then it has many to tell of. */
    while (write(u->event, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void uring_destroy(void *state)
{
    struct uring *u = state;

    /* The eventfd's read writes to memory too: it is made to end. */
    uring_wake(u);
    u->waiting.first = NULL;
    if (!u->code && io_uring_sq_ready(&u->ring)) give_up(u, ECANCELED);
    reap(u);
    while (u->under_way || u->armed) {
        wait_for_news(u);
        reap(u);
    }
    unmap_ring(u);
    close(u->event);
    mem_free(u);
}

/* Gives the kernel the eventfd's read: an errno if it cannot be had from it. */
static int arm_first(struct uring *u)
{
    const uint64_t begin = clock_ns();

    arm(u);
    while (!u->code && io_uring_sq_ready(&u->ring) && clock_ns() - begin < TRY_NS) {
        nanosleep(&moment, NULL);
        hear(u, io_uring_submit(&u->ring));
    }
    if (!u->code && io_uring_sq_ready(&u->ring)) give_up(u, EAGAIN);
    return u->code;
}

enum shoal_status uring_create(void **state, int depth, struct shoal_error *error)
{
    struct io_uring_params params = {0};
    struct uring *u = mem_calloc(1, sizeof *u);
    int code;

    if (!u) FAIL_MEMORY(error);
    u->depth = depth;
    u->event = eventfd(0, EFD_CLOEXEC);
    code = u->event < 0 ? errno : map_ring(u, &params);
    if (!code) {
        /* Before it an eventfd's read would hold a thread, and be hard to end. */
        code = params.features & IORING_FEAT_FAST_POLL ? arm_first(u) : ENOSYS;
        if (code) unmap_ring(u);
    }
    if (code) {
        if (u->event >= 0) close(u->event);
        mem_free(u);
        FAIL(error, SHOAL_E_UNSUPPORTED, "the system refuses io_uring (%s): read through threads",
            strerror(code));
    }
    *state = u;
    return SHOAL_OK;
}

const struct backend uring_backend = {uring_submit, uring_next, uring_wake, uring_destroy};

#endif
