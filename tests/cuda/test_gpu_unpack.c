/* Unpacking on the CUDA device: bit for bit what was packed, and what the scalar decoder makes of
 * damaged payloads. */
#include "cuda/gpu_support.h"

#include "unit/wire_support.h"

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};

#define DTYPES (sizeof dtypes / sizeof *dtypes)

/* A tensor of the filling as its payload, and behind that what a damaged one may be read to. */
static uint8_t *make_payload(
    enum dtype dtype, uint64_t count, enum filling filling, uint64_t *bytes)
{
    void *data = malloc((size_t)dtype_bytes(dtype, (int64_t)count));
    uint64_t bound = wire_bound(dtype, count);
    uint8_t *payload = malloc(bound + WIRE_OVERRUN);

    assert_non_null(data);
    assert_non_null(payload);
    wire_fill(dtype, data, 0, count, filling);
    *bytes = wire_encode(NULL, dtype, data, count, payload);
    memset(payload + *bytes, 0, bound + WIRE_OVERRUN - *bytes);
    free(data);
    return payload;
}

static void check_unpacks(
    enum dtype dtype, uint64_t count, const uint8_t *payload, uint64_t bytes, uint64_t readable)
{
    struct operand *y = gpu_dense(gpu_output(dtype, 1, (int64_t)count));
    struct operand *p = gpu_bytes(payload, readable, WIRE_ALIGNMENT);

    GPU_CHECK(0, unpack, &(struct crossed){on(y), on(p).addr, bytes, true}, 1);
}

/* Nothing behind the payload may be read. */
static void test_same_bits(void **state)
{
    const uint64_t counts[] = {1, 1023, 1024, 1025, 9 * WIRE_TILE, 20 * WIRE_TILE + 511};

    (void)state;
    for (size_t t = 0; t < DTYPES; t++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (enum filling filling = 0; filling < FILLINGS; filling++) {
                uint64_t bytes;
                uint8_t *payload = make_payload(dtypes[t], counts[c], filling, &bytes);

                check_unpacks(dtypes[t], counts[c], payload, bytes, bytes);
                free(payload);
            }
}

/* A block's tensors at once: of every kind, and some that are not packed. */
static void test_together(void **state)
{
    enum { COUNT = 7 };
    static const uint64_t counts[COUNT] = {
        3 * WIRE_TILE + 1, 40, 9 * WIRE_TILE, 17, 1000, 20000, 2 * WIRE_TILE};
    struct operand *y[COUNT], *p[COUNT];
    uint64_t bytes[COUNT];
    struct crossed tensors[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const bool packed = i % 2 == 0;
        const enum dtype dtype = packed ? dtypes[(size_t)i / 2 % DTYPES] : DTYPE_U8;
        uint8_t *payload =
            packed ? make_payload(dtype, counts[i], FILL_GAUSSIAN, &bytes[i]) : malloc(counts[i]);

        assert_non_null(payload);
        if (!packed) {
            bytes[i] = counts[i];
            memset(payload, 'a' + i, bytes[i]);
            payload[bytes[i] / 2] = 7;
        }
        y[i] = gpu_dense(gpu_output(dtype, 1, (int64_t)counts[i]));
        p[i] = gpu_bytes(payload, bytes[i], WIRE_ALIGNMENT);
        free(payload);
    }
    for (gpu_begin("unpack", 0); gpu_next();) {
        for (int i = 0; i < COUNT; i++)
            tensors[i] = (struct crossed){on(y[i]), on(p[i]).addr, bytes[i], i % 2 == 0};
        gpu.ops->unpack(gpu.stream, tensors, COUNT);
    }
}

/* Every element there is, with escapes of every level among them. */
static void test_every_pattern(void **state)
{
    (void)state;
    for (size_t t = 0; t < DTYPES; t++) {
        uint64_t patterns = dtype_bytes(dtypes[t], 1) == 2 ? 65536 : 256, count = 3 * patterns;
        void *data = malloc((size_t)dtype_bytes(dtypes[t], (int64_t)count)), *payload;
        uint64_t bytes;

        assert_non_null(data);
        wire_fill(dtypes[t], data, 0, count, FILL_GAUSSIAN);
        for (uint64_t i = 0; i < patterns; i++)
            wire_put(dtypes[t], data, 3 * i + i % 3, (uint16_t)i);
        payload = malloc(wire_bound(dtypes[t], count));
        assert_non_null(payload);
        bytes = wire_encode(NULL, dtypes[t], data, count, payload);
        check_unpacks(dtypes[t], count, payload, bytes, bytes);
        free(payload);
        free(data);
    }
}

/* Any bytes from the header's table on: what the scalar decoder makes of them, and nothing is read
 * further than WIRE_OVERRUN behind the payload. (On the CPU nothing is, as if zeros were there.) */
static void test_damaged(void **state)
{
    (void)state;
    for (size_t t = 0; t < DTYPES; t++)
        for (int round = 0; round < 24; round++) {
            uint64_t count = 1 + test_random(&seed) % (6 * WIRE_TILE), bytes;
            uint8_t *payload =
                        make_payload(dtypes[t], count, (enum filling)(round % FILLINGS), &bytes),
                    *table = payload + 24;
            uint64_t span = round % 3 == 0   ? 9
                            : round % 3 == 1 ? bytes - 64
                                             : 4 * wire_tiles(count);
            uint8_t *from = round % 3 == 0 ? table : payload + WIRE_HEADER_BYTES;

            for (int i = 0; i < (round < 12 ? 20 : 4000); i++)
                from[test_random(&seed) % span] = (uint8_t)test_random(&seed);
            check_unpacks(dtypes[t], count, payload, bytes, bytes + WIRE_OVERRUN);
            free(payload);
        }
}

/* ---- on a card ---- */

static void test_rates(void **state)
{
    const int64_t count = (int64_t)3840 * 10240 * 4;

    (void)state;
    if (!gpu.real) return;
    for (size_t t = 0; t < DTYPES; t++)
        for (enum filling filling = FILL_GAUSSIAN; filling <= FILL_BITS; filling++) {
            uint64_t bytes;
            uint8_t *payload = make_payload(dtypes[t], (uint64_t)count, filling, &bytes);
            struct operand *y = gpu_dense(gpu_output(dtypes[t], 1, count));
            struct operand *p = gpu_bytes(payload, bytes, WIRE_ALIGNMENT);

            free(payload);
            /* The rate is that of the elements that come out. */
            GPU_TIME(0, dtype_bytes(dtypes[t], count), 0, unpack,
                &(struct crossed){on(y), on(p).addr, bytes, true}, 1);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_together),
    cmocka_unit_test(test_every_pattern),
    cmocka_unit_test(test_damaged),
    cmocka_unit_test(test_rates),
};

GPU_MAIN(tests)
