/* The CUDA device's compute table. */
#include "device/cuda/internal.h"

const struct compute_ops cuda_compute_ops = {
    .linear = cuda_linear,
    .rms_norm = cuda_rms_norm,
    .layer_norm = cuda_layer_norm,
    .match_norms = cuda_match_norms,
    .activate = cuda_activate,
    .gated = cuda_gated,
    .gated_add = cuda_gated_add,
    .blend = cuda_blend,
    .guide = cuda_guide,
    .rms_norm_rope = cuda_rms_norm_rope,
    .attention = cuda_attention,
    .copy = cuda_copy,
    .transpose = cuda_transpose,
    .patchify = cuda_patchify,
    .unpatchify = cuda_unpatchify,
    .group_moments = cuda_group_moments,
    .group_fold = cuda_group_fold,
    .affine = cuda_affine,
    .channel_norm = cuda_channel_norm,
    .conv2d = cuda_conv2d,
    .unpack = cuda_unpack,
    .patch = cuda_patch,
};
