/* The counting device. Addresses are mere numbers; streams and events order nothing. */
#include "device/count/count.h"

#include "base/memory.h"
#include "base/size.h"
#include "device/check.h"

struct count_device {
    struct device base;
    struct count_totals totals;
    struct stream stream; /* all streams are this one */
    int event;            /* and all events this one: only its address is used */
};

/* Where the arena seems to lie: any address that is not 0 and aligned would do. */
#define COUNT_ARENA ((device_addr)1 << 40)

/* ---- the compute table ---- */

/* What one element costs. A root, exponential or tangent counts as one operation. */
enum {
    COST_SILU = 4,      /* negate, exp, add, divide */
    COST_TANH = 1,      /* tanh */
    COST_GELU_ERF = 5,  /* scale, erf, add, halve, multiply */
    COST_GELU_TANH = 9, /* cube 2, scale, add, scale, tanh, add, halve, multiply */
    COST_RELU = 1,
};

static double elements(struct matrix m)
{
    return (double)m.rows * (double)m.cols;
}

static double bytes_of(struct matrix m)
{
    return m.addr ? elements(m) / (double)dtype_block_elements(m.dtype) *
                        (double)dtype_block_bytes(m.dtype)
                  : 0;
}

static double activation_cost(enum activation activation)
{
    switch (activation) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_SILU:
        return COST_SILU;
    case ACTIVATION_TANH:
        return COST_TANH;
    case ACTIVATION_GELU_ERF:
        return COST_GELU_ERF;
    case ACTIVATION_GELU_TANH:
        return COST_GELU_TANH;
    case ACTIVATION_RELU:
        return COST_RELU;
    }
    return 0;
}

/* Sums are in floating point, exact up to 2^53; what goes beyond is rounded, never wrapped. */
static uint64_t whole(double sum)
{
    return sum < 0x1p63 ? (uint64_t)sum : INT64_MAX;
}

static void add_work(struct stream *stream, enum count_kind kind, double operations, double traffic)
{
    struct count_totals *totals = &((struct count_device *)stream->device)->totals;

    totals->calls++;
    totals->operations = whole((double)totals->operations + operations);
    totals->by_kind[kind] += operations;
    totals->traffic = whole((double)totals->traffic + traffic);
    if (kind == COUNT_OTHER) totals->other_traffic += traffic;
}

/* Adds one call: its operations and the bytes of its operands (those left out have none). */
static void add(struct stream *stream, double operations, struct matrix a, struct matrix b,
    struct matrix c, struct matrix d)
{
    double traffic = bytes_of(a) + bytes_of(b) + bytes_of(c) + bytes_of(d);

    add_work(stream, COUNT_OTHER, operations, traffic);
}

/* Weights are taken in as they are stored, or after they have been converted. */
static void add_weights(struct stream *stream, int64_t rows, struct matrix w)
{
    struct count_totals *totals = &((struct count_device *)stream->device)->totals;
    const struct device_traits *traits = &stream->device->traits;
    double taken = bytes_of(w);

    if (traits->convert_rows && rows >= traits->convert_rows && w.dtype != traits->activation) {
        taken = elements(w) * (double)dtype_bytes(traits->activation, 1);
        totals->other_traffic += bytes_of(w) + taken;
        totals->calls++;
    }
    totals->weight_traffic += taken * (double)ceil_div(rows, traits->product_rows);
}

/* A product with weights w. */
static void add_product(struct stream *stream, enum count_kind kind, double operations,
    struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    add_work(stream, kind, operations, bytes_of(y) + bytes_of(x) + bytes_of(w) + bytes_of(bias));
    if (kind == COUNT_LINEAR) add_weights(stream, y.rows, w);
}

/* `y` in place is one operand, not two. */
static struct matrix unless_same(struct matrix x, struct matrix y)
{
    return x.addr == y.addr ? MATRIX_NONE : x;
}

static void linear(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    check_linear(y, x, w, bias);
    /* 2 m n k, and m n for the bias. */
    add_product(stream, COUNT_LINEAR,
        2 * elements(y) * (double)x.cols + (bias.addr ? elements(y) : 0), y, x, w, bias);
}

static void rms_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    (void)eps;
    check_rms_norm(y, x, gamma, scale);
    /* Square and sum 2, divide 1, gamma 1, scale 1 each. */
    add(stream, elements(x) * (3u + (gamma.addr ? 1 : 0) + (scale.addr ? 1 : 0)), y,
        unless_same(x, y), gamma, scale);
}

static void layer_norm(struct stream *stream, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    const unsigned vectors =
        (gamma.addr ? 1u : 0u) + (scale.addr ? 1u : 0u) + (shift.addr ? 1u : 0u);

    (void)eps;
    check_layer_norm(y, x, gamma, scale, shift);
    /* Mean 1, variance 3, subtract and divide 2, gamma, scale and shift 1 each. */
    add(stream, elements(x) * (6 + vectors), y, unless_same(x, y), gamma, scale);
    add(stream, 0, shift, MATRIX_NONE, MATRIX_NONE, MATRIX_NONE);
}

static void match_norms(struct stream *stream, struct matrix y, struct matrix x)
{
    check_pair(y, x);
    /* Squares and sums 4, and a product, each. */
    add(stream, 5 * elements(y), y, x, MATRIX_NONE, MATRIX_NONE);
}

static void channel_norm(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix gamma, enum activation activation)
{
    check_channel_norm(y, x, gamma, activation);
    /* Square and sum 2, two products and the activation each. */
    add(stream, elements(x) * (4 + activation_cost(activation)), y, unless_same(x, y), gamma,
        MATRIX_NONE);
}

static void activate(
    struct stream *stream, struct matrix y, struct matrix x, enum activation activation)
{
    check_pair(y, x);
    add(stream, elements(x) * activation_cost(activation), y, unless_same(x, y), MATRIX_NONE,
        MATRIX_NONE);
}

static void gated(struct stream *stream, struct matrix y, struct matrix a, struct matrix b,
    enum activation activation)
{
    check_gated(y, a, b, activation);
    /* The activation and a product each. */
    add(stream, elements(y) * (activation_cost(activation) + 1), y, unless_same(a, y),
        unless_same(b, y), MATRIX_NONE);
}

static void gated_add(struct stream *stream, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    (void)eps;
    check_gated_add(y, gate, x, gamma);
    /* A sum, a product if gated, and a norm with gamma, each. */
    add(stream, elements(y) * ((gate.addr ? 2u : 1u) + (gamma.addr ? 4u : 0u)), y, gate,
        unless_same(x, y), gamma);
}

static void blend(struct stream *stream, struct matrix y, float a, struct matrix x, float b)
{
    (void)a;
    (void)b;
    check_pair(y, x);
    /* Two products and a sum each. */
    add(stream, 3 * elements(y), y, unless_same(x, y), MATRIX_NONE, MATRIX_NONE);
}

static void guide(
    struct stream *stream, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    (void)scale;
    check_triple(y, cond, uncond);
    /* A difference, a product and a sum each. */
    add(stream, 3 * elements(y), y, unless_same(cond, y), unless_same(uncond, y), MATRIX_NONE);
}

static void rms_norm_rope(struct stream *stream, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout)
{
    (void)eps;
    (void)layout;
    check_rms_norm_rope(x, gamma, table);
    /* A norm with gamma 4 each, and four products and two sums a pair. */
    add(stream, elements(x) * ((gamma.addr ? 4u : 0u) + (table.addr ? 3u : 0u)), x, gamma, table,
        MATRIX_NONE);
}

static void attend(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention)
{
    check_attention(out, q, k, v, attention);
    /* 2 d for a score and 2 d for its share of v, for each query, key and head (q.cols = heads d);
     * half of the pairs if causal. The softmax and its bias are left out, as is usual. */
    add_work(stream, COUNT_ATTENTION,
        4 * elements(q) * (double)k.rows / (attention->causal ? 2 : 1),
        bytes_of(out) + bytes_of(q) + bytes_of(k) + bytes_of(v) + bytes_of(attention->bias));
}

static void copy(struct stream *stream, struct matrix y, struct matrix x)
{
    check_copy(y, x);
    add(stream, 0, y, x, MATRIX_NONE, MATRIX_NONE);
}

static void transpose(struct stream *stream, struct matrix y, struct matrix x)
{
    check_transpose(y, x);
    add(stream, 0, y, x, MATRIX_NONE, MATRIX_NONE);
}

static void patchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    (void)order;
    check_patches(y, x, height, width, patch);
    add(stream, 0, y, x, MATRIX_NONE, MATRIX_NONE);
}

static void unpatchify(struct stream *stream, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    (void)order;
    check_patches(x, y, height, width, patch);
    add(stream, 0, y, x, MATRIX_NONE, MATRIX_NONE);
}

static void group_moments(
    struct stream *stream, struct matrix moments, struct matrix x, int64_t run)
{
    check_group_moments(moments, x, run);
    /* Mean 1 and squares 3 an element. */
    add(stream, 4 * elements(x), moments, x, MATRIX_NONE, MATRIX_NONE);
}

static void group_fold(struct stream *stream, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    check_group_fold(affine, moments, gamma, beta, norm);
    /* Mean 2 and variance 5 a run; root, divide, product, difference 4 a channel. */
    add(stream, 7 * elements(moments) / 2 + 4 * (double)moments.rows, affine, moments, gamma, beta);
}

static void affine_op(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix coefficients, enum activation activation)
{
    check_affine(y, x, coefficients);
    /* A product, a sum and the activation each. */
    add(stream, elements(x) * (2 + activation_cost(activation)), y, unless_same(x, y), coefficients,
        MATRIX_NONE);
}

static void conv2d(struct stream *stream, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    /* 2 out in kernel kernel pixels, and the bias and the sum; what is done on reading, once an
     * input element. */
    double operations = 2 * elements(y) * (double)(x.rows * conv->kernel * conv->kernel);

    check_conv2d(y, x, w, bias, conv);
    operations += elements(y) * ((bias.addr ? 1u : 0u) + (conv->accumulate ? 1u : 0u));
    operations += elements(x) * ((conv->affine.addr ? 2u : 0u) + activation_cost(conv->activation));
    add_product(stream, COUNT_CONV, operations, y, x, w, bias);
    add(stream, 0, conv->affine, MATRIX_NONE, MATRIX_NONE, MATRIX_NONE);
}

static void unpack(struct stream *stream, const struct crossed *tensors, int32_t count)
{
    struct count_totals *totals = &((struct count_device *)stream->device)->totals;

    check_unpack(tensors, count);
    for (int32_t i = 0; i < count; i++) {
        add(stream, 0, tensors[i].y, MATRIX_NONE, MATRIX_NONE, MATRIX_NONE);
        totals->traffic = whole((double)totals->traffic + (double)tensors[i].bytes);
    }
}

static void patch_op(
    struct stream *stream, struct matrix y, struct matrix x, const struct patch *patch)
{
    check_patch(y, x, patch);
    add(stream, 0, y, unless_same(x, y), MATRIX_NONE, MATRIX_NONE);
    for (int32_t i = 0; i < patch->count; i++) {
        const struct patch_term *t = &patch->terms[i];

        /* A multiply-add a step of a chain, and one for the term. */
        for (int f = 0; f < 2; f++)
            add(stream, 2 * elements(y) * (double)t->factors[f].a.rows, t->factors[f].b,
                t->factors[f].a, MATRIX_NONE, MATRIX_NONE);
        add(stream, (t->factors[1].b.addr ? 3 : 2) * elements(y), MATRIX_NONE, MATRIX_NONE,
            MATRIX_NONE, MATRIX_NONE);
    }
}

static const struct compute_ops count_compute = {
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
    .attention = attend,
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
    .patch = patch_op,
};

/* ---- the device ---- */

static void count_destroy(struct device *device)
{
    mem_free(device);
}

static enum shoal_status arena_reserve(
    struct device *device, uint64_t bytes, struct shoal_error *error)
{
    if (device->arena)
        FAIL(error, SHOAL_E_DEVICE, "the device's arena is reserved already; release it first");
    device->arena = COUNT_ARENA;
    device->arena_bytes = bytes;
    return SHOAL_OK;
}

static void arena_release(struct device *device)
{
    device->arena = 0;
    device->arena_bytes = 0;
}

static enum shoal_status stream_create(
    struct device *device, bool copy_stream, struct stream **stream, struct shoal_error *error)
{
    (void)copy_stream;
    (void)error;
    *stream = &((struct count_device *)device)->stream;
    return SHOAL_OK;
}

static void stream_destroy(struct stream **stream)
{
    *stream = NULL;
}

static enum shoal_status stream_synchronize(struct stream *stream, struct shoal_error *error)
{
    (void)stream;
    (void)error;
    return SHOAL_OK;
}

static enum shoal_status event_create(
    struct device *device, struct event **event, struct shoal_error *error)
{
    (void)error;
    *event = (struct event *)(void *)&((struct count_device *)device)->event;
    return SHOAL_OK;
}

static void event_destroy(struct event **event)
{
    *event = NULL;
}

static void event_nothing(struct stream *stream, struct event *event)
{
    (void)stream;
    (void)event;
}

static void event_synchronize(struct event *event)
{
    (void)event;
}

static bool event_happened(struct event *event)
{
    (void)event;
    return true;
}

static uint64_t event_time_ns(struct event *event)
{
    (void)event;
    return 0;
}

static void copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes)
{
    (void)to;
    (void)from;
    ((struct count_device *)stream->device)->totals.copied_in += bytes;
}

static void copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes)
{
    (void)to;
    (void)from;
    ((struct count_device *)stream->device)->totals.copied_out += bytes;
}

static void copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes)
{
    struct count_totals *totals = &((struct count_device *)stream->device)->totals;

    (void)to;
    (void)from;
    totals->traffic = whole((double)totals->traffic + 2 * (double)bytes);
}

static const struct device_ops count_ops = {
    .name = "count",
    .destroy = count_destroy,
    .arena_reserve = arena_reserve,
    .arena_release = arena_release,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_nothing,
    .event_wait = event_nothing,
    .event_synchronize = event_synchronize,
    .event_happened = event_happened,
    .event_time_ns = event_time_ns,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .compute = &count_compute,
};

enum shoal_status count_create(
    struct device **device, struct device_traits traits, struct shoal_error *error)
{
    struct count_device *count = mem_calloc(1, sizeof *count);

    *device = NULL;
    if (!count) FAIL_MEMORY(error);
    count->base.ops = &count_ops;
    count->base.traits = traits;
    count->stream.device = &count->base;
    *device = &count->base;
    return SHOAL_OK;
}

struct count_totals count_read(const struct device *device)
{
    return ((const struct count_device *)device)->totals;
}
