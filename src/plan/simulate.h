/*
 * Predicting a phase's time: the disk, the link and the arithmetic as queues that wait for each
 * other, block by block.
 *
 *     disk --> staging ring --> link --> weight ring --> arithmetic
 *         \--> image in RAM --/     \--> resident
 *
 * Everything goes in visit order, walk after walk, and each queue runs ahead as far as there is
 * room: the disk by the staging ring, the link by the weight ring, whose placement is the real one
 * (base/ring.h). The chunks of a block are not followed one by one but as a flow, with the first
 * and the last chunk's delay added.
 */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include "plan/planner.h"

/* The form in which a block crosses the link and lies on the device. */
static inline const struct plan_form *simulate_form(
    const struct plan_block_input *block, struct plan_placement placement)
{
    return placement.packed ? &block->packed : &block->raw;
}

/* What is read for it, the first time. */
static inline uint64_t simulate_first_read(
    const struct plan_block_input *block, enum plan_source source)
{
    if (source == PLAN_SOURCE_RAW || !block->packed.bytes) return block->raw.host_bytes;
    return block->packed.host_bytes;
}

/* The phase is laid out: placements, bytes, compute_seconds. Fills its walk_seconds,
 * first_walk_seconds, seconds and limit. */
void simulate(const struct plan_input *in, const struct rates *rates, struct plan_phase *phase);

/* A bound below what simulate will find for phase->seconds, at a small part of its cost. */
double simulate_bound(
    const struct plan_input *in, const struct rates *rates, const struct plan_phase *phase);

#endif
