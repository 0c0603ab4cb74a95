/*
 * Packing while loading, widening and baking: which tensors of plain files are packed while they
 * are read (wire/wire.h), and how much room is kept for each. Told from a sample of each, a few
 * pages spread over it, and a margin: the same file gives the same rooms. A tensor that takes more
 * is found when it is packed.
 */
#ifndef MEMORY_PACKING_H
#define MEMORY_PACKING_H

#include "memory/cargo.h"

struct packing {
    struct cargo_room **rooms; /* by position in the pass; NULL: nothing of the block packs */
    int32_t count;
};

/* Which tensors of a pass's blocks are widened while they are read, the globals left out: those in
 * F8, unless the files hold payloads of any; and those of weights that are patched (NULL: none) are
 * baked. Reads nothing. */
enum shoal_status packing_init_widening(struct packing *packing, const struct model *model,
    const struct pass *pass, const struct patches *patches,
    struct shoal_error *error) SHOAL_CHECKED;

/* Reads the samples of a pass's blocks, the globals left out. If the files hold payloads of any,
 * nothing packs. */
enum shoal_status packing_init(struct packing *packing, const struct model *model,
    const struct pass *pass, struct shoal_error *error) SHOAL_CHECKED;
void packing_fini(struct packing *packing); /* accepts a zeroed one */

/* Of a position; NULL: it crosses as its files have it. */
static inline const struct cargo_room *packing_rooms(
    const struct packing *packing, int32_t position)
{
    return packing && packing->rooms ? packing->rooms[position] : NULL;
}

#endif
