/* The wire: every bit pattern survives, on every path; damage is found or does no harm. */
#include "wire_support.h"

#include "base/file.h"
#include "base/memory.h"
#include "wire/tile.h"

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};

#define EVERY_DTYPE(dtype)                                                                         \
    for (size_t i_ = 0; i_ < sizeof dtypes / sizeof *dtypes; i_++)                                 \
        for (enum dtype dtype = dtypes[i_], *once_ = &dtype; once_; once_ = NULL)

/* The payload, in memory of exactly its size. */
static void *pack(enum dtype dtype, const void *data, uint64_t count, uint64_t *bytes)
{
    uint64_t bound = wire_bound(dtype, count);
    void *room = wire_room(bound), *payload;

    *bytes = wire_encode(NULL, dtype, data, count, room);
    assert_true(*bytes <= bound && *bytes % WIRE_ALIGNMENT == 0);
    payload = wire_room(*bytes);
    memcpy(payload, room, *bytes);
    free(room);
    return payload;
}

static void assert_survives(enum dtype dtype, const void *data, uint64_t count)
{
    struct shoal_error error = {0};
    struct wire_info info;
    uint64_t bytes, size = (uint64_t)dtype_bytes(dtype, 1), tiles = wire_tiles(count);
    uint8_t *payload = pack(dtype, data, count, &bytes), *got = wire_room(count * size);

    assert_ok(wire_check(payload, bytes, "here", &info, &error));
    assert_int_equal(info.dtype, dtype);
    assert_int_equal(info.count, count);
    assert_int_equal(info.bytes, bytes);
    wire_decode_reference(payload, info, 0, tiles, got);
    assert_memory_equal(got, data, count * size);
    memset(got, 0x5a, count * size);
    wire_decode(payload, info, 0, tiles, got);
    assert_memory_equal(got, data, count * size);
    /* One by one, in another order. */
    memset(got, 0x5a, count * size);
    for (uint64_t tile = tiles; tile-- > 0;)
        wire_decode(payload, info, tile, 1, got + tile * WIRE_TILE * size);
    assert_memory_equal(got, data, count * size);
    free(got);
    free(payload);
}

static void test_every_pattern(void **state)
{
    static uint16_t data[3 * 65536];

    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        data[i] = (uint16_t)i;
        data[65536 + i] = (uint16_t)(i * 40503);                   /* all mixed */
        data[131072 + i] = (uint16_t)(i % 2 ? 0x3c12 : i / 2 * 3); /* between common ones */
    }
    EVERY_DTYPE(dtype)
    {
        assert_survives(dtype, data, 65536);
        assert_survives(dtype, data + 65536, 65536);
        assert_survives(dtype, data + 131072, 65536);
        assert_survives(dtype, data + 777, 3 * 65536 - 777);
    }
}

static void test_lengths_and_distributions(void **state)
{
    static const uint64_t lengths[] = {0, 1, 2, 63, 64, 65, 1023, 1024, 1025, 2048, 33333, 70001};
    static uint16_t data[70001];

    (void)state;
    EVERY_DTYPE(dtype)
    for (int filling = 0; filling < FILLINGS; filling++) {
        wire_fill(dtype, data, 0, 70001, (enum filling)filling);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            assert_survives(dtype, data, lengths[i]);
        for (int i = 0; i < 10; i++)
            assert_survives(dtype, data, test_random(&seed) % 9000);
    }
}

static double ratio(enum dtype dtype, const void *data, uint64_t count)
{
    uint64_t bytes;

    free(pack(dtype, data, count, &bytes));
    return (double)bytes / (double)dtype_bytes(dtype, (int64_t)count);
}

static void test_sizes(void **state)
{
    enum { COUNT = 1 << 20 };
    uint16_t *data = wire_room(COUNT * 2);
    static const double most[] = {0.675, 0.86, 0.86};

    (void)state;
    EVERY_DTYPE(dtype)
    {
        double scale = dtype == DTYPE_F8_E4M3 ? 1 : 0.02, packed;
        struct wire_estimate estimate;

        for (uint64_t i = 0; i < COUNT; i++)
            wire_put(dtype, data, i, wire_element(dtype, (float)scale * wire_gaussian()));
        packed = ratio(dtype, data, COUNT);
        print_message("%s: %.4f of a Gaussian\n", dtype_name(dtype), packed);
        assert_true(packed < most[i_]);
        /* From a thirtieth of it, as well. */
        estimate = wire_estimate(dtype, data, 1 << 15);
        assert_true(fabs(estimate.part - packed) < 0.01 * packed);
        assert_true(estimate.error > 0 && estimate.error < 0.002);
        wire_fill(dtype, data, 0, COUNT, FILL_BITS);
        assert_true(ratio(dtype, data, COUNT) < 1.005);
    }
    assert_false(wire_packs(DTYPE_F32));
    free(data);
}

/* ---- piece by piece ---- */

/* The payload of pieces of up to `most` bytes, in memory of exactly `room` bytes; its bytes. */
static uint64_t pack_pieces(enum dtype dtype, const void *data, uint64_t count,
    const uint8_t *table, uint64_t most, void *payload, uint64_t room)
{
    const uint64_t size = count * (uint64_t)dtype_bytes(dtype, 1);
    struct wire_encoder encoder;

    wire_begin(&encoder, dtype, count, table, payload, room);
    for (uint64_t at = 0, some; at < size; at += some) {
        /* At any address, and of a length that ends within elements. */
        uint8_t *piece;

        some = 1 + test_random(&seed) % most;
        if (some > size - at) some = size - at;
        piece = malloc(some + 1);
        memcpy(piece + 1, (const uint8_t *)data + at, some);
        wire_add(&encoder, NULL, piece + 1, some);
        free(piece);
    }
    return wire_end(&encoder);
}

static void test_pieces(void **state)
{
    static const uint64_t lengths[] = {0, 1, 1023, 1025, 2048, 33333, 70001};
    static uint16_t data[70001];

    (void)state;
    EVERY_DTYPE(dtype)
    for (int round = 0; round < 4 * FILLINGS; round++) {
        uint64_t count = lengths[(size_t)round % (sizeof lengths / sizeof *lengths)], bytes;
        uint8_t *want, *got;

        wire_fill(dtype, data, 0, 70001, (enum filling)(round % FILLINGS));
        want = pack(dtype, data, count, &bytes);
        got = wire_room(bytes);
        /* With the table of the whole it is the same payload, in memory of exactly its size. */
        assert_int_equal(
            pack_pieces(dtype, data, count, want + 24, round % 2 ? 5000 : 90000, got, bytes),
            bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
        free(want);
    }
}

/* Any table and any room: all that is written is in the room, and what it takes is told. */
static void test_room(void **state)
{
    enum { COUNT = 9000 };
    static const uint8_t tables[2][WIRE_TABLE] = {{0}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
    static uint16_t data[COUNT], back[COUNT];

    (void)state;
    EVERY_DTYPE(dtype)
    for (int round = 0; round < 2 * FILLINGS; round++) {
        const uint8_t *table = tables[round / FILLINGS];
        uint64_t bound = wire_bound(dtype, COUNT), bytes;
        uint8_t *payload = wire_room(bound);
        struct shoal_error error = {0};
        struct wire_info info;

        wire_fill(dtype, data, 0, COUNT, (enum filling)(round % FILLINGS));
        bytes = pack_pieces(dtype, data, COUNT, table, 3000, payload, bound);
        assert_true(bytes <= bound);
        assert_ok(wire_check(payload, bytes, "here", &info, &error));
        wire_decode(payload, info, 0, wire_tiles(COUNT), back);
        assert_memory_equal(back, data, COUNT * (uint64_t)dtype_bytes(dtype, 1));
        free(payload);
        for (int i = 0; i < 8; i++) {
            uint64_t room = i ? test_random(&seed) % (bytes / 64) * 64 : bytes - 64, told;

            payload = wire_room(room);
            told = pack_pieces(dtype, data, COUNT, table, 3000, payload, room);
            assert_true(told > room && told >= bytes && told <= bound);
            free(payload);
        }
    }
}

/* ---- the paths ---- */

static void assert_same_tile(
    const struct wire_path *path, enum dtype dtype, const uint8_t *values, const uint8_t *elements)
{
    const struct wire_path *oracle = wire_path_at(0);
    const struct wire_kind *kind = wire_kind_of(dtype);
    size_t record_bytes = kind_record_bytes(kind), bytes = kind->bytes * WIRE_TILE;
    uint8_t *records[2] = {wire_room(record_bytes), wire_room(record_bytes)};
    uint8_t *parts[2] = {wire_room(PART_ROOM), wire_room(PART_ROOM)};
    uint8_t *got = wire_room(bytes), *part;
    struct wire_table table;
    size_t sizes[2];
    bool raw[2];

    wire_table_init(&table, values);
    sizes[0] = oracle->encode(kind, &table, elements, records[0], parts[0], &raw[0]);
    sizes[1] = path->encode(kind, &table, elements, records[1], parts[1], &raw[1]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_int_equal(raw[0], raw[1]);
    assert_memory_equal(records[0], records[1], record_bytes);
    assert_memory_equal(parts[0], parts[1], sizes[0]);
    /* In a payload, AFTER_BYTES follow the last part. */
    part = wire_room(sizes[0] + AFTER_BYTES);
    memcpy(part, parts[0], sizes[0]);
    path->decode(kind, &(struct wire_tile){table.values, records[0], part, raw[0]}, got);
    assert_memory_equal(got, elements, bytes);
    free(part);
    for (int i = 0; i < 2; i++) {
        free(records[i]);
        free(parts[i]);
    }
    free(got);
}

static void test_paths_agree(void **state)
{
    static uint8_t elements[2 * WIRE_TILE];
    uint8_t tables[3][WIRE_TABLE] = {{0, 255, 254, 1, 253, 252, 2, 251, 250},
        {0, 0xf8, 0xf0, 8, 0xe8, 0xe0, 0x10, 0xd8, 0xd0}, {0}};

    (void)state;
    for (int i = 0; i < WIRE_TABLE; i++)
        tables[2][i] = (uint8_t)(i << 4);
    for (int index = 0; wire_path_at(index); index++) {
        print_message("%s\n", wire_path_at(index)->name);
        EVERY_DTYPE(dtype)
        for (int round = 0; round < 60 * FILLINGS; round++) {
            wire_fill(dtype, elements, 0, WIRE_TILE, (enum filling)(round % FILLINGS));
            assert_same_tile(wire_path_at(index), dtype, tables[round % 3], elements);
        }
    }
}

/* ---- the format ---- */

/* A payload that tests/fuzz/make_corpus.py made as docs/formats.md says: raw and coded tiles. */
static void test_format(void **state)
{
    enum { TILES = 12 };
    static uint16_t want[TILES * WIRE_TILE], got[TILES * WIRE_TILE];
    struct shoal_error error = {0};
    struct wire_info info;
    char *data;
    size_t bytes;
    void *payload;

    (void)state;
    for (uint32_t i = 0; i < TILES * WIRE_TILE; i++) {
        uint64_t tile = i / WIRE_TILE % 4, at = i % WIRE_TILE;

        want[i] = (uint16_t)(0x3c00 + (at * at * 7919 >> 3) % 640 + (at % 2 << 15));
        if (tile == 1) want[i] = (uint16_t)(at * 40503);
        if (tile == 3) want[i] = at << 7 & 0x7fff;
    }
    assert_ok(file_read_all("tests/fuzz/corpus/wire/good_many", 1 << 20, &data, &bytes, &error));
    payload = wire_room(bytes);
    memcpy(payload, data, bytes);
    mem_free(data);
    assert_ok(wire_check(payload, bytes, "here", &info, &error));
    assert_int_equal(info.count, TILES * WIRE_TILE);
    for (int i = 0; wire_path_at(i); i++) {
        memset(got, 0x5a, sizeof got);
        wire_decode_on(wire_path_at(i), payload, info, 0, TILES, got);
        assert_memory_equal(got, want, sizeof want);
    }
    free(payload);
}

/* ---- damage ---- */

/* Decodes what passes the check, in memory whose ends are guarded. */
static bool try_payload(const uint8_t *payload, uint64_t bytes)
{
    struct shoal_error error = {0};
    struct wire_info info;
    uint64_t tiles, size;
    uint8_t *copy, *got;

    copy = wire_room(bytes);
    memcpy(copy, payload, bytes);
    if (wire_check(copy, bytes, "here", &info, &error)) {
        assert_int_equal(error.status, SHOAL_E_FORMAT);
        assert_int_equal(strncmp(error.text, "here: ", 6), 0);
        free(copy);
        return false;
    }
    size = (uint64_t)dtype_bytes(info.dtype, (int64_t)info.count);
    tiles = wire_tiles(info.count);
    got = wire_room(2 * size);
    wire_decode_reference(copy, info, 0, tiles, got);
    wire_decode(copy, info, 0, tiles, got + size);
    assert_memory_equal(got, got + size, size);
    free(got);
    free(copy);
    return true;
}

static void test_damage(void **state)
{
    enum { COUNT = 5000 };
    static uint16_t data[COUNT];
    uint64_t bytes;

    (void)state;
    EVERY_DTYPE(dtype)
    {
        const struct wire_kind *kind = wire_kind_of(dtype);
        struct wire_layout layout = layout_of(kind, COUNT);
        uint8_t *payload;

        wire_fill(dtype, data, 0, COUNT, FILL_MIXED);
        payload = pack(dtype, data, COUNT, &bytes);
        assert_true(try_payload(payload, bytes));
        for (uint64_t cut = 0; cut < bytes; cut += cut < 256 ? 1 : 61)
            assert_false(try_payload(payload, cut));
        /* Any bit of the header and of the entries; some of the others. Another table is none the
         * worse, nor is another count of as many tiles. */
        for (uint64_t bit = 0; bit < 8 * bytes; bit += bit < 8 * 128 ? 1 : 97) {
            bool free_choice =
                (bit >= 64 && bit < 64 + 10) || (bit / 8 >= 24 && bit / 8 < 24 + WIRE_TABLE);
            bool held;

            payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
            held = try_payload(payload, bytes);
            if (bit / 8 < HEADER_BYTES + 4 * (layout.tiles + 1) && !free_choice) assert_false(held);
            payload[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (int round = 0; round < 300; round++) {
            uint8_t *copy = wire_room(bytes);

            memcpy(copy, payload, bytes);
            for (uint32_t n = test_random(&seed) % 8; n < 8; n++)
                copy[HEADER_BYTES + test_random(&seed) % (bytes - HEADER_BYTES)] ^=
                    (uint8_t)test_random(&seed);
            try_payload(copy, bytes);
            free(copy);
        }
        free(payload);
    }
}

/* Bytes that change after the check, the header's too, do no harm: nothing outside the payload is
 * read, nothing outside the elements is written, and all paths give the same rubbish. */
static void test_changes_after_the_check(void **state)
{
    enum { COUNT = 5000 };
    static uint16_t data[COUNT];
    uint64_t bytes;

    (void)state;
    EVERY_DTYPE(dtype)
    for (int round = 0; round < 200; round++) {
        uint64_t size = COUNT * (uint64_t)dtype_bytes(dtype, 1), tiles = wire_tiles(COUNT), from;
        struct shoal_error error = {0};
        uint8_t *payload, *first, *other;
        struct wire_info info;

        wire_fill(dtype, data, 0, COUNT, FILL_MIXED);
        payload = pack(dtype, data, COUNT, &bytes);
        first = wire_room(size);
        other = wire_room(size);
        assert_ok(wire_check_header(payload, bytes, "here", &info, &error));
        from = round % 2 ? 0 : HEADER_BYTES;
        for (uint64_t i = from; i < bytes; i++)
            payload[i] = (uint8_t)(round % 3 ? test_random(&seed) >> 8 : 0xff);
        /* Parts that begin just before the end. */
        for (uint64_t tile = 0; tile < tiles && round % 4 == 0; tile++) {
            uint32_t units = (uint32_t)(bytes - layout_of(wire_kind_of(dtype), COUNT).parts) / 4;

            units -= 1 + test_random(&seed) % 64;
            memcpy(payload + HEADER_BYTES + 4 * tile, &units, 4);
        }
        wire_decode_reference(payload, info, 0, tiles, first);
        for (int i = 0; wire_path_at(i); i++) {
            wire_decode_on(wire_path_at(i), payload, info, 0, tiles, other);
            assert_memory_equal(other, first, size);
        }
        free(first);
        free(other);
        free(payload);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_lengths_and_distributions),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_paths_agree),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_changes_after_the_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
