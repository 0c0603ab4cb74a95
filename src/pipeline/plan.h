/* A plan: a job, what the counting device found, and the planner's answer. */
#ifndef PIPELINE_PLAN_H
#define PIPELINE_PLAN_H

#include "base/text.h"
#include "memory/packing.h"
#include "pipeline/adapters.h"
#include "pipeline/job.h"
#include "pipeline/target.h"
#include "plan/planner.h"
#include "plan/rates.h"
#include "stream/streamer.h"

/* One phase as counted, for all its walks of one step or picture. */
struct phase_count {
    uint64_t scratch_bytes;
    int32_t strip_blocks;   /* of decoding: see struct vae_lane */
    uint64_t largest_bytes; /* this too */
    uint64_t operations,
        traffic;         /* all lanes; of one step for the steps, of all pictures for decode */
    struct work *blocks; /* [pass->count]: of one walk; what lies between walks is the last one's */
};

#define PLAN_MAX_RUNGS 24 /* more than a VAE's blocks can choose */

/* Limits of struct vae_lane, each of which makes decoding take less than the one before it. */
struct rungs {
    uint64_t whole_bytes[PLAN_MAX_RUNGS];
    int32_t count;
    uint64_t scratch_bytes, operations; /* of decoding by the first one, if there are others */
};

/* Host memory for everything but weights. */
struct process_memory {
    uint64_t bytes;
    const char *largest_path; /* the model's file whose reading takes most of it; the model's own */
    uint64_t largest_bytes;
};

struct shoal_plan {
    struct job job;
    struct request_adapters adapters;
    int32_t lanes; /* that share a walk */
    struct rungs rungs;
    uint64_t whole_bytes; /* the rung that was chosen */
    struct phase_count counts[SHOAL_PHASES];
    struct rates rates;
    struct target target;
    bool whole_card;                /* no --vram was given: all that the target has is allowed */
    bool capped;                    /* more was given than the card has free */
    bool names_rates, names_device; /* the request, beside another machine: both for nothing */
    /* Whether blocks of plain files may be packed while they are read; then of the phases that walk
     * more than once, what of each. */
    bool may_pack, sampled[SHOAL_PHASES];
    bool expects_copies; /* that are not there: it cannot be run */
    struct packing packings[SHOAL_PHASES];
    double more_vram_seconds, more_ram_seconds; /* of the steps with 1 GiB more; 0: no matter */
    struct process_memory process;
    struct plan_solution solution;
    /* Over all choices of lanes that the request allows: */
    uint64_t least_bytes, full_bytes, least_ram_bytes;
    char *text, *json;
    char *refusal; /* why it must not run, in a sentence; NULL: it may */
};

/* The device that a request is for, and the rates that its plans go by: of another machine, of a
 * file, as measured, or guessed. */
enum shoal_status plan_target(const struct shoal_request *request, struct target *target,
    struct rates *rates, struct shoal_error *error) SHOAL_CHECKED;

/* Lowers a budget to what the target has: all of it, if there is none, or no more than it. */
void plan_cap_vram(
    const struct target *target, uint64_t *vram_bytes, bool *whole_card, bool *capped);

/* The plan of the same request by the same rates, with raw weights. */
enum shoal_status plan_again_raw(const struct shoal_plan *plan, struct shoal_plan **again,
    struct shoal_error *error) SHOAL_CHECKED;

/* Fills what the job takes. */
void plan_process(const struct job *job, const struct target *target, uint64_t adapter_bytes,
    struct process_memory *memory);

/* Parts of that, for who has no job: the program with its threads, and the lists by which a model's
 * weights travel. */
uint64_t plan_program_bytes(const struct target *target, int threads);
uint64_t plan_list_bytes(const struct model *model);

/* Whether weights in F8 wait in host memory as BF16, and those that adapters change patched, and
 * cross so. */
bool plan_widens(const struct shoal_plan *plan);

/* What the planner is told of a block: the forms that its file allows, or with `rooms` (NULL: none)
 * that it can be packed to while it is read. Without adapters. */
enum shoal_status plan_block_forms(const struct block *block, const struct cargo_room *rooms,
    struct plan_block_input *input, struct shoal_error *error) SHOAL_CHECKED;

/* The same of a phase as counted, adapters included: fills blocks[0 .. its pass's count - 1] and
 * `input`. Looks what of it packs, once. */
enum shoal_status plan_phase_input(struct shoal_plan *plan, enum shoal_phase phase, int32_t lanes,
    const struct phase_count *count, struct plan_block_input *blocks, struct plan_input *input,
    struct shoal_error *error) SHOAL_CHECKED;

/* Of a machine's rates, those of a run: what packs while it loads has a part of the cores only, and
 * a card copies as fast as what it copies from allows. */
struct rates plan_running_rates(
    const struct rates *rates, const struct target *target, enum shoal_pin pin, int threads);

/* Those of the settings of the ring that are not left to the plan, as a sentence about them begins:
 * "--buffer has"; NULL: neither is. */
const char *plan_ring_options(int32_t prefetch_slots, enum shoal_buffer buffer);

/* Why a budget will not do, and what would. `all`: it is all that the target has. */
void plan_refuse_vram(struct text *text, const struct target *target, bool all, uint64_t vram_bytes,
    uint64_t least_bytes);
void plan_refuse_ram(struct text *text, uint64_t ram_bytes, uint64_t least_bytes);
/* What else would do where blocks pack while they are read. */
void plan_refuse_packs(struct text *text);

/* SHOAL_E_BUDGET, with all of that, if a solution of one phase does not fit. */
enum shoal_status plan_check_fits(const struct plan_solution *solution, const struct target *target,
    bool all, uint64_t vram_bytes, uint64_t ram_bytes, struct shoal_error *error) SHOAL_CHECKED;

/* A phase's blocks as the streamer has them: places[block_count]. */
void plan_places(const struct plan_phase *phase, struct streamer_place *places);

/* Fills the plan's texts. */
enum shoal_status plan_explain(struct shoal_plan *plan, struct shoal_error *error) SHOAL_CHECKED;

#endif
