/*
 * Failures while threads run: threads that do not start, and reads and allocations that fail under
 * those that do. The sweeps of the other files are thorough; this one is also run under TSan.
 */
#include "fault/sweep.h"

#include <errno.h>

static void sweep_threads(enum stage stage, bool onwards)
{
    sweep_run(&(struct sweep){.stage = stage,
        .fault = {.call = INJECT_THREAD, .code = EAGAIN, .onwards = onwards},
        .failure = SHOAL_E_MEMORY,
        .dense = stage == STAGE_RUN ? INT64_MAX : 6,
        .stride = 9});
}

static void test_threads_that_do_not_start(void **state)
{
    (void)state;
    sweep_threads(STAGE_RUN, false);
    sweep_threads(STAGE_RUN, true);
    sweep_threads(STAGE_STREAM, false);
}

static void test_reads_that_fail(void **state)
{
    (void)state;
    sweep_run(&(struct sweep){.stage = STAGE_RUN,
        .cached = true,
        .fault = {.call = INJECT_READ, .code = EIO},
        .failure = SHOAL_E_IO,
        .dense = 5,
        .stride = 11});
}

static void test_allocations_that_fail(void **state)
{
    (void)state;
    sweep_run(&(struct sweep){.stage = STAGE_RUN,
        .fault = {.call = INJECT_ALLOC, .code = ENOMEM},
        .failure = SHOAL_E_MEMORY,
        .dense = 5,
        .stride = 11});
}

/* Weights that are packed while they are read, and the reading of their samples. */
static void test_packing_while_reading(void **state)
{
    static const struct {
        enum inject_call call;
        int code;
        enum shoal_status failure;
    } calls[] = {{INJECT_THREAD, EAGAIN, SHOAL_E_MEMORY}, {INJECT_ALLOC, ENOMEM, SHOAL_E_MEMORY},
        {INJECT_READ, EIO, SHOAL_E_IO}};

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        sweep_run(&(struct sweep){.stage = STAGE_PACK,
            .fault = {.call = calls[i].call, .code = calls[i].code},
            .failure = calls[i].failure,
            .dense = 25,
            .stride = 29});
}

static void test_packing(void **state)
{
    (void)state;
    for (int onwards = 0; onwards < 2; onwards++)
        sweep_run(&(struct sweep){.stage = STAGE_CONVERT,
            .fault = {.call = INJECT_THREAD, .code = EAGAIN, .onwards = onwards != 0},
            .failure = SHOAL_E_MEMORY,
            .dense = INT64_MAX});
    sweep_run(&(struct sweep){.stage = STAGE_CONVERT,
        .cached = true,
        .fault = {.call = INJECT_READ, .code = EIO},
        .failure = SHOAL_E_IO,
        .dense = 5,
        .stride = 11});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_that_do_not_start),
        cmocka_unit_test(test_reads_that_fail),
        cmocka_unit_test(test_allocations_that_fail),
        cmocka_unit_test(test_packing_while_reading),
        cmocka_unit_test(test_packing),
    };

    return cmocka_run_group_tests(tests, sweep_set_up, sweep_tear_down);
}
