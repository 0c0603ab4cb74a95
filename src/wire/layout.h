/*
 * Where the parts of a payload lie; docs/formats.md, "The wire payload", says what they mean.
 * Private to this folder.
 */
#ifndef WIRE_LAYOUT_H
#define WIRE_LAYOUT_H

#include "base/size.h"
#include "wire/wire.h"

#include <string.h>

#define HEADER_BYTES WIRE_HEADER_BYTES
#define AFTER_BYTES 64 /* nothing, after the last part: vector loads may reach into it */

#define LEVELS 3
/* Three values a level; the fourth code says "next level". */
_Static_assert(WIRE_TABLE == 3 * LEVELS, "a table has three values for each level");
#define PLANE_BYTES (WIRE_TILE / 8) /* one bit a weight */

#define TILE_RAW 0x80000000u /* in a tile's entry; the rest counts units of its part's offset */
#define PART_UNIT 4

/*
 * An element, rotated left by one bit, is a high byte that begins with the exponent, and for types
 * of 16 bits a low byte that is stored as it is. `planes` bits of the high byte are mantissa and
 * sign; they are stored as they are too, in bit planes. What is left of it is coded.
 */
struct wire_kind {
    enum dtype dtype;
    uint8_t code;  /* of the dtype, in the header */
    uint8_t bytes; /* an element's */
    uint8_t planes;
};

/* NULL if there is no codec for it. */
const struct wire_kind *wire_kind_of(enum dtype dtype);

/* The bits of a high byte that are coded. */
static inline uint8_t kind_coded(const struct wire_kind *kind)
{
    return (uint8_t)(0xff << kind->planes);
}

static inline size_t kind_low_bytes(const struct wire_kind *kind)
{
    return (size_t)(kind->bytes - 1) * WIRE_TILE;
}

/* A tile's record: low bytes, planes as they are, the two planes of the first level. */
static inline size_t kind_record_bytes(const struct wire_kind *kind)
{
    return kind_low_bytes(kind) + (kind->planes + 2u) * PLANE_BYTES;
}

/* The part of a tile that is not coded: those of its high bytes that its record has no room for.
 * Other tiles' parts are smaller. */
static inline size_t kind_raw_part_bytes(const struct wire_kind *kind)
{
    return kind->bytes * WIRE_TILE - kind_record_bytes(kind);
}

/* From the payload's beginning. */
struct wire_layout {
    uint64_t tiles;
    uint64_t records, parts; /* offsets */
};

/* count <= WIRE_MOST */
static inline struct wire_layout layout_of(const struct wire_kind *kind, uint64_t count)
{
    struct wire_layout layout = {.tiles = wire_tiles(count)};

    layout.records = size_align(HEADER_BYTES + (layout.tiles + 1) * 4, WIRE_ALIGNMENT);
    layout.parts = layout.records + layout.tiles * kind_record_bytes(kind);
    return layout;
}

static inline uint64_t payload_bytes(const struct wire_layout *layout, uint64_t parts_bytes)
{
    return size_align(layout->parts + parts_bytes + AFTER_BYTES, WIRE_ALIGNMENT);
}

/* Numbers in payloads are little-endian, as is every machine that this library runs on. */
static inline uint32_t load_u32(const void *from)
{
    uint32_t value;

    memcpy(&value, from, sizeof value);
    return value;
}

static inline uint64_t load_u64(const void *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof value);
    return value;
}

#endif
