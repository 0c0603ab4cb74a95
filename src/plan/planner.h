/*
 * The planner: sizes and budgets in, plan out. Pure arithmetic: no files, no device, no model.
 *
 * A run is a sequence of phases that share one arena. In each, scratch and globals are given, and
 * what the budget leaves goes to resident blocks and to the ring that the others stream through.
 */
#ifndef PLAN_PLANNER_H
#define PLAN_PLANNER_H

#include "base/error.h"

#define PLAN_MAX_PHASES 8

/* What a phase needs, as the counting device found it. Weight sizes are multiples of
 * REGION_ALIGNMENT. */
struct plan_input {
    const char *name;
    int32_t block_count;
    const uint64_t *block_bytes;
    uint64_t globals_bytes; /* weights that stay on the device for the whole phase */
    uint64_t scratch_bytes; /* high-water mark, what earlier phases left included */
    bool main; /* the DiT's steps: the options below speak of this phase; others are always
                  automatic */
};

struct plan_limits {
    uint64_t vram_bytes, ram_bytes; /* SHOAL_UNLIMITED */
    int32_t resident_blocks;        /* SHOAL_AUTO */
    int32_t prefetch_slots;         /* 2..6, SHOAL_AUTO */
    enum shoal_buffer buffer;
};

#define PLAN_MAX_SLOTS 6

struct plan_phase {
    const char *name;
    bool *resident; /* [block_count]; owned by the solution */
    int32_t block_count, resident_count;
    int32_t slots; /* 0: nothing streams; 1: single buffer */
    uint64_t globals_bytes, resident_bytes, ring_bytes, scratch_bytes;
    uint64_t peak_bytes;   /* the sum of the four above */
    uint64_t stream_bytes; /* copied in one walk over the blocks */
    uint64_t
        ram_bytes; /* slabs, in pages: all streamed blocks, or the largest that passes through */
    uint64_t least_bytes;     /* the least peak that the limits' other options allow */
    uint64_t full_bytes;      /* the least peak with which nothing streams */
    uint64_t least_ram_bytes; /* the least RAM among plans within the device budget */
};

struct plan_solution {
    struct plan_phase phases[PLAN_MAX_PHASES];
    int32_t phase_count;
    bool fits; /* peak_bytes is within the budget, ram_bytes too */
    bool fits_ram;
    uint64_t peak_bytes; /* of the arena: the highest phase */
    uint64_t ram_bytes;
    uint64_t least_ram_bytes;         /* the least RAM budget that works under the device budget */
    uint64_t least_bytes, full_bytes; /* least budgets: that works; with which nothing streams */
};

/*
 * SHOAL_E_INVALID for options that contradict each other or the model. A budget that is too small
 * is no error: fits is then false and the phases hold the least plan.
 */
enum shoal_status planner_solve(const struct plan_input *inputs, int32_t count,
    const struct plan_limits *limits, struct plan_solution *solution,
    struct shoal_error *error) SHOAL_CHECKED;
void planner_release(struct plan_solution *solution); /* accepts a zeroed one */

#endif
