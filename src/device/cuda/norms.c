/*
 * Norms: checks, and how their kernels are laid out. What is summed up by whom depends on shapes
 * and types only, since sums in another order are other bits.
 */
#include "device/cuda/internal.h"

static_assert(sizeof(struct rms_norm_args) == sizeof(struct row_norm) &&
                  sizeof(struct rms_norm_rope_halves_args) == sizeof(struct rms_norm_rope),
    "a kernel's args are what they hold");

#define WARP 32
#define ROW_THREADS 128 /* of a block, at least, if there is work for them */

static int64_t whole_warps(int64_t threads)
{
    return ceil_div(threads, WARP) * WARP;
}

/* vectors: gamma, scale and shift, each optional. */
static void norm_rows(struct stream *stream, enum cuda_kernel kernel, struct matrix y,
    struct matrix x, const struct matrix vectors[3], float eps)
{
    struct cuda_room room = cuda_room(stream);
    struct matrix operands[] = {y, x};
    int32_t width = cuda_run_width(2, operands);
    struct row_norm args = {.y = gpu_matrix(y), .x = gpu_matrix(x), .eps = eps, .width = width};
    int64_t runs = ceil_div(x.cols, width), threads = ceil_div(runs, NORM_HELD / width);

    args.gamma = gpu_matrix(cuda_plain(stream, vectors[0], &room));
    args.scale = gpu_matrix(cuda_plain(stream, vectors[1], &room));
    args.shift = gpu_matrix(cuda_plain(stream, vectors[2], &room));
    if (threads < ROW_THREADS) threads = least(runs, ROW_THREADS);
    threads = least(whole_warps(threads), NORM_THREADS);
    assert(x.rows <= INT32_MAX && x.cols <= INT32_MAX);
    cuda_launch(
        stream, kernel, (struct cuda_grid){(uint32_t)x.rows, 1, 1, (uint32_t)threads, 0}, &args);
}

void cuda_rms_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    check_rms_norm(y, x, gamma, scale);
    norm_rows(stream, KERNEL_rms_norm, y, x, (struct matrix[]){gamma, scale, MATRIX_NONE}, eps);
}

void cuda_rms_norm_add(struct stream *stream, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    norm_rows(stream, KERNEL_rms_norm_add, y, x, (struct matrix[]){gamma, gate, MATRIX_NONE}, eps);
}

void cuda_layer_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    check_layer_norm(y, x, gamma, scale, shift);
    norm_rows(stream, KERNEL_layer_norm, y, x, (struct matrix[]){gamma, scale, shift}, eps);
}

void cuda_match_norms(struct stream *stream, struct matrix y, struct matrix x)
{
    check_pair(y, x);
    norm_rows(stream, KERNEL_match_norms, y, x, (struct matrix[3]){0}, 0);
}

void cuda_channel_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    enum activation activation)
{
    struct cuda_room room = cuda_room(stream);
    struct matrix operands[] = {y, x};
    int32_t width = cuda_run_width(2, operands);
    struct channel_norm_args args = {gpu_matrix(y), gpu_matrix(x),
        gpu_matrix(cuda_plain(stream, gamma, &room)), (int32_t)activation, width};
    int64_t blocks = ceil_div(x.cols, WARP * width);

    check_channel_norm(y, x, gamma, activation);
    assert(blocks <= INT32_MAX);
    cuda_launch(stream, KERNEL_channel_norm,
        (struct cuda_grid){(uint32_t)blocks, 1, 1, WARP * CHANNEL_LINES, 0}, &args);
}

static bool aligned_16(struct matrix m)
{
    return (m.addr | (uint64_t)dtype_bytes(m.dtype, m.stride)) % 16 == 0;
}

static enum cuda_kernel heads_kernel(
    struct matrix gamma, struct matrix table, enum rope_layout layout)
{
    if (!table.addr) return KERNEL_rms_norm_heads;
    if (layout == ROPE_HALF) return gamma.addr ? KERNEL_rms_norm_rope_halves : KERNEL_rope_halves;
    return gamma.addr ? KERNEL_rms_norm_rope_neighbours : KERNEL_rope_neighbours;
}

void cuda_rms_norm_rope(struct stream *stream, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout)
{
    struct cuda_room room = cuda_room(stream);
    int64_t cols = rms_norm_rope_cols(gamma, table), pairs = cols / 2, heads = x.cols / cols;
    int64_t groups, blocks;
    int32_t width = cuda_run_width(1, &x), lane_bits = 0;
    struct rms_norm_rope args = {.eps = eps, .heads = (int32_t)heads};

    check_rms_norm_rope(x, gamma, table);
    assert(x.cols <= INT32_MAX);
    gamma = cuda_plain(stream, gamma, &room);
    while ((int64_t)width << lane_bits < pairs)
        lane_bits++;
    if (1 << lane_bits <= WARP && pairs % width == 0 && aligned_16(x) && aligned_16(table) &&
        gamma.addr % 16 == 0) {
        groups = HEADS_THREADS >> lane_bits;
        args.lane_bits = lane_bits;
        args.slots = (int32_t)least(ceil_div(heads, HEADS_AT_ONCE), groups);
        args.lines = (int32_t)groups / args.slots;
        blocks = ceil_div(x.rows, args.lines);
    } else {
        blocks = ceil_div(x.rows * heads, HEADS_THREADS / WARP);
    }
    args.x = gpu_matrix(x);
    args.gamma = gpu_matrix(gamma);
    args.table = gpu_matrix(table);
    cuda_launch(stream, heads_kernel(gamma, table, layout),
        (struct cuda_grid){cuda_blocks(stream, blocks), 1, 1, HEADS_THREADS, 0}, &args);
}

void cuda_group_moments(struct stream *stream, struct matrix moments, struct matrix x, int64_t run)
{
    struct group_moments_args args = {
        gpu_matrix(x), gpu_matrix(moments), (int32_t)run, cuda_run_width(1, &x)};
    int64_t blocks = x.rows * group_runs(x.cols, run);

    check_group_moments(moments, x, run);
    assert(blocks <= INT32_MAX && run <= INT32_MAX);
    cuda_launch(stream, KERNEL_group_moments,
        (struct cuda_grid){(uint32_t)blocks, 1, 1, GROUP_THREADS, 0}, &args);
}

void cuda_group_fold(struct stream *stream, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    struct cuda_room room = cuda_room(stream);
    struct group_fold_args args;

    check_group_fold(affine, moments, gamma, beta, norm);
    gamma = cuda_plain(stream, gamma, &room);
    beta = cuda_plain(stream, beta, &room);
    args = (struct group_fold_args){gpu_matrix(affine), gpu_matrix(gamma), gpu_matrix(beta),
        gpu_matrix(moments), moments.rows / norm->groups, norm->pixels, norm->run, norm->eps};
    cuda_launch(stream, KERNEL_group_fold,
        (struct cuda_grid){(uint32_t)norm->groups, 1, 1, GROUP_THREADS, 0}, &args);
}
