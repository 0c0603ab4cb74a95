/* Ranges for profilers: what a library that listens hears of a run, and of one that is cancelled.
 */
#include "fault/scenario.h"

#include "base/profile.h"
#include "unit/nvtx_injection.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static struct nvtx_seen *seen;

static bool is(const struct nvtx_range *range, enum profile_kind kind)
{
    return range->category == (int)kind + 1;
}

static void run(int32_t steps, const struct shoal_callbacks *callbacks, enum shoal_status wanted)
{
    struct shoal_error error = {0};
    struct shoal_model *model = scenario_model();
    struct shoal_request request = scenario_request(model);
    struct shoal_result *result = NULL;
    struct shoal_plan *plan;

    request.steps = steps;
    plan = scenario_plan(model, &request);
    seen->count = 0;
    assert_int_equal(shoal_run(plan, callbacks, &result, &error), wanted);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    shoal_model_close(&model);
    assert_int_equal(seen->open, 0);
    assert_int_equal(seen->wrong, 0);
}

/* Phases and in them steps and in them blocks, on the thread that runs; copies on any. */
static void test_run(void **state)
{
    const char *const units[] = {"prompt 1", "prompt 1", "step 1", "step 2", "step 3", "picture 1"};
    int phases = 0, unit = 0, blocks[6] = {0}, copies = 0, waits = 0, depth = 0;

    (void)state;
    run(3, NULL, SHOAL_OK);
    for (int i = 0; i < seen->count; i++) {
        const struct nvtx_range *range = &seen->ranges[i];

        if (is(range, PROFILE_PHASE)) {
            assert_string_equal(range->name, shoal_phase_name((enum shoal_phase)phases++));
            depth = range->depth;
        }
        if (is(range, PROFILE_UNIT)) {
            assert_in_range(unit, 0, 5);
            assert_string_equal(range->name, units[unit++]);
            assert_int_equal(range->depth, depth + 1);
        }
        if (is(range, PROFILE_BLOCK)) {
            assert_in_range(unit, 1, 6);
            blocks[unit - 1]++;
            assert_int_equal(range->depth, depth + 2);
        }
        if (is(range, PROFILE_COPY)) copies++;
        if (is(range, PROFILE_WAIT)) waits++;
    }
    assert_int_equal(phases, SHOAL_PHASE_ENCODE); /* nothing to begin with */
    assert_int_equal(unit, 6);
    for (int i = 0; i < 6; i++)
        assert_true(blocks[i] > 0);
    assert_int_equal(blocks[2], blocks[3]);
    assert_int_equal(blocks[2], blocks[4]);
    assert_true(copies >= blocks[0] + blocks[1] + blocks[2] + blocks[5]);
    assert_true(waits >= blocks[0] + blocks[1] + blocks[2] + blocks[5]);
    assert_string_equal(seen->domain, "shoal");
    assert_string_equal(seen->categories[PROFILE_PHASE + 1], "phase");
    assert_string_equal(seen->categories[PROFILE_COPY + 1], "copy");
}

static int blocks_left;

static bool cancel(void *user)
{
    (void)user;
    return --blocks_left < 0;
}

static void test_cancelled(void **state)
{
    const struct shoal_callbacks callbacks = {.cancelled = cancel};

    (void)state;
    for (int blocks = 0; blocks < 15; blocks += 2) {
        blocks_left = blocks;
        run(1, &callbacks, SHOAL_E_CANCELLED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_cancelled),
    };
    void *library;

    setenv("NVTX_INJECTION64_PATH", NVTX_INJECTION, 1);
    library = dlopen(NVTX_INJECTION, RTLD_NOW);
    seen = library ? dlsym(library, "nvtx_seen") : NULL;
    if (!seen) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
