/*
 * Samplers: how a run goes from one noise level to the next. A sampler is pure arithmetic: of each
 * call of the model it says at which level that is, and what is then made of the latent, the answer
 * and what it keeps from call to call, as moves from one of them to another. Whoever holds them
 * makes the moves, on the device. So a sampler has no state of its own, and its results depend on
 * nothing but the schedule, the answers and the noise.
 *
 * x is the latent, v = d x / d sigma the model's answer, and x - sigma v the picture that it sees.
 */
#ifndef SAMPLING_SAMPLER_H
#define SAMPLING_SAMPLER_H

#include "sampling/schedule.h"

enum sampler_slot {
    SAMPLER_LATENT, /* what the model is shown; in the end the result */
    SAMPLER_ANSWER, /* what it says; overwritten by the next call */
    SAMPLER_NOISE,  /* normal noise, drawn anew for each call that draws */
    SAMPLER_KEPT,   /* the first of those that the sampler keeps between calls */
    SAMPLER_MOST_KEPT = 4,
    SAMPLER_SLOTS = SAMPLER_KEPT + SAMPLER_MOST_KEPT,
};

/* to = add from + keep to. With keep 0 and add 1 it is a copy: `to` need not hold numbers. */
struct sampler_move {
    enum sampler_slot to, from;
    float add, keep;
};

#define SAMPLER_MOST_MOVES 12

/* A call of the model, and what is made of its answer. */
struct sampler_call {
    int32_t level; /* of the schedule, that the model is told */
    bool draws;    /* noise */
    int32_t count;
    struct sampler_move moves[SAMPLER_MOST_MOVES];
};

struct sampler {
    const char *name, *about;
    int32_t calls_a_step; /* of all but the last step, which ends with its first call */
    int32_t kept;         /* slots */
    bool noisy;           /* some calls draw */
    bool skips;           /* the last level above 0, of a schedule of one step more */
    /* *call comes zeroed. */
    void (*call)(const struct schedule *schedule, int32_t index, struct sampler_call *call);
};

extern const struct sampler sampler_euler, sampler_euler_ancestral, sampler_heun, sampler_dpmpp_2m,
    sampler_uni_pc, sampler_uni_pc_bh2;

#define SAMPLER_COUNT 6

/* The first one is the default. */
extern const struct sampler *const samplers[SAMPLER_COUNT];

/* The sampler called `name`; NULL is the default. Static storage. */
enum shoal_status sampler_find(
    const char *name, const struct sampler **sampler, struct shoal_error *error) SHOAL_CHECKED;

/* How often a run of `steps` steps calls the model. */
static inline int32_t sampler_calls(const struct sampler *sampler, int32_t steps)
{
    return sampler->calls_a_step * (steps - 1) + 1;
}

/* Call `index` of a run. */
struct sampler_call sampler_call_at(
    const struct sampler *sampler, const struct schedule *schedule, int32_t index);

/* For samplers: one move more. */
void sampler_move(struct sampler_call *call, enum sampler_slot to, double add,
    enum sampler_slot from, double keep);
void sampler_copy(struct sampler_call *call, enum sampler_slot to, enum sampler_slot from);

#endif
