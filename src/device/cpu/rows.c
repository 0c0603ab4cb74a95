/*
 * Operations that go over rows: norms, activations, gates, rotations, and moving elements about. A
 * task is about GRAIN elements, so that small operands stay on the caller; nothing is summed up
 * across tasks.
 */
#include "device/check.h"
#include "device/cpu/internal.h"

#include <math.h>
#include <string.h>

#define GRAIN 16384 /* elements */

/* One call: the operands that its piece function needs, and how it is cut. */
struct rows_job {
    const struct cpu_device *cpu;
    void (*piece)(const struct rows_job *job, int64_t row, int64_t col, int64_t n);
    struct matrix y, a, b, vector, scale, shift;
    float p, q;
    enum activation activation;
    enum rope_layout layout;
    enum patch_order order;
    int64_t height, width, patch; /* of pictures */
    int64_t run;                  /* of pixels */
    int64_t tile_rows, tile_cols, tiles_across;
};

static void rows_task(void *arg, int64_t index, int worker)
{
    const struct rows_job *job = arg;
    int64_t first = index / job->tiles_across * job->tile_rows;
    int64_t col = index % job->tiles_across * job->tile_cols;
    int64_t end = least(first + job->tile_rows, job->y.rows);

    (void)worker;
    for (int64_t row = first; row < end; row++)
        job->piece(job, row, col, least(job->y.cols - col, job->tile_cols));
}

/* Runs job->piece over all of y; a piece may be part of a row unless `whole`. */
static void run(struct rows_job *job, bool whole)
{
    int64_t cols = job->y.cols;

    job->tile_cols = whole ? cols : least(cols, GRAIN);
    job->tile_rows = cols < GRAIN ? GRAIN / cols : 1;
    job->tiles_across = ceil_div(cols, job->tile_cols);
    pool_run(
        job->cpu->pool, job->tiles_across * ceil_div(job->y.rows, job->tile_rows), rows_task, job);
}

/* Where no element cares for its column, dense operands are one long row. */
static void run_elements(struct rows_job *job)
{
    struct matrix *operands[] = {&job->y, &job->a, &job->b};
    bool dense = true;

    for (int i = 0; i < 3; i++)
        dense = dense && (!operands[i]->addr || operands[i]->stride == operands[i]->cols);
    for (int i = 0; dense && i < 3; i++) {
        operands[i]->cols *= operands[i]->rows;
        operands[i]->stride = operands[i]->cols;
        operands[i]->rows = 1;
    }
    run(job, false);
}

static struct rows_job job_of(struct stream *stream, struct matrix y, struct matrix a,
    struct matrix b, void (*piece)(const struct rows_job *, int64_t, int64_t, int64_t))
{
    return (struct rows_job){
        .cpu = cpu_device(stream->device), .piece = piece, .y = y, .a = a, .b = b};
}

/* ---- norms ---- */

/* The second half of a norm: its vectors are widened a piece at a time. */
static void normalise(const struct rows_job *job, int64_t row, int64_t col, int64_t n,
    struct matrix gamma, float about, float factor)
{
    const struct kernels *kernels = job->cpu->kernels;
    float gamma_buffer[PIECE], scale_buffer[PIECE], shift_buffer[PIECE];

    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = least(n - i, PIECE);

        kernels->normalise(row_of(job->y, row) + col + i, row_of(job->a, row) + col + i, about,
            factor, vector_piece(kernels, gamma, i, m, gamma_buffer),
            vector_piece(kernels, job->scale, col + i, m, scale_buffer),
            vector_piece(kernels, job->shift, col + i, m, shift_buffer), m);
    }
}

/* What makes the root of the mean square 1. */
static float rms_factor(const struct rows_job *job, const float *x, int64_t n)
{
    double squares = job->cpu->kernels->sum_squares(x, 0, n);

    return (float)(1 / sqrt(squares / (double)n + (double)job->p));
}

static void rms_norm_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    normalise(job, row, col, n, job->vector, 0, rms_factor(job, row_of(job->a, row) + col, n));
}

static void rms_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, rms_norm_piece);

    check_rms_norm(y, x, gamma, scale);
    job.vector = gamma;
    job.scale = scale;
    job.p = eps;
    run(&job, true);
}

static void layer_norm_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const float *x = row_of(job->a, row) + col;
    float mean = (float)(job->cpu->kernels->sum(x, n) / (double)n);
    double variance = job->cpu->kernels->sum_squares(x, mean, n) / (double)n;

    normalise(job, row, col, n, job->vector, mean, (float)(1 / sqrt(variance + (double)job->p)));
}

static void layer_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, layer_norm_piece);

    check_layer_norm(y, x, gamma, scale, shift);
    job.vector = gamma;
    job.scale = scale;
    job.shift = shift;
    job.p = eps;
    run(&job, true);
}

static void match_norms_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const struct kernels *kernels = job->cpu->kernels;
    float *y = row_of(job->y, row) + col;
    double have = kernels->sum_squares(y, 0, n);
    double want = kernels->sum_squares(row_of(job->a, row) + col, 0, n);

    if (have != 0) kernels->multiply_row(y, y, (float)sqrt(want / have), n);
}

static void match_norms(struct stream *stream, struct matrix y, struct matrix x)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, match_norms_piece);

    check_pair(y, x);
    run(&job, true);
}

/* All channels of pixels [col, col + n), at most PIECE: each pixel is summed up by itself. */
static void channel_norm_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const struct kernels *kernels = job->cpu->kernels;
    float factors[PIECE] = {0}, buffer[1];

    (void)row;
    for (int64_t c = 0; c < job->a.rows; c++)
        kernels->add_squares(factors, row_of(job->a, c) + col, n);
    for (int64_t i = 0; i < n; i++)
        factors[i] = sqrtf((float)job->a.rows) / fmaxf(sqrtf(factors[i]), 1e-12f);
    for (int64_t c = 0; c < job->a.rows; c++)
        kernels->multiply_by(row_of(job->b, c) + col, row_of(job->a, c) + col, factors,
            *vector_piece(kernels, job->vector, c, 1, buffer), job->activation, n);
}

/* A task is a few pixels of all channels: `y` of the job is only what is gone over. */
static void channel_norm(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix gamma, enum activation activation)
{
    struct rows_job job = job_of(stream, matrix_rows(y, 0, 1), x, y, channel_norm_piece);

    check_channel_norm(y, x, gamma, activation);
    job.vector = gamma;
    job.activation = activation;
    job.tile_rows = 1;
    job.tile_cols = PIECE;
    job.tiles_across = ceil_div(y.cols, PIECE);
    pool_run(job.cpu->pool, job.tiles_across, rows_task, &job);
}

/* A channel's runs, into `b`. */
static void moments_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const float *x = row_of(job->y, row) + col;
    float *moments = row_of(job->b, row);

    for (int64_t first = 0; first < n; first += job->run, moments += 2) {
        int64_t length = least(n - first, job->run);

        moments[0] = (float)(job->cpu->kernels->sum(x + first, length) / (double)length);
        moments[1] = (float)job->cpu->kernels->sum_squares(x + first, moments[0], length);
    }
}

static void group_moments(
    struct stream *stream, struct matrix moments, struct matrix x, int64_t run_pixels)
{
    /* Nothing is written to x: it is `y` only as what is gone over. */
    struct rows_job job = job_of(stream, x, MATRIX_NONE, moments, moments_piece);

    check_group_moments(moments, x, run_pixels);
    job.run = run_pixels;
    run(&job, true);
}

static double run_length(const struct group_norm *norm, int64_t index)
{
    return (double)least(norm->run, norm->pixels - index * norm->run);
}

/* Mean and root of a group's channels [first, first + channels): the squares about its mean are
 * those about each run's own and the runs' distances from it. */
static void group_statistics(struct matrix moments, int64_t first, int64_t channels,
    const struct group_norm *norm, double *mean, double *root)
{
    double elements = (double)channels * (double)norm->pixels, squares = 0;
    int64_t runs = moments.cols / 2;

    *mean = 0;
    for (int64_t c = first; c < first + channels; c++)
        for (int64_t i = 0; i < runs; i++)
            *mean += (double)row_of(moments, c)[2 * i] * run_length(norm, i);
    *mean /= elements;
    for (int64_t c = first; c < first + channels; c++)
        for (int64_t i = 0; i < runs; i++) {
            const float *run_moments = row_of(moments, c) + 2 * i;
            double distance = (double)run_moments[0] - *mean;

            squares += (double)run_moments[1] + distance * distance * run_length(norm, i);
        }
    *root = sqrt(squares / elements + (double)norm->eps);
}

static void group_fold(struct stream *stream, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    const struct kernels *kernels = cpu_device(stream->device)->kernels;
    int64_t channels = moments.rows / norm->groups;

    check_group_fold(affine, moments, gamma, beta, norm);
    for (int64_t first = 0; first < moments.rows; first += channels) {
        double mean, root;

        group_statistics(moments, first, channels, norm, &mean, &root);
        for (int64_t c = first; c < first + channels; c++) {
            float buffer[2];
            double g = (double)*vector_piece(kernels, gamma, c, 1, buffer);
            double b = (double)*vector_piece(kernels, beta, c, 1, buffer + 1);

            row_of(affine, 0)[c] = (float)(g / root);
            row_of(affine, 1)[c] = (float)(b - mean * (g / root));
        }
    }
}

/* ---- elements ---- */

static void activate_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    job->cpu->kernels->activate(
        row_of(job->y, row) + col, row_of(job->a, row) + col, job->activation, n);
}

static void activate(
    struct stream *stream, struct matrix y, struct matrix x, enum activation activation)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, activate_piece);

    check_pair(y, x);
    job.activation = activation;
    run_elements(&job);
}

static void affine_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    job->cpu->kernels->affine(row_of(job->y, row) + col, row_of(job->a, row) + col,
        row_of(job->b, 0)[row], row_of(job->b, 1)[row], job->activation, n);
}

static void affine(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix coefficients, enum activation activation)
{
    struct rows_job job = job_of(stream, y, x, coefficients, affine_piece);

    check_affine(y, x, coefficients);
    job.activation = activation;
    run(&job, false);
}

static void gated_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    job->cpu->kernels->gated(row_of(job->y, row) + col, row_of(job->a, row) + col,
        row_of(job->b, row) + col, job->activation, n);
}

static void gated(struct stream *stream, struct matrix y, struct matrix a, struct matrix b,
    enum activation activation)
{
    struct rows_job job = job_of(stream, y, a, b, gated_piece);

    check_gated(y, a, b, activation);
    job.activation = activation;
    run_elements(&job);
}

static void gated_add_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const struct kernels *kernels = job->cpu->kernels;
    float buffer[PIECE];

    for (int64_t i = col; i < col + n; i += PIECE) {
        int64_t m = least(col + n - i, PIECE);

        kernels->gated_add(row_of(job->y, row) + i,
            vector_piece(kernels, job->vector, i, m, buffer), row_of(job->a, row) + i, m);
    }
}

/* `scale` is gamma. */
static void norm_add_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    const struct kernels *kernels = job->cpu->kernels;
    const float *x = row_of(job->a, row);
    float factor = rms_factor(job, x, n), gate[PIECE], gamma[PIECE], normed[PIECE];

    for (int64_t i = col; i < col + n; i += PIECE) {
        int64_t m = least(col + n - i, PIECE);

        kernels->normalise(normed, x + i, 0, factor, vector_piece(kernels, job->scale, i, m, gamma),
            NULL, NULL, m);
        kernels->gated_add(
            row_of(job->y, row) + i, vector_piece(kernels, job->vector, i, m, gate), normed, m);
    }
}

static void gated_add(struct stream *stream, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    struct rows_job job =
        job_of(stream, y, x, MATRIX_NONE, gamma.addr ? norm_add_piece : gated_add_piece);

    check_gated_add(y, gate, x, gamma);
    job.vector = gate;
    job.scale = gamma;
    job.p = eps;
    if (gate.addr || gamma.addr)
        run(&job, gamma.addr != 0);
    else
        run_elements(&job);
}

static void blend_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    float *y = row_of(job->y, row) + col;

    job->cpu->kernels->blend(y, job->p, row_of(job->a, row) + col, job->q, y, n);
}

static void blend(struct stream *stream, struct matrix y, float a, struct matrix x, float b)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, blend_piece);

    check_pair(y, x);
    job.p = a;
    job.q = b;
    run_elements(&job);
}

static void guide_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    job->cpu->kernels->guide(
        row_of(job->y, row) + col, row_of(job->a, row) + col, row_of(job->b, row) + col, job->p, n);
}

static void guide(
    struct stream *stream, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    struct rows_job job = job_of(stream, y, cond, uncond, guide_piece);

    check_triple(y, cond, uncond);
    job.p = scale;
    run_elements(&job);
}

/* `b` is the table. */
static void rms_norm_rope_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    int64_t length = rms_norm_rope_cols(job->vector, job->b), pairs = length / 2;
    const float *cosines = job->b.addr ? row_of(job->b, row) : NULL;

    for (int64_t first = col; first < col + n; first += length) {
        float *x = row_of(job->y, row) + first;

        if (job->vector.addr)
            normalise(job, row, first, length, job->vector, 0, rms_factor(job, x, length));
        if (!cosines) continue;
        if (job->layout == ROPE_HALF)
            job->cpu->kernels->rope_half(x, x + pairs, cosines, cosines + pairs, pairs);
        else
            job->cpu->kernels->rope_interleaved(x, cosines, cosines + pairs, pairs);
    }
}

static void rms_norm_rope(struct stream *stream, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout)
{
    struct rows_job job = job_of(stream, x, x, table, rms_norm_rope_piece);

    check_rms_norm_rope(x, gamma, table);
    job.vector = gamma;
    job.p = eps;
    job.layout = layout;
    run(&job, true);
}

/* ---- moving elements ---- */

static void copy_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    widen_row(
        job->cpu->kernels, job->a, job->a.rows == 1 ? 0 : row, col, n, row_of(job->y, row) + col);
}

static void copy(struct stream *stream, struct matrix y, struct matrix x)
{
    struct rows_job job = job_of(stream, y, x, MATRIX_NONE, copy_piece);

    check_copy(y, x);
    run(&job, false);
}

#define TRANSPOSE_BLOCK 32

/* Rows [row, row + TRANSPOSE_BLOCK) of y, in square blocks: whole cache lines on both sides. `row`
 * counts blocks. */
static void transpose_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    int64_t first = row * TRANSPOSE_BLOCK, end = least(first + TRANSPOSE_BLOCK, job->a.cols);

    for (int64_t block = col; block < col + n; block += TRANSPOSE_BLOCK)
        for (int64_t r = first; r < end; r++)
            for (int64_t c = block; c < least(block + TRANSPOSE_BLOCK, col + n); c++)
                row_of(job->b, r)[c] = row_of(job->a, c)[r];
}

static void transpose(struct stream *stream, struct matrix y, struct matrix x)
{
    struct rows_job job = job_of(stream, y, x, y, transpose_piece);

    check_transpose(y, x);
    job.y.rows = ceil_div(y.rows, TRANSPOSE_BLOCK);
    run(&job, false);
}

/* The patch of one row of tokens, either way. */
static void move_patch(const struct rows_job *job, int64_t row, bool back)
{
    int64_t patch = job->patch, across = job->width / patch, channels = job->a.rows;
    int64_t corner = row / across * patch * job->width + row % across * patch;
    bool apart = job->order == PATCH_CHANNELS_FIRST;

    for (int64_t i = 0; i < patch * patch; i++) {
        float *pixel = row_of(job->a, 0) + corner + i / patch * job->width + i % patch;
        float *token = row_of(job->y, row) + (apart ? i : i * channels);

        for (int64_t channel = 0; channel < channels; channel++) {
            if (back)
                *pixel = *token;
            else
                *token = *pixel;
            pixel += job->a.stride;
            token += apart ? patch * patch : 1;
        }
    }
}

static void patchify_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    (void)col;
    (void)n;
    move_patch(job, row, false);
}

static void unpatchify_piece(const struct rows_job *job, int64_t row, int64_t col, int64_t n)
{
    (void)col;
    (void)n;
    move_patch(job, row, true);
}

/* Both go over the tokens: `y` of the job, whichever way the elements move. */
static void move_patches(struct stream *stream, struct matrix tokens, struct matrix picture,
    int64_t height, int64_t width, int32_t patch, enum patch_order order,
    void (*piece)(const struct rows_job *, int64_t, int64_t, int64_t))
{
    struct rows_job job = job_of(stream, tokens, picture, MATRIX_NONE, piece);

    check_patches(tokens, picture, height, width, patch);
    job.height = height;
    job.width = width;
    job.patch = patch;
    job.order = order;
    run(&job, true);
}

static void patchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    move_patches(stream, y, x, height, width, patch, order, patchify_piece);
}

static void unpatchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    move_patches(stream, x, y, height, width, patch, order, unpatchify_piece);
}

const struct compute_ops cpu_fast_ops = {
    .linear = cpu_linear,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .match_norms = match_norms,
    .activate = activate,
    .gated = gated,
    .gated_add = gated_add,
    .blend = blend,
    .guide = guide,
    .rms_norm_rope = rms_norm_rope,
    .attention = cpu_attention,
    .copy = copy,
    .transpose = transpose,
    .patchify = patchify,
    .unpatchify = unpatchify,
    .group_moments = group_moments,
    .group_fold = group_fold,
    .affine = affine,
    .channel_norm = channel_norm,
    .conv2d = cpu_conv2d,
    .unpack = cpu_unpack,
    .patch = cpu_patch,
};
