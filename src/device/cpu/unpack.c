/* Packed weights back to what they were: the wire's tiles, shared among the pool's workers. */
#include "device/check.h"
#include "device/cpu/internal.h"

#define GROUP_TILES 32 /* of one call: 64 KiB of 16-bit elements */

struct unpack_job {
    struct matrix y;
    const void *payload;
    struct wire_info info;
    int64_t tiles;
};

static void unpack_group(void *arg, int64_t index, int worker)
{
    const struct unpack_job *job = arg;
    int64_t first = index * GROUP_TILES, tiles = least(job->tiles - first, GROUP_TILES);
    int64_t tile_bytes = dtype_bytes(job->y.dtype, WIRE_TILE);

    (void)worker;
    wire_decode(job->payload, job->info, (uint64_t)first, (uint64_t)tiles,
        (char *)(uintptr_t)job->y.addr + first * tile_bytes);
}

void cpu_unpack(struct stream *stream, struct matrix y, device_addr payload, uint64_t payload_bytes)
{
    struct wire_info info = {y.dtype, (uint64_t)(y.rows * y.cols), payload_bytes};
    struct unpack_job job = {
        y, (const void *)(uintptr_t)payload, info, (int64_t)wire_tiles(info.count)};

    check_unpack(y, payload, payload_bytes);
    pool_run(
        cpu_device(stream->device)->pool, ceil_div(job.tiles, GROUP_TILES), unpack_group, &job);
}
