/*
 * CUDA C for a machine without a GPU: what kernels/gpu.cuh takes from the compiler and from PTX, in
 * plain C++. Every thread of a block is a fibre, and fibres change only where threads exchange
 * something (barriers, shuffles, matrix instructions), so that results, bounds and deadlocks are
 * seen; what threads do between two barriers is seen as an order only (emulate_set_order).
 *
 * Blocks run one after another. Shared memory is spoilt between them; asynchronous copies land
 * when they are waited for, and their destinations are spoilt until then.
 */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "cuda/emulator.h"

/* C++ names, so that a kernel may be called what some function of the library is. */
#define KERNEL void
#define DEVICE static inline

#define WARP 32

#define __device__
#define __grid_constant__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

/* In a section of its own: the emulator spoils all of it. */
#define __shared__ static __attribute__((section("shoal_shared")))
#define SHARED_BYTES(name) unsigned char *const name = emulate_block.shared

/* ---- vectors ---- */

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(4) ushort2 {
    unsigned short x, y;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};

DEVICE float2 make_float2(float x, float y)
{
    return {x, y};
}

DEVICE float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

DEVICE int2 make_int2(int x, int y)
{
    return {x, y};
}

DEVICE int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}

DEVICE uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}

DEVICE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

DEVICE ushort2 make_ushort2(unsigned short x, unsigned short y)
{
    return {x, y};
}

DEVICE ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w)
{
    return {x, y, z, w};
}

DEVICE uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w)
{
    return {x, y, z, w};
}

template <typename A, typename B> DEVICE typename std::common_type<A, B>::type min(A a, B b)
{
    return b < a ? b : a;
}

template <typename A, typename B> DEVICE typename std::common_type<A, B>::type max(A a, B b)
{
    return a < b ? b : a;
}

/* ---- where a thread is ---- */

#define threadIdx (emulate_block.thread)
#define blockIdx (emulate_block.block)
#define blockDim (emulate_block.threads)
#define gridDim (emulate_block.grid)

/* ---- within a block ---- */

DEVICE void sync_threads()
{
    emulate_sync_threads();
}

DEVICE void sync_warp()
{
    emulate_sync_warp();
}

/* Gives a value to the warp; what all lanes gave. */
template <typename T> DEVICE const struct emulate_given *emulate_exchange(const char *what, T value)
{
    struct emulate_given *given = emulate_table(what);

    static_assert(sizeof value <= sizeof *given, "too big to give");
    memcpy(given[threadIdx.x % WARP].bytes, &value, sizeof value);
    emulate_meet();
    return given;
}

/* What lane `from` of the warp gave. */
template <typename T> DEVICE T emulate_shuffle(const char *what, T value, int from)
{
    memcpy(&value, emulate_exchange(what, value)[from & (WARP - 1)].bytes, sizeof value);
    return value;
}

DEVICE int emulate_lane()
{
    return (int)(threadIdx.x % WARP);
}

template <typename T> DEVICE T shuffle_xor(T value, int mask)
{
    return emulate_shuffle("shuffle_xor", value, emulate_lane() ^ mask);
}

template <typename T> DEVICE T shuffle(T value, int lane)
{
    return emulate_shuffle("shuffle", value, lane);
}

template <typename T> DEVICE T shuffle_up(T value, int by)
{
    return emulate_shuffle(
        "shuffle_up", value, emulate_lane() < by ? emulate_lane() : emulate_lane() - by);
}

DEVICE uint32_t warp_ballot(bool predicate)
{
    const struct emulate_given *given = emulate_exchange("warp_ballot", predicate);
    uint32_t votes = 0;

    for (int lane = 0; lane < WARP; lane++)
        votes |= (uint32_t)(given[lane].bytes[0] != 0) << lane;
    return votes;
}

DEVICE int count_bits(uint32_t x)
{
    return __builtin_popcount(x);
}

DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t chosen = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t pick = selector >> 4 * i & 15, byte = bytes >> 8 * (pick & 7) & 0xff;

        if (pick & 8) byte = byte & 0x80 ? 0xff : 0; /* its sign, repeated */
        chosen |= byte << 8 * i;
    }
    return chosen;
}

/* ---- arithmetic ---- */

DEVICE float rounded_product(float a, float b)
{
    return a * b; /* -ffp-contract=off */
}

DEVICE float fast_exp(float x)
{
    return expf(x);
}

DEVICE float exp2_of(float x)
{
    return exp2f(x);
}

DEVICE float reciprocal_root(float x)
{
    return 1 / sqrtf(x);
}

DEVICE float reciprocal(float x)
{
    return 1 / x;
}

/* ---- numbers of 16 bits, as bits ---- */

DEVICE uint32_t emulate_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DEVICE float emulate_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

DEVICE float bf16_as_float(uint16_t x)
{
    return emulate_float((uint32_t)x << 16);
}

DEVICE uint16_t float_as_bf16(float x)
{
    uint32_t bits = emulate_bits(x);

    if (x != x) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DEVICE float f16_as_float(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 0x3ff;

    if (exponent == 31) return emulate_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f;
    return emulate_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

DEVICE uint16_t float_as_f16(float x)
{
    uint32_t bits = emulate_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

    if (x != x) return 0x7fff;
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7bff); /* from 65520 on: saturates */
    if (rest < 0x38800000)                                    /* below 2^-14: steps of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(emulate_float(rest) * 0x1p24f));
    return (uint16_t)(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
}

DEVICE uint32_t floats_as_bf16(float low, float high)
{
    return float_as_bf16(low) | (uint32_t)float_as_bf16(high) << 16;
}

DEVICE uint32_t floats_as_f16(float low, float high)
{
    return float_as_f16(low) | (uint32_t)float_as_f16(high) << 16;
}

/* ---- matrix instructions: fragments as PTX lays them out (mma.m16n8k16) ---- */

typedef float emulate_four __attribute__((vector_size(16)));

/* a[16, 16] and b[8, 16], widened: what the lanes of a warp give. */
struct emulate_fragments {
    float a[16][16], b[8][16];
};
static_assert(sizeof(struct emulate_fragments) <= WARP * sizeof(struct emulate_given), "");

DEVICE void emulate_widen(float to[2], uint32_t pair, float widen(uint16_t))
{
    to[0] = widen((uint16_t)pair);
    to[1] = widen((uint16_t)(pair >> 16));
}

DEVICE float emulate_dot(const float a[16], const float b[16])
{
    const emulate_four *x = (const emulate_four *)a, *y = (const emulate_four *)b;
    emulate_four sums = x[0] * y[0] + x[1] * y[1] + (x[2] * y[2] + x[3] * y[3]);

    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/*
 * Lane 4 g + t holds a[g][2 t], a[g + 8][2 t], a[g][2 t + 8], a[g + 8][2 t + 8], each with its
 * right neighbour; b[g][2 t] and b[g][2 t + 8] likewise; and d[g][2 t, 2 t + 1], d[g + 8][...].
 */
DEVICE void emulate_mma(
    const char *what, float d[4], const uint32_t a[4], const uint32_t b[2], float widen(uint16_t))
{
    struct emulate_fragments *f = (struct emulate_fragments *)emulate_table(what);
    int row = emulate_lane() / 4, col = emulate_lane() % 4 * 2;

    for (int i = 0; i < 4; i++)
        emulate_widen(&f->a[row + i % 2 * 8][col + i / 2 * 8], a[i], widen);
    for (int i = 0; i < 2; i++)
        emulate_widen(&f->b[row][col + i * 8], b[i], widen);
    emulate_meet();
    for (int i = 0; i < 4; i++)
        d[i] += emulate_dot(f->a[row + i / 2 * 8], f->b[col + i % 2]);
}

DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma("mma_bf16", d, a, b, bf16_as_float);
}

DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma("mma_f16", d, a, b, f16_as_float);
}

/* Where in shared memory: enough to look at its alignment and banks. */
DEVICE uint32_t shared_address(const void *shared)
{
    return (uint32_t)(uintptr_t)shared;
}

/* Element of the row that lane `lane` gave. */
DEVICE uint32_t emulate_element(const struct emulate_given *given, int lane, int col)
{
    uint16_t element;

    memcpy(&element, given[lane].bytes + 2 * col, sizeof element);
    return element;
}

DEVICE const struct emulate_given *emulate_rows(const char *what, const void *shared_row)
{
    uint4 row;

    emulate_check_shared(what, shared_row, sizeof row);
    row = *(const uint4 *)shared_row;
    return emulate_exchange(what, row);
}

/* Lane l gets of each matrix row l / 4, columns 2 (l % 4) and the next. */
DEVICE void load_matrices(uint32_t r[4], const void *shared_row)
{
    const struct emulate_given *given = emulate_rows("load_matrices", shared_row);
    int row = emulate_lane() / 4, col = emulate_lane() % 4 * 2;

    for (int i = 0; i < 4; i++)
        r[i] = emulate_element(given, 8 * i + row, col) |
               emulate_element(given, 8 * i + row, col + 1) << 16;
}

/* Lane l gets of each matrix column l / 4, rows 2 (l % 4) and the next. */
DEVICE void load_matrices_transposed(uint32_t r[4], const void *shared_row)
{
    const struct emulate_given *given = emulate_rows("load_matrices_transposed", shared_row);
    int row = emulate_lane() % 4 * 2, col = emulate_lane() / 4;

    for (int i = 0; i < 4; i++)
        r[i] = emulate_element(given, 8 * i + row, col) |
               emulate_element(given, 8 * i + row + 1, col) << 16;
}

/* ---- asynchronous copies to shared memory ---- */

DEVICE void copy_async_16(void *shared, const void *global, bool valid)
{
    uint4 value = {0, 0, 0, 0};

    emulate_check_shared("copy_async_16", shared, sizeof value);
    emulate_check_aligned("copy_async_16", global, sizeof value);
    if (valid) value = *(const uint4 *)global;
    *(uint4 *)shared = make_uint4(~0u, ~0u, ~0u, ~0u);
    emulate_copy_later(shared, &value);
}

DEVICE void copy_async_commit()
{
    emulate_commit_copies();
}

template <int groups> DEVICE void copy_async_wait()
{
    emulate_land_copies(groups);
}

#endif
