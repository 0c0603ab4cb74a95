/*
 * Kernels over rows without sums: elements by themselves, and moving elements about. All are
 * limited by memory.
 */
#include "device/cuda/kernels/rows.h"

#include "device/cuda/kernels/activation.cuh"
#include "device/cuda/kernels/vectors.cuh"

/* ---- elements ---- */

/* Where a thread begins, and by how much it goes on: rows within columns, so that what belongs to a
 * column is loaded once. */
struct place {
    int64_t col, col_step, row, row_step;
    bool idle;
};

DEVICE place first_place(const gpu_layout &layout)
{
    int lane = (int)threadIdx.x % layout.lanes, slot = (int)threadIdx.x / layout.lanes;

    return {((int64_t)blockIdx.x * layout.lanes + lane) * layout.width,
        (int64_t)gridDim.x * layout.lanes * layout.width, (int64_t)blockIdx.y * layout.slots + slot,
        (int64_t)gridDim.y * layout.slots, slot >= layout.slots};
}

enum operation { COPY, GATED_SILU, GATED_GELU, GATED_ADD, BLEND, GUIDE };

/* a = of a, b and the gate. */
template <operation op, int width>
DEVICE void combine_run(float *a, const float *b, const float *gate, float p, float q)
{
#pragma unroll
    for (int i = 0; i < width; i++)
        if constexpr (op == GATED_SILU)
            a[i] = silu(a[i]) * b[i];
        else if constexpr (op == GATED_GELU)
            a[i] = gelu_tanh(a[i]) * b[i];
        else if constexpr (op == GATED_ADD)
            a[i] = fmaf(gate[i], a[i], b[i]);
        else if constexpr (op == BLEND)
            a[i] = fmaf(p, a[i], q * b[i]);
        else if constexpr (op == GUIDE)
            a[i] = fmaf(p, a[i] - b[i], a[i]);
}

template <operation op, int width> DEVICE void combine_rows(const struct combine &args)
{
    place at = first_place(args.layout);
    operand<width> y = operand_of<width>(args.y), first = operand_of<width>(args.a);
    operand<width> second = operand_of<width>(args.b);

    if (at.idle) return;
    for (int64_t col = at.col; col < args.y.cols; col += at.col_step) {
        float gate[width];

        if constexpr (op == GATED_ADD) load_vector<width>(gate, args.vector, col, 1);
        for (int64_t row = at.row; row < args.y.rows; row += at.row_step) {
            run<width> a_run, b_run;
            float a[width], b[width];

            load_cols(a_run, first, row, col);
            if constexpr (op != COPY) load_cols(b_run, second, row, col);
            widen_run(a, a_run, first.dtype);
            if constexpr (op != COPY) widen_run(b, b_run, second.dtype);
            combine_run<op, width>(a, b, gate, args.p, args.q);
            store_cols(a, y, row, col);
        }
    }
}

/* A kernel each: what one does not need costs the others registers. */
template <operation op> DEVICE void combine(const struct combine &args)
{
    if (args.layout.width == 8)
        combine_rows<op, 8>(args);
    else
        combine_rows<op, 4>(args);
}

KERNEL __launch_bounds__(ROWS_THREADS) copy(copy_args args)
{
    combine<COPY>(args.of);
}

KERNEL __launch_bounds__(ROWS_THREADS) gated_silu(gated_silu_args args)
{
    combine<GATED_SILU>(args.of);
}

KERNEL __launch_bounds__(ROWS_THREADS) gated_gelu(gated_gelu_args args)
{
    combine<GATED_GELU>(args.of);
}

KERNEL __launch_bounds__(ROWS_THREADS) gated_add(gated_add_args args)
{
    combine<GATED_ADD>(args.of);
}

KERNEL __launch_bounds__(ROWS_THREADS) blend(blend_args args)
{
    combine<BLEND>(args.of);
}

KERNEL __launch_bounds__(ROWS_THREADS) guide(guide_args args)
{
    combine<GUIDE>(args.of);
}

template <int width> DEVICE void activate_rows(const activate_args &args)
{
    place at = first_place(args.layout);
    operand<width> y = operand_of<width>(args.y), from = operand_of<width>(args.x);
    const float *slopes = (const float *)args.affine.at, *offsets = slopes + args.affine.stride;

    if (at.idle) return;
    for (int64_t col = at.col; col < args.y.cols; col += at.col_step)
        for (int64_t row = at.row; row < args.y.rows; row += at.row_step) {
            run<width> x_run;
            float x[width];

            load_cols(x_run, from, row, col);
            widen_run(x, x_run, from.dtype);
            if (slopes) {
                float slope = slopes[row], offset = offsets[row];

#pragma unroll
                for (int i = 0; i < width; i++)
                    x[i] = fmaf(x[i], slope, offset);
            }
            apply<width>(x, args.activation);
            store_cols(x, y, row, col);
        }
}

KERNEL __launch_bounds__(ROWS_THREADS) activate(activate_args args)
{
    if (args.layout.width == 8)
        activate_rows<8>(args);
    else
        activate_rows<4>(args);
}

/* ---- moving elements ---- */

KERNEL __launch_bounds__(TRANSPOSE_THREADS) transpose(transpose_args args)
{
    /* A column more than it needs, so that a warp that goes down a column meets every bank. */
    __shared__ float tile[TRANSPOSE_TILE][TRANSPOSE_TILE + 1];
    constexpr int lines = TRANSPOSE_THREADS / WARP;
    const gpu_matrix &x = args.x, &y = args.y;
    int64_t across = (x.cols + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
    int64_t row = blockIdx.x / across * TRANSPOSE_TILE, col = blockIdx.x % across * TRANSPOSE_TILE;
    int lane = (int)threadIdx.x % WARP, line = (int)threadIdx.x / WARP;

#pragma unroll
    for (int i = 0; i < TRANSPOSE_TILE; i += lines)
        for (int c = lane; c < TRANSPOSE_TILE; c += WARP) {
            int r = i + line;

            if (row + r < x.rows && col + c < x.cols)
                tile[r][c] = load_float(x.at, (row + r) * x.stride + col + c, x.dtype);
        }
    sync_threads();
#pragma unroll
    for (int i = 0; i < TRANSPOSE_TILE; i += lines)
        for (int r = lane; r < TRANSPOSE_TILE; r += WARP) {
            int c = i + line;

            if (row + r < x.rows && col + c < x.cols)
                store_float(y.at, (col + c) * y.stride + row + r, y.dtype, tile[r][c]);
        }
}

/* An element of the tokens a thread. */
KERNEL __launch_bounds__(ROWS_THREADS) move_patches(move_patches_args args)
{
    const gpu_matrix &tokens = args.tokens, &picture = args.picture;
    int64_t patch = args.patch, across = args.width / patch;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (int64_t i = first; i < tokens.rows * tokens.cols; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / tokens.cols, col = i % tokens.cols;
        int64_t squared = patch * patch;
        int64_t channel = args.channels_first ? col / squared : col % picture.rows;
        int64_t pixel = args.channels_first ? col % squared : col / picture.rows;
        int64_t y = row / across * patch + pixel / patch;
        int64_t x = row % across * patch + pixel % patch;
        int64_t token_index = row * tokens.stride + col;
        int64_t picture_index = channel * picture.stride + y * args.width + x;

        if (args.back)
            store_float(picture.at, picture_index, picture.dtype,
                load_float(tokens.at, token_index, tokens.dtype));
        else
            store_float(tokens.at, token_index, tokens.dtype,
                load_float(picture.at, picture_index, picture.dtype));
    }
}
