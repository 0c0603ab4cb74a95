/*
 * Norms. What is summed up is held in registers, as far as it fits, so that it is read once. Sums
 * are in F32: of a few elements by each thread, then over threads, in an order that depends on
 * shape and types only.
 */
#include "device/cuda/kernels/norms.h"

#include "device/cuda/kernels/vectors.cuh"

/* Elements [col, col + width) of a run that begins at `first` in its row: normalised, stored. */
template <bool weighted, int width>
DEVICE void store_normalised(const norm_operands &args, const operand<width> &y, float *x,
    int64_t row, int64_t first, int col, float mean, float factor)
{
    float weights[width];
    run<width> r;

    if constexpr (weighted) {
        load_vector<width>(weights, args.gamma, col, 1);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = x[i] * factor * weights[i];
    } else {
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = (x[i] - mean) * factor;
    }
    if (args.scale.at) {
        bool aligned = runs_aligned<width>(args.scale) && first % width == 0;
        run<width> scales;

        load_run(scales, args.scale.at, first + col, args.length - col, args.scale.dtype, aligned);
        widen_run(weights, scales, args.scale.dtype);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] *= 1 + weights[i];
    }
    narrow_run(r, x, y.dtype);
    store_run(r, y.at, row * y.stride + first + col, args.length - col, y.dtype, y.aligned);
}

/* ---- a run a block ---- */

/* A block's elements of one run: those held, and where they and the others are. */
template <int width, int elements> struct held {
    static constexpr int runs = elements / width;
    operand<width> from;
    int64_t index;         /* of the run's first */
    int length, col, step; /* of the run; the thread's first column, and the way to its next */
    run<width> kept[runs];
};

template <int width, int elements> DEVICE void load_held(held<width, elements> &h)
{
#pragma unroll
    for (int i = 0; i < h.runs; i++)
        if (h.col + i * h.step < h.length)
            load_run(h.kept[i], h.from.at, h.index + h.col + i * h.step,
                h.length - h.col - i * h.step, h.from.dtype, h.from.aligned);
}

/* Of one run of a thread's: (x - mean), or its square. Elements that do not exist count nothing. */
template <bool squares, int width>
DEVICE float sum_run(const run<width> &r, int dtype, int left, float mean)
{
    float x[width], sum = 0;

    widen_run(x, r, dtype);
#pragma unroll
    for (int i = 0; i < width; i++) {
        float off = i < left ? x[i] - mean : 0;

        sum = squares ? fmaf(off, off, sum) : sum + off;
    }
    return sum;
}

/* The thread's share. */
template <bool squares, int width, int elements>
DEVICE float sum_held(const held<width, elements> &h, float mean)
{
    float sum = 0;
    int col = h.col;

#pragma unroll
    for (int i = 0; i < h.runs; i++, col += h.step)
        if (col < h.length) sum += sum_run<squares>(h.kept[i], h.from.dtype, h.length - col, mean);
    for (; col < h.length; col += h.step) {
        run<width> r;

        load_run(r, h.from.at, h.index + col, h.length - col, h.from.dtype, h.from.aligned);
        sum += sum_run<squares>(r, h.from.dtype, h.length - col, mean);
    }
    return sum;
}

template <bool centred, int width> DEVICE void norm_block(const norm_operands &args)
{
    __shared__ float shared[NORM_THREADS / WARP];
    uint32_t runs = (uint32_t)(args.x.cols / args.length);
    int64_t row = blockIdx.x / runs, first = (int64_t)(blockIdx.x % runs) * args.length;
    operand<width> y = operand_of<width>(args.y);
    held<width, NORM_HELD> h;
    float mean = 0, factor;
    int col;

    h.from = operand_of<width>(args.x);
    h.index = row * h.from.stride + first;
    h.length = args.length;
    h.col = (int)threadIdx.x * width;
    h.step = (int)blockDim.x * width;
    h.from.aligned = h.from.aligned && first % width == 0;
    y.aligned = y.aligned && first % width == 0;
    load_held(h);
    if constexpr (centred) mean = block_sum(sum_held<false>(h, 0), shared) / (float)h.length;
    factor = block_sum(sum_held<true>(h, mean), shared) / (float)h.length;
    factor = 1 / sqrtf(factor + args.eps);
    col = h.col;
#pragma unroll
    for (int i = 0; i < h.runs; i++, col += h.step)
        if (col < h.length) {
            float x[width];

            widen_run(x, h.kept[i], h.from.dtype);
            store_normalised<!centred>(args, y, x, row, first, col, mean, factor);
        }
    for (; col < h.length; col += h.step) {
        run<width> r;
        float x[width];

        load_run(r, h.from.at, h.index + col, h.length - col, h.from.dtype, h.from.aligned);
        widen_run(x, r, h.from.dtype);
        store_normalised<!centred>(args, y, x, row, first, col, mean, factor);
    }
}

KERNEL __launch_bounds__(NORM_THREADS, 2) rms_norm_long(rms_norm_long_args args)
{
    if (args.of.width == 8)
        norm_block<false, 8>(args.of);
    else
        norm_block<false, 4>(args.of);
}

KERNEL __launch_bounds__(NORM_THREADS, 2) layer_norm(layer_norm_args args)
{
    if (args.of.width == 8)
        norm_block<true, 8>(args.of);
    else
        norm_block<true, 4>(args.of);
}

/* ---- a run a few lanes ---- */

#define RUNS 2 /* loaded at once */

/* Every lane takes part in every exchange, whether it has elements or not. */
template <int width> DEVICE void rms_norm_lanes(const rms_norm_short_args &args)
{
    const norm_operands &of = args.of;
    int lane = (int)threadIdx.x % args.lanes, group = (int)threadIdx.x / args.lanes;
    int slots = args.slots_of_row, lines = (int)blockDim.x / args.lanes / slots;
    int slot = group % slots, line = group / slots;
    int runs = (int)(of.x.cols / of.length), col = lane * width, left = of.length - col;
    operand<width> y = operand_of<width>(of.y), from = operand_of<width>(of.x);

    from.aligned = from.aligned && (of.length % width == 0 || runs == 1);
    y.aligned = y.aligned && (of.length % width == 0 || runs == 1);
    for (int64_t top = (int64_t)blockIdx.x * lines; top < of.x.rows;
         top += (int64_t)gridDim.x * lines)
        for (int begin = 0; begin < runs; begin += RUNS * slots) {
            int64_t row = top + line;
            run<width> r[RUNS];
            bool mine[RUNS];

#pragma unroll
            for (int k = 0; k < RUNS; k++) {
                int64_t first = (int64_t)(begin + k * slots + slot) * of.length;

                mine[k] = line < lines && row < of.x.rows && first < of.x.cols && left > 0;
                if (mine[k])
                    load_run(r[k], from.at, row * from.stride + first + col, left, from.dtype,
                        from.aligned);
            }
#pragma unroll
            for (int k = 0; k < RUNS; k++) {
                float x[width], sum = mine[k] ? sum_run<true>(r[k], from.dtype, left, 0) : 0;

                for (int mask = args.lanes / 2; mask; mask /= 2)
                    sum += shuffle_xor(sum, mask);
                if (!mine[k]) continue;
                widen_run(x, r[k], from.dtype);
                store_normalised<true>(of, y, x, row,
                    (int64_t)(begin + k * slots + slot) * of.length, col, 0,
                    1 / sqrtf(sum / (float)of.length + of.eps));
            }
        }
}

KERNEL __launch_bounds__(256, 4) rms_norm_short(rms_norm_short_args args)
{
    if (args.of.width == 8)
        rms_norm_lanes<8>(args);
    else
        rms_norm_lanes<4>(args);
}

/* ---- groups of channels ---- */

template <int width> DEVICE void moments_of_run(const group_moments_args &args)
{
    __shared__ float shared[GROUP_THREADS / WARP];
    int64_t runs = args.moments.cols / 2;
    int64_t channel = blockIdx.x / runs, index = blockIdx.x % runs, first = index * args.run;
    held<width, GROUP_HELD> h;
    float mean, squares;

    h.from = operand_of<width>(args.x);
    h.from.aligned = h.from.aligned && first % width == 0;
    h.index = channel * h.from.stride + first;
    h.length = (int)min((int64_t)args.run, args.x.cols - first);
    h.col = (int)threadIdx.x * width;
    h.step = (int)blockDim.x * width;
    load_held(h);
    mean = block_sum(sum_held<false>(h, 0), shared) / (float)h.length;
    squares = block_sum(sum_held<true>(h, mean), shared);
    if (threadIdx.x == 0) {
        float *moments = (float *)args.moments.at + channel * args.moments.stride + 2 * index;

        moments[0] = mean;
        moments[1] = squares;
    }
}

KERNEL __launch_bounds__(GROUP_THREADS, 4) group_moments(group_moments_args args)
{
    if (args.width == 8)
        moments_of_run<8>(args);
    else
        moments_of_run<4>(args);
}

/* Run `i` of the group that begins with `channel`: its moments. */
DEVICE const float *moments_at(const group_fold_args &args, int64_t channel, int i, int runs)
{
    return (const float *)args.moments.at + (channel + i / runs) * args.moments.stride +
           2 * (i % runs);
}

/* The squares about the group's mean are those about each run's own and the runs' distances from
 * it. */
KERNEL __launch_bounds__(GROUP_THREADS) group_fold(group_fold_args args)
{
    __shared__ float shared[GROUP_THREADS / WARP];
    int runs = (int)(args.moments.cols / 2), count = (int)args.channels * runs;
    float whole = (float)args.run, last = (float)(args.pixels - (runs - 1) * args.run);
    int64_t channel = blockIdx.x * args.channels;
    float elements = (float)args.channels * (float)args.pixels, sum = 0;
    float about = *moments_at(args, channel, 0, runs), mean, root;

    /* Means about the first of them: what they have in common cannot drown how they differ. */
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
        sum +=
            (*moments_at(args, channel, i, runs) - about) * (i % runs == runs - 1 ? last : whole);
    mean = about + block_sum(sum, shared) / elements;
    sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const float *moments = moments_at(args, channel, i, runs);
        float distance = moments[0] - mean;

        sum += moments[1] + distance * distance * (i % runs == runs - 1 ? last : whole);
    }
    root = sqrtf(block_sum(sum, shared) / elements + args.eps);
    for (int64_t c = channel + threadIdx.x; c < channel + args.channels; c += blockDim.x) {
        float slope = load_float(args.gamma.at, c, args.gamma.dtype) / root;

        store_float(args.affine.at, c, GPU_F32, slope);
        store_float(args.affine.at, args.affine.stride + c, GPU_F32,
            fmaf(-mean, slope, load_float(args.beta.at, c, args.beta.dtype)));
    }
}
