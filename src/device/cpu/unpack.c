/* Packed weights back to what they were: the wire's tiles, shared among the pool's workers. */
#include "device/check.h"
#include "device/cpu/internal.h"

#include <string.h>

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

static void unpack_one(struct pool *pool, const struct crossed *t)
{
    const struct wire_info info = {t->y.dtype, (uint64_t)(t->y.rows * t->y.cols), t->bytes};
    struct unpack_job job = {
        t->y, (const void *)(uintptr_t)t->from, info, (int64_t)wire_tiles(info.count)};

    pool_run(pool, ceil_div(job.tiles, GROUP_TILES), unpack_group, &job);
}

void cpu_unpack(struct stream *stream, const struct crossed *tensors, int32_t count)
{
    struct pool *pool = cpu_device(stream->device)->pool;

    check_unpack(tensors, count);
    for (const struct crossed *t = tensors; t < tensors + count; t++)
        if (t->packed)
            unpack_one(pool, t);
        else
            memcpy((void *)(uintptr_t)t->y.addr, (const void *)(uintptr_t)t->from, t->bytes);
}
