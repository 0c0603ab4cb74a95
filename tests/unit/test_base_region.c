/* src/base/region: first fit against a model that knows every byte. */
#include "support.h"

#include "base/region.h"
#include "base/size.h"

#define SLOTS 512 /* of REGION_ALIGNMENT bytes */
#define STEPS 20000

static void test_first_fit(void **state)
{
    struct shoal_error error = {0};
    struct region *region = NULL;
    uint64_t a, b, c, d;

    (void)state;
    assert_ok(region_create(&region, 2048, &error));
    assert_int_equal(region_used(region), 0);
    assert_ok(region_alloc(region, 300, &a, &error)); /* 512 */
    assert_ok(region_alloc(region, 0, &b, &error));   /* even nothing has an offset of its own */
    assert_ok(region_alloc(region, 1280, &c, &error));
    assert_int_equal(a, 0);
    assert_int_equal(b, 512);
    assert_int_equal(c, 768);
    assert_int_equal(region_used(region), 2048);
    assert_int_equal(region_alloc(region, 1, &d, &error), SHOAL_E_BUDGET);
    assert_non_null(strstr(error.text, "2048"));
    region_free(region, a);
    assert_int_equal(region_alloc(region, 513, &d, &error), SHOAL_E_BUDGET);
    assert_ok(region_alloc(region, 1, &d, &error));
    assert_int_equal(d, 0);
    region_free(region, c);
    assert_int_equal(region_used(region), 768);
    assert_int_equal(region_high_water(region), 2048);
    region_reset_high_water(region);
    assert_int_equal(region_high_water(region), 768);
    region_set_capacity(region, 768);
    assert_ok(region_alloc(region, 1, &d, &error));
    assert_int_equal(d, 256);
    assert_int_equal(region_alloc(region, 1, &d, &error), SHOAL_E_BUDGET);
    region_destroy(&region);
    assert_null(region);
    region_destroy(&region);
}

/* One step of a program: allocate `bytes`, or free the live span number `index`. */
struct step {
    bool frees;
    uint64_t bytes;
    uint32_t index;
};

/* A random program with at most `most` live spans. */
static void make_program(struct step steps[STEPS], uint64_t seed, uint32_t most)
{
    uint32_t live = 0;

    for (int i = 0; i < STEPS; i++) {
        steps[i].frees = live && (live == most || test_random(&seed) % 100 < 45);
        steps[i].bytes = 1 + test_random(&seed) % (8 * REGION_ALIGNMENT);
        steps[i].index = live ? test_random(&seed) % live : 0;
        live += steps[i].frees ? (uint32_t)-1 : 1;
    }
}

struct live {
    uint64_t offset, slots;
};

/* The first run of free slots that is long enough, found the plain way. */
static uint64_t first_fit(const char used[SLOTS], uint64_t slots)
{
    for (uint64_t begin = 0; begin + slots <= SLOTS; begin++) {
        uint64_t length = 0;

        while (length < slots && !used[begin + length])
            length++;
        if (length == slots) return begin;
    }
    fail_msg("the test's map is too small");
    return 0;
}

/* As the plain search finds it where the span itself is free. */
static void check_lowest(const struct region *region, char used[SLOTS], struct live span)
{
    char *at = used + span.offset / REGION_ALIGNMENT;

    memset(at, 0, span.slots);
    assert_int_equal(
        region_lowest(region, span.offset), REGION_ALIGNMENT * first_fit(used, span.slots));
    memset(at, 1, span.slots);
}

/* Offsets agree with the plain search, and so do the marks. */
static uint64_t run_checked(const struct step steps[STEPS], uint64_t capacity)
{
    struct shoal_error error = {0};
    struct region *region = NULL;
    struct live live[64];
    char used[SLOTS] = {0};
    uint64_t high = 0, mark;
    uint32_t count = 0;

    assert_ok(region_create(&region, capacity, &error));
    for (int i = 0; i < STEPS; i++) {
        uint64_t end = 0;

        if (steps[i].frees) {
            struct live gone = live[steps[i].index];

            region_free(region, gone.offset);
            memset(used + gone.offset / REGION_ALIGNMENT, 0, gone.slots);
            live[steps[i].index] = live[--count];
        } else {
            struct live *made = &live[count++];

            made->slots = (steps[i].bytes + REGION_ALIGNMENT - 1) / REGION_ALIGNMENT;
            assert_ok(region_alloc(region, steps[i].bytes, &made->offset, &error));
            assert_int_equal(made->offset, REGION_ALIGNMENT * first_fit(used, made->slots));
            memset(used + made->offset / REGION_ALIGNMENT, 1, made->slots);
        }
        if (count) check_lowest(region, used, live[i % (int)count]);
        for (uint64_t slot = 0; slot < SLOTS; slot++)
            if (used[slot]) end = (slot + 1) * REGION_ALIGNMENT;
        if (end > high) high = end;
        assert_int_equal(region_used(region), end);
        assert_int_equal(region_high_water(region), high);
    }
    mark = region_high_water(region);
    region_destroy(&region);
    return mark;
}

/* What the planner relies on: the mark of one run is a capacity that works again, and no less. */
static void test_replays_in_its_high_water(void **state)
{
    static struct step steps[STEPS];

    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint64_t mark, offset;
        struct shoal_error error = {0};
        struct region *region = NULL;
        uint64_t live[64];
        uint32_t count = 0;
        bool refused = false;

        make_program(steps, seed, 8 * (uint32_t)seed);
        mark = run_checked(steps, SHOAL_UNLIMITED);
        assert_int_equal(run_checked(steps, mark), mark);

        assert_ok(region_create(&region, mark - 1, &error));
        for (int i = 0; i < STEPS && !refused; i++) {
            if (steps[i].frees) {
                region_free(region, live[steps[i].index]);
                live[steps[i].index] = live[--count];
            } else {
                refused = region_alloc(region, steps[i].bytes, &offset, &error) == SHOAL_E_BUDGET;
                live[count++] = offset;
            }
        }
        assert_true(refused);
        region_destroy(&region);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_fit),
        cmocka_unit_test(test_replays_in_its_high_water),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
