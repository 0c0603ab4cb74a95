/* Weights with the differences of adapters added: see device/patch.h, whose bits these are. */
#include "device/cuda/kernels/patch.h"

#include "device/cuda/kernels/weights.cuh"

struct shared_tile {
    float a[PATCH_DEPTH][PATCH_TILE_COLS];
    float b[PATCH_DEPTH][PATCH_B_STRIDE];
};

/* Where four columns, a multiple of 4, of a row of `a` lie: neighbours' first four and last four in
 * banks of their own. */
DEVICE int four_at(int col)
{
    return col ^ (col >> 3 & 4);
}

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

/* Elements of [row, col + 8) of a matrix that are in it, and zeros. */
DEVICE void load_eight(float to[8], const struct gpu_matrix &m, int64_t row, int64_t col)
{
    const int64_t left = row < m.rows ? m.cols - col : 0;

    load_plain(to, m.at, row * m.stride + col, left < 8 ? left < 0 ? 0 : (int)left : 8, m.dtype);
}

/* The tile's part of a chain's operands; zeros outside, which nobody uses. */
DEVICE void load_tile(
    struct shared_tile *tile, const struct gpu_patch_factor &f, int64_t row, int64_t col, int64_t k)
{
    float values[8];

    for (int i = threadIdx.x; i < PATCH_DEPTH * PATCH_TILE_COLS / 8; i += PATCH_THREADS) {
        const int depth = i / (PATCH_TILE_COLS / 8), c = i % (PATCH_TILE_COLS / 8) * 8;

        load_eight(values, f.a, k + depth, col + c);
        *(float4 *)&tile->a[depth][four_at(c)] =
            make_float4(values[0], values[1], values[2], values[3]);
        *(float4 *)&tile->a[depth][four_at(c + 4)] =
            make_float4(values[4], values[5], values[6], values[7]);
    }
    for (int i = threadIdx.x; i < PATCH_TILE_ROWS * PATCH_DEPTH / 8; i += PATCH_THREADS) {
        const int r = i / (PATCH_DEPTH / 8), depth = i % (PATCH_DEPTH / 8) * 8;

        load_eight(values, f.b, row + r, k + depth);
#pragma unroll
        for (int j = 0; j < 8; j++)
            tile->b[depth + j][r] = values[j];
    }
}

/* A thread's part of the tile: where it begins, and how much of it there is. */
struct own {
    int row, col, rows, cols;
};

/* One step of all of a thread's chains. */
DEVICE void chain_step(
    float to[PATCH_OWN_ROWS][8], const struct shared_tile *tile, const struct own &own, int depth)
{
    const float4 low = *(const float4 *)&tile->a[depth][four_at(own.col)];
    const float4 high = *(const float4 *)&tile->a[depth][four_at(own.col + 4)];
    const float4 down = *(const float4 *)&tile->b[depth][own.row];
    const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float b[PATCH_OWN_ROWS] = {down.x, down.y, down.z, down.w};

#pragma unroll
    for (int r = 0; r < PATCH_OWN_ROWS; r++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[r][i] = fmaf(b[r], a[i], to[r][i]);
}

/* A thread's values of a factor. The tile begins at (row, col) of the factor. */
DEVICE void factor_values(float to[PATCH_OWN_ROWS][8], struct shared_tile *tile,
    const struct gpu_patch_factor &f, int64_t row, int64_t col, const struct own &own)
{
#pragma unroll
    for (int r = 0; r < PATCH_OWN_ROWS; r++)
        if (f.a.at)
#pragma unroll
            for (int i = 0; i < 8; i++)
                to[r][i] = 0;
        else
            load_eight(to[r], f.b, row + own.row + r, col + own.col);
    if (!f.a.at) return;
    for (int64_t k = 0; k < f.a.rows; k += PATCH_DEPTH) {
        const int depth = f.a.rows - k < PATCH_DEPTH ? (int)(f.a.rows - k) : PATCH_DEPTH;

        sync_threads(); /* who reads what was in there has done so */
        load_tile(tile, f, row, col, k);
        sync_threads();
        for (int d = 0; d < depth; d++)
            chain_step(to, tile, own, d);
    }
}

/* The same of two factors' product. Values stay in registers if no index is the loop's. */
DEVICE void kron_values(float to[PATCH_OWN_ROWS][8], const struct gpu_patch_term &t, int64_t row,
    int64_t col, const struct own &own)
{
    for (int n = 0; n < PATCH_OWN_ROWS * 8; n++) {
        const int r = n / 8, i = n % 8;
        float value = 0;

        if (r < own.rows && i < own.cols) value = kron_at(t, row + own.row + r, col + own.col + i);
#pragma unroll
        for (int m = 0; m < PATCH_OWN_ROWS * 8; m++)
            if (m == n) to[m / 8][m % 8] = value;
    }
}

/* A thread's values of a term's difference. */
DEVICE void term_values(float to[PATCH_OWN_ROWS][8], struct shared_tile *tile,
    const struct gpu_patch_term &t, int64_t row, int64_t col, const struct own &own)
{
    float other[PATCH_OWN_ROWS][8];

    if (t.kron) {
        kron_values(to, t, row, col, own);
        return;
    }
    factor_values(to, tile, t.factors[0], row, col, own);
    if (!t.factors[1].b.at) return;
    factor_values(other, tile, t.factors[1], row, col, own);
#pragma unroll
    for (int r = 0; r < PATCH_OWN_ROWS; r++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[r][i] = rounded_product(to[r][i], other[r][i]);
}

DEVICE void store_y(const struct gpu_matrix &y, int64_t row, int64_t col, int count, float from[8])
{
    const int64_t at = row * y.stride + col;

    if (count == 8 && y.dtype == GPU_BF16 && ((uintptr_t)y.at + 2 * at) % 16 == 0)
        *(uint4 *)((uint16_t *)y.at + at) =
            make_uint4(floats_as_bf16(from[0], from[1]), floats_as_bf16(from[2], from[3]),
                floats_as_bf16(from[4], from[5]), floats_as_bf16(from[6], from[7]));
    else
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count) store_float(y.at, at + i, y.dtype, from[i]);
}

KERNEL __launch_bounds__(PATCH_THREADS, 2) patch(struct patch_args args)
{
    SHARED_BYTES(shared);
    struct shared_tile *tile = (struct shared_tile *)shared;
    const struct gpu_matrix x = args.x, y = args.y;
    const int64_t row = (int64_t)blockIdx.x * PATCH_TILE_ROWS;
    const int64_t col = (int64_t)blockIdx.y * PATCH_TILE_COLS;
    float sum[PATCH_OWN_ROWS][8] = {}, difference[PATCH_OWN_ROWS][8];
    struct own own = {(int)threadIdx.x / (PATCH_TILE_COLS / 8) * PATCH_OWN_ROWS,
        (int)threadIdx.x % (PATCH_TILE_COLS / 8) * 8, 0, 0};

    /* Threads outside stay for the barriers. */
    own.rows =
        (int)(y.rows - row < own.row + PATCH_OWN_ROWS ? y.rows - row - own.row : PATCH_OWN_ROWS);
    own.cols = (int)(y.cols - col < own.col + 8 ? y.cols - col - own.col : 8);
    if (own.cols < 0) own.cols = 0;
#pragma unroll
    for (int r = 0; r < PATCH_OWN_ROWS; r++)
        if (r < own.rows && own.cols)
            load_columns(sum[r], x, row + own.row + r, col + own.col, own.cols);
    for (int n = 0; n < args.count; n++) {
        const struct gpu_patch_term &t = args.terms[n];

        term_values(difference, tile, t, row + t.row, col + t.col, own);
#pragma unroll
        for (int r = 0; r < PATCH_OWN_ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[r][i] = fmaf(t.scale, difference[r][i], sum[r][i]);
    }
#pragma unroll
    for (int r = 0; r < PATCH_OWN_ROWS; r++)
        if (r < own.rows) store_y(y, row + own.row + r, col + own.col, own.cols, sum[r]);
}
