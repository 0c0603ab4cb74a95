/*
 * Norms. What is summed up is held in registers, as far as it fits, so that it is read once. Sums
 * are in F32: of a few elements by each thread, then over threads, in an order that depends on
 * shape and types only.
 */
#include "device/cuda/kernels/norms.h"

#include "device/cuda/kernels/activation.cuh"

#include "device/cuda/kernels/vectors.cuh"

/* ---- a row a block ---- */

enum norm_kind { RMS_NORM, RMS_NORM_ADD, LAYER_NORM, MATCH_NORMS };

template <norm_kind kind> constexpr bool reads_y = kind == RMS_NORM_ADD || kind == MATCH_NORMS;

/* Elements [col, col + width) of a row, of which mean and factor are known; y was `old`. */
template <norm_kind kind, int width>
DEVICE void normalise(
    const row_norm &args, float *x, const float *old, int64_t col, float mean, float factor)
{
    float vector[width], shift[width];

    if constexpr (kind == MATCH_NORMS) {
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = old[i] * factor;
        return;
    }
    load_vector<width>(vector, args.gamma, col, 1);
#pragma unroll
    for (int i = 0; i < width; i++)
        x[i] = (kind == LAYER_NORM ? x[i] - mean : x[i]) * factor * vector[i];
    load_vector<width>(vector, args.scale, col, kind == RMS_NORM_ADD ? 1 : 0);
    /* -0, unlike 0, changes nothing that it is added to. */
    if constexpr (kind == LAYER_NORM) load_vector<width>(shift, args.shift, col, -0.0f);
#pragma unroll
    for (int i = 0; i < width; i++)
        if constexpr (kind == RMS_NORM_ADD)
            x[i] = fmaf(vector[i], x[i], old[i]);
        else if constexpr (kind == LAYER_NORM)
            x[i] = fmaf(x[i], 1 + vector[i], shift[i]);
        else
            x[i] = x[i] * (1 + vector[i]);
}

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

enum summed { VALUES, SQUARES, SQUARES_ABOUT_MEAN };

/* Of one run of a thread's. Elements that do not exist are 0; about a mean they count nothing. */
template <summed what, int width>
DEVICE float sum_run(const run<width> &r, int dtype, int left, float mean)
{
    float x[width], sum = 0;

    widen_run(x, r, dtype);
#pragma unroll
    for (int i = 0; i < width; i++) {
        if constexpr (what == SQUARES_ABOUT_MEAN) x[i] = i < left ? x[i] - mean : 0;
        sum = what == VALUES ? sum + x[i] : fmaf(x[i], x[i], sum);
    }
    return sum;
}

/* The thread's share. */
template <summed what, int width, int elements>
DEVICE float sum_held(const held<width, elements> &h, float mean)
{
    float sum = 0;
    int col = h.col;

#pragma unroll
    for (int i = 0; i < h.runs; i++, col += h.step)
        if (col < h.length) sum += sum_run<what>(h.kept[i], h.from.dtype, h.length - col, mean);
    for (; col < h.length; col += h.step) {
        run<width> r;

        load_run(r, h.from.at, h.index + col, h.length - col, h.from.dtype, h.from.aligned);
        sum += sum_run<what>(r, h.from.dtype, h.length - col, mean);
    }
    return sum;
}

template <norm_kind kind, int width>
DEVICE void finish_run(const row_norm &args, const operand<width> &y, const run<width> &x_run,
    int x_dtype, const run<width> &y_run, int64_t row, int64_t col, float mean, float factor)
{
    float x[width], old[width];

    widen_run(x, x_run, x_dtype);
    if constexpr (reads_y<kind>) widen_run(old, y_run, y.dtype);
    normalise<kind, width>(args, x, old, col, mean, factor);
    store_cols(x, y, row, col);
}

/* All that is read is under way before the first of it is summed up. */
template <norm_kind kind, int width> DEVICE void norm_row(const row_norm &args)
{
    constexpr summed squares = kind == LAYER_NORM ? SQUARES_ABOUT_MEAN : SQUARES;
    __shared__ float shared[NORM_THREADS / WARP];
    int64_t row = blockIdx.x;
    held<width, NORM_HELD> x, y;
    float mean = 0, factor;
    int col;

    x.from = operand_of<width>(args.x);
    y.from = operand_of<width>(args.y);
    x.index = row * x.from.stride;
    y.index = row * y.from.stride;
    x.length = y.length = (int)args.x.cols;
    x.col = y.col = (int)threadIdx.x * width;
    x.step = y.step = (int)blockDim.x * width;
    load_held(x);
    if constexpr (reads_y<kind>) load_held(y);
    if constexpr (kind == LAYER_NORM)
        mean = block_sum(sum_held<VALUES>(x, 0), shared) / (float)x.length;
    factor = block_sum(sum_held<squares>(x, mean), shared);
    if constexpr (kind == MATCH_NORMS) {
        float own = block_sum(sum_held<SQUARES>(y, 0), shared);

        factor = own == 0 ? 1 : sqrtf(factor / own);
    } else {
        factor = 1 / sqrtf(factor / (float)x.length + args.eps);
    }
    col = x.col;
#pragma unroll
    for (int i = 0; i < x.runs; i++, col += x.step)
        if (col < x.length)
            finish_run<kind>(
                args, y.from, x.kept[i], x.from.dtype, y.kept[i], row, col, mean, factor);
    for (; col < x.length; col += x.step) {
        run<width> x_run, y_run;

        load_cols(x_run, x.from, row, col);
        if constexpr (reads_y<kind>) load_cols(y_run, y.from, row, col);
        finish_run<kind>(args, y.from, x_run, x.from.dtype, y_run, row, col, mean, factor);
    }
}

template <norm_kind kind> DEVICE void norm_rows(const row_norm &args)
{
    if (args.width == 8)
        norm_row<kind, 8>(args);
    else
        norm_row<kind, 4>(args);
}

KERNEL __launch_bounds__(NORM_THREADS, 2) rms_norm(rms_norm_args args)
{
    norm_rows<RMS_NORM>(args.of);
}

KERNEL __launch_bounds__(NORM_THREADS, 2) rms_norm_add(rms_norm_add_args args)
{
    norm_rows<RMS_NORM_ADD>(args.of);
}

KERNEL __launch_bounds__(NORM_THREADS, 2) layer_norm(layer_norm_args args)
{
    norm_rows<LAYER_NORM>(args.of);
}

KERNEL __launch_bounds__(NORM_THREADS, 2) match_norms(match_norms_args args)
{
    norm_rows<MATCH_NORMS>(args.of);
}

/* ---- a head a few lanes: normed, then rotated ---- */

/* A kernel each: what one does not need costs the others registers. */
enum head_work { NORM_AND_ROTATE, NORM, ROTATE };

template <head_work work> DEVICE int head_cols(const struct rms_norm_rope &args)
{
    return (int)(work == NORM ? args.gamma.cols : args.table.cols);
}

/*
 * Part `index` of a head: two runs of its elements, which hold both of each of `width` pairs. In
 * halves they are as far apart as these. Else pairs lie within runs, and that one is `parts` runs
 * after the other lets lanes load what lies side by side.
 */
struct part {
    int col[2], left[2]; /* of each run: its first element, and how many there are from it on */
};

template <bool halves, int width> DEVICE part part_of(int dim, int index)
{
    int parts = (dim / 2 + width - 1) / width;
    part p;

#pragma unroll
    for (int k = 0; k < 2; k++) {
        p.col[k] = halves ? index * width + k * (dim / 2) : (index + k * parts) * width;
        p.left[k] = halves ? dim / 2 - index * width : dim - p.col[k];
    }
    return p;
}

/* What all heads of a row are rotated by. */
template <int width> struct rotations {
    run<width / 2> cosines[2], sines[2];
};

template <bool halves, int width>
DEVICE void load_rotations(
    rotations<width> &v, const gpu_matrix &table, int64_t row, const part &p, bool aligned)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int first = halves ? p.col[0] + k * (width / 2) : p.col[k] / 2;
        int left = halves ? p.left[0] - k * (width / 2) : p.left[k] / 2;
        int64_t at = row * table.stride + first;

        load_run(v.cosines[k], table.at, at, left, GPU_F32, aligned);
        load_run(v.sines[k], table.at, at + table.cols / 2, left, GPU_F32, aligned);
    }
}

template <int width>
DEVICE void load_gamma(float *to, const gpu_matrix &gamma, const part &p, bool aligned)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        run<width> r;

        load_run(r, gamma.at, p.col[k], p.left[k], gamma.dtype, aligned);
        widen_run(to + k * width, r, gamma.dtype);
    }
}

/* Of the head that begins at element `first`. */
template <int width>
DEVICE void load_part(run<width> r[2], const operand<width> &x, int64_t first, const part &p)
{
#pragma unroll
    for (int k = 0; k < 2; k++)
        load_run(r[k], x.at, first + p.col[k], p.left[k], x.dtype, x.aligned);
}

template <int width> DEVICE float sum_part(const run<width> r[2], int dtype)
{
    return sum_run<SQUARES>(r[0], dtype, width, 0) + sum_run<SQUARES>(r[1], dtype, width, 0);
}

DEVICE void rotate(float &a, float &b, float cosine, float sine)
{
    float old = a;

    a = fmaf(old, cosine, -(b * sine));
    b = fmaf(b, cosine, old * sine);
}

/* Normed with gamma and factor, rotated and stored. */
template <head_work work, bool halves, int width>
DEVICE void finish_part(const operand<width> &x, int64_t first, const part &p, run<width> r[2],
    const float *gamma, const rotations<width> &v, float factor)
{
    float values[2 * width];

#pragma unroll
    for (int k = 0; k < 2; k++)
        widen_run(values + k * width, r[k], x.dtype);
    if constexpr (work != ROTATE) {
#pragma unroll
        for (int i = 0; i < 2 * width; i++)
            values[i] = values[i] * factor * gamma[i];
    }
    if constexpr (work != NORM) {
#pragma unroll
        for (int i = 0; i < width; i++)
            rotate(values[halves ? i : 2 * i], values[halves ? i + width : 2 * i + 1],
                word_as_float(v.cosines[i / (width / 2)].words[i % (width / 2)]),
                word_as_float(v.sines[i / (width / 2)].words[i % (width / 2)]));
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        narrow_run(r[k], values + k * width, x.dtype);
        store_run(r[k], x.at, first + p.col[k], p.left[k], x.dtype, x.aligned);
    }
}

/* Aligned heads of whole runs. Every lane takes part in every exchange, whether it has a part or
 * not. */
template <head_work work, bool halves, int dtype>
DEVICE void norm_rope_lanes(const struct rms_norm_rope &args)
{
    constexpr int width = dtype == GPU_F32 ? 4 : 8;
    int lanes = 1 << args.lane_bits, lane = (int)threadIdx.x & (lanes - 1);
    int group = (int)threadIdx.x >> args.lane_bits;
    int line = group / args.slots, slot = group % args.slots, dim = head_cols<work>(args);
    bool idle = line >= args.lines || lane * width >= dim / 2;
    operand<width> x = {args.x.at, args.x.cols, args.x.stride, dtype, true};
    part p = part_of<halves, width>(dim, lane);
    rotations<width> v;

    p.left[0] = p.left[1] = width;
    for (int64_t top = (int64_t)blockIdx.x * args.lines; top < args.x.rows;
         top += (int64_t)gridDim.x * args.lines) {
        bool mine = !idle && top + line < args.x.rows;
        int64_t first = (top + line) * x.stride;

        if (work != NORM && mine) load_rotations<halves>(v, args.table, top + line, p, true);
        for (int begin = 0; begin < args.heads; begin += HEADS_AT_ONCE * args.slots) {
            run<width> r[HEADS_AT_ONCE][2];
            float gamma[2 * width];

#pragma unroll
            for (int h = 0; h < HEADS_AT_ONCE; h++) {
                int head = begin + h * args.slots + slot;

                if (mine && head < args.heads) load_part(r[h], x, first + head * dim, p);
            }
            if (work != ROTATE && mine) load_gamma<width>(gamma, args.gamma, p, true);
#pragma unroll
            for (int h = 0; h < HEADS_AT_ONCE; h++) {
                int head = begin + h * args.slots + slot;
                float sum = sum_part(r[h], dtype);

                for (int mask = lanes / 2; mask; mask /= 2)
                    sum += shuffle_xor(sum, mask);
                if (mine && head < args.heads)
                    finish_part<work, halves>(x, first + head * dim, p, r[h], gamma, v,
                        reciprocal_root(fmaf(sum, 1 / (float)dim, args.eps)));
            }
        }
    }
}

/* Any heads, a warp a head, which it reads twice. The same sums as above, and zeros. */
template <head_work work, bool halves, int dtype>
DEVICE void norm_rope_warps(const struct rms_norm_rope &args)
{
    constexpr int width = dtype == GPU_F32 ? 4 : 8;
    int dim = head_cols<work>(args), warps = (int)blockDim.x / WARP;
    operand<width> x = {args.x.at, args.x.cols, args.x.stride, dtype, false};
    int64_t i = (int64_t)blockIdx.x * warps + threadIdx.x / WARP;

    for (; i < args.x.rows * args.heads; i += (int64_t)gridDim.x * warps) {
        int64_t row = i / args.heads, first = row * x.stride + i % args.heads * dim;
        float sum = 0, factor;

        for (int index = (int)threadIdx.x % WARP; index * width < dim / 2; index += WARP) {
            run<width> r[2];

            load_part(r, x, first, part_of<halves, width>(dim, index));
            sum += sum_part(r, dtype);
        }
        factor = reciprocal_root(fmaf(warp_sum(sum), 1 / (float)dim, args.eps));
        for (int index = (int)threadIdx.x % WARP; index * width < dim / 2; index += WARP) {
            part p = part_of<halves, width>(dim, index);
            rotations<width> v;
            run<width> r[2];
            float gamma[2 * width];

            load_part(r, x, first, p);
            if (work != NORM) load_rotations<halves>(v, args.table, row, p, false);
            if (work != ROTATE) load_gamma<width>(gamma, args.gamma, p, false);
            finish_part<work, halves>(x, first, p, r, gamma, v, factor);
        }
    }
}

template <head_work work, bool halves, int dtype>
DEVICE void norm_rope_of(const struct rms_norm_rope &args)
{
    if (args.lines)
        norm_rope_lanes<work, halves, dtype>(args);
    else
        norm_rope_warps<work, halves, dtype>(args);
}

template <head_work work, bool halves> DEVICE void norm_rope(const struct rms_norm_rope &args)
{
    if (args.x.dtype == GPU_F32)
        norm_rope_of<work, halves, GPU_F32>(args);
    else if (args.x.dtype == GPU_BF16)
        norm_rope_of<work, halves, GPU_BF16>(args);
    else
        norm_rope_of<work, halves, GPU_F16>(args);
}

#define HEADS_KERNEL(name, work, halves)                                                           \
    KERNEL __launch_bounds__(HEADS_THREADS, 3) name(name##_args args)                              \
    {                                                                                              \
        norm_rope<work, halves>(args.of);                                                          \
    }
HEADS_KERNEL(rms_norm_rope_neighbours, NORM_AND_ROTATE, false)
HEADS_KERNEL(rms_norm_rope_halves, NORM_AND_ROTATE, true)
HEADS_KERNEL(rms_norm_heads, NORM, true)
HEADS_KERNEL(rope_neighbours, ROTATE, false)
HEADS_KERNEL(rope_halves, ROTATE, true)

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
    mean = block_sum(sum_held<VALUES>(h, 0), shared) / (float)h.length;
    squares = block_sum(sum_held<SQUARES_ABOUT_MEAN>(h, mean), shared);
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

/* ---- all channels of a pixel ---- */

/* Some of a line's channels, from `channel` on; those that there are not are 0. */
template <int width>
DEVICE void load_channels(run<width> r[CHANNELS_AT_ONCE], const operand<width> &x, int64_t rows,
    int64_t channel, int64_t col)
{
#pragma unroll
    for (int k = 0; k < CHANNELS_AT_ONCE; k++) {
        r[k] = {};
        if (channel + k * CHANNEL_LINES < rows)
            load_cols(r[k], x, channel + k * CHANNEL_LINES, col);
    }
}

/* Which channels are summed up by whom depends on their number only, so that a pixel's sum does not
 * on where it lies. */
template <int width> DEVICE void norm_channels(const channel_norm_args &args)
{
    constexpr int step = CHANNEL_LINES * CHANNELS_AT_ONCE;
    __shared__ float shared[CHANNEL_LINES][WARP * width];
    operand<width> x = operand_of<width>(args.x), y = operand_of<width>(args.y);
    int lane = (int)threadIdx.x % WARP, line = (int)threadIdx.x / WARP;
    int64_t col = ((int64_t)blockIdx.x * WARP + lane) * width;
    int64_t rows = col < x.cols ? args.x.rows : 0;
    float factors[width] = {}, values[width];
    run<width> r[CHANNELS_AT_ONCE];

    for (int64_t channel = line; channel < rows; channel += step) {
        load_channels(r, x, rows, channel, col);
#pragma unroll
        for (int k = 0; k < CHANNELS_AT_ONCE; k++) {
            widen_run(values, r[k], x.dtype);
#pragma unroll
            for (int i = 0; i < width; i++)
                factors[i] = fmaf(values[i], values[i], factors[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < width; i++)
        shared[line][i * WARP + lane] = factors[i];
    sync_threads();
#pragma unroll
    for (int i = 0; i < width; i++) {
        float sum = 0;

        for (int k = 0; k < CHANNEL_LINES; k++)
            sum += shared[k][i * WARP + lane];
        factors[i] = sqrtf((float)args.x.rows) / fmaxf(sqrtf(sum), 1e-12f);
    }
    for (int64_t channel = line; channel < rows; channel += step) {
        load_channels(r, x, rows, channel, col);
#pragma unroll
        for (int k = 0; k < CHANNELS_AT_ONCE; k++) {
            int64_t c = channel + k * CHANNEL_LINES;
            float gain = c < rows ? load_float(args.gamma.at, c, args.gamma.dtype) : 0;

            widen_run(values, r[k], x.dtype);
#pragma unroll
            for (int i = 0; i < width; i++)
                values[i] = values[i] * factors[i] * gain;
            apply<width>(values, args.activation);
            if (c < rows) store_cols(values, y, c, col);
        }
    }
}

KERNEL __launch_bounds__(WARP *CHANNEL_LINES) channel_norm(channel_norm_args args)
{
    if (args.width == 8)
        norm_channels<8>(args);
    else
        norm_channels<4>(args);
}
