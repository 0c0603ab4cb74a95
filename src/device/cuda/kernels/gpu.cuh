/*
 * What kernels are written with: numbers, loads and stores by type, reductions, matrix
 * instructions, asynchronous copies. Every kernel uses these and plain CUDA C, no PTX of its own,
 * so that tests can run kernels without a GPU: with SHOAL_EMULATE the same names come from
 * tests/cuda/emulate.h.
 *
 * A kernel is extern "C", named as in its module's list (rows.h: ROWS_KERNELS), and takes one
 * struct by value, which the host's side shares. Shared memory of a size known when it is launched
 * is SHARED_BYTES(name).
 */
#ifndef DEVICE_CUDA_KERNELS_GPU_CUH
#define DEVICE_CUDA_KERNELS_GPU_CUH

#include <stdint.h>

#ifdef SHOAL_EMULATE
#include "cuda/emulate.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__

#define SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]

#define WARP 32

/* ---- within a block ---- */

DEVICE void sync_threads()
{
    __syncthreads();
}

DEVICE void sync_warp()
{
    __syncwarp();
}

template <typename T> DEVICE T shuffle_xor(T value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

template <typename T> DEVICE T shuffle(T value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

/* From the lane `by` below; lanes < by get their own. */
template <typename T> DEVICE T shuffle_up(T value, int by)
{
    return __shfl_up_sync(0xffffffffu, value, by);
}

DEVICE uint32_t warp_ballot(bool predicate)
{
    return __ballot_sync(0xffffffffu, predicate);
}

DEVICE int count_bits(uint32_t x)
{
    return __popc(x);
}

/* Four bytes chosen from the eight of b:a by the selector's nibbles. */
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}

/* ---- arithmetic ---- */

/* Never fused with the sum or difference that it goes into, as compilers like to. */
DEVICE float rounded_product(float a, float b)
{
    return __fmul_rn(a, b);
}

DEVICE float fast_exp(float x) /* within 2 ulp or so */
{
    return __expf(x);
}

DEVICE float exp2_of(float x) /* the approximate instruction: 2 ulp, 0 for -inf */
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float reciprocal_root(float x)
{
    return rsqrtf(x);
}

DEVICE float reciprocal(float x) /* the approximate instruction: 1 ulp, 0 for inf */
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- numbers of 16 bits, as bits ---- */

DEVICE float bf16_as_float(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

/* Rounds to nearest, ties to even. */
DEVICE uint16_t float_as_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

DEVICE float f16_as_float(uint16_t x)
{
    return __half2float(__ushort_as_half(x));
}

/* An infinity becomes the largest number with its sign. (The instruction that converts so needs
 * sm_80.) */
DEVICE uint16_t finite_f16(uint16_t x)
{
    return (uint16_t)(x - ((x & 0x7fff) == 0x7c00));
}

/* Saturates: activations beyond +-65504 stay numbers. NaN stays NaN. */
DEVICE uint16_t float_as_f16(float x)
{
    return finite_f16(__half_as_ushort(__float2half_rn(x)));
}

/* Two at once, in one instruction: `low` in the lower half. */
DEVICE uint32_t floats_as_bf16(float low, float high)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);

    return __bfloat16_as_ushort(two.x) | (uint32_t)__bfloat16_as_ushort(two.y) << 16;
}

DEVICE uint32_t floats_as_f16(float low, float high)
{
    __half2 two = __floats2half2_rn(low, high);

    return finite_f16(__half_as_ushort(two.x)) | (uint32_t)finite_f16(__half_as_ushort(two.y))
                                                     << 16;
}

/* ---- matrix instructions: fragments as PTX lays them out (mma.m16n8k16) ---- */

/* d[16, 8] += a[16, 16] b[8, 16]^T, of BF16 or F16, in F32. sm_80 on. */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* sm_75 has it only 8 deep: two of those are the same sum in another order. */
DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

DEVICE uint32_t shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Four 8 x 8 matrices of 16-bit numbers; each lane gives the address of a row (16 bytes, aligned):
 * lanes 0-7 of the first matrix, 8-15 of the second, and so on. */
DEVICE void load_matrices(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

/* The same, each transposed. */
DEVICE void load_matrices_transposed(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

/* ---- asynchronous copies to shared memory: 16 bytes, both sides aligned to that ---- */

/* Zeros if not valid (then the source is not read). On sm_75 the copy is done at once. */
DEVICE void copy_async_16(void *shared, const void *global, bool valid)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)shared = valid ? *(const uint4 *)global : make_uint4(0, 0, 0, 0);
#endif
}

DEVICE void copy_async_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most `groups` of the latest are under way. Barrier afterwards to see others' copies. */
template <int groups> DEVICE void copy_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

#endif /* SHOAL_EMULATE */

/* ---- from here on alike on both ---- */

/* The element types of activations and plain weights, as the host's `enum dtype` numbers them. */
#define GPU_F32 0
#define GPU_F16 1
#define GPU_BF16 2

/* Element `index` of any of these types. */
DEVICE float load_float(const void *from, int64_t index, int dtype)
{
    if (dtype == GPU_F32) return ((const float *)from)[index];
    if (dtype == GPU_BF16) return bf16_as_float(((const uint16_t *)from)[index]);
    return f16_as_float(((const uint16_t *)from)[index]);
}

DEVICE void store_float(void *to, int64_t index, int dtype, float value)
{
    if (dtype == GPU_F32)
        ((float *)to)[index] = value;
    else
        ((uint16_t *)to)[index] = dtype == GPU_BF16 ? float_as_bf16(value) : float_as_f16(value);
}

DEVICE float warp_sum(float x)
{
    for (int mask = WARP / 2; mask; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

DEVICE float warp_max(float x)
{
    for (int mask = WARP / 2; mask; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

/* Over the block, a multiple of WARP threads; everybody gets it. `shared`: a float a warp. */
DEVICE float block_sum(float x, float *shared)
{
    int warps = blockDim.x / WARP;
    float sum = 0;

    x = warp_sum(x);
    sync_threads(); /* who reads what was in there has done so */
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    sync_threads();
    for (int i = 0; i < warps; i++)
        sum += shared[i];
    return sum;
}

#endif
