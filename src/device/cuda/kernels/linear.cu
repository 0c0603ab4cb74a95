/*
 * Matrix products on tensor cores: see linear.h. A block passes along k with a pipeline of
 * asynchronous copies to shared memory; each warp keeps its part of the tile in registers, and
 * reads the fragments of the next step while it multiplies those of this one.
 */
#include "device/cuda/kernels/linear.h"

#include "device/cuda/kernels/gpu.cuh"

#define CHUNKS (LINEAR_DEPTH / 8) /* of 16 bytes, of a row in a stage */
#define STEPS (LINEAR_DEPTH / 16) /* of the matrix instruction, of a stage */
#define ROW_BYTES (LINEAR_DEPTH * 2)

/* Where a chunk lies in a stage. Permuted so that neither the copies nor the eight rows that
 * load_matrices takes at a time meet in a bank. */
DEVICE int chunk_at(int row, int chunk)
{
    return row * ROW_BYTES + (chunk ^ (row >> 1 & (CHUNKS - 1))) * 16;
}

/* A panel of `rows` rows of x or w, of which this thread copies a chunk of some. */
template <int rows, int threads> struct panel {
    const uint16_t *from; /* its first chunk's, in the next stage to be copied */
    int64_t stride;
    int rows_left;
};

template <int rows, int threads>
DEVICE struct panel<rows, threads> panel_at(const struct gpu_matrix &m, int64_t first) {
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int64_t left = m.rows - first - row;

    return {(const uint16_t *)m.at + (first + row) * m.stride + chunk * 8, m.stride,
        left < rows ? (int)left : rows};
}

/* Gives the copy of the next stage. Beyond the matrix there are zeros; `inside`: of k. */
template <int rows, int threads>
DEVICE void panel_fetch(struct panel<rows, threads> *panel, unsigned char *stage, bool inside)
{
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;

#pragma unroll
    for (int i = 0; i < rows; i += threads / CHUNKS)
        copy_async_16(stage + chunk_at(row + i, chunk), panel->from + i * panel->stride,
            inside && i < panel->rows_left);
    panel->from += LINEAR_DEPTH;
}

/* The fragments of one step: `m_tiles` of 16 rows of x, `n_tiles` of 8 rows of w. */
template <int m_tiles, int n_tiles> struct fragments {
    uint32_t x[m_tiles][4], w[n_tiles / 2][4];
};

template <int m_tiles, int n_tiles>
DEVICE void fragments_load(struct fragments<m_tiles, n_tiles> *to, const unsigned char *x,
    const unsigned char *w, int step)
{
    const int lane = threadIdx.x % WARP;
    const int x_row = lane % 16, x_chunk = lane / 16;
    const int w_row = lane / 16 * 8 + lane % 8, w_chunk = lane / 8 % 2;

#pragma unroll
    for (int i = 0; i < m_tiles; i++)
        load_matrices(to->x[i], x + chunk_at(i * 16 + x_row, 2 * step + x_chunk));
#pragma unroll
    for (int i = 0; i < n_tiles / 2; i++)
        load_matrices(to->w[i], w + chunk_at(i * 16 + w_row, 2 * step + w_chunk));
}

template <bool bf16, int m_tiles, int n_tiles>
DEVICE void fragments_multiply(
    float sums[m_tiles][n_tiles][4], const struct fragments<m_tiles, n_tiles> &f)
{
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int j = 0; j < n_tiles; j++) {
            if (bf16)
                mma_bf16(sums[i][j], f.x[i], f.w[j / 2] + j % 2 * 2);
            else
                mma_f16(sums[i][j], f.x[i], f.w[j / 2] + j % 2 * 2);
        }
}

/* Columns [col, col + 2) of a row of y, as far as there are so many. */
DEVICE void store_pair(
    const struct gpu_matrix &y, int64_t row, int64_t col, float left, float right, bool pairs)
{
    const int64_t at = row * y.stride + col;

    if (!pairs || col + 1 >= y.cols) {
        if (col < y.cols) store_float(y.at, at, y.dtype, left);
        if (col + 1 < y.cols) store_float(y.at, at + 1, y.dtype, right);
    } else if (y.dtype == GPU_F32)
        *(float2 *)((float *)y.at + at) = make_float2(left, right);
    else
        *(uint32_t *)((uint16_t *)y.at + at) =
            y.dtype == GPU_BF16 ? floats_as_bf16(left, right) : floats_as_f16(left, right);
}

/* The warp's part of the tile, whose first element is y[first_row, first_col]. */
template <int m_tiles, int n_tiles>
DEVICE void store_part(const struct linear_args &args, const float sums[m_tiles][n_tiles][4],
    int64_t first_row, int64_t first_col)
{
    const struct gpu_matrix &y = args.y, &bias = args.bias;
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int j = 0; j < n_tiles; j++) {
        const int64_t col = first_col + j * 8 + lane % 4 * 2;
        float left = 0, right = 0;

        if (bias.at && col < y.cols) left = load_float(bias.at, col, bias.dtype);
        if (bias.at && col + 1 < y.cols) right = load_float(bias.at, col + 1, bias.dtype);
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; i++) {
            const int64_t row = first_row + i * 8 + lane / 4;
            const float *pair = sums[i / 2][j] + i % 2 * 2;

            if (row < y.rows) store_pair(y, row, col, pair[0] + left, pair[1] + right, args.pairs);
        }
    }
}

/* Which tile this block makes: groups of LINEAR_GROUP rows of tiles, each column by column. */
DEVICE void tile_of(int64_t m_tiles, int64_t n_tiles, int64_t *m, int64_t *n)
{
    const int64_t group = blockIdx.x / (LINEAR_GROUP * n_tiles), first = group * LINEAR_GROUP;
    const int64_t rows = m_tiles - first < LINEAR_GROUP ? m_tiles - first : LINEAR_GROUP;
    const int64_t within = blockIdx.x - first * n_tiles;

    *m = first + within % rows;
    *n = within / rows;
}

template <bool bf16, int tile_m, int tile_n, int warp_m, int warp_n, int stages>
DEVICE void multiply(const struct linear_args &args, unsigned char *shared)
{
    constexpr int threads = LINEAR_THREADS(tile_m, tile_n, warp_m, warp_n);
    constexpr int m_tiles = warp_m / 16, n_tiles = warp_n / 8;
    constexpr int stage_bytes = LINEAR_SHARED_BYTES(tile_m, tile_n, 1);
    constexpr int w_bytes = tile_m * ROW_BYTES; /* from a stage's beginning to its rows of w */
    const int warp = threadIdx.x / WARP, chunk = threadIdx.x % CHUNKS;
    const int row = warp / (tile_n / warp_n) * warp_m, col = warp % (tile_n / warp_n) * warp_n;
    const int depth = (int)args.x.cols, last = (depth + LINEAR_DEPTH - 1) / LINEAR_DEPTH;
    int64_t m, n;

    tile_of((args.y.rows + tile_m - 1) / tile_m, (args.y.cols + tile_n - 1) / tile_n, &m, &n);
    m *= tile_m, n *= tile_n;

    struct panel<tile_m, threads> x = panel_at<tile_m, threads>(args.x, m);
    struct panel<tile_n, threads> w = panel_at<tile_n, threads>(args.w, n);
    struct fragments<m_tiles, n_tiles> fragments[2];
    float sums[m_tiles][n_tiles][4] = {};
    int fetched = 0;              /* stages given to be copied */
    unsigned char *read = shared; /* the stage that is multiplied */

    /* A group of copies is closed even where k has ended, so that counting groups stays right. */
    auto fetch = [&](unsigned char *stage) {
        const bool inside = fetched * LINEAR_DEPTH + chunk * 8 < depth;

        panel_fetch(&x, stage, inside);
        panel_fetch(&w, stage + w_bytes, inside);
        copy_async_commit();
        fetched++;
    };
    auto load = [&](int step) {
        fragments_load(
            &fragments[step % 2], read + row * ROW_BYTES, read + w_bytes + col * ROW_BYTES, step);
    };

#pragma unroll
    for (int i = 0; i < stages - 1; i++)
        fetch(shared + i * stage_bytes);
    copy_async_wait<stages - 2>();
    sync_threads();
    load(0);
    unsigned char *write = shared + (stages - 1) * stage_bytes;

    for (int stage = 0; stage < last; stage++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                /* All have read this stage, and see the next one. */
                copy_async_wait<stages - 2>();
                sync_threads();
                write = read;
                read = read == shared + (stages - 1) * stage_bytes ? shared : read + stage_bytes;
            }
            load((step + 1) % STEPS);
            if (step == 0) fetch(write);
            fragments_multiply<bf16, m_tiles, n_tiles>(sums, fragments[step % 2]);
        }
    }
    store_part<m_tiles, n_tiles>(args, sums, m + row, n + col);
}

#define IS_bf16 true
#define IS_f16 false
#define LINEAR(type, m, n, warp_m, warp_n, stages, blocks)                                         \
    KERNEL __launch_bounds__(LINEAR_THREADS(m, n, warp_m, warp_n), blocks)                         \
        linear_##type##_##m##_##n(struct linear_args args)                                         \
    {                                                                                              \
        SHARED_BYTES(shared);                                                                      \
        multiply<IS_##type, m, n, warp_m, warp_n, stages>(args, shared);                           \
    }

LINEAR_TILES(LINEAR, bf16)
LINEAR_TILES(LINEAR, f16)
