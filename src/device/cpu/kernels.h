/*
 * The inner loops: written once (kernels.c) with vectors whose width is the instruction set's, and
 * built for several instruction sets. They work on f32 rows in memory; only `widen` and `pack` know
 * of other types. They know nothing of devices, threads or scratch.
 *
 * A result depends on values and lengths only: never on alignment, nor on how many rows are given
 * at a time. Sums over a row run in 16 lanes whatever the vectors' width, and products are fused
 * where the CPU can, so AVX2 and AVX-512 give the same bits; the generic build does not fuse.
 */
#ifndef DEVICE_CPU_KERNELS_H
#define DEVICE_CPU_KERNELS_H

#include "device/device.h"

/* How many floats a widened or activated piece of a row may be at most: room on a body's stack. */
#define PIECE 512

struct kernels {
    const char *name;

    /* ---- matrix products ---- */

    /* Columns of a packed strip; at most 32. */
    int32_t strip;

    /*
     * Packs rows [0, rows) of w, `depth` columns each, as strips of `strip` rows, transposed and
     * widened: to[strip][depth][row in strip]. Rows that are missing in the last strip are zero.
     * Rows of quantised types begin and end at blocks; `scale` is of F8 types.
     */
    void (*pack)(float *to, const void *w, enum dtype dtype, float scale, int64_t stride,
        int64_t rows, int64_t depth);

    /* The same for what lies transposed already: columns [0, cols) of `depth` f32 rows. */
    void (*pack_columns)(float *to, const float *from, int64_t stride, int64_t cols, int64_t depth);

    /*
     * Row `at` of the depth for pixels of a picture: its rows [0, rows), `cols` wide, go to pixels
     * row * pitch + col of the strips.
     */
    void (*spread)(float *strips, int64_t depth, int64_t at, int64_t pitch, const float *from,
        int64_t from_stride, int64_t rows, int64_t cols);

    /*
     * y[rows, cols] = x[rows, depth] * packed[depth, cols], or += if add. One element is one chain
     * of multiply-adds over the depth from 0, added to y once: so it depends neither on rows nor on
     * cols, but on how the caller cuts the depth.
     */
    void (*multiply)(float *y, int64_t y_stride, const float *x, int64_t x_stride,
        const float *packed, int64_t rows, int64_t cols, int64_t depth, bool add);

    /* ---- rows of n ---- */

    /* Of quantised types whole blocks; `scale` is of F8 types. */
    void (*widen)(float *to, const void *from, enum dtype dtype, float scale, int64_t n);

    double (*sum)(const float *x, int64_t n);
    double (*sum_squares)(const float *x, float about, int64_t n); /* of x - about */

    /* y = (x - about) * factor * gamma * (1 + scale) + shift; gamma, scale, shift may be NULL. */
    void (*normalise)(float *y, const float *x, float about, float factor, const float *gamma,
        const float *scale, const float *shift, int64_t n);

    void (*activate)(float *y, const float *x, enum activation activation, int64_t n);
    void (*affine)(
        float *y, const float *x, float slope, float offset, enum activation activation, int64_t n);
    void (*gated)(float *y, const float *a, const float *b, enum activation activation, int64_t n);
    void (*gated_add)(float *y, const float *gate, const float *x, int64_t n); /* gate or NULL */
    void (*blend)(
        float *y, float a, const float *x, float b, const float *z, int64_t n); /* ax+bz */
    void (*guide)(float *y, const float *cond, const float *uncond, float scale, int64_t n);

    /* a, b = a cos - b sin, b cos + a sin, for n pairs (a[i], b[i]), or (a[2i], a[2i + 1]). */
    void (*rope_half)(float *a, float *b, const float *cosines, const float *sines, int64_t n);
    void (*rope_interleaved)(float *a, const float *cosines, const float *sines, int64_t n);

    /*
     * One step of an online softmax over n more scores: x = exp(scale x - largest), where *largest
     * has been raised to cover them; *total is kept up to date; what was summed up before must be
     * multiplied by what is returned.
     */
    float (*softmax)(float *x, float scale, float *largest, float *total, int64_t n);

    void (*multiply_row)(float *y, const float *x, float factor, int64_t n);

    /* For rows that are added up element by element: y += x^2; y = f(x * factors * gain). */
    void (*add_squares)(float *y, const float *x, int64_t n);
    void (*multiply_by)(float *y, const float *x, const float *factors, float gain,
        enum activation activation, int64_t n);
};

/* Which of them the CPU has, cpu_kernels_at knows. */
extern const struct kernels kernels_generic;
#ifdef __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

#endif
