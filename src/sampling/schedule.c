/*
 * The model's own schedule, and what all have in common. Every rounding to single precision, and
 * every fused step, is the reference's own, so that the last bit of a picture can be compared; this
 * file must be compiled without contraction of a * b + c (-ffp-contract=off).
 */
#include "sampling/schedule.h"

#include "base/memory.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

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

/* So that the last one is what is asked for. */
static void stretch(float *sigmas, int32_t count, double terminal)
{
    float scale = (1 - sigmas[count - 1]) / (float)(1 - terminal);

    for (int32_t i = 0; i < count && scale > 0; i++)
        sigmas[i] = 1 - (1 - sigmas[i]) / scale;
}

static void fill_model(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    float scale = (float)(levels->dynamic ? exp(levels->mu) : levels->shift);
    float excess = (float)(levels->shift - 1);

    if (levels->edm) {
        schedule_fill_karras(sigmas, count, levels);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        float t = even_time(i, count);

        sigmas[i] = levels->dynamic ? scale / (scale + (1 / t - 1)) : scale * t / (1 + excess * t);
    }
    if (levels->terminal > 0) stretch(sigmas, count, levels->terminal);
}

const struct schedule_kind schedule_model = {
    .name = "model",
    .about = "the model's own: diffusers' flow matching, evenly spaced before the shift",
    .fill = fill_model,
};

static enum shoal_status check_levels(const struct noise_levels *levels, struct shoal_error *error)
{
    if (levels->edm) return SHOAL_OK;
    if (!(levels->shift >= 1e-3 && levels->shift <= 1e3))
        FAIL(error, SHOAL_E_INVALID, "shift is %g; it must be from 0.001 to 1000", levels->shift);
    if (levels->dynamic && !(fabs(levels->mu) <= SCHEDULE_MAX_MU))
        FAIL(error, SHOAL_E_INVALID, "mu is %g; it must be from %g to %g", levels->mu,
            -SCHEDULE_MAX_MU, SCHEDULE_MAX_MU);
    return SHOAL_OK;
}

enum shoal_status schedule_make(const struct schedule_kind *kind, int32_t steps,
    const struct noise_levels *levels, bool skips, struct schedule *schedule,
    struct shoal_error *error)
{
    TRY(check_steps(steps, error));
    TRY(check_levels(levels, error));
    kind->fill(schedule->sigmas, steps + skips, levels);
    schedule->steps = steps;
    schedule->edm = levels->edm;
    schedule->sigmas[steps] = 0;
    for (int32_t i = 0; i < steps; i++) {
        float sigma = schedule->sigmas[i];

        schedule->blends[i] = levels->edm ? sigma / (sigma + 1) : sigma;
    }
    for (int32_t i = 0; i < steps; i++)
        if (!(schedule->sigmas[i] > schedule->sigmas[i + 1]))
            FAIL(error, SHOAL_E_INVALID,
                "steps: %d are too many for schedule \"%s\", whose levels %d and %d would be the "
                "same; take fewer, or another schedule",
                steps, kind->name, i + 1, i + 2);
    return SHOAL_OK;
}

void schedule_keep_last(struct schedule *schedule, int32_t steps)
{
    int32_t skipped = schedule->steps - steps;

    memmove(schedule->sigmas, schedule->sigmas + skipped,
        (size_t)(steps + 1) * sizeof *schedule->sigmas);
    memmove(schedule->blends, schedule->blends + skipped, (size_t)steps * sizeof *schedule->blends);
    schedule->steps = steps;
}

enum shoal_status schedule_find(
    const char *name, const struct schedule_kind **kind, struct shoal_error *error)
{
    struct text names = {0};
    enum shoal_status status;

    for (size_t i = 0; i < SCHEDULE_COUNT; i++) {
        if (!name || !strcmp(schedules[i]->name, name)) {
            *kind = schedules[i];
            mem_free(names.data);
            return SHOAL_OK;
        }
        text_append(&names, "%s%s", i ? ", " : "", schedules[i]->name);
    }
    status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
        "there is no schedule \"%.100s\"; there are: %s", name, names.failed ? "" : names.data);
    mem_free(names.data);
    return status;
}

double schedule_mu(
    int64_t tokens, int64_t base_tokens, int64_t max_tokens, double base_shift, double max_shift)
{
    double slope = (max_shift - base_shift) / (double)(max_tokens - base_tokens);
    double offset = base_shift - slope * (double)base_tokens;

    return (double)tokens * slope + offset;
}
