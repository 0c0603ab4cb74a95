/*
 * Patching weights on the host. A task is a tile of rows and columns: the weight's values and the
 * terms' differences are made in the task's own buffers, so the bits depend on no tile's size.
 */
#include "device/cpu/patch.h"

#include "base/number.h"
#include "device/cpu/internal.h"
#include "device/cpu/patch_chain.h"

#include <math.h>
#include <string.h>

#define ROWS 16  /* of a tile */
#define COLS 256 /* of a tile: whole blocks of every type */
#define DEPTH 32 /* of a chain that is widened at once */

/* ---- numbers ---- */

/* To nearest even, beyond the range to the largest; NaN stays NaN. */
static uint16_t f16_from_float(float value)
{
    const uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t half;

    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude < 113u << 23) { /* subnormal: units of 2^-24, which the addition rounds to */
        const float sum = float_from_bits(magnitude) + 0.5f;

        return (uint16_t)(sign | (float_to_bits(sum) - float_to_bits(0.5f)));
    }
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (half > 0x7bff ? 0x7bff : half));
}

static void store_row(struct matrix y, int64_t row, int64_t col, const float *values, int64_t n)
{
    void *to = (char *)(uintptr_t)y.addr + dtype_bytes(y.dtype, row * y.stride + col);
    uint16_t *halves = to;

    if (y.dtype == DTYPE_F32)
        memcpy(to, values, (size_t)n * sizeof *values);
    else if (y.dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            halves[i] = bf16_from_float(values[i]);
    else
        for (int64_t i = 0; i < n; i++)
            halves[i] = f16_from_float(values[i]);
}

/* ---- the definition ---- */

static float value_at(struct matrix m, int64_t row, int64_t col)
{
    float value;

    quant_widen(&value, (const void *)(uintptr_t)m.addr, m.dtype, m.scale, row * m.stride + col, 1);
    return value;
}

static float factor_at(const struct patch_factor *f, int64_t row, int64_t col)
{
    float sum = 0;

    if (!f->a.addr) return value_at(f->b, row, col);
    for (int64_t k = 0; k < f->a.rows; k++)
        sum = fmaf(value_at(f->b, row, k), value_at(f->a, k, col), sum);
    return sum;
}

static float difference_at(const struct patch_term *t, int64_t row, int64_t col)
{
    const struct patch_factor *second = &t->factors[1];
    int64_t rows, cols;

    if (!second->b.addr) return factor_at(&t->factors[0], row, col);
    if (!t->kron) return factor_at(&t->factors[0], row, col) * factor_at(second, row, col);
    rows = second->b.rows;
    cols = patch_factor_cols(second);
    return factor_at(&t->factors[0], row / rows, col / cols) *
           factor_at(second, row % rows, col % cols);
}

void patch_reference(struct matrix y, struct matrix x, const struct patch *patch)
{
    check_patch(y, x, patch);
    for (int64_t row = 0; row < y.rows; row++)
        for (int64_t col = 0; col < y.cols; col++) {
            float sum = value_at(x, row, col);

            for (int32_t i = 0; i < patch->count; i++) {
                const struct patch_term *t = &patch->terms[i];

                sum = fmaf(t->scale, difference_at(t, t->row + row, t->col + col), sum);
            }
            store_row(y, row, col, &sum, 1);
        }
}

/* ---- tiles ---- */

struct patch_tile {
    float sum[ROWS][COLS], difference[ROWS][COLS], other[ROWS][COLS];
    float a[DEPTH][COLS], b[ROWS][DEPTH];
};

struct patch_job {
    const struct kernels *kernels;
    patch_chain *chain;
    struct matrix y, x;
    const struct patch *patch;
    int64_t tiles_across;
};

/* The factor's values in rows [row, row + rows) and columns [col, col + cols). */
static void factor_tile(const struct patch_job *job, struct patch_tile *tile,
    const struct patch_factor *f, int64_t row, int64_t col, int64_t rows, int64_t cols, float *to)
{
    if (!f->a.addr) {
        for (int64_t r = 0; r < rows; r++)
            widen_row(job->kernels, f->b, row + r, col, cols, to + r * COLS);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        memset(to + r * COLS, 0, (size_t)cols * sizeof *to);
    for (int64_t k = 0; k < f->a.rows; k += DEPTH) {
        const int64_t depth = least(f->a.rows - k, DEPTH);

        for (int64_t d = 0; d < depth; d++)
            widen_row(job->kernels, f->a, k + d, col, cols, tile->a[d]);
        for (int64_t r = 0; r < rows; r++)
            widen_row(job->kernels, f->b, row + r, k, depth, tile->b[r]);
        job->chain(to, COLS, tile->b[0], DEPTH, tile->a[0], COLS, rows, cols, depth);
    }
}

/* The same of a Kronecker product, run by run of columns that share an element of the first. */
static void kron_tile(const struct patch_job *job, struct patch_tile *tile,
    const struct patch_term *t, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    const struct patch_factor *second = &t->factors[1];
    const int64_t high = second->b.rows, wide = patch_factor_cols(second);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0, n; c < cols; c += n) {
            float *to = tile->difference[r] + c, first;

            n = least(wide - (col + c) % wide, cols - c);
            factor_tile(
                job, tile, second, (row + r) % high, (col + c) % wide, 1, n, tile->other[0]);
            factor_tile(
                job, tile, &t->factors[0], (row + r) / high, (col + c) / wide, 1, 1, &first);
            for (int64_t i = 0; i < n; i++)
                to[i] = first * tile->other[0][i];
        }
}

static void add_term(const struct patch_job *job, struct patch_tile *tile,
    const struct patch_term *t, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    const float *scale = &t->scale;

    row += t->row;
    col += t->col;
    if (t->kron)
        kron_tile(job, tile, t, row, col, rows, cols);
    else
        factor_tile(job, tile, &t->factors[0], row, col, rows, cols, tile->difference[0]);
    if (!t->kron && t->factors[1].b.addr) {
        factor_tile(job, tile, &t->factors[1], row, col, rows, cols, tile->other[0]);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                tile->difference[r][c] *= tile->other[r][c];
    }
    for (int64_t r = 0; r < rows; r++)
        job->chain(tile->sum[r], COLS, scale, 1, tile->difference[r], COLS, 1, cols, 1);
}

static void patch_task(void *arg, int64_t index, int worker)
{
    const struct patch_job *job = arg;
    const int64_t row = index / job->tiles_across * ROWS, col = index % job->tiles_across * COLS;
    const int64_t rows = least(job->y.rows - row, ROWS), cols = least(job->y.cols - col, COLS);
    struct patch_tile tile;

    (void)worker;
    for (int64_t r = 0; r < rows; r++)
        widen_row(job->kernels, job->x, row + r, col, cols, tile.sum[r]);
    for (int32_t i = 0; i < job->patch->count; i++)
        add_term(job, &tile, &job->patch->terms[i], row, col, rows, cols);
    for (int64_t r = 0; r < rows; r++)
        store_row(job->y, row + r, col, tile.sum[r], cols);
}

static patch_chain *chain_of(const struct kernels *kernels)
{
#ifdef __x86_64__
    if (kernels == &kernels_avx2) return patch_chain_avx2;
    if (kernels == &kernels_avx512) return patch_chain_avx512;
#endif
    (void)kernels;
    return patch_chain_generic;
}

void patch_with(struct pool *pool, const struct kernels *kernels, struct matrix y, struct matrix x,
    const struct patch *patch)
{
    struct patch_job job = {kernels, chain_of(kernels), y, x, patch, ceil_div(y.cols, COLS)};
    const int64_t tiles = ceil_div(y.rows, ROWS) * job.tiles_across;

    check_patch(y, x, patch);
    if (pool)
        pool_run(pool, tiles, patch_task, &job);
    else
        for (int64_t i = 0; i < tiles; i++)
            patch_task(&job, i, 0);
}

void patch_on_host(struct pool *pool, struct matrix y, struct matrix x, const struct patch *patch)
{
    const struct kernels *best = cpu_kernels_at(0);

    for (int i = 0; cpu_kernels_at(i); i++)
        best = cpu_kernels_at(i);
    patch_with(pool, best, y, x, patch);
}

void cpu_patch(struct stream *stream, struct matrix y, struct matrix x, const struct patch *patch)
{
    const struct cpu_device *cpu = cpu_device(stream->device);

    patch_with(cpu->pool, cpu->kernels, y, x, patch);
}
