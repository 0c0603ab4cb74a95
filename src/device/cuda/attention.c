/* Attention: which kernel does it, cuDNN's or one of ours. See kernels/attention.cu. */
#include "device/cuda/cudnn.h"
#include "device/cuda/internal.h"

#include <float.h>

struct variant {
    int64_t dim, columns, queries; /* of a head; of a head and of all queries, what a block has */
    uint32_t threads, shared_bytes;
    int32_t least_shared; /* that the card's blocks may have */
    bool biased;
    enum cuda_kernel bf16, f16;
};

#define VARIANT(X, name, dim, columns, tiles, warps, keys, card, biased)                           \
    {dim, columns, 16 * (tiles) * (warps), 32 * (warps),                                           \
        ATTENTION_SHARED(dim, tiles, warps, keys), (card)*1024, biased,                            \
        KERNEL_attention_bf16_##name, KERNEL_attention_f16_##name},

static const struct variant variants[] = {ATTENTION_SHAPES(VARIANT, )};

/* Of this type, which the card multiplies, and of sizes that 32 bits count. */
static bool fits(const struct cuda_device *cuda, struct matrix m, enum dtype dtype)
{
    return m.dtype == dtype && (dtype == DTYPE_F16 || (dtype == DTYPE_BF16 && cuda->sm >= 80)) &&
           m.rows <= INT32_MAX / 2 && m.stride <= ATTENTION_MOST_STRIDE;
}

/* The first for heads of `dim` columns that the card has room for, or NULL. */
static const struct variant *find(const struct cuda_device *cuda, int64_t dim, bool biased)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (variants[i].dim == dim && variants[i].biased == biased &&
            variants[i].least_shared <= cuda->shared_bytes)
            return &variants[i];
    return NULL;
}

/* Whether its rows start at multiples of so many bytes. */
static bool aligned(struct matrix m, uint64_t bytes)
{
    return m.addr % bytes == 0 && (uint64_t)m.stride * 2 % bytes == 0;
}

void cuda_attention(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *a)
{
    struct attention_any_args args = {
        .out = gpu_matrix(out),
        .q = gpu_matrix(q),
        .k = gpu_matrix(k),
        .v = gpu_matrix(v),
        .bias = gpu_matrix(a->bias),
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .scale = a->scale,
        .causal = a->causal,
        .aligned = aligned(out, 4) && aligned(q, 16) && aligned(k, 16) && aligned(v, 16),
    };
    const struct cuda_device *cuda = cuda_device(stream->device);
    const struct variant *variant = NULL;
    int64_t dim = q.cols / a->heads;
    struct cuda_grid grid = {0};

    check_attention(out, q, k, v, a);
    /* Keys that are hidden score -inf, which a scale must leave alone. */
    if (fits(cuda, out, q.dtype) && fits(cuda, q, q.dtype) && fits(cuda, k, q.dtype) &&
        fits(cuda, v, q.dtype) && a->scale >= FLT_MIN)
        variant = find(cuda, dim, a->bias.addr != 0);
    if (!variant) {
        grid.x = (uint32_t)ceil_div(q.rows, ATTENTION_ANY_WARPS);
        grid.y = (uint32_t)a->heads;
        grid.z = (uint32_t)ceil_div(dim, ATTENTION_ANY_COLUMNS);
        grid.threads = ATTENTION_ANY_WARPS * 32;
        cuda_launch(stream, KERNEL_attention_any, grid, &args);
        return;
    }
    if (!a->causal && !a->bias.addr &&
        cuda_cudnn_attend(stream, out, q, k, v, a->heads, a->kv_heads, a->scale))
        return;
    grid.x = (uint32_t)ceil_div(q.rows, variant->queries);
    /* Blocks start in this order: those that share keys and values do so in the cache as well. */
    grid.y = (uint32_t)(a->heads / a->kv_heads);
    grid.z = (uint32_t)(a->kv_heads * dim / variant->columns);
    grid.threads = variant->threads;
    grid.shared_bytes = variant->shared_bytes;
    cuda_launch(stream, q.dtype == DTYPE_BF16 ? variant->bf16 : variant->f16, grid, &args);
}
