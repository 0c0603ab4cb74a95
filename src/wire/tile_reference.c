/*
 * The codec of one tile as its description, one weight at a time: the oracle for the fast ones, and
 * what runs on CPUs that have none of them.
 */
#include "wire/tile.h"

/* The low bytes (of types that have them) and the high bytes of a tile. */
static void split(
    const struct wire_kind *kind, const uint8_t *elements, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < WIRE_TILE; i++) {
        if (kind->bytes == 2) {
            uint32_t bits = elements[2 * i] | (uint32_t)elements[2 * i + 1] << 8;

            bits = bits << 1 | bits >> 15;
            low[i] = (uint8_t)bits;
            high[i] = (uint8_t)(bits >> 8);
        } else {
            high[i] = (uint8_t)(elements[i] << 1 | elements[i] >> 7);
        }
    }
}

static void join(
    const struct wire_kind *kind, const uint8_t *low, const uint8_t *high, uint8_t *elements)
{
    for (int i = 0; i < WIRE_TILE; i++) {
        if (kind->bytes == 2) {
            uint32_t bits = low[i] | (uint32_t)high[i] << 8;

            elements[2 * i] = (uint8_t)(bits >> 1);
            elements[2 * i + 1] = (uint8_t)(bits >> 9 | bits << 7);
        } else {
            elements[i] = (uint8_t)(high[i] >> 1 | high[i] << 7);
        }
    }
}

/* The largest that half of the coded bits of the tile are not below. */
static uint8_t find_base(const struct wire_kind *kind, const uint8_t high[WIRE_TILE])
{
    unsigned counts[256] = {0}, seen = 0;
    int value = 255;

    for (int i = 0; i < WIRE_TILE; i++)
        counts[high[i]]++;
    for (;; value--) {
        seen += counts[value];
        if (seen >= WIRE_TILE / 2) return (uint8_t)(value & kind_coded(kind));
    }
}

/* ---- bits, the lowest of a byte first ---- */

static unsigned get_bit(const uint8_t *from, size_t at)
{
    return (unsigned)from[at / 8] >> at % 8 & 1;
}

static void put_bit(uint8_t *to, size_t at, unsigned bit)
{
    to[at / 8] = (uint8_t)(to[at / 8] | bit << at % 8);
}

/* ---- codes ---- */

/*
 * ranks[i] is the place of weight i's value in the table, WIRE_TABLE for values that are not in
 * it. A level tells those apart that all levels before have left: two bits each, the lower ones of
 * all of them first. The first level's lie in the record, the others' in the part.
 */
static size_t get_ranks(const uint8_t *codes, const uint8_t *part, uint8_t ranks[WIRE_TILE])
{
    size_t at = 0, left = WIRE_TILE;

    memset(ranks, 0, WIRE_TILE);
    for (unsigned level = 0; level < LEVELS; level++) {
        const uint8_t *from = level == 0 ? codes : part;
        size_t seen = 0, next = 0;

        for (int i = 0; i < WIRE_TILE; i++) {
            unsigned code;

            if (ranks[i] != 3 * level) continue;
            code = get_bit(from, at + seen) | get_bit(from, at + left + seen) << 1;
            ranks[i] = (uint8_t)(ranks[i] + code);
            next += code == 3;
            seen++;
        }
        at = level == 0 ? 8 : at + 2 * left; /* the part's first byte is the base */
        left = next;
    }
    return (at + 7) / 8; /* where the values that are not in the table begin */
}

static size_t put_ranks(uint8_t *codes, uint8_t *part, const uint8_t ranks[WIRE_TILE])
{
    size_t at = 0, left = WIRE_TILE;

    for (unsigned level = 0; level < LEVELS; level++) {
        uint8_t *to = level == 0 ? codes : part;
        size_t seen = 0, next = 0;

        for (int i = 0; i < WIRE_TILE; i++) {
            unsigned code;

            if (ranks[i] < 3 * level) continue;
            code = ranks[i] - 3 * level;
            if (code > 3) code = 3;
            put_bit(to, at + seen, code & 1);
            put_bit(to, at + left + seen, code >> 1);
            next += code == 3;
            seen++;
        }
        at = level == 0 ? 8 : at + 2 * left;
        left = next;
    }
    return (at + 7) / 8;
}

void wire_table_init(struct wire_table *table, const uint8_t values[WIRE_TABLE])
{
    memcpy(table->values, values, WIRE_TABLE);
    memset(table->ranks, WIRE_TABLE, sizeof table->ranks);
    for (uint8_t rank = 0; rank < WIRE_TABLE; rank++)
        table->ranks[values[rank]] = rank;
}

/* ---- tiles ---- */

static void decode(const struct wire_kind *kind, const struct wire_tile *tile, uint8_t *elements)
{
    const uint8_t *planes = tile->record + kind_low_bytes(kind);
    const size_t in_record = (kind->planes + 2u) * PLANE_BYTES;
    uint8_t high[WIRE_TILE], ranks[WIRE_TILE];
    const uint8_t *values;

    if (tile->raw) {
        memcpy(high, planes, in_record);
        memcpy(high + in_record, tile->part, WIRE_TILE - in_record);
        join(kind, tile->record, high, elements);
        return;
    }
    values = tile->part + get_ranks(planes + kind->planes * PLANE_BYTES, tile->part, ranks);
    for (unsigned i = 0; i < WIRE_TILE; i++) {
        uint8_t value = ranks[i] < WIRE_TABLE ? tile->table[ranks[i]] : *values++;

        high[i] = (uint8_t)(value + tile->part[0]);
        for (unsigned plane = 0; plane < kind->planes; plane++)
            high[i] |= (uint8_t)(get_bit(planes + plane * PLANE_BYTES, i) << plane);
    }
    join(kind, tile->record, high, elements);
}

static void tile_values(
    const struct wire_kind *kind, const uint8_t *elements, uint8_t values[WIRE_TILE])
{
    uint8_t low[WIRE_TILE], high[WIRE_TILE], base;

    split(kind, elements, low, high);
    base = find_base(kind, high);
    for (int i = 0; i < WIRE_TILE; i++)
        values[i] = (uint8_t)((high[i] & kind_coded(kind)) - base);
}

static size_t encode(const struct wire_kind *kind, const struct wire_table *table,
    const uint8_t *elements, uint8_t *record, uint8_t *part, bool *raw)
{
    uint8_t *planes = record + kind_low_bytes(kind);
    const size_t in_record = (kind->planes + 2u) * PLANE_BYTES;
    uint8_t high[WIRE_TILE], ranks[WIRE_TILE], value;
    size_t bytes;

    split(kind, elements, record, high);
    memset(planes, 0, in_record);
    memset(part, 0, PART_ROOM);
    part[0] = find_base(kind, high);
    for (unsigned i = 0; i < WIRE_TILE; i++) {
        for (unsigned plane = 0; plane < kind->planes; plane++)
            put_bit(planes + plane * PLANE_BYTES, i, (unsigned)high[i] >> plane & 1);
        value = (uint8_t)((high[i] & kind_coded(kind)) - part[0]);
        ranks[i] = table->ranks[value];
    }
    bytes = put_ranks(planes + kind->planes * PLANE_BYTES, part, ranks);
    for (int i = 0; i < WIRE_TILE; i++)
        if (ranks[i] == WIRE_TABLE)
            part[bytes++] = (uint8_t)((high[i] & kind_coded(kind)) - part[0]);
    bytes = size_align(bytes, PART_UNIT);
    *raw = bytes >= kind_raw_part_bytes(kind);
    if (!*raw) return bytes;
    memcpy(planes, high, in_record);
    memcpy(part, high + in_record, WIRE_TILE - in_record);
    return WIRE_TILE - in_record;
}

const struct wire_path wire_path_reference = {"scalar", decode, tile_values, encode};
