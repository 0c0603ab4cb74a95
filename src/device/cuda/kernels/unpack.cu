/*
 * Decoding the wire: a warp takes a tile, a lane the codes of 32 elements that follow one another,
 * a word of each plane. What an element needs at a deeper level lies where the prefix sum of the
 * escapes before it says. High bytes gather in shared memory; from there the lanes take them in
 * the order of memory, join them with the low bytes and store 16 bytes at a time.
 *
 * Damaged payloads give rubbish, but nothing is read outside the payload and WIRE_OVERRUN behind
 * it: counts and sizes come from the host, and a part's offset is clamped.
 */
#include "device/cuda/kernels/gpu.cuh"
#include "device/cuda/kernels/unpack.h"

#define TABLE_AT 24 /* in the header */
#define ENTRIES_AT 64
#define TILE_RAW 0x80000000u
#define PLANE_BYTES (UNPACK_TILE / 8)

/* Where the high byte of an element lies, so that 16 bytes of each lane meet in few banks. */
DEVICE int place(int element)
{
    return element ^ (element >> 3 & 16);
}

/* The sum over the lanes below. */
DEVICE int sum_below(int x, int *total)
{
    int lane = threadIdx.x % WARP, sum = x;

#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        int below = shuffle_up(sum, by);

        if (lane >= by) sum += below;
    }
    *total = shuffle(sum, WARP - 1);
    return sum - x;
}

/* 32 bits of a part from a bit on; reads two whole words. */
DEVICE uint32_t bits_at(const uint8_t *part, int at)
{
    const uint32_t *words = (const uint32_t *)part + at / 32;

    return (uint32_t)(((uint64_t)words[1] << 32 | words[0]) >> at % 32);
}

/* Each byte of `values` plus `base`. */
DEVICE uint32_t add_to_bytes(uint32_t values, uint32_t base)
{
    uint32_t bases = base * 0x01010101u;

    return ((values & 0x7f7f7f7fu) + (bases & 0x7f7f7f7fu)) ^ ((values ^ bases) & 0x80808080u);
}

/* The three values of each level as bytes, the base added; the fourth byte, of escapes, is 0. */
DEVICE void load_table(const uint8_t *payload, uint32_t base, uint32_t table[3])
{
    const uint32_t *values = (const uint32_t *)(payload + TABLE_AT);

    table[0] = values[0];
    table[1] = byte_permute(values[0], values[1], 0x0543);
    table[2] = byte_permute(values[1], values[2], 0x0432);
    for (int level = 0; level < 3; level++)
        table[level] = add_to_bytes(table[level], base) & 0xffffff;
}

/* Four nibbles' worth of bits to four bytes. */
DEVICE uint32_t nibbles_to_bytes(uint32_t x)
{
    x = byte_permute(x, 0, 0x4140);
    return (x | x << 4) & 0x0f0f0f0f;
}

/* The lane's high bytes, as if there were no codes but those of the first level: an escape's byte
 * is only the bits of its planes. */
template <int planes>
DEVICE void put_first_level(
    uint8_t *high, uint32_t low, uint32_t up, const uint32_t plane[], uint32_t table)
{
    int lane = threadIdx.x % WARP;
    uint32_t words[4][2]; /* [j][h]: elements 16 h + j and every fourth from there on */

#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t codes = (low >> j & 0x11111111) | (up >> j & 0x11111111) << 1;

        words[j][0] = byte_permute(table, 0, codes);
        words[j][1] = byte_permute(table, 0, codes >> 16);
        if constexpr (planes > 0) {
            uint32_t kept = plane[0] >> j & 0x11111111;

#pragma unroll
            for (int p = 1; p < planes; p++)
                kept |= (plane[p] >> j & 0x11111111) << p;
            words[j][0] |= nibbles_to_bytes(kept);
            words[j][1] |= nibbles_to_bytes(kept >> 16);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t a = byte_permute(words[0][h], words[1][h], 0x5140); /* elements 0 1 4 5 */
        uint32_t b = byte_permute(words[2][h], words[3][h], 0x5140); /* 2 3 6 7 */
        uint32_t c = byte_permute(words[0][h], words[1][h], 0x7362); /* 8 9 12 13 */
        uint32_t d = byte_permute(words[2][h], words[3][h], 0x7362); /* 10 11 14 15 */

        *(uint4 *)(high + place(32 * lane + 16 * h)) = make_uint4(byte_permute(a, b, 0x5410),
            byte_permute(a, b, 0x7632), byte_permute(c, d, 0x5410), byte_permute(c, d, 0x7632));
    }
}

/* Adds a symbol to what is known of the high byte of the lowest element of `mask`. */
template <int planes> DEVICE int put_symbol(uint8_t *high, uint32_t mask, uint32_t symbol)
{
    int element = count_bits((mask - 1) & ~mask);
    uint8_t *byte = high + place(threadIdx.x % WARP * 32 + element);

    *byte = (uint8_t)(planes ? *byte | symbol : symbol);
    return element;
}

/* A deeper level, of the elements of `mask`. Returns which of them are to be looked for still
 * deeper. */
template <int planes>
DEVICE uint32_t put_level(uint8_t *high, uint32_t mask, uint32_t low, uint32_t up, uint32_t table)
{
    uint32_t escapes = 0;

    for (; mask; mask &= mask - 1, low >>= 1, up >>= 1) {
        uint32_t code = (low & 1) | (up & 1) << 1;
        int element = put_symbol<planes>(high, mask, byte_permute(table, 0, code));

        escapes |= (low & up & 1) << element;
    }
    return escapes;
}

template <int planes>
DEVICE void decode_tile(
    const uint8_t *payload, const uint8_t *codes, const uint8_t *part, uint8_t *high)
{
    int lane = threadIdx.x % WARP, count, total, deeper, deeper_total, before, at = 8;
    uint32_t plane[planes + 2], table[3], base = part[0], low, up, mask, escapes;

#pragma unroll
    for (int p = 0; p < planes + 2; p++)
        plane[p] = ((const uint32_t *)(codes + p * PLANE_BYTES))[lane];
    load_table(payload, base, table);
    mask = plane[planes] & plane[planes + 1];
    count = count_bits(mask);
    before = sum_below(count, &total);
    low = bits_at(part, at + before);
    up = bits_at(part, at + total + before);
    put_first_level<planes>(high, plane[planes], plane[planes + 1], plane, table[0]);
    if (!total) return;

    at += 2 * total;
    deeper = count_bits(low & up & (uint32_t)(((uint64_t)1 << count) - 1));
    before = sum_below(deeper, &deeper_total);
    escapes = put_level<planes>(high, mask, low, up, table[1]);
    if (!deeper_total) return;

    low = bits_at(part, at + before);
    up = bits_at(part, at + deeper_total + before);
    count = count_bits(low & up & (uint32_t)(((uint64_t)1 << deeper) - 1));
    before = sum_below(count, &total);
    mask = put_level<planes>(high, escapes, low, up, table[2]);
    part += (at + 2 * deeper_total + 7) / 8 + before;
    for (; mask; mask &= mask - 1)
        put_symbol<planes>(high, mask, (*part++ + base) & 0xff);
}

/* A raw tile's high bytes lie in its record as far as that goes, then in its part. */
template <int planes>
DEVICE void copy_tile(const uint8_t *record, const uint8_t *part, uint8_t *high)
{
    const int in_record = (planes + 2) * PLANE_BYTES;
    int first = threadIdx.x % WARP * 32;
    const uint32_t *from =
        (const uint32_t *)(first < in_record ? record + first : part + (first - in_record));

    for (int h = 0; h < 2; h++, from += 4)
        *(uint4 *)(high + place(first + 16 * h)) = make_uint4(from[0], from[1], from[2], from[3]);
}

/* ---- from high and low bytes to elements ---- */

/* Both halves rotated right by one bit. */
DEVICE uint32_t rotate_halves(uint32_t x)
{
    return (x >> 1 & 0x7fff7fff) | (x << 15 & 0x80008000);
}

DEVICE uint32_t rotate_bytes(uint32_t x)
{
    return (x >> 1 & 0x7f7f7f7f) | (x << 7 & 0x80808080);
}

/* 16 bytes, or those of them that are still the tensor's. */
DEVICE void store_bytes(uint8_t *to, uint4 bytes, int64_t left, bool whole)
{
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};

    if (whole) {
        *(uint4 *)to = bytes;
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < left) to[i] = (uint8_t)(words[i / 4] >> i % 4 * 8);
}

/* Sums up to what a lane stores at once: 8 elements of 16 bits or 16 of 8. */
DEVICE uint4 join(const uint8_t *high, uint2 low)
{
    uint2 h = *(const uint2 *)high;

    return make_uint4(rotate_halves(byte_permute(low.x, h.x, 0x5140)),
        rotate_halves(byte_permute(low.x, h.x, 0x7362)),
        rotate_halves(byte_permute(low.y, h.y, 0x5140)),
        rotate_halves(byte_permute(low.y, h.y, 0x7362)));
}

DEVICE uint4 join(const uint8_t *high)
{
    uint4 h = *(const uint4 *)high;

    return make_uint4(rotate_bytes(h.x), rotate_bytes(h.y), rotate_bytes(h.z), rotate_bytes(h.w));
}

/* Which work is this block's. */
DEVICE int work_of(const struct unpack_works &works)
{
    int i = 0;

    while (i + 1 < works.count && blockIdx.x >= works.list[i + 1].first_block)
        i++;
    return i;
}

/* A tile of elements of `bytes` bytes. */
template <int planes, int bytes>
DEVICE void unpack_tile(const struct unpack_works &works, uint8_t *shared)
{
    const struct unpack_work &work = works.list[work_of(works)];
    const int low_bytes = (bytes - 1) * UNPACK_TILE, vector = 16 / bytes;
    const int record_bytes = low_bytes + (planes + 2) * PLANE_BYTES;
    int64_t tile = (int64_t)(blockIdx.x - work.first_block) * UNPACK_TILES + threadIdx.x / WARP, at;
    int lane = threadIdx.x % WARP;
    const uint8_t *record = work.payload + work.records + tile * record_bytes, *part;
    uint8_t *high = shared + threadIdx.x / WARP * UNPACK_TILE;
    uint8_t *y = work.y + tile * (UNPACK_TILE * bytes);
    int64_t left = (work.count - tile * UNPACK_TILE) * bytes;
    bool whole = left >= UNPACK_TILE * bytes && (uintptr_t)work.y % 16 == 0;
    uint2 low[4];
    uint32_t entry;

    if (tile >= work.tiles) return;
    entry = ((const uint32_t *)(work.payload + ENTRIES_AT))[tile];
    if (bytes == 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            low[i] = ((const uint2 *)record)[i * WARP + lane];
    at = (int64_t)(entry & ~TILE_RAW) * 4;
    part = work.payload + work.parts + (at < work.parts_bytes ? at : 0);
    if (entry & TILE_RAW)
        copy_tile<planes>(record + low_bytes, part, high);
    else
        decode_tile<planes>(work.payload, record + low_bytes, part, high);
    sync_warp();
#pragma unroll
    for (int i = 0; i < UNPACK_TILE / WARP / vector; i++) {
        int element = (i * WARP + lane) * vector;
        uint4 elements =
            bytes == 2 ? join(high + place(element), low[i]) : join(high + place(element));

        store_bytes(y + element * bytes, elements, left - element * bytes, whole);
    }
}

KERNEL __launch_bounds__(UNPACK_THREADS)
    unpack_bf16(const __grid_constant__ struct unpack_bf16_args args)
{
    SHARED_BYTES(shared);

    unpack_tile<0, 2>(args.works, shared);
}

KERNEL __launch_bounds__(UNPACK_THREADS)
    unpack_f16(const __grid_constant__ struct unpack_f16_args args)
{
    SHARED_BYTES(shared);

    unpack_tile<3, 2>(args.works, shared);
}

KERNEL __launch_bounds__(UNPACK_THREADS)
    unpack_e4m3(const __grid_constant__ struct unpack_e4m3_args args)
{
    SHARED_BYTES(shared);

    unpack_tile<4, 1>(args.works, shared);
}

KERNEL __launch_bounds__(UNPACK_THREADS)
    unpack_plain(const __grid_constant__ struct unpack_plain_args args)
{
    const struct unpack_work &work = args.works.list[work_of(args.works)];
    int64_t begin = (int64_t)(blockIdx.x - work.first_block) * UNPACK_PLAIN_BYTES;
    int64_t end = begin + UNPACK_PLAIN_BYTES;

    if (end > work.count) end = work.count;
    for (int64_t i = begin + (int64_t)threadIdx.x * 16; i < end; i += UNPACK_THREADS * 16) {
        bool whole = i + 16 <= end && ((uintptr_t)work.y | (uintptr_t)work.payload) % 16 == 0;

        if (whole)
            *(uint4 *)(work.y + i) = *(const uint4 *)(work.payload + i);
        else
            for (int64_t j = i; j < i + 16 && j < end; j++)
                work.y[j] = work.payload[j];
    }
}
