/*
 * Norms: checks, and how their kernels are laid out. What is summed up by whom depends on shapes
 * and types only, since sums in another order are other bits.
 */
#include "device/cuda/internal.h"

#define WARP 32
#define SHORT_THREADS 256
#define SHORT_RUNS 2     /* that a group has under way at once */
#define LONG_THREADS 128 /* of a block, at least, if there is work for them */

static int64_t whole_warps(int64_t threads)
{
    return ceil_div(threads, WARP) * WARP;
}

static struct norm_operands operands_of(
    struct matrix y, struct matrix x, struct matrix gamma, struct matrix scale, float eps)
{
    struct matrix operands[] = {y, x};
    int64_t length = gamma.addr ? gamma.cols : x.cols;

    assert(length <= INT32_MAX);
    return (struct norm_operands){gpu_matrix(y), gpu_matrix(x), gpu_matrix(gamma),
        gpu_matrix(scale), eps, (int32_t)length, cuda_run_width(2, operands)};
}

static void norm_long(
    struct stream *stream, enum cuda_kernel kernel, const struct norm_operands *of)
{
    int64_t blocks = of->x.rows * (of->x.cols / of->length), runs = ceil_div(of->length, of->width);
    int64_t threads = ceil_div(runs, NORM_HELD / of->width);

    if (threads < LONG_THREADS) threads = least(runs, LONG_THREADS);
    threads = least(whole_warps(threads), NORM_THREADS);
    assert(blocks <= INT32_MAX);
    cuda_launch(
        stream, kernel, (struct cuda_grid){(uint32_t)blocks, 1, 1, (uint32_t)threads, 0}, of);
}

static void rms_norm_short(struct stream *stream, const struct norm_operands *of, int32_t lanes)
{
    int64_t runs = of->x.cols / of->length, groups = SHORT_THREADS / lanes;
    int64_t turns = ceil_div(runs, SHORT_RUNS * groups);
    int64_t slots = ceil_div(runs, SHORT_RUNS * turns);
    struct rms_norm_short_args args = {*of, lanes, (int32_t)slots};

    assert(of->x.cols <= INT32_MAX);
    cuda_launch(stream, KERNEL_rms_norm_short,
        (struct cuda_grid){
            cuda_blocks(stream, ceil_div(of->x.rows, groups / slots)), 1, 1, SHORT_THREADS, 0},
        &args);
}

void cuda_rms_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    struct cuda_room room = cuda_room(stream);
    struct norm_operands of;
    int32_t lanes = 1;

    check_rms_norm(y, x, gamma, scale);
    gamma = cuda_plain(stream, gamma, &room);
    scale = cuda_plain(stream, scale, &room);
    of = operands_of(y, x, gamma, scale, eps);
    while (lanes < WARP && lanes * of.width < of.length)
        lanes *= 2;
    if (lanes * of.width >= of.length)
        rms_norm_short(stream, &of, lanes);
    else
        norm_long(stream, KERNEL_rms_norm_long, &of);
}

void cuda_layer_norm(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix scale, float eps)
{
    struct cuda_room room = cuda_room(stream);
    struct norm_operands of;

    check_layer_norm(y, x, scale);
    scale = cuda_plain(stream, scale, &room);
    of = operands_of(y, x, MATRIX_NONE, scale, eps);
    norm_long(stream, KERNEL_layer_norm, &of);
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
