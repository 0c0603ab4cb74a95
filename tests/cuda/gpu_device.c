/* For now: launches go straight to the emulator, with those operations that are there. */
#include "cuda/gpu_device.h"

#include "cuda/emulator.h"

#include "base/clock.h"
#include "device/cuda/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma weak cuda_linear
#pragma weak cuda_attention
#pragma weak cuda_conv2d
#pragma weak cuda_unpack
#pragma weak cuda_rms_norm
#pragma weak cuda_layer_norm
#pragma weak cuda_group_norm
#pragma weak cuda_affine
#pragma weak cuda_activate
#pragma weak cuda_gated_silu
#pragma weak cuda_gated_add
#pragma weak cuda_blend
#pragma weak cuda_guide
#pragma weak cuda_rope
#pragma weak cuda_copy
#pragma weak cuda_transpose
#pragma weak cuda_patchify
#pragma weak cuda_unpatchify

static struct compute_ops ops;
static struct device_ops device_ops;
static struct cuda_device cuda;
static struct cuda_stream compute;

void cuda_fail(struct cuda_device *c, CUresult result, const char *what)
{
    (void)c;
    printf("%s failed: %d\n", what, result);
    exit(1);
}

bool cuda_lost(struct cuda_device *c)
{
    (void)c;
    return false;
}

static const char *names[] = {
#define NAME(module, name) #name,
    CUDA_KERNELS(NAME) NULL};

void cuda_launch(
    struct stream *stream, enum cuda_kernel kernel, struct cuda_grid grid, const void *args)
{
    size_t bytes;
    emulate_kernel *code = emulate_find(names[kernel], &bytes);
    void *copy = malloc(bytes);
    const char *error;

    (void)stream;
    memcpy(copy, args, bytes);
    error = emulate_launch(names[kernel], code, copy, (struct emulate_size){grid.x, grid.y, grid.z},
        (struct emulate_size){grid.threads, 1, 1}, grid.shared_bytes);
    free(copy);
    if (error) {
        printf("%s\n", error);
        exit(1);
    }
}

static enum shoal_status synchronize(struct stream *s, struct shoal_error *error)
{
    (void)s, (void)error;
    return SHOAL_OK;
}

bool gpu_device_open(struct device **device, struct stream **stream, bool real)
{
    if (real) {
        printf("no card yet\n");
        return false;
    }
    ops = (struct compute_ops){cuda_linear, cuda_rms_norm, cuda_layer_norm, cuda_activate,
        cuda_gated_silu, cuda_gated_add, cuda_blend, cuda_guide, cuda_rope, cuda_attention,
        cuda_copy, cuda_transpose, cuda_patchify, cuda_unpatchify, cuda_group_norm, cuda_affine,
        cuda_conv2d, cuda_unpack};
    device_ops.compute = &ops;
    device_ops.stream_synchronize = synchronize;
    cuda.base.ops = &device_ops;
    cuda.base.traits.activation = DTYPE_BF16;
    cuda.sm = 80;
    cuda.processors = 4;
    cuda.shared_bytes = 99 << 10;
    cuda.workspace_bytes = 64 << 20;
    cuda.workspace = (device_addr)(uintptr_t)aligned_alloc(4096, 64 << 20);
    compute.base.device = &cuda.base;
    *device = &cuda.base;
    *stream = &compute.base;
    return true;
}

void gpu_device_close(struct device **device, struct stream **stream)
{
    free((void *)(uintptr_t)cuda.workspace);
    *device = NULL;
    *stream = NULL;
}

device_addr gpu_device_place(
    struct device *device, struct stream *stream, const void *bytes, size_t count, uint64_t *used)
{
    void *at;

    (void)device, (void)stream, (void)used;
    if (posix_memalign(&at, 4096, count)) return 0;
    memcpy(at, bytes, count);
    return (device_addr)(uintptr_t)at;
}

void gpu_device_collect(
    struct device *device, struct stream *stream, void *to, device_addr from, size_t count)
{
    (void)device, (void)stream;
    memcpy(to, (const void *)(uintptr_t)from, count);
}
