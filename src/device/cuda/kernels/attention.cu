/*
 * Attention in one pass over the keys, with the softmax kept up on the way (Milakov, Gimelshein:
 * Online normalizer calculation for softmax, 2018; Dao: FlashAttention-2, 2023): no score ever
 * leaves the registers.
 *
 * A block has some queries of one head, which stay in shared memory. Keys and values come through
 * it in slabs of `keys` rows and up to 128 columns: a tile's keys first, then its values; while one
 * slab is computed with, the next is copied. Each warp has rows of its own, so that the softmax
 * needs shuffles between four lanes only, and the scores, as the matrix instruction leaves them,
 * are the operand of the next one.
 *
 * Which columns of `out` a block computes, and which keys a query sees, depends on shapes only; so
 * does the order of every sum.
 */
#include "device/cuda/kernels/gpu.cuh"

#include "device/cuda/kernels/attention.h"

#define LOG2_E 1.44269504f

/* Scores are taken less their maximum so that their exponentials, of two, are at most 1. As long as
 * they are at most 2^8 nothing is lost, and what was summed need not be scaled again. */
#define SLACK 8.0f

template <int type_, int dim_, int columns_, int tiles_, int warps_, int keys_, bool biased_>
struct shape {
    static constexpr bool biased = biased_;
    static constexpr int type = type_, dim = dim_, columns = columns_, keys = keys_;
    static constexpr int tiles = tiles_, warp_queries = 16 * tiles_;
    static constexpr int queries = warp_queries * warps_, threads = WARP * warps_;
    static constexpr int slab = ATTENTION_SLAB(dim_), slab_bytes = 2 * keys_ * slab;
    static constexpr int key_slabs = dim_ / slab, value_slabs = columns_ / slab;
    static constexpr int query_bytes = 2 * queries * slab; /* of as many columns as a slab */
};

/* What a thread holds: of its warp's rows what the matrix instruction gives it, of each tile of 16
 * rows two. */
template <typename S> struct state {
    float score[S::tiles][S::keys / 8][4];
    float out[S::tiles][S::columns / 8][4];
    float top[S::tiles][2]; /* what is taken off the scores, times scale log2(e) */
    float sum[S::tiles][2]; /* of this thread's exponentials */
};

/* Where slabs come from: this block's head, from its first column. */
struct source {
    const uint16_t *at[2]; /* k, v */
    int64_t stride[2];
    int rows;
    int aligned;
};

template <int type> DEVICE void multiply(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (type == GPU_BF16)
        mma_bf16(d, a, b);
    else
        mma_f16(d, a, b);
}

template <int type> DEVICE uint32_t pack(float low, float high)
{
    return type == GPU_BF16 ? floats_as_bf16(low, high) : floats_as_f16(low, high);
}

/* ---- rows in shared memory ---- */

/* By what the 16-byte chunks of a row are exchanged, so that one column of eight rows lies in all
 * banks. */
template <int width> DEVICE unsigned swizzle(unsigned row)
{
    return width % 64 == 0 ? row % 8 : row / 2 % 4;
}

/* Rows [0, rows) of `width` columns; zeros from row `valid` on. Up to sixteen threads copy a
 * row, by chunks. */
template <int width, int rows, int threads>
DEVICE void copy_aligned(unsigned char *to, const uint16_t *from, int64_t stride, int valid)
{
    constexpr unsigned chunks = width / 8;
    constexpr unsigned across = chunks % 16 == 0 ? 16 : chunks % 8 == 0 ? 8 : 4;
    constexpr unsigned down = threads / across;
    const unsigned first = threadIdx.x / across, x = threadIdx.x % across;

    from += first * (unsigned)stride + x * 8; /* 32 bits: see ATTENTION_MOST_STRIDE */
#pragma unroll
    for (unsigned r = 0; r < rows; r += down)
#pragma unroll
        for (unsigned c = 0; c < chunks; c += across) {
            unsigned row = first + r, chunk = (x + c) ^ swizzle<width>(row);

            copy_async_16(
                to + row * width * 2 + chunk * 16, from + r * stride + c * 8, (int)row < valid);
        }
}

/* The same from wherever, an element at a time. */
template <int width, int rows, int threads>
DEVICE void copy_unaligned(unsigned char *to, const uint16_t *from, int64_t stride, int valid)
{
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < rows * width; i += threads) {
        unsigned row = i / width, column = i % width;
        unsigned place = row * width + (column / 8 ^ swizzle<width>(row)) * 8 + column % 8;

        ((uint16_t *)to)[place] = (int)row < valid ? from[row * stride + column] : 0;
    }
}

template <int width, int rows, int threads>
DEVICE void copy_rows(
    unsigned char *to, const uint16_t *from, int64_t stride, int valid, int aligned)
{
    if (aligned)
        copy_aligned<width, rows, threads>(to, from, stride, valid);
    else
        copy_unaligned<width, rows, threads>(to, from, stride, valid);
}

/*
 * Waits for slab `part` of the tile of keys from `key` on, which is then complete for all threads,
 * and starts to fetch the one after it, to where the one before it was. Returns the slab.
 */
template <typename S>
DEVICE const unsigned char *next_slab(
    unsigned char *slabs, const struct source &from, int part, int key, int end)
{
    constexpr int parts = S::key_slabs + S::value_slabs;
    const int next = (part + 1) % parts, next_key = part + 1 < parts ? key : key + S::keys;
    const int of_values = next >= S::key_slabs;

    static_assert(ATTENTION_SLABS == 2 && parts % 2 == 0, "slabs alternate within a tile");
    copy_async_wait<0>();
    sync_threads();
    if (next_key < end)
        copy_rows<S::slab, S::keys, S::threads>(slabs + next % 2 * S::slab_bytes,
            from.at[of_values] + next_key * from.stride[of_values] +
                (next - of_values * S::key_slabs) * S::slab,
            from.stride[of_values], from.rows - next_key, from.aligned);
    copy_async_commit();
    return slabs + part % 2 * S::slab_bytes;
}

/* ---- the two products ---- */

/* score += q k^T over a slab's columns. `q` are this warp's rows of the same columns. */
template <typename S>
DEVICE void add_scores(struct state<S> &s, const unsigned char *q, const unsigned char *k)
{
    const unsigned lane = threadIdx.x % WARP;
    const unsigned q_row = lane % 16, q_chunk = (lane / 16) ^ swizzle<S::slab>(q_row);
    const unsigned k_row = lane / 16 * 8 + lane % 8;
    const unsigned k_chunk = (lane / 8 % 2) ^ swizzle<S::slab>(k_row);

    q += q_row * S::slab * 2;
    k += k_row * S::slab * 2;
#pragma unroll
    for (unsigned step = 0; step < S::slab / 16; step++) {
        uint32_t a[S::tiles][4];

#pragma unroll
        for (int t = 0; t < S::tiles; t++)
            load_matrices(a[t], q + t * 16 * S::slab * 2 + (q_chunk ^ 2 * step) * 16);
#pragma unroll
        for (int n = 0; n < S::keys / 16; n++) {
            uint32_t b[4];

            load_matrices(b, k + n * 16 * S::slab * 2 + (k_chunk ^ 2 * step) * 16);
#pragma unroll
            for (int t = 0; t < S::tiles; t++) {
                multiply<S::type>(s.score[t][2 * n], a[t], b);
                multiply<S::type>(s.score[t][2 * n + 1], a[t], b + 2);
            }
        }
    }
}

/* out += share v, for a slab's columns from `first` (of this block's) on. */
template <typename S>
DEVICE void add_values(struct state<S> &s, const uint32_t share[S::tiles][S::keys / 16][4], int n16,
    const unsigned char *v, int first)
{
    const unsigned lane = threadIdx.x % WARP;
    const unsigned row = lane % 16, chunk = (lane / 16) ^ swizzle<S::slab>(row);

    v += row * S::slab * 2;
#pragma unroll
    for (unsigned c = 0; c < S::slab / 16; c++) {
        uint32_t b[4];

        load_matrices_transposed(b, v + n16 * 16 * S::slab * 2 + (chunk ^ 2 * c) * 16);
#pragma unroll
        for (int t = 0; t < S::tiles; t++) {
            multiply<S::type>(s.out[t][first / 8 + 2 * c], share[t][n16], b);
            multiply<S::type>(s.out[t][first / 8 + 2 * c + 1], share[t][n16], b + 2);
        }
    }
}

/* ---- the softmax ---- */

/* Scales the scores, as those of kernels without a bias are later, and adds it. `query` is the
 * thread's first row, `key` the first key. */
template <typename S>
DEVICE void add_bias(
    struct state<S> &s, const struct attention_any_args &args, int head, int query, int key)
{
    const float *bias = (const float *)args.bias.at + head * args.bias.stride;
    const int rows = (int)args.q.rows, keys = (int)args.k.rows;
    const float scale = args.scale * LOG2_E;

    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int column = key + 8 * n + i % 2, row = query + 16 * t + i / 2 * 8;

                if (column < keys && row < rows)
                    s.score[t][n][i] =
                        fmaf(s.score[t][n][i], scale, bias[column - row + rows - 1] * LOG2_E);
            }
}

/* Hides keys that a row does not see. `query` is the thread's first row, `key` the first key. */
template <typename S>
DEVICE void hide(struct state<S> &s, int query, int key, int keys, bool causal)
{
    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int column = key + 8 * n + i % 2, row = query + 16 * t + i / 2 * 8;

                if (column >= keys || (causal && column > row)) s.score[t][n][i] = -INFINITY;
            }
}

/* Looks for the rows' greatest scores; where one exceeds what has been taken off so far by more
 * than the slack, takes it off from now on, and scales what has been summed. */
template <typename S> DEVICE void raise_tops(struct state<S> &s, float scale)
{
    float factor[S::tiles][2];
    bool raised = false;

#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, before = s.top[t][half];

#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                top = fmaxf(top, fmaxf(s.score[t][n][2 * half], s.score[t][n][2 * half + 1]));
            top = fmaxf(top, shuffle_xor(top, 1));
            top = scale * fmaxf(top, shuffle_xor(top, 2));
            factor[t][half] = 1;
            if (top > before + SLACK) {
                factor[t][half] = exp2_of(before - top);
                s.top[t][half] = top;
                raised = true;
            }
        }
    if (!warp_ballot(raised)) return;
#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            s.sum[t][half] *= factor[t][half];
#pragma unroll
            for (int c = 0; c < S::columns / 8; c++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    s.out[t][c][2 * half + i] *= factor[t][half];
        }
}

/* The exponentials of the scores with 16 keys, summed, as operands. */
template <typename S>
DEVICE void exponentiate(
    struct state<S> &s, uint32_t share[S::tiles][S::keys / 16][4], int n16, float scale)
{
#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *score = s.score[t][2 * n16 + i / 2] + i % 2 * 2;
            float low = exp2_of(fmaf(score[0], scale, -s.top[t][i % 2]));
            float high = exp2_of(fmaf(score[1], scale, -s.top[t][i % 2]));

            s.sum[t][i % 2] += low + high;
            share[t][n16][i] = pack<S::type>(low, high);
        }
}

/* ---- a block ---- */

/* The rows' outputs, from `query` (the thread's first row) and column `first` of out on. */
template <typename S>
DEVICE void store(
    const struct state<S> &s, const struct attention_any_args &args, int query, int64_t first)
{
    first += threadIdx.x % 4 * 2;
#pragma unroll
    for (int t = 0; t < S::tiles; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + 16 * t + 8 * half;
            uint16_t *to = (uint16_t *)args.out.at + row * args.out.stride + first;
            float sum = s.sum[t][half];

            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            sum = 1 / sum;
            if (row >= args.out.rows) continue;
#pragma unroll
            for (int c = 0; c < S::columns / 8; c++) {
                uint32_t two =
                    pack<S::type>(s.out[t][c][2 * half] * sum, s.out[t][c][2 * half + 1] * sum);

                if (args.aligned)
                    *(uint32_t *)(to + 8 * c) = two;
                else
                    to[8 * c] = (uint16_t)two, to[8 * c + 1] = (uint16_t)(two >> 16);
            }
        }
}

/* The block's queries, a slab's columns of all of them after the other. */
template <typename S>
DEVICE void copy_queries(
    unsigned char *to, const struct attention_any_args &args, int query, int head)
{
    const uint16_t *from =
        (const uint16_t *)args.q.at + query * args.q.stride + (int64_t)head * S::dim;

#pragma unroll
    for (int part = 0; part < S::key_slabs; part++)
        copy_rows<S::slab, S::queries, S::threads>(to + part * S::query_bytes,
            from + part * S::slab, args.q.stride, (int)args.q.rows - query, args.aligned);
}

template <typename S>
DEVICE void attend(const struct attention_any_args &args, unsigned char *shared)
{
    /* Causal: the blocks that see most start first. */
    const int block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    constexpr int parts = S::dim / S::columns;
    const int kv_head = blockIdx.z / parts, head = kv_head * gridDim.y + blockIdx.y;
    const int64_t kv_first = (int64_t)kv_head * S::dim, column = blockIdx.z % parts * S::columns;
    const int warp_first = threadIdx.x / WARP * S::warp_queries, first = block * S::queries;
    const int query = first + warp_first + threadIdx.x % WARP / 4; /* this thread's first row */
    const int keys = (int)args.k.rows;
    const int end = args.causal && first + S::queries < keys ? first + S::queries : keys;
    const int seen = /* by all rows of the warp */
        args.causal && first + warp_first < keys ? first + warp_first + 1 : keys;
    const float scale = S::biased ? 1 : args.scale * LOG2_E;
    unsigned char *slabs = shared + S::key_slabs * S::query_bytes;
    const unsigned char *warp_rows = shared + warp_first * S::slab * 2;
    struct source from = {
        {(const uint16_t *)args.k.at + kv_first, (const uint16_t *)args.v.at + kv_first + column},
        {args.k.stride, args.v.stride}, keys, args.aligned};
    struct state<S> s;

    copy_queries<S>(shared, args, first, head);
    copy_rows<S::slab, S::keys, S::threads>(slabs, from.at[0], from.stride[0], keys, from.aligned);
    copy_async_commit();
    for (int t = 0; t < S::tiles; t++) {
        s.top[t][0] = s.top[t][1] = -INFINITY;
        s.sum[t][0] = s.sum[t][1] = 0;
        for (int c = 0; c < S::columns / 8; c++)
            for (int i = 0; i < 4; i++)
                s.out[t][c][i] = 0;
    }
#pragma unroll 1
    for (int key = 0; key < end; key += S::keys) {
        uint32_t share[S::tiles][S::keys / 16][4];

        for (int t = 0; t < S::tiles; t++)
            for (int n = 0; n < S::keys / 8; n++)
                for (int i = 0; i < 4; i++)
                    s.score[t][n][i] = 0;
#pragma unroll
        for (int part = 0; part < S::key_slabs; part++)
            add_scores<S>(
                s, warp_rows + part * S::query_bytes, next_slab<S>(slabs, from, part, key, end));
        if constexpr (S::biased) add_bias<S>(s, args, head, query, key);
        if (key + S::keys > seen) hide<S>(s, query, key, keys, args.causal);
        raise_tops<S>(s, scale);
#pragma unroll
        for (int part = 0; part < S::value_slabs; part++) {
            const unsigned char *v = next_slab<S>(slabs, from, S::key_slabs + part, key, end);

#pragma unroll
            for (int n = 0; n < S::keys / 16; n++) {
                if (part == 0) exponentiate<S>(s, share, n, scale);
                add_values<S>(s, share, n, v, part * S::slab);
            }
        }
    }
    store<S>(s, args, query, (int64_t)head * S::dim + column);
}

#define ATTENTION_KERNEL(kernel, type, dim, columns, tiles, warps, keys, biased)                   \
    KERNEL __launch_bounds__(WARP *warps, 2) kernel(struct kernel##_args given)                    \
    {                                                                                              \
        SHARED_BYTES(shared);                                                                      \
        attend<shape<type, dim, columns, tiles, warps, keys, biased>>(given.args, shared);         \
    }
#define ATTENTION(X, name, dim, columns, tiles, warps, keys, card, biased)                         \
    ATTENTION_KERNEL(attention_bf16_##name, GPU_BF16, dim, columns, tiles, warps, keys, biased)    \
    ATTENTION_KERNEL(attention_f16_##name, GPU_F16, dim, columns, tiles, warps, keys, biased)
ATTENTION_SHAPES(ATTENTION, )

/* ---- all else ---- */

/* scale q k, of one query and key. */
DEVICE float scaled_score(const struct attention_any_args &args, int64_t q, int64_t k, int64_t dim)
{
    float sum = 0;

    for (int64_t i = 0; i < dim; i++)
        sum = fmaf(load_float(args.q.at, q + i, args.q.dtype),
            load_float(args.k.at, k + i, args.k.dtype), sum);
    return sum * args.scale;
}

/*
 * Any type, dim and scale: a warp has one query of one head and up to ATTENTION_ANY_COLUMNS of its
 * columns. Each lane scores one of 32 keys at a time, and sums every 32nd column.
 */
KERNEL attention_any(struct attention_any_args args)
{
    constexpr int most = ATTENTION_ANY_COLUMNS / WARP;
    const int64_t query = (int64_t)blockIdx.x * ATTENTION_ANY_WARPS + threadIdx.x / WARP;
    const int64_t dim = args.q.cols / args.heads, head = blockIdx.y, lane = threadIdx.x % WARP;
    const int64_t q = query * args.q.stride + head * dim;
    const int64_t kv_head = head / (args.heads / args.kv_heads) * dim;
    const int64_t column = (int64_t)blockIdx.z * ATTENTION_ANY_COLUMNS + lane;
    const int64_t keys = args.causal && query < args.k.rows ? query + 1 : args.k.rows;
    float sums[most], top = -INFINITY, sum = 0;

    if (query >= args.q.rows) return;
    for (int i = 0; i < most; i++)
        sums[i] = 0;
    for (int64_t key = 0; key < keys; key += WARP) {
        int count = keys - key < WARP ? (int)(keys - key) : WARP;
        float score = -INFINITY, share = 0, before = top, factor;

        if (lane < count)
            score = scaled_score(args, q, (key + lane) * args.k.stride + kv_head, dim);
        if (lane < count && args.bias.at)
            score += load_float(args.bias.at,
                head * args.bias.stride + key + lane - query + args.q.rows - 1, GPU_F32);
        top = fmaxf(top, warp_max(score));
        factor = exp2_of((before - top) * LOG2_E);
        if (lane < count) share = exp2_of((score - top) * LOG2_E);
        sum = sum * factor + share;
#pragma unroll
        for (int i = 0; i < most; i++)
            sums[i] *= factor;
        for (int j = 0; j < count; j++) {
            float one = shuffle(share, j);
            int64_t v = (key + j) * args.v.stride + kv_head + column;

#pragma unroll
            for (int i = 0; i < most; i++)
                if (column + i * WARP < dim)
                    sums[i] = fmaf(one, load_float(args.v.at, v + i * WARP, args.v.dtype), sums[i]);
        }
    }
    sum = 1 / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < most; i++)
        if (column + i * WARP < dim)
            store_float(args.out.at, query * args.out.stride + head * dim + column + i * WARP,
                args.out.dtype, sums[i] * sum);
}
