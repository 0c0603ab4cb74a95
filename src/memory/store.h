/*
 * The block store: the host side of a model's blocks. This is the RAM tier: one page-aligned slab a
 * block, with every weight at the offset it has on the device, so that a block is one copy.
 */
#ifndef MEMORY_STORE_H
#define MEMORY_STORE_H

#include "base/error.h"
#include "models/model.h"

struct store;

/* Takes no memory for weights yet. The model must outlive it. */
enum shoal_status store_create(
    struct store **store, const struct model *model, struct shoal_error *error) SHOAL_CHECKED;
void store_destroy(struct store **store);

/*
 * One mapping for the blocks loaded from now on that fit in `bytes` (each rounded up to pages), so
 * that large pages can serve it. Once.
 */
enum shoal_status store_reserve(
    struct store *store, uint64_t bytes, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Reads block `index` into its slab, if it is not there. SHOAL_E_NUMERIC names a tensor that holds
 * NaN or infinity: no picture comes of it, and finding out here costs nothing beside the read.
 */
enum shoal_status store_load(
    struct store *store, int32_t index, struct shoal_error *error) SHOAL_CHECKED;
const void *store_slab(const struct store *store, int32_t index); /* loaded ones only */
void store_drop(struct store *store, int32_t index);

uint64_t store_peak_bytes(const struct store *store); /* of all slabs at once */

#endif
