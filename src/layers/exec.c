/* Scratch from the top of the arena, copies, and operations that stop at the first failure. */
#include "layers/exec.h"

#include "base/size.h"

/* ---- the table that does nothing, in force after a failure ---- */

static void skip_linear(
    struct stream *s, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    (void)s, (void)y, (void)x, (void)w, (void)bias;
}

static void skip_rms_norm(struct stream *s, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    (void)s, (void)y, (void)x, (void)gamma, (void)scale, (void)eps;
}

static void skip_layer_norm(struct stream *s, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    (void)s, (void)y, (void)x, (void)gamma, (void)scale, (void)shift, (void)eps;
}

static void skip_activate(
    struct stream *s, struct matrix y, struct matrix x, enum activation activation)
{
    (void)s, (void)y, (void)x, (void)activation;
}

static void skip_gated(
    struct stream *s, struct matrix y, struct matrix a, struct matrix b, enum activation activation)
{
    (void)s, (void)y, (void)a, (void)b, (void)activation;
}

static void skip_gated_add(struct stream *s, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    (void)s, (void)y, (void)gate, (void)x, (void)gamma, (void)eps;
}

static void skip_blend(struct stream *s, struct matrix y, float a, struct matrix x, float b)
{
    (void)s, (void)y, (void)a, (void)x, (void)b;
}

static void skip_guide(
    struct stream *s, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    (void)s, (void)y, (void)cond, (void)uncond, (void)scale;
}

static void skip_rms_norm_rope(struct stream *s, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout)
{
    (void)s, (void)x, (void)gamma, (void)eps, (void)table, (void)layout;
}

static void skip_attention(struct stream *s, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention)
{
    (void)s, (void)out, (void)q, (void)k, (void)v, (void)attention;
}

static void skip_pair(struct stream *s, struct matrix y, struct matrix x)
{
    (void)s, (void)y, (void)x;
}

static void skip_patches(struct stream *s, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    (void)s, (void)y, (void)x, (void)height, (void)width, (void)patch, (void)order;
}

static void skip_group_moments(
    struct stream *s, struct matrix moments, struct matrix x, int64_t run)
{
    (void)s, (void)moments, (void)x, (void)run;
}

static void skip_group_fold(struct stream *s, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    (void)s, (void)affine, (void)moments, (void)gamma, (void)beta, (void)norm;
}

static void skip_affine(struct stream *s, struct matrix y, struct matrix x, struct matrix affine,
    enum activation activation)
{
    (void)s, (void)y, (void)x, (void)affine, (void)activation;
}

static void skip_channel_norm(struct stream *s, struct matrix y, struct matrix x,
    struct matrix gamma, enum activation activation)
{
    (void)s, (void)y, (void)x, (void)gamma, (void)activation;
}

static void skip_conv2d(struct stream *s, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    (void)s, (void)y, (void)x, (void)w, (void)bias, (void)conv;
}

static void skip_unpack(struct stream *s, const struct crossed *tensors, int32_t count)
{
    (void)s, (void)tensors, (void)count;
}

static const struct compute_ops skip_ops = {
    .linear = skip_linear,
    .rms_norm = skip_rms_norm,
    .layer_norm = skip_layer_norm,
    .match_norms = skip_pair,
    .activate = skip_activate,
    .gated = skip_gated,
    .gated_add = skip_gated_add,
    .blend = skip_blend,
    .guide = skip_guide,
    .rms_norm_rope = skip_rms_norm_rope,
    .attention = skip_attention,
    .copy = skip_pair,
    .transpose = skip_pair,
    .patchify = skip_patches,
    .unpatchify = skip_patches,
    .group_moments = skip_group_moments,
    .group_fold = skip_group_fold,
    .affine = skip_affine,
    .channel_norm = skip_channel_norm,
    .conv2d = skip_conv2d,
    .unpack = skip_unpack,
};

/* ---- scratch ---- */

void exec_init(struct exec *x, struct device *device, struct stream *stream, struct region *scratch,
    device_addr scratch_top)
{
    *x = (struct exec){
        .device = device,
        .stream = stream,
        .ops = device->ops->compute,
        .scratch = scratch,
        .scratch_top = scratch_top,
    };
}

enum shoal_status exec_check(const struct exec *x, struct shoal_error *error)
{
    if (x->error.status && error) *error = x->error;
    return x->error.status;
}

/* A region's spans begin at aligned offsets, so counted from the top they end at aligned
 * addresses; with aligned sizes they begin at aligned ones too. */
static uint64_t span_bytes(struct matrix m)
{
    return size_align((uint64_t)dtype_bytes(m.dtype, m.rows * m.cols), REGION_ALIGNMENT);
}

static void mark(const struct exec *x, device_addr addr, uint64_t bytes, bool used)
{
    if (x->device->ops->arena_mark) x->device->ops->arena_mark(x->device, addr, bytes, used);
}

static enum shoal_status allocate(struct exec *x, struct matrix *m)
{
    uint64_t bytes, offset;

    if (m->rows < 1 || m->cols < 1 || !size_mul((uint64_t)m->rows, (uint64_t)m->cols, &bytes) ||
        bytes > (UINT64_MAX >> 8))
        FAIL(&x->error, SHOAL_E_BUDGET, "no memory can hold a matrix of %lld x %lld numbers",
            (long long)m->rows, (long long)m->cols);
    bytes = span_bytes(*m);
    TRY(region_alloc(x->scratch, bytes, &offset, &x->error));
    m->addr = x->scratch_top - offset - bytes;
    mark(x, m->addr, bytes, true);
    return SHOAL_OK;
}

static struct matrix alloc_as(struct exec *x, enum dtype dtype, int64_t rows, int64_t cols)
{
    struct matrix m = matrix_at(0, dtype, rows, cols);

    if (x->error.status) return m;
    if (allocate(x, &m)) x->ops = &skip_ops;
    return m;
}

struct matrix exec_alloc(struct exec *x, int64_t rows, int64_t cols)
{
    return alloc_as(x, x->device->traits.activation, rows, cols);
}

struct matrix exec_alloc_float(struct exec *x, int64_t rows, int64_t cols)
{
    return alloc_as(x, DTYPE_F32, rows, cols);
}

void exec_free(struct exec *x, struct matrix *m)
{
    if (m->addr) {
        uint64_t bytes = span_bytes(*m);

        mark(x, m->addr, bytes, false);
        region_free(x->scratch, x->scratch_top - m->addr - bytes);
    }
    *m = MATRIX_NONE;
}

#define SETTLE_COPIES 64 /* at most */

void exec_settle(struct exec *x, struct matrix *m)
{
    const uint64_t bytes = span_bytes(*m), offset = x->scratch_top - m->addr - bytes;
    uint64_t lower, step;

    if (x->error.status) return;
    step = offset - region_lowest(x->scratch, offset);
    if (!step || bytes / step >= SETTLE_COPIES) return;
    region_free(x->scratch, offset);
    if (region_alloc(x->scratch, bytes, &lower, &x->error)) {
        x->ops = &skip_ops;
        *m = MATRIX_NONE;
        return;
    }
    /* Offsets count down: it moves up. From its end on, no piece is written over before it has
     * been copied, and none is longer than the way it goes. */
    mark(x, m->addr + step, bytes, true);
    for (uint64_t left = bytes, piece; left; left -= piece) {
        piece = left < step ? left : step;
        x->device->ops->copy_within(
            x->stream, m->addr + step + left - piece, m->addr + left - piece, piece);
    }
    mark(x, m->addr, bytes < step ? bytes : step, false);
    m->addr += step;
}

/* ---- copies ---- */

static uint64_t dense_bytes(struct matrix m)
{
    return (uint64_t)m.rows * (uint64_t)m.cols * sizeof(float);
}

void exec_upload(struct exec *x, struct matrix to, const float *from)
{
    if (x->error.status) return;
    x->device->ops->copy_in(x->stream, to.addr, from, dense_bytes(to));
}

void exec_download(struct exec *x, float *to, struct matrix from)
{
    if (x->error.status) return;
    x->device->ops->copy_out(x->stream, to, from.addr, dense_bytes(from));
}
