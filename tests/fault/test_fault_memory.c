/*
 * Every allocation may fail: the library's own, libpng's and PCRE2's, which go through base/memory,
 * and jansson's, which are led here.
 *
 * Of a text that jansson reads it leaves out a character if its buffer cannot grow just then, and
 * says nothing. So where it reads, its own allocations are looked at apart: any failure will do, or
 * another result; and where memory stays short, it says so.
 */
#include "fault/sweep.h"

#include <errno.h>

/* Where there are thousands of allocations, a first run of them and then some. */
static struct sweep memory(enum stage stage)
{
    return (struct sweep){.stage = stage,
        .fault = {.call = INJECT_ALLOC, .code = ENOMEM},
        .failure = SHOAL_E_MEMORY,
        .dense = stage == STAGE_RUN    ? 60
                 : stage == STAGE_PLAN ? 300
                                       : INT64_MAX,
        .stride = stage == STAGE_RUN    ? 13
                  : stage == STAGE_PLAN ? 11
                                        : 1};
}

static void once_and_onwards(enum stage stage, bool jansson)
{
    struct sweep s = memory(stage);

    s.jansson = jansson;
    sweep_run(&s);
    s.fault.onwards = true;
    s.dense = 20;
    s.stride *= 5;
    sweep_run(&s);
}

static void in_jansson(enum stage stage)
{
    struct sweep s = memory(stage);

    s.jansson = true;
    s.fault.onwards = true;
    s.dense = 50;
    s.stride = 331;
    sweep_run(&s);
    s.fault.onwards = false;
    s.failure = SHOAL_OK;
    s.may_change = true;
    s.dense = 100;
    s.stride = 131;
    sweep_run(&s);
}

static void test_open(void **state)
{
    (void)state;
    once_and_onwards(STAGE_OPEN, false);
    in_jansson(STAGE_OPEN);
}

static void test_inspect(void **state)
{
    (void)state;
    once_and_onwards(STAGE_INSPECT, false);
    in_jansson(STAGE_INSPECT);
}

static void test_plan(void **state)
{
    (void)state;
    once_and_onwards(STAGE_PLAN, true);
}

static void test_run(void **state)
{
    (void)state;
    once_and_onwards(STAGE_RUN, true);
}

static void test_write(void **state)
{
    (void)state;
    once_and_onwards(STAGE_WRITE, true);
    once_and_onwards(STAGE_REPLACE, true);
    once_and_onwards(STAGE_TRACE, true);
}

static void test_devices(void **state)
{
    (void)state;
    once_and_onwards(STAGE_DEVICES, true);
}

static void test_packing(void **state)
{
    (void)state;
    for (enum stage stage = STAGE_CONVERT; stage <= STAGE_CACHE; stage++) {
        struct sweep s = memory(stage);

        s.dense = 30;
        s.stride = 37;
        sweep_run(&s);
        s.jansson = true;
        s.fault.onwards = true;
        s.dense = 5;
        s.stride = 997;
        sweep_run(&s);
    }
}

static void test_adapters(void **state)
{
    (void)state;
    for (enum stage stage = STAGE_ADAPT; stage <= STAGE_BAKE; stage++) {
        struct sweep s = memory(stage);

        s.dense = 20;
        s.stride = 197;
        sweep_run(&s);
        s.jansson = true;
        s.fault.onwards = true;
        s.dense = 5;
        s.stride = 661;
        sweep_run(&s);
    }
}

static void test_streaming(void **state)
{
    struct sweep s = memory(STAGE_STREAM);

    (void)state;
    s.dense = 60;
    s.stride = 7;
    sweep_run(&s);
    s.fault.onwards = true;
    s.stride = 29;
    s.dense = 5;
    sweep_run(&s);
}

static void test_store(void **state)
{
    struct sweep s = memory(STAGE_STORE);

    (void)state;
    sweep_run(&s);
    s.fault.onwards = true;
    s.stride = 7;
    s.dense = 5;
    sweep_run(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_store),
    };

    return cmocka_run_group_tests(tests, sweep_set_up, sweep_tear_down);
}
