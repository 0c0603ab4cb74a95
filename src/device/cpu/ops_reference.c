/*
 * The reference: every operation as its formula, one element at a time, on one thread, sums in
 * double. It is the oracle that the fast operations are tested against; nothing here is tuned.
 */
#include "device/check.h"
#include "device/cpu/internal.h"
#include "device/cpu/patch.h"

#include <math.h>
#include <string.h>

static float load(struct matrix m, int64_t row, int64_t col)
{
    float value;

    assert(row >= 0 && row < m.rows && col >= 0 && col < m.cols);
    quant_widen(&value, (const void *)(uintptr_t)m.addr, m.dtype, m.scale, row * m.stride + col, 1);
    return value;
}

static float *at(struct matrix m, int64_t row, int64_t col)
{
    assert(row >= 0 && row < m.rows && col >= 0 && col < m.cols);
    return (float *)(uintptr_t)m.addr + row * m.stride + col;
}

/* An element of an optional vector. */
static double load_or(struct matrix vector, int64_t col, double otherwise)
{
    return vector.addr ? (double)load(vector, 0, col) : otherwise;
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double apply(enum activation activation, double x)
{
    switch (activation) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_SILU:
        return silu(x);
    case ACTIVATION_TANH:
        return tanh(x);
    case ACTIVATION_GELU_ERF:
        return x * 0.5 * (1 + erf(x * 0.70710678118654752440));
    case ACTIVATION_GELU_TANH: /* sqrt(2 / pi) */
        return x * 0.5 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    }
    return x;
}

/* ---- matrices ---- */

static void linear(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    (void)stream;
    check_linear(y, x, w, bias);
    for (int64_t m = 0; m < y.rows; m++)
        for (int64_t n = 0; n < y.cols; n++) {
            double sum = load_or(bias, n, 0);

            for (int64_t k = 0; k < x.cols; k++)
                sum += (double)load(x, m, k) * (double)load(w, n, k);
            *at(y, m, n) = (float)sum;
        }
}

static void copy(struct stream *stream, struct matrix y, struct matrix x)
{
    (void)stream;
    check_copy(y, x);
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.cols; c++)
            *at(y, r, c) = load(x, x.rows == 1 ? 0 : r, c);
}

static void transpose(struct stream *stream, struct matrix y, struct matrix x)
{
    (void)stream;
    check_transpose(y, x);
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c = 0; c < x.cols; c++)
            *at(y, c, r) = load(x, r, c);
}

/* ---- norms ---- */

static double root_mean_square(struct matrix row, float eps)
{
    double sum = 0;

    for (int64_t c = 0; c < row.cols; c++)
        sum += (double)load(row, 0, c) * (double)load(row, 0, c);
    return sqrt(sum / (double)row.cols + (double)eps);
}

static void rms_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    (void)stream;
    check_rms_norm(y, x, gamma, scale);
    for (int64_t r = 0; r < x.rows; r++) {
        double root = root_mean_square(matrix_rows(x, r, 1), eps);

        for (int64_t c = 0; c < x.cols; c++)
            *at(y, r, c) = (float)((double)load(x, r, c) / root * load_or(gamma, c, 1) *
                                   (1 + load_or(scale, c, 0)));
    }
}

static void layer_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    (void)stream;
    check_layer_norm(y, x, gamma, scale, shift);
    for (int64_t r = 0; r < x.rows; r++) {
        double mean = 0, variance = 0, root;

        for (int64_t c = 0; c < x.cols; c++)
            mean += (double)load(x, r, c);
        mean /= (double)x.cols;
        for (int64_t c = 0; c < x.cols; c++)
            variance += ((double)load(x, r, c) - mean) * ((double)load(x, r, c) - mean);
        root = sqrt(variance / (double)x.cols + (double)eps);
        for (int64_t c = 0; c < x.cols; c++)
            *at(y, r, c) = (float)(((double)load(x, r, c) - mean) / root * load_or(gamma, c, 1) *
                                       (1 + load_or(scale, c, 0)) +
                                   load_or(shift, c, 0));
    }
}

static double norm_of(struct matrix row)
{
    double sum = 0;

    for (int64_t c = 0; c < row.cols; c++)
        sum += (double)load(row, 0, c) * (double)load(row, 0, c);
    return sqrt(sum);
}

static void match_norms(struct stream *stream, struct matrix y, struct matrix x)
{
    (void)stream;
    check_pair(y, x);
    for (int64_t r = 0; r < y.rows; r++) {
        double have = norm_of(matrix_rows(y, r, 1)), want = norm_of(matrix_rows(x, r, 1));

        for (int64_t c = 0; have != 0 && c < y.cols; c++)
            *at(y, r, c) = (float)((double)load(y, r, c) * (want / have));
    }
}

static void channel_norm(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix gamma, enum activation activation)
{
    (void)stream;
    check_channel_norm(y, x, gamma, activation);
    for (int64_t p = 0; p < x.cols; p++) {
        double squares = 0, factor;

        for (int64_t c = 0; c < x.rows; c++)
            squares += (double)load(x, c, p) * (double)load(x, c, p);
        factor = sqrt((double)x.rows) / fmax(sqrt(squares), 1e-12);
        for (int64_t c = 0; c < x.rows; c++)
            *at(y, c, p) = (float)apply(
                activation, (double)load(x, c, p) * factor * (double)load(gamma, 0, c));
    }
}

static void group_moments(
    struct stream *stream, struct matrix moments, struct matrix x, int64_t run)
{
    (void)stream;
    check_group_moments(moments, x, run);
    for (int64_t c = 0; c < x.rows; c++)
        for (int64_t first = 0, i = 0; first < x.cols; first += run, i++) {
            int64_t end = least(first + run, x.cols);
            double mean = 0, squares = 0;

            for (int64_t p = first; p < end; p++)
                mean += (double)load(x, c, p);
            mean = (double)(float)(mean / (double)(end - first)); /* as it is stored */
            for (int64_t p = first; p < end; p++)
                squares += ((double)load(x, c, p) - mean) * ((double)load(x, c, p) - mean);
            *at(moments, c, 2 * i) = (float)mean;
            *at(moments, c, 2 * i + 1) = (float)squares;
        }
}

static void group_fold(struct stream *stream, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    int64_t channels = moments.rows / norm->groups;
    double count = (double)channels * (double)norm->pixels;

    (void)stream;
    check_group_fold(affine, moments, gamma, beta, norm);
    for (int64_t first = 0; first < moments.rows; first += channels) {
        double mean = 0, variance = 0;

        for (int64_t c = first; c < first + channels; c++)
            for (int64_t i = 0; 2 * i < moments.cols; i++)
                mean += (double)load(moments, c, 2 * i) *
                        (double)least(norm->run, norm->pixels - i * norm->run);
        mean /= count;
        for (int64_t c = first; c < first + channels; c++)
            for (int64_t i = 0; 2 * i < moments.cols; i++) {
                double distance = (double)load(moments, c, 2 * i) - mean;

                variance +=
                    (double)load(moments, c, 2 * i + 1) +
                    distance * distance * (double)least(norm->run, norm->pixels - i * norm->run);
            }
        variance /= count;
        for (int64_t c = first; c < first + channels; c++) {
            double slope = (double)load(gamma, 0, c) / sqrt(variance + (double)norm->eps);

            *at(affine, 0, c) = (float)slope;
            *at(affine, 1, c) = (float)((double)load(beta, 0, c) - mean * slope);
        }
    }
}

static void affine_op(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix coefficients, enum activation activation)
{
    (void)stream;
    check_affine(y, x, coefficients);
    for (int64_t c = 0; c < x.rows; c++)
        for (int64_t p = 0; p < x.cols; p++)
            *at(y, c, p) =
                (float)apply(activation, (double)load(x, c, p) * (double)load(coefficients, 0, c) +
                                             (double)load(coefficients, 1, c));
}

/* ---- elements ---- */

static void activate(
    struct stream *stream, struct matrix y, struct matrix x, enum activation activation)
{
    (void)stream;
    check_pair(y, x);
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c = 0; c < x.cols; c++)
            *at(y, r, c) = (float)apply(activation, (double)load(x, r, c));
}

static void gated(struct stream *stream, struct matrix y, struct matrix a, struct matrix b,
    enum activation activation)
{
    (void)stream;
    check_gated(y, a, b, activation);
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.cols; c++)
            *at(y, r, c) =
                (float)(apply(activation, (double)load(a, r, c)) * (double)load(b, r, c));
}

static void gated_add(struct stream *stream, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    (void)stream;
    check_gated_add(y, gate, x, gamma);
    for (int64_t r = 0; r < y.rows; r++) {
        double root = gamma.addr ? root_mean_square(matrix_rows(x, r, 1), eps) : 1;

        for (int64_t c = 0; c < y.cols; c++)
            *at(y, r, c) =
                (float)((double)load(y, r, c) +
                        load_or(gate, c, 1) * (double)load(x, r, c) / root * load_or(gamma, c, 1));
    }
}

static void blend(struct stream *stream, struct matrix y, float a, struct matrix x, float b)
{
    (void)stream;
    check_pair(y, x);
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.cols; c++)
            *at(y, r, c) =
                (float)((double)a * (double)load(x, r, c) + (double)b * (double)load(y, r, c));
}

static void guide(
    struct stream *stream, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    (void)stream;
    check_triple(y, cond, uncond);
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.cols; c++) {
            double with = (double)load(cond, r, c);

            *at(y, r, c) = (float)(with + (double)scale * (with - (double)load(uncond, r, c)));
        }
}

static void rms_norm_rope(struct stream *stream, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout)
{
    int64_t cols = rms_norm_rope_cols(gamma, table), pairs = cols / 2;

    (void)stream;
    check_rms_norm_rope(x, gamma, table);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t first = 0; first < x.cols; first += cols) {
            struct matrix head = matrix_cols(matrix_rows(x, t, 1), first, cols);
            double root = gamma.addr ? root_mean_square(head, eps) : 1;

            for (int64_t i = 0; i < pairs; i++) {
                int64_t ia = layout == ROPE_HALF ? i : 2 * i;
                int64_t ib = layout == ROPE_HALF ? i + pairs : 2 * i + 1;
                double cosine = table.addr ? (double)load(table, t, i) : 1;
                double sine = table.addr ? (double)load(table, t, pairs + i) : 0;
                double a = (double)load(head, 0, ia) / root * load_or(gamma, ia, 1);
                double b = (double)load(head, 0, ib) / root * load_or(gamma, ib, 1);

                *at(head, 0, ia) = (float)(a * cosine - b * sine);
                *at(head, 0, ib) = (float)(b * cosine + a * sine);
            }
        }
}

/* ---- attention ---- */

/* A query of a head, and the head's columns. */
struct query {
    struct matrix q, k, v;
    const struct attention *attention;
    int64_t t, head, q_first, kv_first, dim;
};

static double score(const struct query *query, int64_t s)
{
    const struct attention *a = query->attention;
    double sum = 0;

    for (int64_t i = 0; i < query->dim; i++)
        sum += (double)load(query->q, query->t, query->q_first + i) *
               (double)load(query->k, s, query->kv_first + i);
    sum *= (double)a->scale;
    if (a->bias.addr) sum += (double)load(a->bias, query->head, s - query->t + query->q.rows - 1);
    return sum;
}

#define COLUMNS 64

/* Softmax with the maximum taken off, in passes over the keys. */
static void attend(struct matrix out, const struct query *query, int64_t keys)
{
    double largest = -INFINITY, total = 0;

    for (int64_t s = 0; s < keys; s++) {
        double x = score(query, s);

        if (x > largest || isnan(x)) largest = x;
    }
    for (int64_t s = 0; s < keys; s++)
        total += exp(score(query, s) - largest);
    /* The sum over v in double needs room: a few columns at a time. */
    for (int64_t first = 0; first < query->dim; first += COLUMNS) {
        int64_t columns = least(query->dim - first, COLUMNS);
        double sums[COLUMNS] = {0};

        for (int64_t s = 0; s < keys; s++) {
            double share = exp(score(query, s) - largest) / total;

            for (int64_t i = 0; i < columns; i++)
                sums[i] += share * (double)load(query->v, s, query->kv_first + first + i);
        }
        for (int64_t i = 0; i < columns; i++)
            *at(out, query->t, query->q_first + first + i) = (float)sums[i];
    }
}

static void attention(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *a)
{
    int64_t dim = q.cols / a->heads;

    (void)stream;
    check_attention(out, q, k, v, a);
    for (int64_t t = 0; t < q.rows; t++)
        for (int64_t h = 0; h < a->heads; h++) {
            const struct query query = {
                q, k, v, a, t, h, h * dim, h * a->kv_heads / a->heads * dim, dim};

            attend(out, &query, a->causal ? least(t + 1, k.rows) : k.rows);
        }
}

/* ---- pictures ---- */

/* Where a picture's element lies among its patches. */
struct place {
    int64_t row, col;
};

static struct place patch_place(struct matrix picture, int64_t channel, int64_t pixel,
    int64_t width, int64_t patch, enum patch_order order)
{
    int64_t y = pixel / width, x = pixel % width, in_patch = y % patch * patch + x % patch;

    return (struct place){
        y / patch * (width / patch) + x / patch,
        order == PATCH_CHANNELS_FIRST ? channel * patch * patch + in_patch
                                      : in_patch * picture.rows + channel,
    };
}

static void patchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    (void)stream;
    check_patches(y, x, height, width, patch);
    for (int64_t c = 0; c < x.rows; c++)
        for (int64_t p = 0; p < x.cols; p++) {
            struct place place = patch_place(x, c, p, width, patch, order);

            *at(y, place.row, place.col) = load(x, c, p);
        }
}

static void unpatchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    (void)stream;
    check_patches(x, y, height, width, patch);
    for (int64_t c = 0; c < y.rows; c++)
        for (int64_t p = 0; p < y.cols; p++) {
            struct place place = patch_place(y, c, p, width, patch, order);

            *at(y, c, p) = load(x, place.row, place.col);
        }
}

/* Input channel c at output coordinates, after what is done on reading; 0 outside. */
static double conv_input(
    struct matrix x, const struct conv *conv, int64_t channel, int64_t row, int64_t col)
{
    int64_t input_width = conv->width / conv->upsample;
    double value;

    row += conv->above;
    if (row < 0 || row >= conv->above + conv->height + conv->below || col < 0 || col >= conv->width)
        return 0;
    value = (double)load(x, channel, row / conv->upsample * input_width + col / conv->upsample);
    if (conv->affine.addr)
        value =
            value * (double)load(conv->affine, 0, channel) + (double)load(conv->affine, 1, channel);
    return apply(conv->activation, value);
}

static void conv2d(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    int64_t kernel = conv->kernel, area = kernel * kernel, planes;

    (void)stream;
    check_conv2d(y, x, w, bias, conv);
    planes = conv_planes(w, x, conv);
    for (int64_t out = 0; out < y.rows; out++)
        for (int64_t p = 0; p < y.cols; p++) {
            double sum = load_or(bias, out, 0) + (conv->accumulate ? (double)*at(y, out, p) : 0);

            for (int64_t tap = 0; tap < x.rows * area; tap++) {
                int64_t dy = tap / kernel % kernel - kernel / 2, dx = tap % kernel - kernel / 2;
                int64_t channel = tap / area, at_w = (channel + 1) * (planes - 1) * area + tap;

                sum += (double)load(w, out, at_w) *
                       conv_input(x, conv, channel, p / conv->width + dy, p % conv->width + dx);
            }
            *at(y, out, p) = (float)sum;
        }
}

static void unpack(struct stream *stream, const struct crossed *tensors, int32_t count)
{
    (void)stream;
    check_unpack(tensors, count);
    for (const struct crossed *t = tensors; t < tensors + count; t++) {
        struct wire_info info = {t->y.dtype, (uint64_t)(t->y.rows * t->y.cols), t->bytes};
        const void *from = (const void *)(uintptr_t)t->from;
        void *to = (void *)(uintptr_t)t->y.addr;

        if (t->packed)
            wire_decode_reference(from, info, 0, wire_tiles(info.count), to);
        else
            memcpy(to, from, t->bytes);
    }
}

static void patch(
    struct stream *stream, struct matrix y, struct matrix x, const struct patch *patch)
{
    (void)stream;
    patch_reference(y, x, patch);
}

const struct compute_ops cpu_reference_ops = {
    .linear = linear,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .match_norms = match_norms,
    .activate = activate,
    .gated = gated,
    .gated_add = gated_add,
    .blend = blend,
    .guide = guide,
    .rms_norm_rope = rms_norm_rope,
    .attention = attention,
    .copy = copy,
    .transpose = transpose,
    .patchify = patchify,
    .unpatchify = unpatchify,
    .group_moments = group_moments,
    .group_fold = group_fold,
    .affine = affine_op,
    .channel_norm = channel_norm,
    .conv2d = conv2d,
    .unpack = unpack,
    .patch = patch,
};
