/* The weight ring: placement never overlaps what is in use, and always goes on. */
#include "support.h"

#include "base/ring.h"

static void test_equal_blocks(void **state)
{
    struct ring ring;
    uint64_t offset, retired[RING_MAX_SPANS];
    int32_t count;

    (void)state;
    ring_init(&ring, 300);
    assert_true(ring_place(&ring, 100, 0, 0, &offset, retired, &count));
    assert_int_equal(offset, 0);
    assert_true(ring_place(&ring, 100, 1, 0, &offset, retired, &count));
    assert_true(ring_place(&ring, 100, 2, 0, &offset, retired, &count));
    assert_int_equal(offset, 200);
    assert_int_equal(count, 0);
    /* Full until the oldest is released. */
    assert_false(ring_place(&ring, 100, 3, 0, &offset, retired, &count));
    assert_true(ring_place(&ring, 100, 3, 1, &offset, retired, &count));
    assert_int_equal(offset, 0);
    assert_int_equal(count, 1);
    assert_int_equal(retired[0], 0);
    assert_int_equal(ring_offset(&ring, 2), 200);
}

static void test_short_end_is_skipped(void **state)
{
    struct ring ring;
    uint64_t offset, retired[RING_MAX_SPANS];
    int32_t count;

    (void)state;
    ring_init(&ring, 250);
    assert_true(ring_place(&ring, 100, 0, 0, &offset, retired, &count));
    assert_true(ring_place(&ring, 100, 1, 0, &offset, retired, &count));
    assert_true(ring_place(&ring, 100, 2, 1, &offset, retired, &count));
    assert_int_equal(offset, 0);
    assert_int_equal(ring_offset(&ring, 1), 100);
}

/* Blocks of random sizes, a consumer that releases in order: no overlap, no deadlock. */
static void test_random_sizes(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint64_t sizes[64], largest = 0, given = 0, released = 0, begin[64],
                            retired[RING_MAX_SPANS];
        struct ring ring;
        int32_t count;

        for (int i = 0; i < 64; i++) {
            sizes[i] = 1 + test_random(&seed) % 1000;
            if (sizes[i] > largest) largest = sizes[i];
        }
        ring_init(&ring, largest + test_random(&seed) % (3 * largest));
        while (released < 64) {
            uint64_t offset;

            while (given < 64 &&
                   ring_place(&ring, sizes[given], given, released, &offset, retired, &count)) {
                assert_true(offset + sizes[given] <= ring.bytes);
                for (uint64_t live = released; live < given; live++)
                    assert_true(offset + sizes[given] <= begin[live] ||
                                begin[live] + sizes[live] <= offset);
                for (int32_t i = 0; i < count; i++)
                    assert_true(retired[i] < released);
                begin[given++] = offset;
            }
            assert_true(given > released); /* something is there to run */
            assert_int_equal(ring_offset(&ring, released), begin[released]);
            released++;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_blocks),
        cmocka_unit_test(test_short_end_is_skipped),
        cmocka_unit_test(test_random_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
