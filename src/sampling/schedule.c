/*
 * Flow-matching schedules. Every rounding to single precision, and every fused step, is the
 * reference's own, so that the last bit of a picture can be compared; this file must be compiled
 * without contraction of a * b + c (-ffp-contract=off).
 */
#include "sampling/schedule.h"

#include <math.h>

#define TRAIN_TIMESTEPS 1000.0f

/* Value i of torch.linspace(1, 1 / steps, steps): from both ends towards the middle. */
static float even_time(int32_t i, int32_t steps)
{
    float last = (float)(1.0 / steps);
    float step;

    if (steps == 1) return 1;
    step = (last - 1) / (float)(steps - 1);
    if (i < steps / 2) return fmaf(step, (float)i, 1);
    return fmaf(-step, (float)(steps - i - 1), last);
}

static enum shoal_status check_steps(int32_t steps, struct shoal_error *error)
{
    if (steps < 1 || steps > SCHEDULE_MAX_STEPS)
        FAIL(error, SHOAL_E_INVALID, "steps is %d; it must be from 1 to %d", steps,
            SCHEDULE_MAX_STEPS);
    return SHOAL_OK;
}

static void finish(struct schedule *schedule, int32_t steps)
{
    schedule->steps = steps;
    schedule->sigmas[steps] = 0;
    for (int32_t i = 0; i < steps; i++) {
        float timestep = schedule->sigmas[i] * TRAIN_TIMESTEPS;

        schedule->times[i] = (TRAIN_TIMESTEPS - timestep) / TRAIN_TIMESTEPS;
    }
}

enum shoal_status schedule_init(
    struct schedule *schedule, int32_t steps, double shift, struct shoal_error *error)
{
    float scale = (float)shift, excess = (float)(shift - 1);

    TRY(check_steps(steps, error));
    if (!(shift >= 1e-3 && shift <= 1e3))
        FAIL(error, SHOAL_E_INVALID, "shift is %g; it must be from 0.001 to 1000", shift);
    for (int32_t i = 0; i < steps; i++) {
        float t = even_time(i, steps);

        schedule->sigmas[i] = scale * t / (1 + excess * t);
    }
    finish(schedule, steps);
    return SHOAL_OK;
}

enum shoal_status schedule_init_dynamic(
    struct schedule *schedule, int32_t steps, double mu, struct shoal_error *error)
{
    float shift = (float)exp(mu);

    TRY(check_steps(steps, error));
    if (!(mu >= -7 && mu <= 7))
        FAIL(error, SHOAL_E_INVALID, "mu is %g; it must be from -7 to 7", mu);
    for (int32_t i = 0; i < steps; i++)
        schedule->sigmas[i] = shift / (shift + (1 / even_time(i, steps) - 1));
    finish(schedule, steps);
    return SHOAL_OK;
}

double schedule_mu(
    int64_t tokens, int64_t base_tokens, int64_t max_tokens, double base_shift, double max_shift)
{
    double slope = (max_shift - base_shift) / (double)(max_tokens - base_tokens);
    double offset = base_shift - slope * (double)base_tokens;

    return (double)tokens * slope + offset;
}
