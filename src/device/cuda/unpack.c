/* Packed weights back to what they were: a warp for each of the wire's tiles. */
#include "device/cuda/internal.h"
#include "wire/layout.h"

_Static_assert(UNPACK_TILE == WIRE_TILE && UNPACK_TILES * 32 == UNPACK_THREADS, "a warp a tile");
_Static_assert(UNPACK_WORKS == UNPACK_TENSORS, "all at once");

static enum cuda_kernel kernel_of(const struct crossed *t)
{
    if (!t->packed) return KERNEL_unpack_plain;
    return t->y.dtype == DTYPE_BF16  ? KERNEL_unpack_bf16
           : t->y.dtype == DTYPE_F16 ? KERNEL_unpack_f16
                                     : KERNEL_unpack_e4m3;
}

/* Its work, for blocks from `first` on; returns the first block that is not its own. */
static int64_t add_work(struct unpack_works *works, const struct crossed *t, int64_t first)
{
    const uint64_t count = (uint64_t)(t->y.rows * t->y.cols);
    struct unpack_work *work = &works->list[works->count++];
    struct wire_layout layout;

    *work = (struct unpack_work){
        .payload = (const uint8_t *)(uintptr_t)t->from,
        .y = (uint8_t *)(uintptr_t)t->y.addr,
        .count = (int64_t)(t->packed ? count : t->bytes),
        .first_block = (uint32_t)first,
    };
    if (!t->packed) return first + ceil_div(work->count, UNPACK_PLAIN_BYTES);
    layout = layout_of(wire_kind_of(t->y.dtype), count);
    work->tiles = (int64_t)layout.tiles;
    work->records = (int64_t)layout.records;
    work->parts = (int64_t)layout.parts;
    work->parts_bytes = (int64_t)(t->bytes - layout.parts);
    return first + ceil_div(work->tiles, UNPACK_TILES);
}

void cuda_unpack(struct stream *stream, const struct crossed *tensors, int32_t count)
{
    static const enum cuda_kernel kernels[] = {
        KERNEL_unpack_bf16, KERNEL_unpack_f16, KERNEL_unpack_e4m3, KERNEL_unpack_plain};

    check_unpack(tensors, count);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        struct unpack_works works = {.count = 0};
        int64_t blocks = 0;

        for (int32_t i = 0; i < count; i++)
            if (kernel_of(&tensors[i]) == kernels[k])
                blocks = add_work(&works, &tensors[i], blocks);
        if (!works.count) continue;
        assert(blocks <= INT32_MAX);
        cuda_launch(stream, kernels[k],
            (struct cuda_grid){(uint32_t)blocks, 1, 1, UNPACK_THREADS,
                kernels[k] == KERNEL_unpack_plain ? 0 : UNPACK_SHARED_BYTES},
            &works);
    }
}
