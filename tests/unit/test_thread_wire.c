/* Packing on a pool gives the bytes that one thread gives, whatever their number. */
#include "wire_support.h"

static void test_any_pool(void **state)
{
    enum { COUNT = 150000 };
    static uint16_t data[COUNT];
    static const int workers[] = {1, 2, 3, 8};
    uint64_t bound = wire_bound(DTYPE_BF16, COUNT), bytes;
    uint8_t *want = wire_room(bound), *got = wire_room(bound);

    (void)state;
    wire_fill(DTYPE_BF16, data, 0, COUNT, FILL_MIXED);
    memset(want, 0x11, bound);
    bytes = wire_encode(NULL, DTYPE_BF16, data, COUNT, want);
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        struct shoal_error error = {0};
        struct pool *pool = NULL;

        assert_ok(pool_create(&pool, workers[i], &error));
        memset(got, 0x22, bound);
        assert_int_equal(wire_encode(pool, DTYPE_BF16, data, COUNT, got), bytes);
        assert_memory_equal(got, want, bytes);
        pool_destroy(&pool);
    }
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_pool)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
