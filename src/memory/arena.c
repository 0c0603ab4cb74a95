/* The device arena. */
#include "memory/arena.h"

#include <assert.h>

enum shoal_status arena_open(
    struct arena *arena, struct device *device, uint64_t bytes, struct shoal_error *error)
{
    *arena = (struct arena){.device = device, .bytes = bytes};
    TRY(region_create(&arena->scratch, bytes, error));
    enum shoal_status status = device->ops->arena_reserve(device, bytes, error);
    if (status) region_destroy(&arena->scratch);
    return status;
}

enum shoal_status arena_open_at(struct arena *arena, struct device *device, device_addr memory,
    uint64_t bytes, struct shoal_error *error)
{
    assert(memory % 4096 == 0 && !device->arena);
    *arena = (struct arena){.device = device, .bytes = bytes, .lent = true};
    TRY(region_create(&arena->scratch, bytes, error));
    device->arena = memory;
    device->arena_bytes = bytes;
    return SHOAL_OK;
}

void arena_close(struct arena *arena)
{
    if (!arena->scratch) return;
    if (arena->lent)
        arena->device->arena = arena->device->arena_bytes = 0;
    else
        arena->device->ops->arena_release(arena->device);
    region_destroy(&arena->scratch);
}

device_addr arena_top(const struct arena *arena)
{
    return arena->device->arena + arena->bytes;
}

uint64_t arena_peak(struct arena *arena)
{
    uint64_t now = arena->bottom + region_high_water(arena->scratch);

    if (now > arena->peak) arena->peak = now;
    return arena->peak;
}

enum shoal_status arena_take(
    struct arena *arena, uint64_t bytes, device_addr *addr, struct shoal_error *error)
{
    uint64_t room = arena->bytes - arena->bottom - region_used(arena->scratch);

    assert(bytes % REGION_ALIGNMENT == 0);
    if (bytes > room)
        FAIL(error, SHOAL_E_BUDGET,
            "weights of %llu bytes do not fit: %llu bytes of the arena are left",
            (unsigned long long)bytes, (unsigned long long)room);
    *addr = arena->device->arena + arena->bottom;
    arena->bottom += bytes;
    region_set_capacity(arena->scratch, arena->bytes - arena->bottom);
    region_reset_high_water(arena->scratch);
    arena_peak(arena);
    if (arena->device->ops->arena_mark && bytes && !arena->lent)
        arena->device->ops->arena_mark(arena->device, *addr, bytes, true);
    return SHOAL_OK;
}

void arena_clear_bottom(struct arena *arena)
{
    arena_peak(arena);
    if (arena->device->ops->arena_mark && arena->bottom && !arena->lent)
        arena->device->ops->arena_mark(arena->device, arena->device->arena, arena->bottom, false);
    arena->bottom = 0;
    region_set_capacity(arena->scratch, arena->bytes);
    region_reset_high_water(arena->scratch);
}
