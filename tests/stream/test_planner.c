/* The planner, by tables: budgets in, plans out. */
#include "support.h"

#include "plan/planner.h"

#define BLOCKS 10

static const uint64_t dit_bytes[BLOCKS] = {100, 100, 100, 100, 100, 100, 100, 100, 100, 100};
static const uint64_t text_bytes[3] = {50, 50, 50};

/* A text encoder of 3 blocks, then a DiT of 10. */
static const struct plan_input inputs[2] = {
    {.name = "text", .block_count = 3, .block_bytes = text_bytes, .scratch_bytes = 20},
    {.name = "steps",
        .block_count = BLOCKS,
        .block_bytes = dit_bytes,
        .globals_bytes = 30,
        .scratch_bytes = 200,
        .main = true},
};

static struct plan_limits unlimited(void)
{
    return (struct plan_limits){.vram_bytes = SHOAL_UNLIMITED,
        .ram_bytes = SHOAL_UNLIMITED,
        .resident_blocks = SHOAL_AUTO,
        .prefetch_slots = SHOAL_AUTO};
}

static struct plan_solution solve(struct plan_limits limits)
{
    struct shoal_error error = {0};
    struct plan_solution solution;

    assert_ok(planner_solve(inputs, 2, &limits, &solution, &error));
    return solution;
}

static void test_unlimited(void **state)
{
    struct plan_solution s = solve(unlimited());

    (void)state;
    assert_true(s.fits);
    assert_int_equal(s.phases[1].resident_count, BLOCKS);
    assert_int_equal(s.phases[1].slots, 0);
    assert_int_equal(s.peak_bytes, 30 + 1000 + 200);
    assert_int_equal(s.full_bytes, s.peak_bytes);
    assert_int_equal(s.least_bytes, 30 + 100 + 200);
    assert_int_equal(s.phases[1].stream_bytes, 0);
    planner_release(&s);
}

/* Every budget between the least and the full one is used and never exceeded. */
static void test_budgets(void **state)
{
    struct plan_limits limits = unlimited();
    uint64_t last_stream = UINT64_MAX;

    (void)state;
    for (limits.vram_bytes = 330; limits.vram_bytes <= 1230; limits.vram_bytes += 10) {
        struct plan_solution s = solve(limits);

        assert_true(s.fits);
        assert_true(s.peak_bytes <= limits.vram_bytes);
        assert_true(s.phases[1].stream_bytes <= last_stream); /* more memory never streams more */
        last_stream = s.phases[1].stream_bytes;
        planner_release(&s);
    }
    assert_int_equal(last_stream, 0);
}

static void test_one_byte_short(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    limits.vram_bytes = 329;
    s = solve(limits);
    assert_false(s.fits);
    assert_int_equal(s.least_bytes, 330);
    planner_release(&s);
    limits.vram_bytes = 330;
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.phases[1].slots, 1);
    assert_int_equal(s.peak_bytes, 330);
    planner_release(&s);
}

static void test_residents_are_spread(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    limits.resident_blocks = 2;
    s = solve(limits);
    for (int i = 0; i < BLOCKS; i++)
        assert_int_equal(s.phases[1].resident[i], i == 2 || i == 7);
    assert_int_equal(s.phases[1].stream_bytes, 800);
    assert_int_equal(s.phases[0].resident_count, 3); /* the option speaks of the DiT */
    planner_release(&s);
}

static void test_every_resident_count(void **state)
{
    struct plan_limits limits = unlimited();

    (void)state;
    for (int n = 0; n <= BLOCKS; n++) {
        struct plan_solution s;
        int found = 0;

        limits.resident_blocks = n;
        s = solve(limits);
        for (int i = 0; i < BLOCKS; i++)
            found += s.phases[1].resident[i];
        assert_int_equal(found, n);
        planner_release(&s);
    }
}

static void test_slots_and_buffers(void **state)
{
    struct plan_limits limits = unlimited();

    (void)state;
    limits.resident_blocks = 0;
    for (int slots = 2; slots <= 6; slots++) {
        struct plan_solution s;

        limits.prefetch_slots = slots;
        s = solve(limits);
        assert_int_equal(s.phases[1].slots, slots);
        assert_int_equal(s.phases[1].ring_bytes, 100 * slots);
        assert_int_equal(s.least_bytes, 30 + 200 + 100 * slots);
        planner_release(&s);
    }
    limits.prefetch_slots = SHOAL_AUTO;
    limits.buffer = SHOAL_BUFFER_SINGLE;
    struct plan_solution s = solve(limits);
    assert_int_equal(s.phases[1].slots, 1);
    planner_release(&s);
    limits.buffer = SHOAL_BUFFER_DOUBLE;
    limits.vram_bytes = 430;
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.phases[1].slots, 2);
    planner_release(&s);
    limits.vram_bytes = 429;
    s = solve(limits);
    assert_false(s.fits);
    planner_release(&s);
}

static void test_ram(void **state)
{
    struct plan_limits limits = unlimited();
    struct plan_solution s;

    (void)state;
    /* Room for a double buffer and one resident: nine blocks wait in RAM, in a page each. */
    limits.vram_bytes = 530;
    s = solve(limits);
    assert_int_equal(s.phases[1].slots, 2);
    assert_int_equal(s.ram_bytes, 9 * 4096);
    assert_int_equal(s.least_ram_bytes, 8 * 4096);
    planner_release(&s);
    /* Less RAM: a single buffer leaves room for another resident. */
    limits.ram_bytes = 9 * 4096 - 1;
    s = solve(limits);
    assert_true(s.fits);
    assert_int_equal(s.phases[1].slots, 1);
    assert_int_equal(s.ram_bytes, 8 * 4096);
    planner_release(&s);
    limits.ram_bytes = 8 * 4096 - 1;
    s = solve(limits);
    assert_false(s.fits);
    assert_false(s.fits_ram);
    planner_release(&s);
}

static void test_bad_options(void **state)
{
    static const struct {
        int32_t residents, slots;
        enum shoal_buffer buffer;
        const char *names;
    } cases[] = {
        {11, SHOAL_AUTO, SHOAL_BUFFER_AUTO, "resident blocks"},
        {-2, SHOAL_AUTO, SHOAL_BUFFER_AUTO, "resident blocks"},
        {SHOAL_AUTO, 1, SHOAL_BUFFER_AUTO, "prefetch slots"},
        {SHOAL_AUTO, 7, SHOAL_BUFFER_AUTO, "prefetch slots"},
        {SHOAL_AUTO, 3, SHOAL_BUFFER_SINGLE, "single buffer"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_limits limits = unlimited();
        struct shoal_error error = {0};
        struct plan_solution s;

        limits.resident_blocks = cases[i].residents;
        limits.prefetch_slots = cases[i].slots;
        limits.buffer = cases[i].buffer;
        assert_int_equal(planner_solve(inputs, 2, &limits, &s, &error), SHOAL_E_INVALID);
        assert_non_null(strstr(error.text, cases[i].names));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unlimited),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_one_byte_short),
        cmocka_unit_test(test_residents_are_spread),
        cmocka_unit_test(test_every_resident_count),
        cmocka_unit_test(test_slots_and_buffers),
        cmocka_unit_test(test_ram),
        cmocka_unit_test(test_bad_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
