/* Threads, locks and a pool for parallel loops. POSIX here; the one place that knows. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>

struct mutex {
    pthread_mutex_t handle;
};

/* For a mutex that lives as long as the process: it needs no mutex_init. */
#define MUTEX_STATIC                                                                               \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER                                                                  \
    }

struct cond {
    pthread_cond_t handle;
};

struct thread {
    pthread_t handle;
};

void mutex_init(struct mutex *mutex);
void mutex_fini(struct mutex *mutex);
void mutex_lock(struct mutex *mutex);
void mutex_unlock(struct mutex *mutex);

void cond_init(struct cond *cond);
void cond_fini(struct cond *cond);
void cond_wait(struct cond *cond, struct mutex *mutex);
/* Waits for `milliseconds` at most. */
void cond_wait_for(struct cond *cond, struct mutex *mutex, int milliseconds);
void cond_wake_all(struct cond *cond);

/* All signals are blocked in the new thread: Ctrl-C belongs to the program's own. */
enum shoal_status thread_start(struct thread *thread, void (*run)(void *arg), void *arg,
    struct shoal_error *error) SHOAL_CHECKED;
void thread_join(struct thread *thread);

/* Lets another thread run, if one waits for the core: for waits that are too short to sleep. */
void thread_yield(void);

/* Cores this process may run on. */
int thread_cores(void);

/*
 * A pool runs parallel loops: pool_run calls body(arg, index, worker) for every index in
 * [0, count), each once, on the caller (worker 0) and on the pool's threads (worker 1 ..
 * pool_workers - 1), and returns when all are done. Indices are handed out in order to whoever is
 * free, so a body must not depend on which worker runs it, except for using that worker's own
 * scratch. One loop at a time.
 */
struct pool;
enum shoal_status pool_create(
    struct pool **pool, int workers, struct shoal_error *error) SHOAL_CHECKED;
void pool_destroy(struct pool **pool);
int pool_workers(const struct pool *pool);
void pool_run(struct pool *pool, int64_t count, void (*body)(void *arg, int64_t index, int worker),
    void *arg);

/* memcpy by all of a pool's workers: one core copies less than the memory gives. */
void pool_copy(struct pool *pool, void *to, const void *from, uint64_t bytes);

#endif
