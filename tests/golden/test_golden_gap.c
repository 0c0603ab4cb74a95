/* The goldens' own yardstick: a value that is no number is seen wherever it is. */
#include "support.h"

#include "golden/run_model.h"

#include <math.h>

static void test_gap(void **state)
{
    const float want[4] = {1, -4, 2, 2}, got[4] = {1, -4, 2, 1};
    struct golden_gap gap = golden_gap(got, want, 4);

    (void)state;
    assert_true(gap.max == 0.25 && gap.rms == 0.2);
    gap = golden_gap(want, want, 4);
    assert_true(gap.max == 0 && gap.rms == 0);
}

static void test_no_number(void **state)
{
    const float want[4] = {1, -4, 2, 2}, odd[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (int i = 0; i < 12; i++) {
        float got[4] = {1, -4, 2, 1};
        struct golden_gap gap;

        got[i % 4] = odd[i / 4];
        gap = golden_gap(got, want, 4);
        if (isfinite(gap.max) || isfinite(gap.rms))
            fail_msg("%g at %d: %g, %g", (double)odd[i / 4], i % 4, gap.max, gap.rms);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gap), cmocka_unit_test(test_no_number)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
