/*
 * Every call about files may fail: opening, looking, reading, writing, closing, renaming. What is
 * legal (short reads and writes, interruptions) must make no difference.
 */
#include "fault/sweep.h"

#include <errno.h>

static bool uring; /* weights are read through it, where there is one */

static void sweep(enum stage stage, struct inject_fault fault, bool harmless)
{
    sweep_run(&(struct sweep){.stage = stage,
        .uring = uring,
        .fault = fault,
        .harmless = harmless,
        .failure = SHOAL_E_IO,
        /* A file that cannot be read is described as such. */
        .may_change = stage == STAGE_INSPECT,
        .dense = stage == STAGE_RUN ? 25 : INT64_MAX,
        .stride = 17});
}

static void sweep_error(enum stage stage, enum inject_call call, int code)
{
    sweep(stage, (struct inject_fault){.call = call, .code = code}, false);
}

/* What cannot be looked at may be told as missing. */
static void sweep_looks(enum stage stage)
{
    sweep_run(&(struct sweep){.stage = stage,
        .fault = {.call = INJECT_LOOK, .code = EIO},
        .may_change = stage == STAGE_INSPECT,
        .dense = INT64_MAX});
}

static void sweep_reads(enum stage stage)
{
    sweep_error(stage, INJECT_READ, EIO);
    sweep(stage, (struct inject_fault){.call = INJECT_READ, .how = INJECT_NOTHING}, false);
    sweep(stage, (struct inject_fault){.call = INJECT_READ, .how = INJECT_SHORT}, true);
    /* The kernel cannot be made to be interrupted. */
    if (!uring) sweep(stage, (struct inject_fault){.call = INJECT_READ, .code = EINTR}, true);
}

static void test_reading_headers(void **state)
{
    (void)state;
    for (enum stage stage = STAGE_OPEN; stage <= STAGE_INSPECT; stage++) {
        sweep_error(stage, INJECT_OPEN, EMFILE);
        sweep_looks(stage);
        sweep_reads(stage);
        sweep(stage, (struct inject_fault){.call = INJECT_CLOSE, .code = EIO}, true);
    }
}

static void test_reading_weights(void **state)
{
    (void)state;
    sweep_error(STAGE_RUN, INJECT_OPEN, EMFILE);
    sweep_error(STAGE_RUN, INJECT_LOOK, EIO);
    sweep_reads(STAGE_RUN);
}

static void test_reading_through_io_uring(void **state)
{
    (void)state;
    uring = true;
    sweep_reads(STAGE_RUN);
    uring = false;
}

static void test_writing(void **state)
{
    (void)state;
    for (enum stage stage = STAGE_WRITE; stage <= STAGE_TRACE; stage++) {
        if (stage == STAGE_DEVICES) continue;
        sweep_error(stage, INJECT_OPEN, EACCES);
        sweep_error(stage, INJECT_LOOK, EIO);
        sweep_error(stage, INJECT_WRITE, ENOSPC);
        sweep(stage, (struct inject_fault){.call = INJECT_WRITE, .how = INJECT_SHORT}, true);
        sweep(stage, (struct inject_fault){.call = INJECT_WRITE, .code = EINTR}, true);
        sweep_error(stage, INJECT_SYNC, EIO);
        sweep_error(stage, INJECT_CLOSE, EIO);
        sweep_error(stage, INJECT_RENAME, EIO);
    }
}

static void sweep_packing(enum stage stage, struct inject_fault fault, bool harmless, bool any)
{
    sweep_run(&(struct sweep){.stage = stage,
        .fault = fault,
        .harmless = harmless,
        .failure = any ? SHOAL_OK : SHOAL_E_IO,
        .dense = 12,
        .stride = 41});
}

static void test_packing(void **state)
{
    (void)state;
    for (enum stage stage = STAGE_CONVERT; stage <= STAGE_CACHE; stage++) {
        for (enum inject_call call = INJECT_OPEN; call <= INJECT_RENAME; call++)
            sweep_packing(stage,
                (struct inject_fault){.call = call, .code = call == INJECT_WRITE ? ENOSPC : EIO},
                false, call == INJECT_LOOK);
        sweep_packing(
            stage, (struct inject_fault){.call = INJECT_WRITE, .how = INJECT_SHORT}, true, false);
        sweep_packing(
            stage, (struct inject_fault){.call = INJECT_READ, .how = INJECT_SHORT}, true, false);
    }
}

static void test_streaming(void **state)
{
    (void)state;
    for (enum inject_call call = INJECT_OPEN; call <= INJECT_CLOSE; call++)
        sweep_packing(STAGE_STREAM,
            (struct inject_fault){.call = call, .code = call == INJECT_WRITE ? ENOSPC : EIO}, false,
            false);
    sweep_packing(STAGE_STREAM, (struct inject_fault){.call = INJECT_WRITE, .how = INJECT_SHORT},
        true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading_headers),
        cmocka_unit_test(test_reading_weights),
        cmocka_unit_test(test_reading_through_io_uring),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_streaming),
    };

    return cmocka_run_group_tests(tests, sweep_set_up, sweep_tear_down);
}
