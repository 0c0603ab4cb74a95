/*
 * Stores on a card: work of the caller's streams sees a block's own bytes at its addresses, however
 * late copies are, over changes of stream, in memory of the caller's. Emulated; with the argument
 * `gpu`, on this machine's card.
 */
#include "support.h"

#include "device/cuda/internal.h"
#include "golden/devices.h"
#include "shoal/shoal.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 5, TENSORS = 2, STREAMS = 2 };

static const uint64_t sizes[TENSORS] = {256 * 1024, 1026};

static uint64_t seed = 9;
static char *bytes[BLOCKS][TENSORS];
static struct shoal_store_tensor tensors[BLOCKS][TENSORS];
static struct shoal_store_block blocks[BLOCKS];
static struct cuda_driver driver;
static CUstream streams[STREAMS]; /* a framework's, which has the card's primary context too */
static CUcontext context;

static int set_up(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    for (int i = 0; i < BLOCKS; i++) {
        for (int t = 0; t < TENSORS; t++) {
            bytes[i][t] = malloc(sizes[t]);
            for (uint64_t k = 0; k < sizes[t]; k += 2) {
                bytes[i][t][k] = (char)test_random(&seed);
                bytes[i][t][k + 1] = (char)(0x3c + test_random(&seed) % 2);
            }
            tensors[i][t] = (struct shoal_store_tensor){
                .dtype = "BF16", .bytes = sizes[t], .data = bytes[i][t]};
        }
        blocks[i] = (struct shoal_store_block){.tensors = tensors[i], .tensor_count = TENSORS};
    }
    assert_ok(cuda_open_driver(&driver, &error));
    assert_int_equal(driver.init(0), 0);
    assert_int_equal(driver.context_retain(&context, 0), 0);
    assert_int_equal(driver.context_set_current(context), 0);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(driver.stream_create(&streams[i], CU_STREAM_NON_BLOCKING, 0), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < STREAMS; i++)
        driver.stream_destroy(streams[i]);
    driver.context_release(0);
    for (int i = 0; i < BLOCKS; i++)
        for (int t = 0; t < TENSORS; t++)
            free(bytes[i][t]);
    return 0;
}

/* What the caller would compute: its stream copies the weights away, and another time waits. */
static void visit(struct shoal_store *store, int block, CUstream stream, char *seen[TENSORS])
{
    struct shoal_error error = {0};
    uint64_t addresses[TENSORS];

    assert_ok(shoal_store_acquire(store, block, stream, addresses, &error));
    for (int t = 0; t < TENSORS; t++)
        assert_int_equal(driver.copy_out(seen[t], addresses[t], sizes[t], stream), 0);
    assert_ok(shoal_store_release(store, block, &error));
}

/* Nothing is awaited before a walk's end. */
static void walk(struct shoal_store *store, bool change)
{
    char *seen[BLOCKS][TENSORS];

    for (int i = 0; i < BLOCKS; i++) {
        for (int t = 0; t < TENSORS; t++)
            seen[i][t] = calloc(1, sizes[t]);
        visit(store, i, streams[change ? i % STREAMS : 0], seen[i]);
    }
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(driver.stream_synchronize(streams[i]), 0);
    for (int i = 0; i < BLOCKS; i++)
        for (int t = 0; t < TENSORS; t++) {
            assert_memory_equal(seen[i][t], bytes[i][t], sizes[t]);
            free(seen[i][t]);
        }
}

static void check(enum shoal_wire wire, enum shoal_buffer buffer, enum shoal_pin pin, bool lent)
{
    struct shoal_store_request r;
    struct shoal_error error = {0};
    struct shoal_store *store;
    struct shoal_store_stats stats;
    CUdeviceptr memory = 0;

    shoal_store_request_init(&r);
    r.device = "cuda";
    r.wire = wire;
    r.buffer = buffer;
    r.pin = pin;
    assert_ok(shoal_store_create(blocks, BLOCKS, &r, &store, &error));
    if (lent)
        assert_int_equal(driver.memory_alloc(&memory, shoal_store_device_bytes(store) + 4096), 0);
    for (int run = 0; run < 3; run++) {
        assert_ok(shoal_store_resume(store, lent ? (memory + 4095) / 4096 * 4096 : 0, &error));
        walk(store, false);
        walk(store, true);
        walk(store, true);
        if (run == 1) { /* given up in the middle */
            char *seen[TENSORS] = {malloc(sizes[0]), malloc(sizes[1])};

            visit(store, 0, streams[0], seen);
            visit(store, 1, streams[0], seen);
            assert_ok(shoal_store_suspend(store, &error));
            for (int t = 0; t < TENSORS; t++)
                free(seen[t]);
        }
        assert_ok(shoal_store_suspend(store, &error));
    }
    shoal_store_stats(store, &stats);
    assert_true(pin == SHOAL_PIN_OFF ? stats.pinned_bytes == 0 : stats.pinned_bytes > 0);
    shoal_store_destroy(&store);
    driver.context_set_current(context);
    if (memory) driver.memory_free(memory);
}

static void test_streams(void **state)
{
    (void)state;
    check(SHOAL_WIRE_RAW, SHOAL_BUFFER_AUTO, SHOAL_PIN_ON, false);
    check(SHOAL_WIRE_RAW, SHOAL_BUFFER_DOUBLE, SHOAL_PIN_ON, true);
    check(SHOAL_WIRE_RAW, SHOAL_BUFFER_SINGLE, SHOAL_PIN_STAGING, true);
    check(SHOAL_WIRE_RAW, SHOAL_BUFFER_AUTO, SHOAL_PIN_OFF, false);
}

static void test_packed(void **state)
{
    (void)state;
    check(SHOAL_WIRE_PACKED, SHOAL_BUFFER_AUTO, SHOAL_PIN_ON, true);
    check(SHOAL_WIRE_PACKED, SHOAL_BUFFER_SINGLE, SHOAL_PIN_STAGING, false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_streams), cmocka_unit_test(test_packed)};

GOLDEN_MAIN(tests, set_up, tear_down)
