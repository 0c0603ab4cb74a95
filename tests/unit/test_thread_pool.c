/* src/base/thread: the pool runs every index once, on its own workers, loop after loop. */
#include "support.h"

#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>

#define MOST 4096

struct tally {
    int workers;
    _Atomic int ran[MOST];
    _Atomic int bad; /* indices or workers out of range */
    int64_t by_worker[16], total;
};

static void count_index(void *arg, int64_t index, int worker)
{
    struct tally *tally = arg;

    if (worker < 0 || worker >= tally->workers || index < 0 || index >= MOST) {
        atomic_fetch_add(&tally->bad, 1);
        return;
    }
    atomic_fetch_add(&tally->ran[index], 1);
    /* Not atomic on purpose: a worker's scratch is its own, and TSan watches. */
    tally->by_worker[worker] += index;
}

static void test_every_index_once(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1000, MOST, -5};
    static struct tally tally;
    struct shoal_error error = {0};

    (void)state;
    for (int workers = 1; workers <= 9; workers += 2) {
        struct pool *pool = NULL;

        assert_ok(pool_create(&pool, workers, &error));
        assert_int_equal(pool_workers(pool), workers);
        for (int round = 0; round < 20; round++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                int64_t count = counts[i] < 0 ? 0 : counts[i];

                memset(&tally, 0, sizeof tally);
                tally.workers = workers;
                pool_run(pool, counts[i], count_index, &tally);
                /* The loop is over and its effects are seen here. */
                for (int64_t k = 0; k < MOST; k++)
                    assert_int_equal(tally.ran[k], k < count);
                for (int k = 0; k < workers; k++)
                    tally.total += tally.by_worker[k];
                assert_int_equal(tally.total, count * (count - 1) / 2);
                assert_int_equal(tally.bad, 0);
            }
        pool_destroy(&pool);
        assert_null(pool);
        pool_destroy(&pool);
    }
}

/* Every byte and no other, whatever the length and the workers. */
static void test_copies(void **state)
{
    static const size_t lengths[] = {0, 1, 4096, 131071, 131072, 131073, 1000003};
    static char from[1000003 + 64], to[sizeof from];
    struct shoal_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)(i * 131 >> 5);
    for (int workers = 1; workers <= 4; workers *= 2) {
        struct pool *pool = NULL;

        assert_ok(pool_create(&pool, workers, &error));
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            memset(to, 0x55, sizeof to);
            pool_copy(pool, to + 3, from + 7, lengths[i]);
            assert_memory_equal(to + 3, from + 7, lengths[i]);
            assert_true(to[2] == 0x55 && to[3 + lengths[i]] == 0x55);
        }
        pool_destroy(&pool);
    }
}

static void test_at_least_one_worker(void **state)
{
    struct shoal_error error = {0};
    struct pool *pool = NULL;

    (void)state;
    assert_ok(pool_create(&pool, 0, &error));
    assert_int_equal(pool_workers(pool), 1);
    pool_destroy(&pool);
    assert_ok(pool_create(&pool, -3, &error));
    assert_int_equal(pool_workers(pool), 1);
    pool_destroy(&pool);
    assert_true(thread_cores() >= 1);
}

/* Created and destroyed without work, as an early failure does. */
static void test_short_lives(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    for (int i = 0; i < 100; i++) {
        struct pool *pool = NULL;

        assert_ok(pool_create(&pool, 1 + i % 5, &error));
        pool_destroy(&pool);
    }
}

static void find_blocked(void *arg)
{
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    *(int *)arg = sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGTERM);
}

static void test_threads_leave_signals_alone(void **state)
{
    struct shoal_error error = {0};
    struct thread thread;
    sigset_t own;
    int blocked = 0;

    (void)state;
    assert_ok(thread_start(&thread, find_blocked, &blocked, &error));
    thread_join(&thread);
    assert_true(blocked);
    pthread_sigmask(SIG_SETMASK, NULL, &own);
    assert_false(sigismember(&own, SIGINT));
}

struct handover {
    struct mutex mutex;
    struct cond cond;
    int turn, sum;
};

static void take_turns(void *arg)
{
    struct handover *h = arg;

    for (int i = 0; i < 1000; i++) {
        mutex_lock(&h->mutex);
        while (h->turn != 1)
            cond_wait(&h->cond, &h->mutex);
        h->sum += i;
        h->turn = 0;
        cond_wake_all(&h->cond);
        mutex_unlock(&h->mutex);
    }
}

static void test_handover(void **state)
{
    struct shoal_error error = {0};
    struct handover h = {.sum = 0};
    struct thread thread;

    (void)state;
    mutex_init(&h.mutex);
    cond_init(&h.cond);
    assert_ok(thread_start(&thread, take_turns, &h, &error));
    for (int i = 0; i < 1000; i++) {
        mutex_lock(&h.mutex);
        while (h.turn != 0)
            cond_wait(&h.cond, &h.mutex);
        h.turn = 1;
        cond_wake_all(&h.cond);
        mutex_unlock(&h.mutex);
    }
    thread_join(&thread);
    assert_int_equal(h.sum, 999 * 1000 / 2);
    cond_fini(&h.cond);
    mutex_fini(&h.mutex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_once),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_at_least_one_worker),
        cmocka_unit_test(test_short_lives),
        cmocka_unit_test(test_threads_leave_signals_alone),
        cmocka_unit_test(test_handover),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
