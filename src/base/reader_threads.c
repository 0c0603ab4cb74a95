/* The reader's back end where there is no io_uring: threads that each make one read at a time. */
#include "base/reader_backend.h"

#include "base/memory.h"
#include "base/thread.h"

#include <errno.h>
#include <unistd.h>

struct threads {
    struct mutex mutex; /* guards what follows */
    struct cond work, news;
    struct request_queue waiting, complete;
    bool woken, stop;

    int started;
    struct thread *threads;
};

static void make(struct request *request)
{
    ssize_t got;

    request_begin(request);
    do {
        request_aim(request);
        got = pread(request->fd, request->to, (size_t)request->bytes, (off_t)request->offset);
    } while (!request_took(request, got < 0 ? -errno : got));
}

static void run(void *arg)
{
    struct threads *t = arg;

    mutex_lock(&t->mutex);
    while (!t->stop) {
        struct request *request = queue_pop(&t->waiting);

        if (!request) {
            cond_wait(&t->work, &t->mutex);
            continue;
        }
        mutex_unlock(&t->mutex);
        make(request);
        mutex_lock(&t->mutex);
        queue_push(&t->complete, request);
        cond_wake_all(&t->news);
    }
    mutex_unlock(&t->mutex);
}

static void threads_submit(void *state, struct request *request)
{
    struct threads *t = state;

    mutex_lock(&t->mutex);
    queue_push(&t->waiting, request);
    cond_wake_all(&t->work);
    mutex_unlock(&t->mutex);
}

static struct request *threads_next(void *state, bool wait)
{
    struct threads *t = state;
    struct request *request = NULL;

    mutex_lock(&t->mutex);
    /* Only who waits uses up a wake: it cannot be lost to a look in passing. */
    while (!(wait && t->woken) && !(request = queue_pop(&t->complete)) && wait)
        cond_wait(&t->news, &t->mutex);
    if (wait && !request) t->woken = false;
    mutex_unlock(&t->mutex);
    return request;
}

static void threads_wake(void *state)
{
    struct threads *t = state;

    mutex_lock(&t->mutex);
    t->woken = true;
    cond_wake_all(&t->news);
    mutex_unlock(&t->mutex);
}

static void threads_destroy(void *state)
{
    struct threads *t = state;

    mutex_lock(&t->mutex);
    t->stop = true;
    cond_wake_all(&t->work);
    mutex_unlock(&t->mutex);
    for (int i = 0; i < t->started; i++)
        thread_join(&t->threads[i]);
    cond_fini(&t->news);
    cond_fini(&t->work);
    mutex_fini(&t->mutex);
    mem_free(t->threads);
    mem_free(t);
}

enum shoal_status threads_create(void **state, int threads, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    struct threads *t = mem_calloc(1, sizeof *t);

    if (!t) FAIL_MEMORY(error);
    mutex_init(&t->mutex);
    cond_init(&t->work);
    cond_init(&t->news);
    t->threads = mem_calloc((size_t)threads, sizeof *t->threads);
    if (!t->threads) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    while (!status && t->started < threads) {
        status = thread_start(&t->threads[t->started], run, t, error);
        if (!status) t->started++;
    }
    if (status) {
        threads_destroy(t);
        return status;
    }
    *state = t;
    return SHOAL_OK;
}

const struct backend threads_backend = {
    threads_submit, threads_next, threads_wake, threads_destroy};
