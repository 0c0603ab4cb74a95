/*
 * The planner: sizes, budgets and rates in, plan out. Pure arithmetic: no files, no device, no
 * model.
 *
 * A run is a sequence of phases that share one arena. In each, scratch and globals are given; what
 * the budgets leave goes to resident blocks, to the ring that the others stream through, and in
 * host memory to the blocks that wait there. What does not fit waits on disk. Of all plans within
 * the budgets, the one that is predicted to take the least time is chosen (plan/simulate.h).
 */
#ifndef PLAN_PLANNER_H
#define PLAN_PLANNER_H

#include "plan/rates.h"

#define PLAN_MAX_PHASES 8
#define PLAN_MAX_SLOTS 6

/* The disk is read in pieces of so many bytes, each of which takes so much more in the staging
 * ring, because it begins and ends on a page. */
#define PLAN_CHUNK_BYTES (1u << 20)
#define PLAN_CHUNK_SLOP_BYTES 0
#define PLAN_LEAST_CHUNKS 2    /* in the staging ring: one is read while one is copied */
#define PLAN_DEFAULT_CHUNKS 16 /* enough under way to keep a drive busy */

/* Weights in one form. A form that a block does not have is all 0. */
struct plan_form {
    uint64_t bytes;      /* on the device, and over the link; a multiple of REGION_ALIGNMENT */
    uint64_t host_bytes; /* its image in host memory, in whole pages; as many are read for it, if
                            the files hold this form */
};

struct plan_block_input {
    struct plan_form raw, packed;
    uint64_t unpacked_bytes; /* of the working buffer that the packed form is unpacked to */
    uint64_t crossing_bytes; /* of what crosses the ring for a resident in the raw form, which is
                                made of it there; 0: that form itself crosses, or the packed one */
    double patch_seconds;    /* of adapters, beside unpacking: each time that it is opened */
    double compute_seconds;  /* one walk, all its lanes; without unpacking */
};

/* What opening the packed form takes, or the one time that the raw form is made of what crosses. */
static inline double plan_open_seconds(
    const struct plan_block_input *block, const struct rates *rates)
{
    return (double)block->unpacked_bytes / rates->unpack_bytes + block->patch_seconds;
}

/* What the files hold, and so what can be read again in every walk. */
enum plan_source {
    /* Raw. A packed form is packed by us while it is read the first time: it can wait in RAM and
     * lie on the device, but not on disk. With wire auto it makes plans faster, but no budget
     * smaller: so the least ones do not depend on whether anybody has looked what packs. */
    PLAN_SOURCE_RAW,
    /* Packed. The raw form cannot stream, but a block can be unpacked once to be resident. */
    PLAN_SOURCE_PACKED,
};

/* What a phase needs, as the counting device found it. */
struct plan_input {
    const char *name;
    int32_t block_count;
    const struct plan_block_input *blocks;
    struct plan_form globals;        /* weights that stay on the device for the whole phase */
    uint64_t globals_crossing_bytes; /* as of blocks: of what crosses the ring for them */
    uint64_t scratch_bytes;          /* high-water mark, what earlier phases left included */
    int64_t walks; /* over the blocks, in the whole run; with 1, nothing needs to wait in RAM */
    enum plan_source source;
    bool patched; /* adapters are applied on the device to what plain files hold: such blocks have
                     packed forms, which are what streams, whatever `wire` says */
    bool main;    /* the DiT's steps: residents, slots and buffer below speak of this phase; in the
                     others they are always automatic */
};

struct plan_limits {
    uint64_t vram_bytes, ram_bytes; /* SHOAL_UNLIMITED */
    uint64_t process_bytes;         /* host memory beside the weights: charged to ram_bytes */
    uint64_t context_bytes;         /* device memory beside the arena: charged to vram_bytes */
    int32_t resident_blocks;        /* SHOAL_AUTO */
    int32_t prefetch_slots;         /* 2..6, SHOAL_AUTO */
    enum shoal_buffer buffer;
    enum shoal_wire wire;
    bool widened;    /* the packed form of plain files is weights widened to 16 bits, which what
                        streams crosses as, whatever `wire` says */
    bool all_staged; /* what waits in host memory goes through the staging ring too */
    const struct rates *rates;
};

struct plan_placement {
    bool resident;
    bool packed; /* crosses packed; and if it is resident, lies packed too */
    bool disk;   /* streams, and is read again in every walk; else its host image stays in RAM */
};

/* What a phase waits for most of its time. */
enum plan_limit { PLAN_LIMIT_COMPUTE, PLAN_LIMIT_LINK, PLAN_LIMIT_DISK };

struct plan_phase {
    const char *name;
    struct plan_placement *blocks; /* [block_count]; owned by the solution */
    int32_t block_count, resident_count, packed_count, disk_count;
    bool packs;    /* the packed ones are packed by us */
    bool patched;  /* the packed ones are patched: see struct plan_input */
    int32_t slots; /* 0: nothing streams; 1: single buffer */

    /* On the device. */
    uint64_t globals_bytes, resident_bytes, ring_bytes, unpack_bytes, scratch_bytes;
    uint64_t peak_bytes; /* the sum of the five above */

    /* What moves. */
    uint64_t stream_bytes;     /* over the link, in a walk after the first */
    uint64_t disk_bytes;       /* read, in a walk after the first */
    uint64_t first_disk_bytes; /* read, in the first walk, globals included: everything */

    /* In host memory. */
    uint64_t staging_bytes, tier_bytes;
    uint64_t packing_bytes; /* the image of a resident that is packed while it is read */
    uint64_t ram_bytes;     /* the sum of the three above */

    /* Predicted. */
    double compute_seconds;    /* a walk, unpacking included, if nothing made it wait */
    double unpack_seconds;     /* of those, unpacking */
    double first_walk_seconds; /* loading included */
    double walk_seconds;       /* a walk after the first; of the first, if it is the only one */
    double seconds;            /* all walks */
    enum plan_limit limit;

    uint64_t least_bytes; /* the least peak that the limits' other options allow */
    uint64_t full_bytes;  /* the least peak with which nothing streams and nothing is unpacked */
    uint64_t least_ram_bytes; /* the least ram_bytes within the device budget; SHOAL_UNLIMITED if
                                 nothing fits that */
};

struct plan_solution {
    struct plan_phase phases[PLAN_MAX_PHASES];
    int32_t phase_count;
    bool fits; /* peak_bytes is within the budget, ram_bytes too */
    bool fits_ram;
    /* It does not fit because wire raw was asked for: the files hold packed weights, which cannot
     * stream raw. */
    bool needs_packed;
    uint64_t arena_bytes;     /* the highest phase */
    uint64_t peak_bytes;      /* on the device: the arena and what is beside it */
    uint64_t ram_bytes;       /* of the process: the highest phase, and what is beside it */
    uint64_t least_bytes;     /* the least device budget that works; SHOAL_UNLIMITED if none does */
    uint64_t full_bytes;      /* with which nothing streams and nothing is unpacked */
    uint64_t least_ram_bytes; /* the least RAM budget that works under the device budget */
    double seconds;           /* predicted, all phases */
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
