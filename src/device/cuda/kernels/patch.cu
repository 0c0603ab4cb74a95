/* Weights with the differences of adapters added: see device/patch.h, whose bits these are. */
#include "device/cuda/kernels/patch.h"

#include "device/cuda/kernels/weights.cuh"

struct shared_tile {
    float a[PATCH_DEPTH][PATCH_TILE_COLS];
    float b[PATCH_TILE_ROWS][PATCH_DEPTH + 1]; /* rows begin in banks of their own */
};

DEVICE float element_at(const struct gpu_matrix &m, int64_t row, int64_t col)
{
    return load_float(m.at, row * m.stride + col, m.dtype);
}

/* One value, alone. */
DEVICE float factor_at(const struct gpu_patch_factor &f, int64_t row, int64_t col)
{
    float sum = 0;

    if (!f.a.at) return element_at(f.b, row, col);
    for (int64_t k = 0; k < f.a.rows; k++)
        sum = fmaf(element_at(f.b, row, k), element_at(f.a, k, col), sum);
    return sum;
}

DEVICE float kron_at(const struct gpu_patch_term &t, int64_t row, int64_t col)
{
    const struct gpu_patch_factor &second = t.factors[1];
    const int64_t high = second.b.rows, wide = second.a.at ? second.a.cols : second.b.cols;

    return rounded_product(
        factor_at(t.factors[0], row / high, col / wide), factor_at(second, row % high, col % wide));
}

/* The tile's part of a chain's operands; zeros outside, which nobody uses. */
DEVICE void load_tile(
    struct shared_tile *tile, const struct gpu_patch_factor &f, int64_t row, int64_t col, int64_t k)
{
    for (int i = threadIdx.x; i < PATCH_DEPTH * PATCH_TILE_COLS; i += PATCH_THREADS) {
        const int depth = i / PATCH_TILE_COLS, c = i % PATCH_TILE_COLS;
        const bool inside = k + depth < f.a.rows && col + c < f.a.cols;

        tile->a[depth][c] = inside ? element_at(f.a, k + depth, col + c) : 0;
    }
    for (int i = threadIdx.x; i < PATCH_TILE_ROWS * PATCH_DEPTH; i += PATCH_THREADS) {
        const int r = i / PATCH_DEPTH, depth = i % PATCH_DEPTH;
        const bool inside = k + depth < f.b.cols && row + r < f.b.rows;

        tile->b[r][depth] = inside ? element_at(f.b, row + r, k + depth) : 0;
    }
}

/* A thread's 8 values of a factor. The tile begins at (row, col) of the factor. */
DEVICE void factor_values(struct shared_tile *tile, const struct gpu_patch_factor &f, int64_t row,
    int64_t col, int own_row, int own_col, int count, float to[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = 0;
    if (!f.a.at) {
        for (int i = 0; i < count; i++)
            to[i] = element_at(f.b, row + own_row, col + own_col + i);
        return;
    }
    for (int64_t k = 0; k < f.a.rows; k += PATCH_DEPTH) {
        const int depth = f.a.rows - k < PATCH_DEPTH ? (int)(f.a.rows - k) : PATCH_DEPTH;

        sync_threads(); /* who reads what was in there has done so */
        load_tile(tile, f, row, col, k);
        sync_threads();
        for (int d = 0; d < depth; d++) {
            const float factor = tile->b[own_row][d];

#pragma unroll
            for (int i = 0; i < 8; i++)
                to[i] = fmaf(factor, tile->a[d][own_col + i], to[i]);
        }
    }
}

KERNEL __launch_bounds__(PATCH_THREADS) patch(struct patch_args args)
{
    SHARED_BYTES(shared);
    struct shared_tile *tile = (struct shared_tile *)shared;
    const struct gpu_matrix x = args.x, y = args.y;
    const int64_t row = (int64_t)blockIdx.x * PATCH_TILE_ROWS;
    const int64_t col = (int64_t)blockIdx.y * PATCH_TILE_COLS;
    const int own_row = threadIdx.x / (PATCH_TILE_COLS / 8);
    const int own_col = threadIdx.x % (PATCH_TILE_COLS / 8) * 8;
    const int64_t left = y.cols - col - own_col;
    /* Threads outside stay for the barriers. */
    const int count = row + own_row >= y.rows || left <= 0 ? 0 : left < 8 ? (int)left : 8;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, difference[8], other[8];

    if (count) {
        const int64_t at = (row + own_row) * x.stride + col + own_col;

        if (x.dtype <= GPU_BF16)
            load_plain(sum, x.at, at, count, x.dtype);
        else
            load_quantised(sum, x, at, count);
    }
    for (int n = 0; n < args.count; n++) {
        const struct gpu_patch_term &t = args.terms[n];
        const int64_t from_row = row + t.row, from_col = col + t.col;

        if (t.kron) {
            for (int i = 0; i < count; i++)
                difference[i] = kron_at(t, from_row + own_row, from_col + own_col + i);
        } else {
            factor_values(
                tile, t.factors[0], from_row, from_col, own_row, own_col, count, difference);
        }
        if (!t.kron && t.factors[1].b.at) {
            factor_values(tile, t.factors[1], from_row, from_col, own_row, own_col, count, other);
            for (int i = 0; i < count; i++)
                difference[i] = rounded_product(difference[i], other[i]);
        }
        for (int i = 0; i < count; i++)
            sum[i] = fmaf(t.scale, difference[i], sum[i]);
    }
    for (int i = 0; i < count; i++)
        store_float(y.at, (row + own_row) * y.stride + col + own_col + i, y.dtype, sum[i]);
}
