/*
 * The codec of one tile with AVX-512 (of Ice Lake and Zen 4: VBMI2 too), 64 weights at a time.
 * What the kinds of elements have not in common is decided when this is compiled.
 */
#include "wire/tile_planes.h"

/* ---- decoding ---- */

INLINE void join(unsigned bytes, __m512i low, __m512i high, uint8_t *to)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i a, b;

    if (bytes == 1) {
        /* No shifts of bytes: the bits that a shift takes from the neighbour are masked off. */
        a = _mm512_and_si512(_mm512_srli_epi16(high, 1), _mm512_set1_epi8(0x7f));
        b = _mm512_andnot_si512(_mm512_set1_epi8(0x7f), _mm512_slli_epi16(high, 7));
        _mm512_storeu_si512(to, _mm512_or_si512(a, b));
        return;
    }
    low = _mm512_permutexvar_epi64(order, low);
    high = _mm512_permutexvar_epi64(order, high);
    a = _mm512_unpacklo_epi8(low, high);
    b = _mm512_unpackhi_epi8(low, high);
    _mm512_storeu_si512(to, _mm512_shrdi_epi16(a, a, 1));
    _mm512_storeu_si512(to + 64, _mm512_shrdi_epi16(b, b, 1));
}

INLINE void decode_raw(
    const struct wire_tile *tile, uint8_t *elements, unsigned bytes, unsigned planes)
{
    const size_t low_bytes = (bytes - 1) * WIRE_TILE, in_record = (planes + 2u) * PLANE_BYTES;

    for (size_t i = 0; i < WIRE_TILE; i += 64) {
        const uint8_t *high =
            i < in_record ? tile->record + low_bytes + i : tile->part + i - in_record;

        join(bytes, _mm512_loadu_si512(tile->record + (bytes == 2 ? i : 0)),
            _mm512_loadu_si512(high), elements + i * bytes);
    }
}

INLINE void decode_tile(
    const struct wire_tile *tile, uint8_t *elements, unsigned bytes, unsigned planes)
{
    const uint8_t *raw_planes = tile->record + (bytes - 1) * WIRE_TILE;
    const __m512i table = _mm512_broadcast_i32x4(places_table(tile));
    const __m512i base = _mm512_set1_epi8((char)tile->part[0]);
    const uint8_t *values;
    struct places places;

    places_read(&places, raw_planes + planes * PLANE_BYTES, tile->part);
    values = places.values;
    for (int word = 0; word < WORDS; word++) {
        __m512i place = _mm512_maskz_set1_epi8(places.planes[0][word], 1), high;
        uint64_t lone = places.lone[word];

        for (int plane = 1; plane < 4; plane++)
            place = _mm512_mask_add_epi8(
                place, places.planes[plane][word], place, _mm512_set1_epi8((char)(1 << plane)));
        high = _mm512_shuffle_epi8(table, place);
        high = _mm512_mask_add_epi8(
            high, lone, _mm512_maskz_expand_epi8(lone, _mm512_loadu_si512(values)), base);
        values += _mm_popcnt_u64(lone);
        for (unsigned plane = 0; plane < planes; plane++) {
            uint64_t bits = load_u64(raw_planes + plane * PLANE_BYTES + (size_t)word * 8);

            high = _mm512_or_si512(high, _mm512_maskz_set1_epi8(bits, (char)(1 << plane)));
        }
        join(bytes, _mm512_loadu_si512(tile->record + (bytes == 2 ? word * 64 : 0)), high,
            elements + (size_t)word * 64 * bytes);
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
    /* Every other byte of two vectors. */
    __m512i even = _mm512_setzero_si512(), odd;

    for (int i = 0; i < 64; i++)
        ((uint8_t *)&even)[i] = (uint8_t)(2 * i);
    odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    for (size_t i = 0; i < WIRE_TILE; i += 64) {
        __m512i a = _mm512_loadu_si512(elements + i * bytes), b;

        if (bytes == 1) {
            b = _mm512_and_si512(_mm512_srli_epi16(a, 7), _mm512_set1_epi8(1));
            _mm512_storeu_si512(high + i, _mm512_or_si512(_mm512_add_epi8(a, a), b));
            continue;
        }
        b = _mm512_loadu_si512(elements + i * 2 + 64);
        a = _mm512_shldi_epi16(a, a, 1);
        b = _mm512_shldi_epi16(b, b, 1);
        _mm512_storeu_si512(low + i, _mm512_permutex2var_epi8(a, even, b));
        _mm512_storeu_si512(high + i, _mm512_permutex2var_epi8(a, odd, b));
    }
}

/* The largest base that half of the values reach, bit by bit. */
INLINE uint8_t find_base(const uint8_t high[WIRE_TILE], unsigned planes)
{
    unsigned base = 0;

    for (unsigned bit = 128; bit >= 1u << planes; bit >>= 1) {
        __m512i least = _mm512_set1_epi8((char)(base | bit));
        uint64_t reached = 0;

        for (size_t i = 0; i < WIRE_TILE; i += 64)
            reached += (uint64_t)_mm_popcnt_u64(
                _mm512_cmpge_epu8_mask(_mm512_loadu_si512(high + i), least));
        if (reached >= WIRE_TILE / 2) base |= bit;
    }
    return (uint8_t)base;
}

/* ranks[v] for each of the values: 256 bytes are four vectors. */
INLINE __m512i look_up(const uint8_t ranks[256], __m512i values)
{
    __m512i low =
        _mm512_permutex2var_epi8(_mm512_loadu_si512(ranks), values, _mm512_loadu_si512(ranks + 64));
    __m512i high = _mm512_permutex2var_epi8(
        _mm512_loadu_si512(ranks + 128), values, _mm512_loadu_si512(ranks + 192));

    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(values), low, high);
}

INLINE size_t encode_tile(const struct wire_table *table, const uint8_t *elements, uint8_t *record,
    uint8_t *part, bool *raw, unsigned bytes, unsigned planes)
{
    const __m512i codes_of =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)rank_codes));
    const __m512i coded = _mm512_set1_epi8((char)(0xff << planes));
    uint8_t *raw_planes = record + (bytes - 1) * WIRE_TILE;
    uint8_t high[WIRE_TILE], values[WIRE_TILE], base;
    code_planes code_bits;

    split(elements, record, high, bytes);
    base = find_base(high, planes);
    for (int word = 0; word < WORDS; word++) {
        __m512i all = _mm512_loadu_si512(high + word * 64);
        __m512i value = _mm512_sub_epi8(_mm512_and_si512(all, coded), _mm512_set1_epi8((char)base));
        __m512i codes = _mm512_shuffle_epi8(codes_of, look_up(table->ranks, value));

        _mm512_storeu_si512(values + word * 64, value);
        for (int bit = 0; bit < 2 * LEVELS; bit++)
            code_bits[bit][word] = _mm512_test_epi8_mask(codes, _mm512_set1_epi8((char)(1 << bit)));
        for (unsigned plane = 0; plane < planes; plane++) {
            uint64_t bits = _mm512_test_epi8_mask(all, _mm512_set1_epi8((char)(1 << plane)));

            memcpy(raw_planes + plane * PLANE_BYTES + (size_t)word * 8, &bits, 8);
        }
    }
    return tile_write(high, base, code_bits, values, raw_planes, planes, part, raw);
}

INLINE void values_of(
    const uint8_t *elements, uint8_t values[WIRE_TILE], unsigned bytes, unsigned planes)
{
    uint8_t low[WIRE_TILE], high[WIRE_TILE], base;

    split(elements, low, high, bytes);
    base = find_base(high, planes);
    for (size_t i = 0; i < WIRE_TILE; i += 64) {
        __m512i coded = _mm512_and_si512(
            _mm512_loadu_si512(high + i), _mm512_set1_epi8((char)(0xff << planes)));

        _mm512_storeu_si512(values + i, _mm512_sub_epi8(coded, _mm512_set1_epi8((char)base)));
    }
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

const struct wire_path wire_path_avx512 = {"AVX-512", decode, tile_values, encode};
