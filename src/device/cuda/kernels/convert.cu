/* Operands of matrix products in the type that is multiplied: see convert.h. */
#include "device/cuda/kernels/convert.h"

#include "device/cuda/kernels/weights.cuh"

DEVICE uint32_t round_pair(const float *pair, int dtype)
{
    return dtype == GPU_BF16 ? floats_as_bf16(pair[0], pair[1]) : floats_as_f16(pair[0], pair[1]);
}

/* Eight columns of a row. */
DEVICE void convert_eight(
    const struct gpu_matrix &to, const struct gpu_matrix &from, int64_t row, int64_t col, int count)
{
    const int64_t at = row * to.stride + col;
    float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};

    if (count > 0) load_columns(values, from, row, col, count);
    if (to.dtype == GPU_F32) {
        float4 *out = (float4 *)((float *)to.at + at);

        out[0] = make_float4(values[0], values[1], values[2], values[3]);
        out[1] = make_float4(values[4], values[5], values[6], values[7]);
    } else
        *(uint4 *)((uint16_t *)to.at + at) =
            make_uint4(round_pair(values, to.dtype), round_pair(values + 2, to.dtype),
                round_pair(values + 4, to.dtype), round_pair(values + 6, to.dtype));
}

/* The same of `rows` rows of F8 that become BF16, which they are rounded to anyway. All are read
 * before the first is written: it is these reads that take time. */
DEVICE void convert_f8(const struct gpu_matrix &to, const struct gpu_matrix &from, int64_t row,
    int64_t rows, int64_t col, int count)
{
    uint2 codes[CONVERT_ROWS];

#pragma unroll
    for (int i = 0; i < CONVERT_ROWS; i++)
        if (i < rows)
            codes[i] =
                load_f8_codes((const uint8_t *)from.at, (row + i) * from.stride + col, count);
#pragma unroll
    for (int i = 0; i < CONVERT_ROWS; i++)
        if (i < rows)
            *(uint4 *)((uint16_t *)to.at + (row + i) * to.stride + col) =
                f8_row_as_bf16(codes[i], from.dtype, from.scale);
}

KERNEL __launch_bounds__(CONVERT_THREADS) convert(struct convert_args args)
{
    const struct gpu_matrix to = args.to, from = args.from;
    const int64_t row = (int64_t)blockIdx.x * CONVERT_ROWS, rows = to.rows - row;
    const int64_t col = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 8;
    const int64_t left = from.cols - col;
    const int count = left < 8 ? left < 0 ? 0 : (int)left : 8;

    if (col >= to.cols) return;
    if (to.dtype == GPU_BF16 && (from.dtype == DTYPE_F8_E4M3 || from.dtype == DTYPE_F8_E5M2)) {
        convert_f8(to, from, row, rows, col, count);
        return;
    }
    for (int i = 0; i < CONVERT_ROWS && i < rows; i++)
        convert_eight(to, from, row + i, col, count);
}
