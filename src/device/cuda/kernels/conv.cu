/*
 * Convolution as matrix products, tap by tap, with nothing gathered in memory: a block holds a
 * piece of the input, 32 channels of its tile's pixels and their border, with a pixel's channels
 * beside each other. For a tap the pieces' rows are the same, further along; so each element is
 * read, scaled, activated and rounded once for all taps and all the tile's output channels.
 *
 * A step of the loop is a tap of 32 channels. Weights for the steps to come are copied
 * asynchronously around a ring; the next piece is read in portions, between the taps of this one.
 * Sums have one order whatever the tiles: chunk by chunk, tap by tap.
 *
 * In shared memory, 16 bytes (8 channels) are a group; the four groups of a pixel (or of an output
 * channel's weights) are swapped so that eight neighbours' lie in all banks.
 */
#include "device/cuda/kernels/conv.h"
#include "device/cuda/kernels/gpu.cuh"

#define GROUP 8  /* channels */
#define GROUPS 4 /* of a chunk */
#define LINE_BYTES (CONV_CHANNELS * 2)
#define STORED 4      /* output channels that a warp stores at a time */
#define SUMS_PITCH 72 /* floats from a channel's sums of 64 pixels to the next: other banks */

/* Where a group lies in the piece or the stage. */
DEVICE int place(int line, int group)
{
    return line * LINE_BYTES + ((group ^ (line >> 1 & 3)) << 4);
}

KERNEL conv_pack(struct conv_pack_args args)
{
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    /* The taps of a group are neighbours in memory: they come first. */
    int tap = (int)(index % args.taps), group = (int)(index / args.taps % GROUPS);
    int64_t line = index / args.taps / GROUPS, out;
    int in_tile = (int)(line % args.outs), chunk = (int)(line / args.outs % args.chunks);
    int64_t tile = line / args.outs / args.chunks;
    int first = chunk * CONV_CHANNELS + group * GROUP;
    uint8_t *stage = (uint8_t *)args.to + ((tile * args.chunks + chunk) * args.taps + tap) *
                                              (int64_t)(args.outs * LINE_BYTES);
    uint32_t words[GROUP / 2];

    if (tile >= args.out_tiles) return;
    out = tile * args.outs + in_tile;
    for (int i = 0; i < GROUP / 2; i++) {
        float two[2];

        for (int half = 0; half < 2; half++) {
            int channel = first + 2 * i + half;

            two[half] = 0;
            if (out < args.w.rows && channel < args.inputs)
                two[half] = load_float(args.w.at,
                    out * args.w.stride +
                        ((int64_t)channel * args.planes + args.planes - 1) * args.taps + tap,
                    args.w.dtype);
        }
        words[i] = args.product == GPU_BF16 ? floats_as_bf16(two[0], two[1])
                                            : floats_as_f16(two[0], two[1]);
    }
    *(uint4 *)(stage + place(in_tile, group)) = make_uint4(words[0], words[1], words[2], words[3]);
}

/* ---- a tile ---- */

/* The shape of a tile and how it is shared among warps. */
template <int kernel_, int out_warps_, int row_warps_, int warp_outs_, int product_> struct shape {
    static constexpr int kernel = kernel_, taps = kernel * kernel, product = product_;
    static constexpr int out_warps = out_warps_, row_warps = row_warps_, warp_outs = warp_outs_;
    static constexpr int outs = out_warps * warp_outs, rows = 4 * row_warps;
    static constexpr int pitch = CONV_COLUMNS + kernel - 1; /* lines from a row to the next */
    static constexpr int lines = (rows + kernel - 1) * pitch;
    static constexpr int portions = (lines + WARP - 1) / WARP; /* a warp reads one group of lines */
    static constexpr int portions_a_tap = (portions + taps - 1) / taps;
    static constexpr int early = portions_a_tap < 2 ? portions_a_tap : 2; /* read before products */
    static_assert(out_warps * row_warps * WARP == CONV_THREADS, "four warps, one for each group");
    static_assert(
        CONV_THREADS * SUMS_PITCH * sizeof(float) <= CONV_SHARED_BYTES(outs, rows, kernel),
        "the sums have room where the pieces and the ring were");
};

/* Which group of channels of which piece is read, and where it goes. */
struct reading {
    const struct conv_work &work;
    int row, col; /* of the input: where the piece begins, its border included */
    int group, lane;
    float *affine; /* this warp's [2, GROUP] */
};

/* One group of one line, as it is in memory. */
struct portion {
    uint32_t bits[GROUP];
    bool inside; /* the picture */
};

/* This lane's part of what the warp's channels are scaled by: zeros where there are none. */
DEVICE float load_affine(const struct reading &r, int chunk)
{
    int64_t channel = chunk * CONV_CHANNELS + r.group * GROUP + r.lane % GROUP;
    const struct gpu_matrix &affine = r.work.affine;

    if (!affine.at || r.lane >= 2 * GROUP || channel >= affine.cols) return 0;
    return ((const float *)affine.at)[r.lane / GROUP * affine.stride + channel];
}

DEVICE void keep_affine(const struct reading &r, float value)
{
    if (r.lane < 2 * GROUP) r.affine[r.lane] = value;
    sync_warp();
}

template <class S> DEVICE struct portion load_portion(const struct reading &r, int chunk, int index)
{
    const struct conv_work &work = r.work;
    int line = index * WARP + r.lane, first = chunk * CONV_CHANNELS + r.group * GROUP;
    int row = r.row + line / S::pitch, col = r.col + line % S::pitch;
    int channels = (int)min((int64_t)GROUP, work.x.rows - first);
    int64_t at = first * work.x.stride +
                 (int64_t)(row >> work.upsample) * (work.width >> work.upsample) +
                 (col >> work.upsample);
    struct portion p;

    p.inside = line < S::lines && row >= 0 && row < work.rows && col >= 0 && col < work.width;
    if (!p.inside) channels = 0;
    if (work.x.dtype == GPU_F32) {
        const uint32_t *from = (const uint32_t *)work.x.at + at;

#pragma unroll
        for (int i = 0; i < GROUP; i++, from += work.x.stride)
            p.bits[i] = i < channels ? *from : 0;
    } else {
        const uint16_t *from = (const uint16_t *)work.x.at + at;

#pragma unroll
        for (int i = 0; i < GROUP; i++, from += work.x.stride)
            p.bits[i] = i < channels ? *from : 0;
    }
    return p;
}

DEVICE float bits_as_float(uint32_t bits, int dtype)
{
    union {
        uint32_t bits;
        float value;
    } both = {bits};

    if (dtype == GPU_F16) return f16_as_float((uint16_t)bits);
    if (dtype == GPU_BF16) both.bits <<= 16;
    return both.value;
}

DEVICE float silu(float x)
{
    return x * reciprocal(1 + exp2_of(x * -1.44269504f));
}

/* Scaled, activated and rounded; outside of the picture are zeros. */
template <class S>
DEVICE void store_portion(
    const struct reading &r, const struct portion &p, int index, uint8_t *piece)
{
    const struct conv_work &work = r.work;
    int line = index * WARP + r.lane;
    uint32_t words[GROUP / 2];

#pragma unroll
    for (int i = 0; i < GROUP; i += 2) {
        float two[2];

        words[i / 2] = p.bits[i] | p.bits[i + 1] << 16;
        if (work.plain) continue;
        for (int half = 0; half < 2; half++) {
            float value = bits_as_float(p.bits[i + half], work.x.dtype);

            if (work.affine.at) value = value * r.affine[i + half] + r.affine[GROUP + i + half];
            if (work.silu) value = silu(value);
            two[half] = p.inside ? value : 0;
        }
        words[i / 2] =
            S::product == GPU_BF16 ? floats_as_bf16(two[0], two[1]) : floats_as_f16(two[0], two[1]);
    }
    if (line < S::lines)
        *(uint4 *)(piece + place(line, r.group)) =
            make_uint4(words[0], words[1], words[2], words[3]);
}

/* The weights of a step, if there is one, to its place in the ring. */
template <class S>
DEVICE void copy_stage(const struct conv_work &work, int out_tile, int step, uint8_t *ring)
{
    const int bytes = CONV_STAGE_BYTES(S::outs);
    int steps = work.chunks * S::taps;
    const uint8_t *from =
        (const uint8_t *)work.weights + ((int64_t)out_tile * steps + step) * bytes;
    uint8_t *to = ring + step % CONV_STAGES * bytes;

    if (step < steps)
#pragma unroll
        for (int at = 0; at < bytes; at += CONV_THREADS * 16)
            copy_async_16(to + at + threadIdx.x * 16, from + at + threadIdx.x * 16, true);
    copy_async_commit();
}

/* sums[m][n]: output channels 16 m on, pixels 8 n on of the warp's 64, four rows of 16. */
template <class S> struct sums {
    float of[S::warp_outs / 16][8][4];
};

template <class S>
DEVICE void multiply(struct sums<S> &sums, const uint8_t *stage, const uint8_t *piece, int tap)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int out = warp / S::row_warps * S::warp_outs + lane % 16;
    int row = warp % S::row_warps * 4 + tap / S::kernel;
    int col = tap % S::kernel + (lane >> 4) * 8 + lane % 8;

#pragma unroll
    for (int half = 0; half < 2; half++) { /* of the channels */
        uint32_t a[S::warp_outs / 16][4], b[4];

#pragma unroll
        for (int m = 0; m < S::warp_outs / 16; m++)
            load_matrices(a[m], stage + place(out + 16 * m, 2 * half + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_matrices(b, piece + place((row + n) * S::pitch + col, 2 * half + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < S::warp_outs / 16; m++)
#pragma unroll
                for (int side = 0; side < 2; side++)
                    if (S::product == GPU_BF16)
                        mma_bf16(sums.of[m][2 * n + side], a[m], b + 2 * side);
                    else
                        mma_f16(sums.of[m][2 * n + side], a[m], b + 2 * side);
        }
    }
}

/* Two pixels that are neighbours. */
DEVICE float2 load_two(const struct conv_work &work, int64_t at, bool second)
{
    float2 two;

    if (work.paired && work.y.dtype == GPU_F32) return *(const float2 *)((float *)work.y.at + at);
    if (work.paired) {
        uint32_t bits = *(const uint32_t *)((uint16_t *)work.y.at + at);

        return make_float2(
            bits_as_float(bits & 0xffff, work.y.dtype), bits_as_float(bits >> 16, work.y.dtype));
    }
    two.x = load_float(work.y.at, at, work.y.dtype);
    two.y = second ? load_float(work.y.at, at + 1, work.y.dtype) : 0;
    return two;
}

DEVICE void store_two(const struct conv_work &work, int64_t at, bool second, float2 two)
{
    if (work.paired && work.y.dtype == GPU_F32) {
        *(float2 *)((float *)work.y.at + at) = two;
    } else if (work.paired) {
        *(uint32_t *)((uint16_t *)work.y.at + at) =
            work.y.dtype == GPU_BF16 ? floats_as_bf16(two.x, two.y) : floats_as_f16(two.x, two.y);
    } else {
        store_float(work.y.at, at, work.y.dtype, two.x);
        if (second) store_float(work.y.at, at + 1, work.y.dtype, two.y);
    }
}

/* Where a lane stores its two pixels of the warp's 64. */
struct destination {
    int64_t at;         /* of channel 0 */
    bool first, second; /* whether they are the picture's */
};

/* Some output channels from `out` on: sums + bias (+ what is there). All are read first, so that
 * reads wait together. */
DEVICE void store_outs(
    const struct conv_work &work, const struct destination &to, int64_t out, const float *sums)
{
    float2 old[STORED];

#pragma unroll
    for (int i = 0; i < STORED; i++) {
        float bias = 0;

        if (work.bias.at && out + i < work.y.rows)
            bias = load_float(work.bias.at, out + i, work.bias.dtype);
        old[i] = make_float2(0, 0);
        if (work.accumulate && to.first && out + i < work.y.rows)
            old[i] = load_two(work, (out + i) * work.y.stride + to.at, to.second);
        old[i].x += bias;
        old[i].y += bias;
    }
#pragma unroll
    for (int i = 0; i < STORED; i++, sums += SUMS_PITCH) {
        float2 two = *(const float2 *)sums;

        if (to.first && out + i < work.y.rows)
            store_two(work, (out + i) * work.y.stride + to.at, to.second,
                make_float2(old[i].x + two.x, old[i].y + two.y));
    }
}

/* Through shared memory, 32 output channels at a time, so that a warp stores 64 pixels of a channel
 * at once. */
template <class S>
DEVICE void store_sums(const struct conv_work &work, const struct sums<S> &sums, int out_tile,
    int tile_row, int tile_col, float *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int row = tile_row + warp % S::row_warps * 4 + lane / 8, col = tile_col + lane % 8 * 2;
    bool inside = row < work.height && col < work.width;
    const struct destination to = {
        (int64_t)row * work.width + col, inside, inside && col + 1 < work.width};
    int64_t out = out_tile * S::outs + warp / S::row_warps * S::warp_outs;

    shared += warp * 32 * SUMS_PITCH;
#pragma unroll
    for (int first = 0; first < S::warp_outs; first += 32, out += 32) {
        sync_warp(); /* the lanes have read what was there */
#pragma unroll
        for (int line = 0; line < 4; line++)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float *of = sums.of[first / 16 + line / 2][n] + line % 2 * 2;

                *(float2 *)(shared + (8 * line + lane / 4) * SUMS_PITCH + 8 * n + lane % 4 * 2) =
                    make_float2(of[0], of[1]);
            }
        sync_warp();
#pragma unroll 1
        for (int i = 0; i < 32; i += STORED)
            store_outs(work, to, out + i, shared + i * SUMS_PITCH + 2 * lane);
    }
}

template <class S> DEVICE void convolve(const struct conv_work &work, uint8_t *shared)
{
    const int piece_bytes = CONV_PIECE_BYTES(S::rows, S::kernel);
    const int stage_bytes = CONV_STAGE_BYTES(S::outs);
    int out_tile = blockIdx.x % work.out_tiles, tile = blockIdx.x / work.out_tiles;
    int row = tile / work.tiles_across * S::rows, col = tile % work.tiles_across * CONV_COLUMNS;
    int steps = work.chunks * S::taps, chunk = 0, tap = 0, warp = threadIdx.x / WARP;
    uint8_t *pieces = shared, *ring = pieces + 2 * piece_bytes;
    const struct reading r = {work, work.above + row - S::kernel / 2, col - S::kernel / 2, warp,
        (int)threadIdx.x % WARP, (float *)(ring + CONV_STAGES * stage_bytes) + warp * 2 * GROUP};
    struct sums<S> sums = {
    };

    copy_stage<S>(work, out_tile, 0, ring);
    copy_stage<S>(work, out_tile, 1, ring);
    keep_affine(r, load_affine(r, 0));
    for (int i = 0; i < S::portions; i++)
        store_portion<S>(r, load_portion<S>(r, 0, i), i, pieces);
    for (int step = 0; step < steps; step++) {
        uint8_t *next = pieces + (chunk + 1) % 2 * piece_bytes;
        int first = tap * S::portions_a_tap;
        bool reads = chunk + 1 < work.chunks && first < S::portions;
        struct portion early[S::early];
        float affine = 0;

        copy_async_wait<1>();
        sync_threads(); /* the step's weights and piece are there; the last step's are done with */
        copy_stage<S>(work, out_tile, step + 2, ring);
        if (reads) {
            if (tap == 0) affine = load_affine(r, chunk + 1);
#pragma unroll
            for (int i = 0; i < S::early; i++)
                early[i] = load_portion<S>(r, chunk + 1, first + i);
        }
        multiply<S>(
            sums, ring + step % CONV_STAGES * stage_bytes, pieces + chunk % 2 * piece_bytes, tap);
        if (reads) {
            if (tap == 0) keep_affine(r, affine);
#pragma unroll
            for (int i = 0; i < S::portions_a_tap; i++)
                store_portion<S>(r,
                    i < S::early ? early[i] : load_portion<S>(r, chunk + 1, first + i), first + i,
                    next);
        }
        if (++tap == S::taps) {
            tap = 0;
            chunk++;
        }
    }
    sync_threads(); /* pieces and ring are done with */
    store_sums<S>(work, sums, out_tile, row, col, (float *)shared);
}

#define TILE_KERNEL(name, kernel, out_warps, row_warps, warp_outs, product)                        \
    KERNEL __launch_bounds__(CONV_THREADS, 2) name(struct name##_args args)                        \
    {                                                                                              \
        SHARED_BYTES(shared);                                                                      \
                                                                                                   \
        convolve<shape<kernel, out_warps, row_warps, warp_outs, product>>(args.work, shared);      \
    }

TILE_KERNEL(conv3_wide_bf16, 3, 2, 2, 64, GPU_BF16)
TILE_KERNEL(conv3_narrow_bf16, 3, 1, 4, 32, GPU_BF16)
TILE_KERNEL(conv1_wide_bf16, 1, 2, 2, 64, GPU_BF16)
TILE_KERNEL(conv1_narrow_bf16, 1, 1, 4, 32, GPU_BF16)
TILE_KERNEL(conv3_wide_f16, 3, 2, 2, 64, GPU_F16)
TILE_KERNEL(conv3_narrow_f16, 3, 1, 4, 32, GPU_F16)
TILE_KERNEL(conv1_wide_f16, 1, 2, 2, 64, GPU_F16)
TILE_KERNEL(conv1_narrow_f16, 1, 1, 4, 32, GPU_F16)
