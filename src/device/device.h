/*
 * The back-end contract: one arena, streams, events, asynchronous copies and the compute table.
 *
 * Order is the only promise. Work given to one stream happens in the order given; work in two
 * streams is ordered by events alone. A back end may do work inside the call that gives it (the
 * CPU's compute stream does) or later (its copy streams, CUDA).
 *
 * Failure. Calls that give work return nothing: they would have to be checked at every line of
 * every model. What goes wrong is kept in the device, work after it is dropped, and
 * stream_synchronize reports it. Wrong shapes are a bug in the caller: asserted.
 *
 * Results. Every operation's result is a function of its operands' values and shapes, never of
 * addresses, thread counts or what else runs; so a model gives the same bits wherever its weights
 * lie.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "base/error.h"
#include "device/patch.h"
#include "tensor/matrix.h"

struct device;
struct stream;
struct event;

enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,
    ACTIVATION_TANH,
    ACTIVATION_GELU_ERF,
    ACTIVATION_GELU_TANH,
    ACTIVATION_RELU
};

enum rope_layout {
    ROPE_INTERLEAVED, /* pairs (2i, 2i + 1) */
    ROPE_HALF,        /* pairs (i, i + dim / 2) */
};

/* What the columns of a patch are, slowest first. */
enum patch_order {
    PATCH_CHANNELS_LAST,  /* row in patch, column in patch, channel */
    PATCH_CHANNELS_FIRST, /* channel, row in patch, column in patch */
};

/* How queries attend. */
struct attention {
    int32_t heads, kv_heads;
    float scale;        /* of the scores */
    bool causal;        /* key s is seen by query t only if s <= t */
    struct matrix bias; /* [heads, tokens + keys - 1], F32 and finite, or none: what is added to a
                           scaled score, by how far its key is behind its query: column s - t +
                           tokens - 1. Of count queries from the one `first` on, it is
                           columns [tokens - first - count, ... + count + keys - 1) of the whole. */
};

/*
 * A stride-1, same-size convolution with a square kernel of 1 or 3 over [channels, height * width].
 * Of a picture, or of a strip of its rows: then x has a few rows more than y. An element is the
 * same, bit for bit, in whatever strip it is made.
 *
 * Kernels of a causal convolution over frames have several planes, the last of which is for the
 * frame itself. Of a single frame, before which there are zeros, that one is read alone: planes are
 * counted by the weights' columns.
 */
#define CONV_MAX_PLANES 3
struct conv {
    int64_t height, width;      /* of the output */
    int64_t above, below;       /* rows, counted as y's, that x has beyond y's first and last one;
                                   what lies beyond x is zeros: the picture ends there */
    int32_t kernel;             /* 1 or 3; zero padding of kernel / 2 */
    int32_t upsample;           /* 1, or 2: the input has half the rows and half the columns, read
                                   as if nearest-upsampled */
    bool accumulate;            /* y += instead of y =; the bias is added once either way */
    struct matrix affine;       /* [2, in] or none: input channel c is read as x * affine[0, c] +
                                   affine[1, c] ... */
    enum activation activation; /* ... and then through this (NONE or SILU); padding stays zero */
};

/* A group norm over pictures [channels, pixels], whose statistics are taken in runs of pixels. */
struct group_norm {
    int32_t groups;
    int64_t pixels; /* of a channel */
    int64_t run;    /* pixels; the last one may be shorter */
    float eps;
};

/* Of a kernel over x, whose weights are w. */
static inline int64_t conv_planes(struct matrix w, struct matrix x, const struct conv *conv)
{
    return w.cols / (x.rows * conv->kernel * conv->kernel);
}

/* Runs of a channel: struct group_norm's, or of a strip that begins with one. */
static inline int64_t group_runs(int64_t pixels, int64_t run)
{
    return (pixels + run - 1) / run;
}

/*
 * A tensor as it crossed the link, and where it goes: y is dense. Packed (wire/wire.h): of the
 * payload's type and count; the payload lies in the arena, aligned to WIRE_ALIGNMENT, and was
 * checked before; `bytes` are what it takes or more, which a device cannot always ask it.
 */
struct crossed {
    struct matrix y;
    device_addr from;
    uint64_t bytes;
    bool packed; /* or y's bytes as they are */
};
#define UNPACK_TENSORS 16 /* at once: so a block is a launch or two */

/*
 * The compute table. Activations (x, y, q, k, v, out, a, b) are F32 or of the device's activation
 * type, as each comes: what is computed is rounded once, when it is stored. Rope tables and affine
 * maps are F32. Weights (w, bias, gamma) are of any computed type, quantised ones as
 * tensor/quant.h says; products of matrices may round both sides to the activation type first.
 * Vectors that scale or gate are either. Sums are accumulated in F32 or wider. y may be x itself
 * (same address, stride and type) where "in place" is said; otherwise operands do not overlap.
 * Operands marked optional may be MATRIX_NONE. All vectors are [1, n].
 */
struct compute_ops {
    /* y[m, n] = x[m, k] w[n, k]^T + bias[n]; bias optional. Any of them may be columns of a wider
     * matrix. */
    void (*linear)(
        struct stream *, struct matrix y, struct matrix x, struct matrix w, struct matrix bias);

    /* Each row: y = x / sqrt(mean(x^2) + eps) * gamma * (1 + scale); gamma, scale optional. In
     * place. */
    void (*rms_norm)(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
        struct matrix scale, float eps);

    /* Each row: y = (x - mean) / sqrt(var + eps) * gamma * (1 + scale) + shift; gamma, scale, shift
     * optional. In place. */
    void (*layer_norm)(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
        struct matrix scale, struct matrix shift, float eps);

    /* Each row of y times the Euclidean norm of x's over its own; a row of zeros stays. */
    void (*match_norms)(struct stream *, struct matrix y, struct matrix x);

    /* y = f(x). In place. */
    void (*activate)(struct stream *, struct matrix y, struct matrix x, enum activation activation);

    /* y = f(a) * b, f SILU or GELU_TANH. y may be a or b. */
    void (*gated)(struct stream *, struct matrix y, struct matrix a, struct matrix b,
        enum activation activation);

    /* y += gate * x, where gate is optional (1); if gamma is given, of what rms_norm makes of x
     * with it. */
    void (*gated_add)(struct stream *, struct matrix y, struct matrix gate, struct matrix x,
        struct matrix gamma, float eps);

    /* y = a x + b y. */
    void (*blend)(struct stream *, struct matrix y, float a, struct matrix x, float b);

    /* y = cond + scale (cond - uncond). y may be either. */
    void (*guide)(
        struct stream *, struct matrix y, struct matrix cond, struct matrix uncond, float scale);

    /*
     * Of each row's runs of columns, as many as gamma or the table has, an even number: norms each
     * run of row t as rms_norm does with gamma, then rotates it by table row t, whose first half
     * holds the cosines and second half the sines of table.cols / 2 pairs: (a, b) -> (a cos - b
     * sin, b cos + a sin). One of gamma (no norm) and the table (no rotation) is optional. In place
     * only.
     */
    void (*rms_norm_rope)(struct stream *, struct matrix x, struct matrix gamma, float eps,
        struct matrix table, enum rope_layout layout);

    /*
     * out[t, h] = softmax(scale q[t, h] k[:, g]^T) v[:, g], g = h * kv_heads / heads; head h is the
     * h-th run of columns; q, out [tokens, heads * d], k, v [keys, kv_heads * d]; see struct
     * attention. Never holds the full score matrix.
     */
    void (*attention)(struct stream *, struct matrix out, struct matrix q, struct matrix k,
        struct matrix v, const struct attention *attention);

    /* y = x in y's type; an x of one row is repeated for every row of y. */
    void (*copy)(struct stream *, struct matrix y, struct matrix x);

    /* y[c, r] = x[r, c]. */
    void (*transpose)(struct stream *, struct matrix y, struct matrix x);

    /*
     * x [channels, height * width] -> y [(height / patch) (width / patch), patch patch channels]:
     * row = patch in raster order, columns in this order. unpatchify is the inverse.
     */
    void (*patchify)(struct stream *, struct matrix y, struct matrix x, int64_t height,
        int64_t width, int32_t patch, enum patch_order order);
    void (*unpatchify)(struct stream *, struct matrix y, struct matrix x, int64_t height,
        int64_t width, int32_t patch, enum patch_order order);

    /*
     * For each channel of x [channels, pixels] and each run of `run` pixels its mean and the sum of
     * squares about that, as columns 2 i and 2 i + 1 of moments [channels, 2 runs], F32. Of a
     * picture that is made in strips of whole runs, each strip fills its columns.
     */
    void (*group_moments)(struct stream *, struct matrix moments, struct matrix x, int64_t run);

    /*
     * The statistics of groups of channels / groups channels, from their moments, folded with gamma
     * and beta [1, channels] into affine [2, channels]: affine[0] = gamma / sqrt(var + eps),
     * affine[1] = beta - mean affine[0].
     */
    void (*group_fold)(struct stream *, struct matrix affine, struct matrix moments,
        struct matrix gamma, struct matrix beta, const struct group_norm *norm);

    /* y[c, p] = f(x[c, p] affine[0, c] + affine[1, c]). In place. */
    void (*affine)(struct stream *, struct matrix y, struct matrix x, struct matrix affine,
        enum activation activation);

    /*
     * Each pixel of x [channels, pixels]: y = f(x sqrt(channels) / max(|x|, 1e-12) gamma), |x| the
     * Euclidean norm over its channels, gamma [1, channels], f NONE or SILU. In place. A pixel is
     * the same, bit for bit, in whatever strip it is made.
     */
    void (*channel_norm)(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
        enum activation activation);

    /* y [out, height * width] = w [out, in planes kernel kernel] * x [in, input pixels] + bias; see
     * struct conv. */
    void (*conv2d)(struct stream *, struct matrix y, struct matrix x, struct matrix w,
        struct matrix bias, const struct conv *conv);

    /* Each y = the tensor that crossed, bit for bit. At most UNPACK_TENSORS. */
    void (*unpack)(struct stream *, const struct crossed *tensors, int32_t count);

    /* y = x and the differences of adapters, see patch.h, to the same bits on every device. x is of
     * any computed type, y of F32, F16 or BF16. In place, if the types are the same. */
    void (*patch)(struct stream *, struct matrix y, struct matrix x, const struct patch *patch);
};

struct device_ops {
    const char *name; /* "cpu", "count" */

    void (*destroy)(struct device *);

    /* Reserves the one arena: `bytes` bytes at device->arena, aligned to 4096. Nothing else
     * allocates. */
    enum shoal_status (*arena_reserve)(
        struct device *, uint64_t bytes, struct shoal_error *) SHOAL_CHECKED;
    void (*arena_release)(struct device *);
    /* Optional. Says that a span is in use or free, so that a checking build can catch strays. */
    void (*arena_mark)(struct device *, device_addr addr, uint64_t bytes, bool used);

    /*
     * Optional: then any memory will do. Copies run fastest, and beside the host, from and to
     * memory that was registered: whole pages, unregistered before they are freed and after the
     * copies have passed. May fail where the system allows no (more) such memory: SHOAL_E_DEVICE,
     * and the memory works as before.
     */
    enum shoal_status (*host_register)(
        struct device *, void *pages, uint64_t bytes, struct shoal_error *) SHOAL_CHECKED;
    void (*host_unregister)(struct device *, void *pages);

    /* A copy stream (for copy_in and copy_out only) runs beside the compute stream. */
    enum shoal_status (*stream_create)(
        struct device *, bool copy, struct stream **, struct shoal_error *) SHOAL_CHECKED;
    void (*stream_destroy)(struct stream **); /* waits for its work first */
    /* Waits until all work given is done; reports the first failure since the last call, or the one
     * that lost the device, again and again. */
    enum shoal_status (*stream_synchronize)(struct stream *, struct shoal_error *) SHOAL_CHECKED;

    /* An event starts out as having happened. Recording it again makes it pending again. */
    enum shoal_status (*event_create)(
        struct device *, struct event **, struct shoal_error *) SHOAL_CHECKED;
    void (*event_destroy)(struct event **); /* not while a stream still has to record or await it */
    void (*event_record)(struct stream *, struct event *);
    void (*event_wait)(struct stream *, struct event *); /* the stream waits; the host need not */
    void (*event_synchronize)(struct event *);           /* the host waits */
    bool (*event_happened)(struct event *);              /* without waiting */
    /* When it happened, on the clock of base/clock.h; 0 if it never was recorded or has no time. */
    uint64_t (*event_time_ns)(struct event *);

    /* The host side must stay valid and unchanged until the stream has passed the copy. */
    void (*copy_in)(struct stream *, device_addr to, const void *from, uint64_t bytes);
    void (*copy_out)(struct stream *, void *to, device_addr from, uint64_t bytes);
    /* Within the arena; the two do not overlap. */
    void (*copy_within)(struct stream *, device_addr to, device_addr from, uint64_t bytes);

    const struct compute_ops *compute;
};

/* What a model's layout of its activations depends on. The counting device takes another's. */
struct device_traits {
    enum dtype activation; /* of activations inside a block: F32, BF16 or F16 */
    int64_t chunk_rows;    /* of wide activations that exist at once, at most */
    int64_t product_rows;  /* that a product takes its weights in for, if it waits for them; more
                              rows take them in again */
    int64_t convert_rows;  /* from so many on a product first converts weights of another type than
                              the activations', in memory; 0: it never does */
};

/* What every back end's device, stream and event begin with. */
struct device {
    const struct device_ops *ops;
    struct device_traits traits;
    device_addr arena;
    uint64_t arena_bytes;
};

struct stream {
    struct device *device;
};

/* Operands that are left out have no address. */
static inline bool matrix_given(struct matrix m)
{
    return m.addr != 0;
}

static inline void device_destroy(struct device **device)
{
    if (*device) (*device)->ops->destroy(*device);
    *device = NULL;
}

#endif
