/*
 * The codes of a tile, 64 weights to a word: what the AVX2 and the AVX-512 codec have in common.
 * Both are compiled with BMI2, whose pdep and pext spread a level's bits over the weights that it
 * is about and gather them again. Private to this folder.
 */
#ifndef WIRE_TILE_PLANES_H
#define WIRE_TILE_PLANES_H

#include "wire/tile.h"

#include <immintrin.h>

#define WORDS (WIRE_TILE / 64)
#define INLINE static inline __attribute__((always_inline))

/* `call`, with the kind's numbers as constants. */
#define OF_KIND(kind, call)                                                                        \
    do {                                                                                           \
        if ((kind)->bytes == 2 && (kind)->planes == 0)                                             \
            call(2, 0);                                                                            \
        else if ((kind)->bytes == 2)                                                               \
            call(2, 3);                                                                            \
        else                                                                                       \
            call(1, 4);                                                                            \
    } while (0)

/*
 * Each weight's place in a table of 16, as four bit planes: bits 0 and 1 are its code at the last
 * level that it came to, bit 2 says that it left the first, bit 3 that it left the second. So the
 * levels' values are at 0, 4 and 12, and 15 is a value that stands for itself.
 */
struct places {
    uint64_t planes[4][WORDS];
    uint64_t lone[WORDS];  /* those at 15 */
    const uint8_t *values; /* theirs, one after another */
};

INLINE __m128i places_table(const struct wire_tile *tile)
{
    const uint8_t *t = tile->table;
    __m128i table = _mm_setr_epi8((char)t[0], (char)t[1], (char)t[2], 0, (char)t[3], (char)t[4],
        (char)t[5], 0, 0, 0, 0, 0, (char)t[6], (char)t[7], (char)t[8], 0);

    return _mm_add_epi8(table, _mm_set1_epi8((char)tile->part[0]));
}

/* 64 bits from a bit on; reads 16 bytes. */
INLINE uint64_t bits_from(const uint8_t *from, size_t at)
{
    uint64_t low = load_u64(from + at / 8), high = load_u64(from + at / 8 + 8);

    return low >> at % 8 | high << 1 << (63 - at % 8);
}

/* One level more: its codes of the `n` weights in `left`, of whom those with code 3 stay there. */
INLINE size_t places_level(
    struct places *places, const uint8_t *part, size_t at, size_t n, uint64_t left[WORDS])
{
    size_t next = 0;

    for (int word = 0; word < WORDS; word++) {
        uint64_t low = _pdep_u64(bits_from(part, at), left[word]);
        uint64_t high = _pdep_u64(bits_from(part, at + n), left[word]);

        at += (size_t)_mm_popcnt_u64(left[word]);
        /* Until now, their code was 3. */
        places->planes[0][word] ^= left[word] ^ low;
        places->planes[1][word] ^= left[word] ^ high;
        left[word] = low & high;
        next += (size_t)_mm_popcnt_u64(left[word]);
    }
    return next;
}

INLINE void places_read(struct places *places, const uint8_t *codes, const uint8_t *part)
{
    size_t n = 0, at = 8;

    memcpy(places->planes, codes, 2 * PLANE_BYTES);
    for (int word = 0; word < WORDS; word++) {
        places->lone[word] = places->planes[0][word] & places->planes[1][word];
        n += (size_t)_mm_popcnt_u64(places->lone[word]);
    }
    for (int level = 1; level < LEVELS; level++) {
        memcpy(places->planes[level + 1], places->lone, sizeof places->lone);
        at += 2 * n;
        n = places_level(places, part, at - 2 * n, n, places->lone);
    }
    places->values = part + (at + 7) / 8;
}

/* ---- the other way ---- */

/* What a value's codes are, by its rank: two bits a level, from the lowest. */
static const uint8_t rank_codes[16] = {0x00, 0x01, 0x02, 0x03, 0x07, 0x0b, 0x0f, 0x1f, 0x2f, 0x3f};

/* planes[bit] of the codes */
typedef uint64_t code_planes[2 * LEVELS][WORDS];

struct bit_writer {
    uint8_t *to;
    uint64_t bits; /* not written yet: fewer than 8 of them */
    unsigned count;
};

/* n <= 56 */
INLINE void put_few_bits(struct bit_writer *writer, uint64_t bits, unsigned n)
{
    writer->bits |= bits << writer->count;
    writer->count += n;
    memcpy(writer->to, &writer->bits, 8);
    writer->to += writer->count / 8;
    writer->bits >>= writer->count / 8 * 8;
    writer->count %= 8;
}

INLINE void put_bits(struct bit_writer *writer, uint64_t bits, unsigned n)
{
    if (n > 56) {
        put_few_bits(writer, bits & 0xffffffff, 32);
        bits >>= 32;
        n -= 32;
    }
    put_few_bits(writer, bits, n);
}

/* The part: the base, the codes of the levels after the first, and those of the tile's values that
 * stand for themselves. Returns its bytes, with what fills up the last unit. */
INLINE size_t part_write(
    uint8_t *part, uint8_t base, code_planes planes, const uint8_t values[WIRE_TILE])
{
    struct bit_writer writer = {part + 1, 0, 0};
    uint64_t left[WORDS];
    uint8_t *to;

    part[0] = base;
    for (int word = 0; word < WORDS; word++)
        left[word] = planes[0][word] & planes[1][word];
    for (int level = 1; level < LEVELS; level++) {
        for (int high = 0; high < 2; high++)
            for (int word = 0; word < WORDS; word++)
                put_bits(&writer, _pext_u64(planes[2 * level + high][word], left[word]),
                    (unsigned)_mm_popcnt_u64(left[word]));
        for (int word = 0; word < WORDS; word++)
            left[word] = planes[2 * level][word] & planes[2 * level + 1][word];
    }
    to = writer.to + (writer.count ? 1 : 0);
    for (int word = 0; word < WORDS; word++)
        for (uint64_t lone = left[word]; lone; lone &= lone - 1)
            *to++ = values[word * 64 + __builtin_ctzll(lone)];
    memset(to, 0, PART_UNIT);
    return size_align((size_t)(to - part), PART_UNIT);
}

/*
 * The part, and what of the record follows the `planes` planes that are stored as they are; they
 * begin at `record`. Where coding saves nothing, the tile's high bytes lie in both as they are.
 */
INLINE size_t tile_write(const uint8_t high[WIRE_TILE], uint8_t base, code_planes code_bits,
    const uint8_t values[WIRE_TILE], uint8_t *record, unsigned planes, uint8_t *part, bool *raw)
{
    const size_t in_record = (planes + 2u) * PLANE_BYTES;
    size_t bytes = part_write(part, base, code_bits, values);

    *raw = bytes >= WIRE_TILE - in_record;
    if (*raw) {
        memcpy(record, high, in_record);
        memcpy(part, high + in_record, WIRE_TILE - in_record);
        return WIRE_TILE - in_record;
    }
    memcpy(record + planes * PLANE_BYTES, code_bits, 2 * PLANE_BYTES);
    return bytes;
}

#endif
