/*
 * What the compute table's operands must look like: every back end asserts the same shapes, so that
 * a model that ran on the counting device has been checked for all of them. Not a check of input:
 * wrong shapes are a bug in the caller.
 */
#ifndef DEVICE_CHECK_H
#define DEVICE_CHECK_H

#include "device/device.h"
#include "wire/wire.h"

#include <assert.h>

static inline bool check_activation(struct matrix m)
{
    return m.addr && (m.dtype == DTYPE_F32 || m.dtype == DTYPE_BF16 || m.dtype == DTYPE_F16) &&
           m.rows > 0 && m.cols > 0 && m.stride >= m.cols;
}

static inline bool check_float(struct matrix m)
{
    return check_activation(m) && m.dtype == DTYPE_F32;
}

/* A weight of any computable type; rows of quantised ones are whole blocks. */
static inline bool check_weight(struct matrix m)
{
    int64_t block = dtype_block_elements(m.dtype);

    return m.addr && dtype_computes(m.dtype) && m.rows > 0 && m.cols > 0 && m.stride >= m.cols &&
           m.cols % block == 0 && m.stride % block == 0;
}

static inline bool check_vector(struct matrix m, int64_t cols)
{
    return !m.addr || (check_weight(m) && m.rows == 1 && m.cols == cols);
}

static inline bool check_same(struct matrix y, struct matrix x)
{
    return check_activation(y) && check_activation(x) && y.rows == x.rows && y.cols == x.cols &&
           (y.addr != x.addr || (y.stride == x.stride && y.dtype == x.dtype));
}

static inline void check_linear(
    struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    assert(check_activation(y) && check_activation(x) && check_weight(w) &&
           check_vector(bias, y.cols));
    assert(y.rows == x.rows && y.cols == w.rows && x.cols == w.cols);
    (void)y, (void)x, (void)w, (void)bias;
}

static inline void check_rms_norm(
    struct matrix y, struct matrix x, struct matrix gamma, struct matrix scale)
{
    assert(check_same(y, x) && check_vector(gamma, x.cols) && check_vector(scale, x.cols));
    (void)y, (void)x, (void)gamma, (void)scale;
}

static inline void check_layer_norm(
    struct matrix y, struct matrix x, struct matrix gamma, struct matrix scale, struct matrix shift)
{
    assert(check_same(y, x) && check_vector(gamma, x.cols) && check_vector(scale, x.cols) &&
           check_vector(shift, x.cols));
    (void)y, (void)x, (void)gamma, (void)scale, (void)shift;
}

static inline void check_pair(struct matrix y, struct matrix x)
{
    assert(check_same(y, x));
    (void)y, (void)x;
}

static inline void check_triple(struct matrix y, struct matrix a, struct matrix b)
{
    assert(check_same(y, a) && check_same(y, b));
    (void)y, (void)a, (void)b;
}

static inline void check_gated(
    struct matrix y, struct matrix a, struct matrix b, enum activation activation)
{
    check_triple(y, a, b);
    assert(activation == ACTIVATION_SILU || activation == ACTIVATION_GELU_TANH);
    (void)activation;
}

static inline void check_gated_add(
    struct matrix y, struct matrix gate, struct matrix x, struct matrix gamma)
{
    assert(check_same(y, x) && check_vector(gate, x.cols) && check_vector(gamma, x.cols));
    (void)y, (void)gate, (void)x, (void)gamma;
}

/* The columns of a head: gamma's or the table's, of which one may be left out. */
static inline int64_t rms_norm_rope_cols(struct matrix gamma, struct matrix table)
{
    return table.addr ? table.cols : gamma.cols;
}

static inline void check_rms_norm_rope(struct matrix x, struct matrix gamma, struct matrix table)
{
    int64_t cols = rms_norm_rope_cols(gamma, table);

    assert(check_activation(x) && (gamma.addr || table.addr) && check_vector(gamma, cols));
    assert(!table.addr || (check_float(table) && table.rows == x.rows));
    assert(cols > 0 && cols % 2 == 0 && x.cols % cols == 0);
    (void)x, (void)cols;
}

static inline void check_attention(struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention)
{
    int32_t heads = attention->heads, kv_heads = attention->kv_heads;
    struct matrix bias = attention->bias;

    assert(
        check_activation(out) && check_activation(q) && check_activation(k) && check_activation(v));
    assert(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && q.cols % heads == 0);
    assert(out.rows == q.rows && out.cols == q.cols && k.rows == v.rows && k.cols == v.cols);
    assert(k.cols == q.cols / heads * kv_heads);
    assert(!bias.addr ||
           (check_float(bias) && bias.rows == heads && bias.cols == q.rows + k.rows - 1));
    (void)out, (void)q, (void)k, (void)v, (void)heads, (void)kv_heads, (void)bias;
}

static inline void check_copy(struct matrix y, struct matrix x)
{
    assert(check_activation(y) && check_weight(x) && x.cols == y.cols);
    assert(x.rows == y.rows || x.rows == 1);
    (void)y, (void)x;
}

static inline void check_transpose(struct matrix y, struct matrix x)
{
    assert(check_activation(y) && check_activation(x) && y.rows == x.cols && y.cols == x.rows);
    (void)y, (void)x;
}

/* `picture` [channels, height * width], `tokens` [patches, patch patch channels]. */
static inline void check_patches(
    struct matrix tokens, struct matrix picture, int64_t height, int64_t width, int32_t patch)
{
    assert(check_activation(tokens) && check_activation(picture) && patch > 0);
    assert(picture.cols == height * width && height % patch == 0 && width % patch == 0);
    assert(tokens.rows == height / patch * (width / patch));
    assert(tokens.cols == picture.rows * patch * patch);
    (void)tokens, (void)picture, (void)height, (void)width, (void)patch;
}

static inline void check_group_moments(struct matrix moments, struct matrix x, int64_t run)
{
    assert(check_float(moments) && check_activation(x) && moments.rows == x.rows && run > 0);
    assert(moments.cols == 2 * group_runs(x.cols, run));
    (void)moments, (void)x, (void)run;
}

static inline void check_group_fold(struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    int64_t channels = moments.rows;

    assert(check_float(affine) && affine.rows == 2 && affine.cols == channels);
    assert(
        gamma.addr && check_vector(gamma, channels) && beta.addr && check_vector(beta, channels));
    assert(norm->groups > 0 && channels % norm->groups == 0 && norm->run > 0);
    assert(check_float(moments) && moments.cols == 2 * group_runs(norm->pixels, norm->run));
    (void)affine, (void)gamma, (void)beta, (void)norm, (void)channels;
}

static inline void check_affine(struct matrix y, struct matrix x, struct matrix affine)
{
    assert(check_same(y, x) && check_float(affine) && affine.rows == 2 && affine.cols == x.rows);
    (void)y, (void)x, (void)affine;
}

static inline void check_channel_norm(
    struct matrix y, struct matrix x, struct matrix gamma, enum activation activation)
{
    assert(check_same(y, x) && gamma.addr && check_vector(gamma, x.rows));
    assert(activation == ACTIVATION_NONE || activation == ACTIVATION_SILU);
    (void)y, (void)x, (void)gamma, (void)activation;
}

static inline void check_conv2d(
    struct matrix y, struct matrix x, struct matrix w, struct matrix bias, const struct conv *conv)
{
    int64_t scale = conv->upsample, rows = conv->above + conv->height + conv->below;

    assert(check_activation(y) && check_activation(x) && check_weight(w) &&
           check_vector(bias, y.rows));
    assert(conv->kernel == 1 || conv->kernel == 3);
    assert(scale == 1 || scale == 2);
    assert(conv->above >= 0 && conv->below >= 0 && rows % scale == 0 && conv->width % scale == 0);
    assert(y.cols == conv->height * conv->width);
    assert(x.cols == rows / scale * (conv->width / scale));
    assert(w.rows == y.rows && w.cols % (x.rows * conv->kernel * conv->kernel) == 0);
    assert(conv_planes(w, x, conv) >= 1 && conv_planes(w, x, conv) <= CONV_MAX_PLANES);
    assert(conv->activation == ACTIVATION_NONE || conv->activation == ACTIVATION_SILU);
    assert(!conv->affine.addr ||
           (check_float(conv->affine) && conv->affine.rows == 2 && conv->affine.cols == x.rows));
    (void)y, (void)x, (void)w, (void)bias, (void)rows;
}

static inline void check_unpack(const struct crossed *tensors, int32_t count)
{
    assert(count > 0 && count <= UNPACK_TENSORS);
    for (int32_t i = 0; i < count; i++) {
        const struct crossed t = tensors[i];

        assert(t.y.addr && t.y.rows > 0 && t.y.cols > 0 && t.y.stride == t.y.cols);
        assert(t.packed ? wire_packs(t.y.dtype) && t.from && t.from % WIRE_ALIGNMENT == 0 &&
                              t.bytes && t.bytes % WIRE_ALIGNMENT == 0
                        : t.bytes == (uint64_t)dtype_bytes(t.y.dtype, t.y.rows * t.y.cols));
        (void)t;
    }
    (void)tensors, (void)count;
}

#endif
