/* Threads over pthreads, and the pool. */
#include "base/thread.h"

#include "base/memory.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void mutex_init(struct mutex *mutex)
{
    pthread_mutex_init(&mutex->handle, NULL);
}
void mutex_fini(struct mutex *mutex)
{
    pthread_mutex_destroy(&mutex->handle);
}
void mutex_lock(struct mutex *mutex)
{
    pthread_mutex_lock(&mutex->handle);
}
void mutex_unlock(struct mutex *mutex)
{
    pthread_mutex_unlock(&mutex->handle);
}
void cond_init(struct cond *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cond->handle, &attributes);
    pthread_condattr_destroy(&attributes);
}
void cond_fini(struct cond *cond)
{
    pthread_cond_destroy(&cond->handle);
}
void cond_wake_all(struct cond *cond)
{
    pthread_cond_broadcast(&cond->handle);
}

void cond_wait(struct cond *cond, struct mutex *mutex)
{
    pthread_cond_wait(&cond->handle, &mutex->handle);
}

void cond_wait_for(struct cond *cond, struct mutex *mutex, int milliseconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&cond->handle, &mutex->handle, &until);
}

struct start {
    void (*run)(void *arg);
    void *arg;
};

static void *thread_main(void *arg)
{
    struct start start = *(struct start *)arg;

    mem_free(arg);
    start.run(start.arg);
    return NULL;
}

enum shoal_status thread_start(
    struct thread *thread, void (*run)(void *arg), void *arg, struct shoal_error *error)
{
    struct start *start = mem_alloc(sizeof *start);
    sigset_t all, old;
    int code;

    if (!start) FAIL_MEMORY(error);
    *start = (struct start){run, arg};
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    code = pthread_create(&thread->handle, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code) {
        mem_free(start);
        FAIL(error, SHOAL_E_MEMORY, "could not start a thread: %s", strerror(code));
    }
    return SHOAL_OK;
}

void thread_join(struct thread *thread)
{
    pthread_join(thread->handle, NULL);
}

void thread_yield(void)
{
    sched_yield();
}

int thread_cores(void)
{
    cpu_set_t set;
    long online;

    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* ---- the pool ---- */

/*
 * A loop is open from when it is given until the caller has run out of indices; a thread that wakes
 * up too late for it goes back to sleep, and is not waited for. Before sleeping a thread looks for
 * the next loop for a while, because a model gives thousands of short loops in a row and waking up
 * costs more than most of them.
 */
struct pool {
    int workers, started; /* `started` threads besides the caller */
    struct thread *threads;
    struct mutex mutex;
    struct cond wake, done;
    _Atomic uint64_t generation; /* of the latest loop; written under mutex */
    bool open, stop;             /* guarded by mutex */
    _Atomic int inside;          /* threads in the loop; written under mutex */
    _Atomic int next_worker;
    _Atomic int64_t next;
    int64_t count;
    void (*body)(void *arg, int64_t index, int worker);
    void *arg;
};

#define LOOKS 2000 /* before sleeping: a tenth of a millisecond or less */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(struct pool *pool, int worker)
{
    for (;;) {
        int64_t index = atomic_fetch_add(&pool->next, 1);

        if (index >= pool->count) return;
        pool->body(pool->arg, index, worker);
    }
}

static void pool_thread(void *arg)
{
    struct pool *pool = arg;
    int worker = atomic_fetch_add(&pool->next_worker, 1);
    uint64_t seen = 0;

    mutex_lock(&pool->mutex);
    for (;;) {
        mutex_unlock(&pool->mutex);
        for (int i = 0; i < LOOKS && atomic_load(&pool->generation) == seen; i++)
            relax();
        mutex_lock(&pool->mutex);
        while (!pool->stop && (!pool->open || atomic_load(&pool->generation) == seen))
            cond_wait(&pool->wake, &pool->mutex);
        if (pool->stop) break;
        seen = atomic_load(&pool->generation);
        atomic_fetch_add(&pool->inside, 1);
        mutex_unlock(&pool->mutex);
        work(pool, worker);
        mutex_lock(&pool->mutex);
        if (atomic_fetch_sub(&pool->inside, 1) == 1) cond_wake_all(&pool->done);
    }
    mutex_unlock(&pool->mutex);
}

enum shoal_status pool_create(struct pool **pool, int workers, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    struct pool *p = mem_calloc(1, sizeof *p);

    if (!p) FAIL_MEMORY(error);
    mutex_init(&p->mutex);
    cond_init(&p->wake);
    cond_init(&p->done);
    p->workers = workers < 1 ? 1 : workers;
    atomic_init(&p->next_worker, 1);
    p->threads = mem_calloc((size_t)p->workers, sizeof *p->threads);
    if (!p->threads) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    while (!status && p->started < p->workers - 1) {
        status = thread_start(&p->threads[p->started], pool_thread, p, error);
        if (!status) p->started++;
    }
    if (status) pool_destroy(&p);
    *pool = p;
    return status;
}

void pool_destroy(struct pool **pool)
{
    struct pool *p = *pool;

    if (!p) return;
    mutex_lock(&p->mutex);
    p->stop = true;
    cond_wake_all(&p->wake);
    mutex_unlock(&p->mutex);
    for (int i = 0; i < p->started; i++)
        thread_join(&p->threads[i]);
    mem_free(p->threads);
    cond_fini(&p->done);
    cond_fini(&p->wake);
    mutex_fini(&p->mutex);
    mem_free(p);
    *pool = NULL;
}

int pool_workers(const struct pool *pool)
{
    return pool->workers;
}

void pool_run(
    struct pool *pool, int64_t count, void (*body)(void *arg, int64_t index, int worker), void *arg)
{
    bool shared = count > 1 && pool->started;

    if (count <= 0) return;
    if (!shared) {
        for (int64_t i = 0; i < count; i++)
            body(arg, i, 0);
        return;
    }
    mutex_lock(&pool->mutex);
    pool->count = count;
    pool->body = body;
    pool->arg = arg;
    atomic_store(&pool->next, 0);
    pool->open = true;
    atomic_fetch_add(&pool->generation, 1);
    cond_wake_all(&pool->wake);
    mutex_unlock(&pool->mutex);
    work(pool, 0);
    mutex_lock(&pool->mutex);
    pool->open = false;
    mutex_unlock(&pool->mutex);
    for (int i = 0; i < LOOKS && atomic_load(&pool->inside); i++)
        relax();
    mutex_lock(&pool->mutex);
    while (atomic_load(&pool->inside))
        cond_wait(&pool->done, &pool->mutex);
    mutex_unlock(&pool->mutex);
}

/* Long enough that handing one out takes no time beside it, and short of what memcpy writes past
 * the caches: a ring that they hold is read from there. */
#define PIECE_BYTES ((uint64_t)128 << 10)

struct pool_copying {
    char *to;
    const char *from;
    uint64_t bytes;
};

static void copy_piece(void *arg, int64_t index, int worker)
{
    const struct pool_copying *c = arg;
    const uint64_t at = (uint64_t)index * PIECE_BYTES, left = c->bytes - at;

    (void)worker;
    memcpy(c->to + at, c->from + at, left < PIECE_BYTES ? left : PIECE_BYTES);
}

void pool_copy(struct pool *pool, void *to, const void *from, uint64_t bytes)
{
    struct pool_copying c = {to, from, bytes};

    pool_run(pool, (int64_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES), copy_piece, &c);
}
