/*
 * Schedules: the noise levels a run passes through. Pure arithmetic. The model's own
 * is bit for bit what diffusers' FlowMatchEulerDiscreteScheduler holds when ZImagePipeline has set
 * it up; the others are those that ComfyUI's users know, calculated as there. Not a sampler: see
 * sampler.h.
 */
#ifndef SAMPLING_SCHEDULE_H
#define SAMPLING_SCHEDULE_H

#include "base/error.h"

#define SCHEDULE_MAX_STEPS 1000
#define SCHEDULE_MAX_MU 7.0 /* and the least is -7 */

/*
 * How a model lays noise over pictures, and which levels it knows. Flow matching blends the two,
 * x = (1 - sigma) picture + sigma noise, at levels up to 1. EDM adds noise, x = picture + sigma
 * noise, at levels from 80 down to 0.002; a model of flow matching that is sampled so (RFlow) is
 * shown x / (1 + sigma), which is the blend at the level sigma / (1 + sigma).
 */
struct noise_levels {
    bool edm;
    double shift;  /* of flow matching */
    int32_t table; /* how many levels schedules choose among; 0: 1000 */
    /* For the model's own schedule alone: */
    bool dynamic; /* the shift is e^mu, rounded as diffusers' dynamic shifting rounds it (a
                     scheduler with use_dynamic_shifting, time_shift_type "exponential") */
    double mu;
    double terminal; /* the last level above 0, to which all are stretched; 0: as they are */
};

struct schedule {
    int32_t steps;
    bool edm;
    float sigmas[SCHEDULE_MAX_STEPS + 2]; /* from the highest down; sigmas[steps] is 0 */
    float blends[SCHEDULE_MAX_STEPS + 1]; /* the same as levels of a blend: what a model is told */
};

/* A way to choose noise levels. */
struct schedule_kind {
    const char *name, *about;
    /* The `count` levels above 0. */
    void (*fill)(float *sigmas, int32_t count, const struct noise_levels *levels);
};

#define SCHEDULE_COUNT 6

/* The first one is the default: the model's own. */
extern const struct schedule_kind *const schedules[SCHEDULE_COUNT];

/* The one called `name`; NULL is the default. Static storage. */
enum shoal_status schedule_find(
    const char *name, const struct schedule_kind **kind, struct shoal_error *error) SHOAL_CHECKED;

/*
 * `skips`: of one step more, without the last level above 0 (see sampler.h). Refuses a count for
 * which two levels would be the same.
 */
enum shoal_status schedule_make(const struct schedule_kind *kind, int32_t steps,
    const struct noise_levels *levels, bool skips, struct schedule *schedule,
    struct shoal_error *error) SHOAL_CHECKED;

/* Keeps the last `steps` steps of it. */
void schedule_keep_last(struct schedule *schedule, int32_t steps);

/* The model's own: sigma = shift t / (1 + (shift - 1) t), t falling evenly from 1 to 1 / steps; of
 * EDM karras's. */
extern const struct schedule_kind schedule_model;

/* Its levels in EDM: even in sigma^(1 / 7) (Karras et al. 2022, arXiv 2206.00364). */
void schedule_fill_karras(float *sigmas, int32_t count, const struct noise_levels *levels);

/* Where mu comes from: a line through (base_tokens, base_shift) and (max_tokens, max_shift). */
double schedule_mu(
    int64_t tokens, int64_t base_tokens, int64_t max_tokens, double base_shift, double max_shift);

#endif
