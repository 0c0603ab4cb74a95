/*
 * Convolution as a matrix product, y [out, pixels] = w [out, taps] * gathered [taps, pixels], whose
 * right side never exists whole: a task is a tile of pixels by a group of output channels, and
 * gathers the taps of some input channels at a time into the worker's buffer, in packed strips.
 * What is done on reading (affine, activation, upsampling) is done once an element and tile, in a
 * small padded picture of the tile from which the taps are copied.
 *
 * Of kernels of several planes the last is taken out of the weights when they are widened.
 *
 * An element of y is bias + part + part + ..., each part one chain over the taps of `channels`
 * inputs, so that tiles and groups change no bit.
 */
#include "device/check.h"
#include "device/cpu/internal.h"

#include <string.h>

#define PIXELS 256
#define TAPS 576      /* at a time: 64 channels of a 3x3 kernel */
#define OUTS 96       /* rows of weights that are widened at a time */
#define WHOLE_ROWS 64 /* up to this width a tile is whole rows: its pixels are one run of y's */
#define TILE_WIDTH 32
#define PADDED 1024 /* more than a tile with its border can have: 258 x 3, if one pixel wide */
#define LEAST_GROUP 64

struct conv_job {
    const struct cpu_device *cpu;
    struct matrix y, x, w, bias;
    struct conv conv;
    int64_t planes; /* of the kernel */
    int64_t tile_height, tile_width, tiles_across, tiles;
    int64_t group; /* output channels of a task */
};

/* The tile of one task. */
struct tile {
    int64_t row, col, height, width;
    int64_t pitch; /* pixels from one row to the next in the strips: rows that are not one run of
                      y's begin a new strip */
    int64_t outs, out; /* output channels, the first one */
};

static void read_row(
    const struct conv_job *job, float *to, const float *from, int64_t channel, int64_t n)
{
    const struct kernels *kernels = job->cpu->kernels;

    if (job->conv.affine.addr)
        kernels->affine(to, from, row_of(job->conv.affine, 0)[channel],
            row_of(job->conv.affine, 1)[channel], job->conv.activation, n);
    else
        kernels->activate(to, from, job->conv.activation, n);
}

/* The tile of an input channel, in output coordinates, with its border. */
static void read_tile(
    const struct conv_job *job, const struct tile *tile, int64_t channel, float *padded)
{
    const struct conv *conv = &job->conv;
    int64_t border = conv->kernel / 2, width = tile->width + 2 * border;
    int64_t input_width = conv->width / conv->upsample;
    int64_t left = tile->col - border < 0 ? 0 : tile->col - border;
    int64_t right = least(tile->col + tile->width + border, conv->width);

    for (int64_t r = tile->row - border; r < tile->row + tile->height + border;
         r++, padded += width) {
        const float *from;
        float *to = padded + (left - (tile->col - border)), doubled[PIXELS];
        int64_t first = left / conv->upsample, end = (right - 1) / conv->upsample + 1;

        if (r < -conv->above || r >= conv->height + conv->below) {
            memset(padded, 0, (size_t)width * sizeof *padded);
            continue;
        }
        padded[0] = 0; /* a border that lies outside; else overwritten */
        padded[width - 1] = 0;
        from = row_of(job->x, channel) + (r + conv->above) / conv->upsample * input_width + first;
        if (conv->upsample == 1) {
            read_row(job, to, from, channel, end - first);
        } else {
            read_row(job, doubled, from, channel, end - first);
            for (int64_t c = left; c < right; c++)
                *to++ = doubled[c / 2 - first];
        }
    }
}

/* The taps of `channels` channels from `first` on, as packed strips of depth `depth`. */
static void gather(const struct conv_job *job, const struct tile *tile, int64_t first,
    int64_t channels, float *strips)
{
    int64_t kernel = job->conv.kernel, depth = channels * kernel * kernel, tap = 0;
    int64_t padded_width = tile->width + kernel - 1;
    float padded[PADDED];

    for (int64_t c = first; c < first + channels; c++) {
        read_tile(job, tile, c, padded);
        for (int64_t dy = 0; dy < kernel; dy++)
            for (int64_t dx = 0; dx < kernel; dx++, tap++)
                job->cpu->kernels->spread(strips, depth, tap, tile->pitch,
                    padded + dy * padded_width + dx, padded_width, tile->height, tile->width);
    }
}

/* The start of the sums: the bias, or what is there. True if the parts must be added to it. */
static bool begin(const struct conv_job *job, const struct tile *tile)
{
    if (!job->bias.addr) return job->conv.accumulate;
    for (int64_t out = tile->out; out < tile->out + tile->outs; out++) {
        float buffer[1], bias = *vector_piece(job->cpu->kernels, job->bias, out, 1, buffer);

        for (int64_t r = tile->row; r < tile->row + tile->height; r++) {
            float *y = row_of(job->y, out) + r * job->conv.width + tile->col;

            for (int64_t c = 0; c < tile->width; c++)
                y[c] = job->conv.accumulate ? y[c] + bias : bias;
        }
    }
    return true;
}

/* y += widened weights * gathered strips, a strip at a time. */
static void multiply_strips(const struct conv_job *job, const struct tile *tile, int64_t out,
    int64_t outs, const float *weights, const float *strips, int64_t depth, bool add)
{
    const struct kernels *kernels = job->cpu->kernels;
    int64_t strip = kernels->strip, width = job->conv.width, pixels = tile->height * tile->pitch;
    bool whole = tile->width == width;

    for (int64_t p = 0; p < pixels; p += strip) {
        int64_t row = whole ? 0 : p / tile->pitch, col = whole ? p : p % tile->pitch;
        int64_t n = least((whole ? pixels : tile->width) - col, strip);
        float *y = row_of(job->y, out) + (tile->row + row) * width + tile->col + col;

        if (n > 0)
            kernels->multiply(
                y, job->y.stride, weights, depth, strips + p * depth, outs, n, depth, add);
    }
}

static struct tile tile_of(const struct conv_job *job, int64_t index)
{
    int64_t place = index % job->tiles, strip = job->cpu->kernels->strip;
    struct tile tile;

    tile.row = place / job->tiles_across * job->tile_height;
    tile.col = place % job->tiles_across * job->tile_width;
    tile.height = least(job->conv.height - tile.row, job->tile_height);
    tile.width = least(job->conv.width - tile.col, job->tile_width);
    tile.pitch = tile.width == job->conv.width ? tile.width : ceil_div(tile.width, strip) * strip;
    tile.out = index / job->tiles * job->group;
    tile.outs = least(job->y.rows - tile.out, job->group);
    return tile;
}

/* The weights of output channel `out` for some channels from `first` on, a chain of `depth`. */
static void widen_taps(
    const struct conv_job *job, int64_t out, int64_t first, int64_t depth, float *to)
{
    const struct kernels *kernels = job->cpu->kernels;
    int64_t area = job->conv.kernel * job->conv.kernel, planes = job->planes;
    float all[CONV_MAX_PLANES * TAPS];

    if (planes == 1) {
        widen_row(kernels, job->w, out, first * area, depth, to);
        return;
    }
    widen_row(kernels, job->w, out, first * area * planes, depth * planes, all);
    for (int64_t at = 0; at < depth; at += area)
        memcpy(to + at, all + planes * at + (planes - 1) * area, (size_t)area * sizeof *to);
}

static void conv_task(void *arg, int64_t index, int worker)
{
    const struct conv_job *job = arg;
    const struct tile tile = tile_of(job, index);
    float *strips = worker_scratch(job->cpu, worker), *weights = strips + PIXELS * TAPS;
    int64_t area = job->conv.kernel * job->conv.kernel, inputs = job->x.rows;
    bool add = begin(job, &tile);

    for (int64_t channel = 0; channel < inputs; channel += TAPS / area, add = true) {
        int64_t channels = least(inputs - channel, TAPS / area), depth = channels * area;

        gather(job, &tile, channel, channels, strips);
        for (int64_t out = tile.out; out < tile.out + tile.outs; out += OUTS) {
            int64_t outs = least(tile.out + tile.outs - out, OUTS);

            for (int64_t i = 0; i < outs; i++)
                widen_taps(job, out + i, channel, depth, weights + i * depth);
            multiply_strips(job, &tile, out, outs, weights, strips, depth, add);
        }
    }
}

void cpu_conv2d(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    struct cpu_device *cpu = cpu_device(stream->device);
    struct conv_job job = {.cpu = cpu, .y = y, .x = x, .w = w, .bias = bias, .conv = *conv};
    int64_t groups = 1;

    check_conv2d(y, x, w, bias, conv);
    job.planes = conv_planes(w, x, conv);
    job.tile_width = conv->width <= WHOLE_ROWS ? conv->width : TILE_WIDTH;
    job.tile_height = PIXELS / job.tile_width;
    job.tiles_across = ceil_div(conv->width, job.tile_width);
    job.tiles = job.tiles_across * ceil_div(conv->height, job.tile_height);
    while (job.tiles * groups < 2 * (int64_t)pool_workers(cpu->pool) &&
           y.rows >= 2 * groups * LEAST_GROUP)
        groups *= 2;
    job.group = ceil_div(y.rows, groups);
    pool_run(cpu->pool, job.tiles * ceil_div(y.rows, job.group), conv_task, &job);
}

_Static_assert((PIXELS * TAPS + OUTS * TAPS) * sizeof(float) <= SCRATCH_BYTES, "the buffer holds");
_Static_assert(PIXELS % 32 == 0 && TILE_WIDTH % 32 == 0, "tiles are whole strips of any width");
