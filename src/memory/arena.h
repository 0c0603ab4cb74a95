/*
 * The device arena: weights from the bottom, scratch from the top, and the highest sum of both.
 *
 *     base                                                              base + bytes
 *      | globals | residents | weight ring |   ...free...   | activations, scratch |
 *      |------------- bottom ------------->                 <------- region -------|
 *
 * Scratch is anchored at the top so that what survives a phase (latents, conditioning) keeps its
 * address while the weights of the next phase take another extent at the bottom.
 */
#ifndef MEMORY_ARENA_H
#define MEMORY_ARENA_H

#include "base/region.h"
#include "device/device.h"

struct arena {
    struct device *device;
    struct region *scratch; /* offsets count down from the top */
    uint64_t bytes, bottom, peak;
    bool lent; /* the memory is somebody else's */
};

/* Reserves `bytes` on the device. */
enum shoal_status arena_open(struct arena *arena, struct device *device, uint64_t bytes,
    struct shoal_error *error) SHOAL_CHECKED;
/* Of memory that the device can use already: at a multiple of 4096, until the arena is closed. */
enum shoal_status arena_open_at(struct arena *arena, struct device *device, device_addr memory,
    uint64_t bytes, struct shoal_error *error) SHOAL_CHECKED;
void arena_close(struct arena *arena);

device_addr arena_top(const struct arena *arena);

/* The next `bytes` (a multiple of REGION_ALIGNMENT) at the bottom. SHOAL_E_BUDGET if scratch is in
 * the way. */
enum shoal_status arena_take(struct arena *arena, uint64_t bytes, device_addr *addr,
    struct shoal_error *error) SHOAL_CHECKED;
/* Gives back the whole bottom: the phase is over. */
void arena_clear_bottom(struct arena *arena);

/* Folds the scratch high-water mark into the peak and returns it: what was really used at most. */
uint64_t arena_peak(struct arena *arena);

#endif
