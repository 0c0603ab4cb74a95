/*
 * y = x w^T + b. A task is a tile of tokens by a panel of features: a piece of the panel at a time
 * is widened and packed into the worker's buffer and multiplied by every token's piece of x, where
 * it lies.
 *
 * An element of y is bias + piece + piece + ..., each piece one chain over DEPTH of the inputs. So
 * the tiles' sizes change no bit: not the number of threads, nor how many tokens are given at a
 * time.
 */
#include "device/check.h"
#include "device/cpu/internal.h"

#include <string.h>

#define DEPTH 256
#define TOKENS 512
#define FEATURES 256 /* of a panel; fewer when there would be too few tasks */
#define LEAST_FEATURES 64

struct linear_job {
    const struct cpu_device *cpu;
    struct matrix y, x, w, bias;
    int64_t panel, panels;
};

static void linear_task(void *arg, int64_t index, int worker)
{
    const struct linear_job *job = arg;
    const struct kernels *kernels = job->cpu->kernels;
    float *packed = worker_scratch(job->cpu, worker), bias_buffer[FEATURES];
    int64_t row = index / job->panels * TOKENS, feature = index % job->panels * job->panel;
    int64_t rows = least(job->y.rows - row, TOKENS);
    int64_t features = least(job->y.cols - feature, job->panel), inputs = job->x.cols;
    const float *bias = vector_piece(kernels, job->bias, feature, features, bias_buffer);
    float *y = row_of(job->y, row) + feature;

    for (int64_t r = 0; bias && r < rows; r++)
        memcpy(y + r * job->y.stride, bias, (size_t)features * sizeof *y);
    for (int64_t k = 0; k < inputs; k += DEPTH) {
        int64_t depth = least(inputs - k, DEPTH);

        kernels->pack(packed, element_of(job->w, feature, k), job->w.dtype, job->w.scale,
            job->w.stride, features, depth);
        kernels->multiply(y, job->y.stride, row_of(job->x, row) + k, job->x.stride, packed, rows,
            features, depth, bias || k > 0);
    }
}

void cpu_linear(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    struct cpu_device *cpu = cpu_device(stream->device);
    struct linear_job job = {cpu, y, x, w, bias, FEATURES, 0};
    int64_t tiles = ceil_div(y.rows, TOKENS);

    check_linear(y, x, w, bias);
    while (job.panel > LEAST_FEATURES &&
           ceil_div(y.cols, job.panel) * tiles < 4 * (int64_t)pool_workers(cpu->pool))
        job.panel /= 2;
    job.panels = ceil_div(y.cols, job.panel);
    pool_run(cpu->pool, tiles * job.panels, linear_task, &job);
}

_Static_assert(FEATURES *DEPTH * sizeof(float) <= SCRATCH_BYTES, "a panel fits the buffer");
