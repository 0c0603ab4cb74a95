/*
 * Flow-matching schedules: the noise levels a run passes through. Pure arithmetic. The model's own
 * is bit for bit what diffusers' FlowMatchEulerDiscreteScheduler holds when ZImagePipeline has set
 * it up; the others are those that ComfyUI's users know, calculated as there. Not a sampler: see
 * sampler.h.
 */
#ifndef SAMPLING_SCHEDULE_H
#define SAMPLING_SCHEDULE_H

#include "base/error.h"

#define SCHEDULE_MAX_STEPS 1000

struct schedule {
    int32_t steps;
    float sigmas[SCHEDULE_MAX_STEPS + 2]; /* from 1 (all noise) down; sigmas[steps] is 0 */
};

/* A way to choose noise levels. */
struct schedule_kind {
    const char *name, *about;
    /* The `count` levels above 0 of a shift. */
    void (*fill)(float *sigmas, int32_t count, double shift);
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
enum shoal_status schedule_make(const struct schedule_kind *kind, int32_t steps, double shift,
    bool skips, struct schedule *schedule, struct shoal_error *error) SHOAL_CHECKED;

/* Keeps the last `steps` steps of it. */
void schedule_keep_last(struct schedule *schedule, int32_t steps);

extern const struct schedule_kind schedule_model;

/* The model's own: sigma = shift t / (1 + (shift - 1) t), t falling evenly from 1 to 1 / steps. */
enum shoal_status schedule_init(struct schedule *schedule, int32_t steps, double shift,
    struct shoal_error *error) SHOAL_CHECKED;

/*
 * The same with shift = e^mu, rounded as diffusers' dynamic shifting rounds it (a scheduler with
 * use_dynamic_shifting, time_shift_type "exponential").
 */
enum shoal_status schedule_init_dynamic(
    struct schedule *schedule, int32_t steps, double mu, struct shoal_error *error) SHOAL_CHECKED;

/* Where mu comes from: a line through (base_tokens, base_shift) and (max_tokens, max_shift). */
double schedule_mu(
    int64_t tokens, int64_t base_tokens, int64_t max_tokens, double base_shift, double max_shift);

#endif
