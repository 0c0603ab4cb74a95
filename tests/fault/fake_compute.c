/* The fake device's compute table: every call is kept and done later. */
#include "fault/fake_device.h"

#include <string.h>

/* A new operation of the table needs its two functions here. */
_Static_assert(sizeof(struct compute_ops) == 22 * sizeof(void (*)(void)), "22 operations");

typedef const struct compute_ops *table;
typedef const struct fake_operation *kept;

static void run_linear(table ops, struct stream *s, kept k)
{
    ops->linear(s, k->m[0], k->m[1], k->m[2], k->m[3]);
}

static void linear(
    struct stream *s, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    fake_give(s, &(struct fake_operation){.run = run_linear, .m = {y, x, w, bias}});
}

static void run_rms_norm(table ops, struct stream *s, kept k)
{
    ops->rms_norm(s, k->m[0], k->m[1], k->m[2], k->m[3], k->f[0]);
}

static void rms_norm(struct stream *s, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps)
{
    fake_give(
        s, &(struct fake_operation){.run = run_rms_norm, .m = {y, x, gamma, scale}, .f = {eps}});
}

static void run_layer_norm(table ops, struct stream *s, kept k)
{
    ops->layer_norm(s, k->m[0], k->m[1], k->m[2], k->m[3], k->m[4], k->f[0]);
}

static void layer_norm(struct stream *s, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps)
{
    fake_give(s, &(struct fake_operation){
                     .run = run_layer_norm, .m = {y, x, gamma, scale, shift}, .f = {eps}});
}

static void run_match_norms(table ops, struct stream *s, kept k)
{
    ops->match_norms(s, k->m[0], k->m[1]);
}

static void match_norms(struct stream *s, struct matrix y, struct matrix x)
{
    fake_give(s, &(struct fake_operation){.run = run_match_norms, .m = {y, x}});
}

static void run_activate(table ops, struct stream *s, kept k)
{
    ops->activate(s, k->m[0], k->m[1], (enum activation)k->choice);
}

static void activate(struct stream *s, struct matrix y, struct matrix x, enum activation activation)
{
    fake_give(
        s, &(struct fake_operation){.run = run_activate, .m = {y, x}, .choice = (int)activation});
}

static void run_gated(table ops, struct stream *s, kept k)
{
    ops->gated(s, k->m[0], k->m[1], k->m[2], (enum activation)k->choice);
}

static void gated(
    struct stream *s, struct matrix y, struct matrix a, struct matrix b, enum activation activation)
{
    fake_give(
        s, &(struct fake_operation){.run = run_gated, .m = {y, a, b}, .choice = (int)activation});
}

static void run_gated_add(table ops, struct stream *s, kept k)
{
    ops->gated_add(s, k->m[0], k->m[1], k->m[2], k->m[3], k->f[0]);
}

static void gated_add(struct stream *s, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps)
{
    fake_give(
        s, &(struct fake_operation){.run = run_gated_add, .m = {y, gate, x, gamma}, .f = {eps}});
}

static void run_blend(table ops, struct stream *s, kept k)
{
    ops->blend(s, k->m[0], k->f[0], k->m[1], k->f[1]);
}

static void blend(struct stream *s, struct matrix y, float a, struct matrix x, float b)
{
    fake_give(s, &(struct fake_operation){.run = run_blend, .m = {y, x}, .f = {a, b}});
}

static void run_guide(table ops, struct stream *s, kept k)
{
    ops->guide(s, k->m[0], k->m[1], k->m[2], k->f[0]);
}

static void guide(
    struct stream *s, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    fake_give(s, &(struct fake_operation){.run = run_guide, .m = {y, cond, uncond}, .f = {scale}});
}

static void run_rms_norm_rope(table ops, struct stream *s, kept k)
{
    ops->rms_norm_rope(s, k->m[0], k->m[1], k->f[0], k->m[2], (enum rope_layout)k->choice);
}

static void rms_norm_rope(struct stream *s, struct matrix x, struct matrix gamma, float eps,
    struct matrix rotations, enum rope_layout layout)
{
    fake_give(s, &(struct fake_operation){.run = run_rms_norm_rope,
                     .m = {x, gamma, rotations},
                     .f = {eps},
                     .choice = (int)layout});
}

static void run_attention(table ops, struct stream *s, kept k)
{
    ops->attention(s, k->m[0], k->m[1], k->m[2], k->m[3], &k->attention);
}

static void attention(struct stream *s, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *how)
{
    fake_give(
        s, &(struct fake_operation){.run = run_attention, .m = {out, q, k, v}, .attention = *how});
}

static void run_copy(table ops, struct stream *s, kept k)
{
    ops->copy(s, k->m[0], k->m[1]);
}

static void copy(struct stream *s, struct matrix y, struct matrix x)
{
    fake_give(s, &(struct fake_operation){.run = run_copy, .m = {y, x}});
}

static void run_transpose(table ops, struct stream *s, kept k)
{
    ops->transpose(s, k->m[0], k->m[1]);
}

static void transpose(struct stream *s, struct matrix y, struct matrix x)
{
    fake_give(s, &(struct fake_operation){.run = run_transpose, .m = {y, x}});
}

static void run_patchify(table ops, struct stream *s, kept k)
{
    ops->patchify(
        s, k->m[0], k->m[1], k->size[0], k->size[1], k->patch, (enum patch_order)k->choice);
}

static void patchify(struct stream *s, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    fake_give(s, &(struct fake_operation){.run = run_patchify,
                     .m = {y, x},
                     .size = {height, width},
                     .patch = patch,
                     .choice = (int)order});
}

static void run_unpatchify(table ops, struct stream *s, kept k)
{
    ops->unpatchify(
        s, k->m[0], k->m[1], k->size[0], k->size[1], k->patch, (enum patch_order)k->choice);
}

static void unpatchify(struct stream *s, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order)
{
    fake_give(s, &(struct fake_operation){.run = run_unpatchify,
                     .m = {y, x},
                     .size = {height, width},
                     .patch = patch,
                     .choice = (int)order});
}

static void run_group_moments(table ops, struct stream *s, kept k)
{
    ops->group_moments(s, k->m[0], k->m[1], k->size[0]);
}

static void group_moments(struct stream *s, struct matrix moments, struct matrix x, int64_t run)
{
    fake_give(
        s, &(struct fake_operation){.run = run_group_moments, .m = {moments, x}, .size = {run}});
}

static void run_group_fold(table ops, struct stream *s, kept k)
{
    ops->group_fold(s, k->m[0], k->m[1], k->m[2], k->m[3], &k->norm);
}

static void group_fold(struct stream *s, struct matrix affine_to, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm)
{
    fake_give(s, &(struct fake_operation){
                     .run = run_group_fold, .m = {affine_to, moments, gamma, beta}, .norm = *norm});
}

static void run_affine(table ops, struct stream *s, kept k)
{
    ops->affine(s, k->m[0], k->m[1], k->m[2], (enum activation)k->choice);
}

static void affine(struct stream *s, struct matrix y, struct matrix x, struct matrix with,
    enum activation activation)
{
    fake_give(s,
        &(struct fake_operation){.run = run_affine, .m = {y, x, with}, .choice = (int)activation});
}

static void run_channel_norm(table ops, struct stream *s, kept k)
{
    ops->channel_norm(s, k->m[0], k->m[1], k->m[2], (enum activation)k->choice);
}

static void channel_norm(struct stream *s, struct matrix y, struct matrix x, struct matrix gamma,
    enum activation activation)
{
    fake_give(s, &(struct fake_operation){
                     .run = run_channel_norm, .m = {y, x, gamma}, .choice = (int)activation});
}

static void run_conv2d(table ops, struct stream *s, kept k)
{
    ops->conv2d(s, k->m[0], k->m[1], k->m[2], k->m[3], &k->conv);
}

static void conv2d(struct stream *s, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv)
{
    fake_give(s, &(struct fake_operation){.run = run_conv2d, .m = {y, x, w, bias}, .conv = *conv});
}

static void run_unpack(table ops, struct stream *s, kept k)
{
    ops->unpack(s, k->crossed, (int32_t)k->choice);
}

static void unpack(struct stream *s, const struct crossed *tensors, int32_t count)
{
    struct fake_operation operation = {.run = run_unpack, .choice = count};

    memcpy(operation.crossed, tensors, (size_t)count * sizeof *tensors);
    fake_give(s, &operation);
}

static void run_patch(table ops, struct stream *s, kept k)
{
    ops->patch(s, k->m[0], k->m[1], &k->terms);
}

static void patch(struct stream *s, struct matrix y, struct matrix x, const struct patch *patch)
{
    fake_give(s, &(struct fake_operation){.run = run_patch, .m = {y, x}, .terms = *patch});
}

const struct compute_ops fake_compute_ops = {
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
    .affine = affine,
    .channel_norm = channel_norm,
    .conv2d = conv2d,
    .unpack = unpack,
    .patch = patch,
};
