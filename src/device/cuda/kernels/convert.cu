/* Operands of matrix products in the type that is multiplied: see convert.h. */
#include "device/cuda/kernels/convert.h"

#include "device/cuda/kernels/weights.cuh"

DEVICE uint32_t round_pair(const float *pair, int dtype)
{
    return dtype == GPU_BF16 ? floats_as_bf16(pair[0], pair[1]) : floats_as_f16(pair[0], pair[1]);
}

KERNEL __launch_bounds__(CONVERT_THREADS) convert(struct convert_args args)
{
    const struct gpu_matrix to = args.to, from = args.from;
    const int64_t row = blockIdx.x, left = from.cols;
    const int64_t col = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 8;
    const int64_t at = row * to.stride + col;
    float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};

    if (col >= to.cols) return;
    if (col < left) {
        const int count = left - col < 8 ? (int)(left - col) : 8;

        if (from.dtype <= GPU_BF16)
            load_plain(values, from.at, row * from.stride + col, count, from.dtype);
        else
            load_quantised(values, from, row * from.stride + col, count);
    }
    if (to.dtype == GPU_F32) {
        float4 *out = (float4 *)((float *)to.at + at);

        out[0] = make_float4(values[0], values[1], values[2], values[3]);
        out[1] = make_float4(values[4], values[5], values[6], values[7]);
    } else
        *(uint4 *)((uint16_t *)to.at + at) =
            make_uint4(round_pair(values, to.dtype), round_pair(values + 2, to.dtype),
                round_pair(values + 4, to.dtype), round_pair(values + 6, to.dtype));
}
