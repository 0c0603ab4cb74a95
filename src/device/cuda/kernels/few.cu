/*
 * Products of few rows: each thread of a block takes runs of eight of k for FEW_COLS rows of w and
 * all rows of x; then the block adds up. See few.h.
 */
#include "device/cuda/kernels/few.h"

#include "device/cuda/kernels/weights.cuh"

#define QUANTISED (-1) /* as a kernel's type: which one, the arguments say */
#define WARPS (FEW_THREADS / WARP)

template <int type>
DEVICE void load_weights(float to[8], const struct gpu_matrix &w, int64_t row, int64_t k, int count)
{
    if (type == QUANTISED)
        load_quantised(to, w, row * w.stride + k, count);
    else
        load_plain(to, w.at, row * w.stride + k, count, type);
}

/* `rows` of x: 1, 2, 4 or 8; those that x has not are computed as its last one, and dropped. */
template <int type, int rows> DEVICE void multiply(const struct few_args &args, float *partial)
{
    const struct gpu_matrix &x = args.x, &w = args.w, &y = args.y;
    const int64_t first = (int64_t)blockIdx.x * FEW_COLS;
    float sums[FEW_COLS][rows] = {};

    for (int64_t k = threadIdx.x * 8; k < x.cols; k += FEW_THREADS * 8) {
        const int count = x.cols - k < 8 ? (int)(x.cols - k) : 8;
        float weights[FEW_COLS][8];

#pragma unroll
        for (int c = 0; c < FEW_COLS; c++)
            load_weights<type>(
                weights[c], w, first + c < w.rows ? first + c : w.rows - 1, k, count);
#pragma unroll
        for (int r = 0; r < rows; r++) {
            float values[8];

            load_plain(values, x.at, (r < x.rows ? r : x.rows - 1) * x.stride + k, count, x.dtype);
#pragma unroll
            for (int c = 0; c < FEW_COLS; c++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sums[c][r] = fmaf(values[i], weights[c][i], sums[c][r]);
        }
    }
#pragma unroll
    for (int c = 0; c < FEW_COLS; c++)
#pragma unroll
        for (int r = 0; r < rows; r++) {
            float sum = warp_sum(sums[c][r]);

            if (threadIdx.x % WARP == 0) partial[(c * rows + r) * WARPS + threadIdx.x / WARP] = sum;
        }
    sync_threads();
    if (threadIdx.x < FEW_COLS * rows) {
        const int64_t col = first + threadIdx.x / rows, row = threadIdx.x % rows;
        float sum = 0;

        for (int i = 0; i < WARPS; i++)
            sum += partial[threadIdx.x * WARPS + i];
        if (col >= y.cols || row >= y.rows) return;
        if (args.bias.at) sum += load_float(args.bias.at, col, args.bias.dtype);
        store_float(y.at, row * y.stride + col, y.dtype, sum);
    }
}

template <int type> DEVICE void multiply_any(const struct few_args &args, float *partial)
{
    if (args.x.rows == 1)
        multiply<type, 1>(args, partial);
    else if (type != QUANTISED && args.x.rows == 2)
        multiply<type, 2>(args, partial);
    else if (type != QUANTISED && args.x.rows <= 4)
        multiply<type, 4>(args, partial);
    else
        multiply<type, FEW_ROWS>(args, partial);
}

#define FEW(name, type)                                                                            \
    KERNEL __launch_bounds__(FEW_THREADS) name(struct few_args args)                               \
    {                                                                                              \
        __shared__ float partial[FEW_COLS * FEW_ROWS * WARPS];                                     \
                                                                                                   \
        multiply_any<type>(args, partial);                                                         \
    }

FEW(few_f32, GPU_F32)
FEW(few_f16, GPU_F16)
FEW(few_bf16, GPU_BF16)
FEW(few_quantised, QUANTISED)
