/* Packed weights back to what they were: a warp for each of the wire's tiles. */
#include "device/cuda/internal.h"
#include "wire/layout.h"

_Static_assert(UNPACK_TILE == WIRE_TILE && UNPACK_TILES * 32 == UNPACK_THREADS, "a warp a tile");

void cuda_unpack(
    struct stream *stream, struct matrix y, device_addr payload, uint64_t payload_bytes)
{
    uint64_t count = (uint64_t)(y.rows * y.cols);
    struct wire_layout layout = layout_of(wire_kind_of(y.dtype), count);
    struct unpack_work work = {
        .payload = (const uint8_t *)(uintptr_t)payload,
        .y = (uint8_t *)(uintptr_t)y.addr,
        .count = (int64_t)count,
        .tiles = (int64_t)layout.tiles,
        .records = (int64_t)layout.records,
        .parts = (int64_t)layout.parts,
        .parts_bytes = (int64_t)(payload_bytes - layout.parts),
    };
    struct cuda_grid grid = {
        (uint32_t)ceil_div(work.tiles, UNPACK_TILES), 1, 1, UNPACK_THREADS, UNPACK_SHARED_BYTES};

    check_unpack(y, payload, payload_bytes);
    cuda_launch(stream,
        y.dtype == DTYPE_BF16  ? KERNEL_unpack_bf16
        : y.dtype == DTYPE_F16 ? KERNEL_unpack_f16
                               : KERNEL_unpack_e4m3,
        grid, &work);
}
