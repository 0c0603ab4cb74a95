/*
 * The codec of one tile with AVX2 and BMI2, 32 weights at a time. What the kinds of elements have
 * not in common is decided when this is compiled.
 */
#include "wire/tile_planes.h"

#define ALL(x) _mm256_set1_epi8((char)(x))

INLINE __m256i load_32(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE void store_32(uint8_t *to, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)to, v);
}

/* ---- decoding ---- */

INLINE void join(unsigned bytes, __m256i low, __m256i high, uint8_t *to)
{
    __m256i a, b;

    if (bytes == 1) {
        /* There are no shifts of bytes: what comes from the neighbour is masked off. */
        a = _mm256_and_si256(_mm256_srli_epi16(high, 1), ALL(0x7f));
        b = _mm256_andnot_si256(ALL(0x7f), _mm256_slli_epi16(high, 7));
        store_32(to, _mm256_or_si256(a, b));
        return;
    }
    low = _mm256_permute4x64_epi64(low, _MM_SHUFFLE(3, 1, 2, 0));
    high = _mm256_permute4x64_epi64(high, _MM_SHUFFLE(3, 1, 2, 0));
    a = _mm256_unpacklo_epi8(low, high);
    b = _mm256_unpackhi_epi8(low, high);
    store_32(to, _mm256_or_si256(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15)));
    store_32(to + 32, _mm256_or_si256(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15)));
}

/* Bytes of all ones where a bit is set: bits [32 half, 32 half + 32) of the word. */
INLINE __m256i spread(uint64_t word, int half)
{
    const __m256i byte =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32((int)(word >> 32 * half)), byte);

    return _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
}

INLINE void decode_raw(
    const struct wire_tile *tile, uint8_t *elements, unsigned bytes, unsigned planes)
{
    const size_t low_bytes = (bytes - 1) * WIRE_TILE, in_record = (planes + 2u) * PLANE_BYTES;

    for (size_t i = 0; i < WIRE_TILE; i += 32) {
        const uint8_t *high =
            i < in_record ? tile->record + low_bytes + i : tile->part + i - in_record;

        join(bytes, load_32(tile->record + (bytes == 2 ? i : 0)), load_32(high),
            elements + i * bytes);
    }
}

/* The values of all weights, the planes that are stored as they are still left out. */
INLINE void values_read(
    const struct wire_tile *tile, const uint8_t *codes, uint8_t values[WIRE_TILE])
{
    const __m256i table = _mm256_broadcastsi128_si256(places_table(tile));
    const uint8_t *from;
    struct places places;

    places_read(&places, codes, tile->part);
    for (int i = 0; i < 2 * WORDS; i++) {
        __m256i place = _mm256_setzero_si256();

        /* All ones is -1: from the highest plane, 2 place + 1 for a bit that is set. */
        for (int plane = 3; plane >= 0; plane--)
            place = _mm256_sub_epi8(
                _mm256_add_epi8(place, place), spread(places.planes[plane][i / 2], i % 2));
        store_32(values + i * 32, _mm256_shuffle_epi8(table, place));
    }
    from = places.values;
    for (int word = 0; word < WORDS; word++)
        for (uint64_t lone = places.lone[word]; lone; lone &= lone - 1)
            values[word * 64 + __builtin_ctzll(lone)] = (uint8_t)(*from++ + tile->part[0]);
}

INLINE void decode_tile(
    const struct wire_tile *tile, uint8_t *elements, unsigned bytes, unsigned planes)
{
    const uint8_t *raw_planes = tile->record + (bytes - 1) * WIRE_TILE;
    uint8_t values[WIRE_TILE];

    values_read(tile, raw_planes + planes * PLANE_BYTES, values);
    for (size_t i = 0; i < WIRE_TILE; i += 32) {
        __m256i high = load_32(values + i);

        for (unsigned plane = 0; plane < planes; plane++) {
            uint32_t bits = load_u32(raw_planes + plane * PLANE_BYTES + i / 8);

            high = _mm256_or_si256(high, _mm256_and_si256(spread(bits, 0), ALL(1 << plane)));
        }
        join(bytes, load_32(tile->record + (bytes == 2 ? i : 0)), high, elements + i * bytes);
    }
}

static void decode(const struct wire_kind *kind, const struct wire_tile *tile, uint8_t *elements)
{
#define CALL(bytes, planes) (tile->raw ? decode_raw : decode_tile)(tile, elements, bytes, planes)
    OF_KIND(kind, CALL);
#undef CALL
}

/* ---- encoding ---- */

/* The low bytes of a tile go to its record, the high ones to `high`. */
INLINE void split(const uint8_t *elements, uint8_t *low, uint8_t *high, unsigned bytes)
{
    for (size_t i = 0; i < WIRE_TILE; i += 32) {
        __m256i a = load_32(elements + i * bytes), b;

        if (bytes == 1) {
            b = _mm256_and_si256(_mm256_srli_epi16(a, 7), ALL(1));
            store_32(high + i, _mm256_or_si256(_mm256_add_epi8(a, a), b));
            continue;
        }
        b = load_32(elements + i * 2 + 32);
        a = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
        b = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
        store_32(low + i, _mm256_permute4x64_epi64(
                              _mm256_packus_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                                  _mm256_and_si256(b, _mm256_set1_epi16(0xff))),
                              _MM_SHUFFLE(3, 1, 2, 0)));
        store_32(high + i, _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_srli_epi16(a, 8),
                                                        _mm256_srli_epi16(b, 8)),
                               _MM_SHUFFLE(3, 1, 2, 0)));
    }
}

/* The largest base that half of the values reach, bit by bit. */
INLINE uint8_t find_base(const uint8_t high[WIRE_TILE], unsigned planes)
{
    unsigned base = 0;

    for (unsigned bit = 128; bit >= 1u << planes; bit >>= 1) {
        __m256i least = ALL(base | bit), sums = _mm256_setzero_si256();
        uint64_t reached[4];

        for (size_t i = 0; i < WIRE_TILE; i += 32) {
            __m256i v = load_32(high + i);

            /* 32 vectors: no byte overflows. */
            sums = _mm256_sub_epi8(sums, _mm256_cmpeq_epi8(_mm256_max_epu8(v, least), v));
        }
        store_32((uint8_t *)reached, _mm256_sad_epu8(sums, _mm256_setzero_si256()));
        if (reached[0] + reached[1] + reached[2] + reached[3] >= WIRE_TILE / 2) base |= bit;
    }
    return (uint8_t)base;
}

/* One bit of each of 32 bytes. */
INLINE uint32_t bit_of(__m256i v, int bit)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v, 7 - bit));
}

INLINE void put_word(uint8_t *to, size_t half, uint32_t bits)
{
    memcpy(to + half * 4, &bits, 4);
}

/* Codes of 32 values: those that are in no table have all bits set. */
INLINE __m256i codes_of(const struct wire_table *table, __m256i values)
{
    __m256i all = ALL(0x3f);

    for (int rank = 0; rank < WIRE_TABLE; rank++)
        all = _mm256_andnot_si256(
            _mm256_and_si256(
                _mm256_cmpeq_epi8(values, ALL(table->values[rank])), ALL(~rank_codes[rank])),
            all);
    return all;
}

INLINE size_t encode_tile(const struct wire_table *table, const uint8_t *elements, uint8_t *record,
    uint8_t *part, bool *raw, unsigned bytes, unsigned planes)
{
    uint8_t *raw_planes = record + (bytes - 1) * WIRE_TILE;
    uint8_t high[WIRE_TILE], values[WIRE_TILE], base;
    code_planes code_bits;

    split(elements, record, high, bytes);
    base = find_base(high, planes);
    for (size_t half = 0; half < 2 * WORDS; half++) {
        __m256i all = load_32(high + half * 32);
        __m256i value = _mm256_sub_epi8(_mm256_and_si256(all, ALL(0xff << planes)), ALL(base));
        __m256i codes = codes_of(table, value);

        store_32(values + half * 32, value);
        for (int bit = 0; bit < 2 * LEVELS; bit++)
            put_word((uint8_t *)code_bits[bit], half, bit_of(codes, bit));
        for (unsigned plane = 0; plane < planes; plane++)
            put_word(raw_planes + plane * PLANE_BYTES, half, bit_of(all, (int)plane));
    }
    return tile_write(high, base, code_bits, values, raw_planes, planes, part, raw);
}

INLINE void values_of(
    const uint8_t *elements, uint8_t values[WIRE_TILE], unsigned bytes, unsigned planes)
{
    uint8_t low[WIRE_TILE], high[WIRE_TILE], base;

    split(elements, low, high, bytes);
    base = find_base(high, planes);
    for (size_t i = 0; i < WIRE_TILE; i += 32)
        store_32(values + i,
            _mm256_sub_epi8(_mm256_and_si256(load_32(high + i), ALL(0xff << planes)), ALL(base)));
}

static void tile_values(
    const struct wire_kind *kind, const uint8_t *elements, uint8_t values[WIRE_TILE])
{
#define CALL(bytes, planes) values_of(elements, values, bytes, planes)
    OF_KIND(kind, CALL);
#undef CALL
}

static size_t encode(const struct wire_kind *kind, const struct wire_table *table,
    const uint8_t *elements, uint8_t *record, uint8_t *part, bool *raw)
{
#define CALL(bytes, planes) return encode_tile(table, elements, record, part, raw, bytes, planes)
    OF_KIND(kind, CALL);
#undef CALL
}

const struct wire_path wire_path_avx2 = {"AVX2", decode, tile_values, encode};
