/*
 * A region: first-fit allocation of offsets in a byte range, for scratch and activations.
 *
 * It hands out numbers, not memory, so that the counting device and a real one replay the same
 * allocations and agree on the high-water mark to the byte. First fit from offset 0 makes the
 * answers independent of the region's size: what fits in the high-water mark of one run fits again.
 */
#ifndef BASE_REGION_H
#define BASE_REGION_H

#include "base/error.h"

#define REGION_ALIGNMENT 256

struct region;

/* `capacity` bytes can be handed out; SHOAL_UNLIMITED to measure. Destroy sets *region to NULL. */
enum shoal_status region_create(
    struct region **region, uint64_t capacity, struct shoal_error *error) SHOAL_CHECKED;
void region_destroy(struct region **region);

/* Offset of `bytes` bytes, a multiple of REGION_ALIGNMENT. SHOAL_E_BUDGET when it does not fit. */
enum shoal_status region_alloc(struct region *region, uint64_t bytes, uint64_t *offset,
    struct shoal_error *error) SHOAL_CHECKED;
void region_free(struct region *region, uint64_t offset);
/* Where the live span at `offset` would be had it been freed and allocated again. */
uint64_t region_lowest(const struct region *region, uint64_t offset);

/* The highest end ever handed out since creation or the last reset. */
uint64_t region_high_water(const struct region *region);
/* Sets the mark to the end of what is in use now. */
void region_reset_high_water(struct region *region);
/* Changes the capacity; what is in use must lie below it. */
void region_set_capacity(struct region *region, uint64_t capacity);
uint64_t region_used(const struct region *region); /* end of the highest live span */

#endif
