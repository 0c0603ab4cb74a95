/*
 * Fuzz target: the input is a packed tensor, or, if it is refused, the elements of one.
 *
 * Built as fuzz_safetensors.c says, with the corpus in tests/fuzz/corpus/wire.
 */
#include "wire/tile.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void *room(uint64_t bytes)
{
    void *room = aligned_alloc(WIRE_ALIGNMENT, size_align(bytes + 1, WIRE_ALIGNMENT));

    require(room);
    return room;
}

/* Every path gives the same elements, which are returned. */
static uint8_t *decode(const void *payload, struct wire_info info)
{
    uint64_t bytes = (uint64_t)dtype_bytes(info.dtype, (int64_t)info.count);
    uint8_t *first = room(bytes), *other = room(bytes);

    wire_decode_reference(payload, info, 0, wire_tiles(info.count), first);
    for (int i = 1; wire_path_at(i); i++) {
        wire_decode_on(wire_path_at(i), payload, info, 0, wire_tiles(info.count), other);
        require(!bytes || !memcmp(first, other, bytes));
    }
    free(other);
    return first;
}

/* Every path packs the elements to the same bytes, which give them back. */
static void round_trip(const void *data, enum dtype dtype, uint64_t count)
{
    struct shoal_error error = {0};
    uint64_t bytes, bound = wire_bound(dtype, count),
                    size = (uint64_t)dtype_bytes(dtype, (int64_t)count);
    uint8_t *first = room(bound), *other = room(bound), *got;
    struct wire_info info;

    bytes = wire_encode_on(wire_path_at(0), NULL, dtype, data, count, first);
    require(bytes <= bound);
    for (int i = 1; wire_path_at(i); i++) {
        require(wire_encode_on(wire_path_at(i), NULL, dtype, data, count, other) == bytes);
        require(!memcmp(first, other, bytes));
    }
    require(!wire_check(first, bytes, "f", &info, &error));
    require(info.dtype == dtype && info.count == count && info.bytes == bytes);
    got = decode(first, info);
    require(!size || !memcmp(got, data, size));
    free(first);
    free(other);
    free(got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};
    struct shoal_error error = {0};
    uint8_t *copy = room(size), *elements;
    struct wire_info info;

    if (size) memcpy(copy, data, size);
    if (wire_check(copy, size, "f", &info, &error)) {
        require(error.status == SHOAL_E_FORMAT && error.text[0] == 'f');
        for (int i = 0; i < 3; i++)
            round_trip(copy, dtypes[i], size / (uint64_t)dtype_bytes(dtypes[i], 1));
    } else {
        elements = decode(copy, info);
        round_trip(elements, info.dtype, info.count);
        free(elements);
    }
    free(copy);
    return 0;
}
