/* Stands in for operations that are not written yet; goes when all are. */
#include "device/cuda/internal.h"

__attribute__((weak)) void cuda_linear(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix w, struct matrix bias)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)w, (void)bias;
}

__attribute__((weak)) void cuda_attention(struct stream *stream, struct matrix out, struct matrix q,
    struct matrix k, struct matrix v, int32_t heads, int32_t kv_heads, float scale, bool causal)
{
    assert(!"not written yet");
    (void)stream, (void)out, (void)q, (void)k, (void)v, (void)heads, (void)kv_heads, (void)scale,
        (void)causal;
}

__attribute__((weak)) void cuda_conv2d(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix w, struct matrix bias, const struct conv *conv)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)w, (void)bias, (void)conv;
}

__attribute__((weak)) void cuda_unpack(
    struct stream *stream, struct matrix y, device_addr payload, uint64_t payload_bytes)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)payload, (void)payload_bytes;
}

__attribute__((weak)) void cuda_rms_norm(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix gamma, struct matrix scale, float eps)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)gamma, (void)scale, (void)eps;
}

__attribute__((weak)) void cuda_layer_norm(
    struct stream *stream, struct matrix y, struct matrix x, struct matrix scale, float eps)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)scale, (void)eps;
}

__attribute__((weak)) void cuda_group_norm(struct stream *stream, struct matrix affine,
    struct matrix x, struct matrix gamma, struct matrix beta, int32_t groups, float eps)
{
    assert(!"not written yet");
    (void)stream, (void)affine, (void)x, (void)gamma, (void)beta, (void)groups, (void)eps;
}

__attribute__((weak)) void cuda_affine(struct stream *stream, struct matrix y, struct matrix x,
    struct matrix affine, enum activation activation)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)affine, (void)activation;
}

__attribute__((weak)) void cuda_activate(
    struct stream *stream, struct matrix y, struct matrix x, enum activation activation)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)activation;
}

__attribute__((weak)) void cuda_gated_silu(
    struct stream *stream, struct matrix y, struct matrix a, struct matrix b)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)a, (void)b;
}

__attribute__((weak)) void cuda_gated_add(
    struct stream *stream, struct matrix y, struct matrix gate, struct matrix x)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)gate, (void)x;
}

__attribute__((weak)) void cuda_blend(
    struct stream *stream, struct matrix y, float a, struct matrix x, float b)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)a, (void)x, (void)b;
}

__attribute__((weak)) void cuda_guide(
    struct stream *stream, struct matrix y, struct matrix cond, struct matrix uncond, float scale)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)cond, (void)uncond, (void)scale;
}

__attribute__((weak)) void cuda_rope(
    struct stream *stream, struct matrix x, struct matrix table, enum rope_layout layout)
{
    assert(!"not written yet");
    (void)stream, (void)x, (void)table, (void)layout;
}

__attribute__((weak)) void cuda_copy(struct stream *stream, struct matrix y, struct matrix x)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x;
}

__attribute__((weak)) void cuda_transpose(struct stream *stream, struct matrix y, struct matrix x)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x;
}

__attribute__((weak)) void cuda_patchify(struct stream *stream, struct matrix y, struct matrix x,
    int64_t height, int64_t width, int32_t patch)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)height, (void)width, (void)patch;
}

__attribute__((weak)) void cuda_unpatchify(struct stream *stream, struct matrix y, struct matrix x,
    int64_t height, int64_t width, int32_t patch)
{
    assert(!"not written yet");
    (void)stream, (void)y, (void)x, (void)height, (void)width, (void)patch;
}
