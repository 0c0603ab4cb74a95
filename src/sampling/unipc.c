/*
 * UniPC (Zhao et al. 2023, arXiv 2302.04867), as ComfyUI's users get it (comfy/extra_samplers/
 * uni_pc.py through KSampler): multistep, predicting the picture, of order 3 at most, lower at both
 * ends; B(h) = h ("bh1") or e^h - 1 ("bh2"); with -log sigma for its time, as there the latent is
 * scaled as if noise had been added to it. Each call corrects the step that led to its level and
 * predicts the next; where a corrected latent is, the model is not asked again. KSampler gives it
 * the levels of one step more, without the last one above 0. The run ends at 0.001, not at 0.
 *
 * In that file the latent is scaled by 1 / sqrt(1 + sigma^2) between calls, which cancels out.
 */
#include "sampling/sampler.h"

#include <math.h>

#define MOST_ORDER 3
#define LAST_LEVEL 0.001

#define PICTURE SAMPLER_ANSWER  /* once the call has begun with that */
#define FROM (SAMPLER_KEPT + 0) /* the latent that the step began with */

/* Where the picture that call `index` saw is kept: those of the last three calls are. */
static enum sampler_slot picture_slot(int32_t index)
{
    return (enum sampler_slot)(SAMPLER_KEPT + 1 + index % MOST_ORDER);
}

static double level_sigma(const struct schedule *schedule, int32_t level)
{
    double before;

    if (level < schedule->steps) return (double)schedule->sigmas[level];
    before = (double)schedule->sigmas[level - 1];
    return before > LAST_LEVEL ? LAST_LEVEL : before / 2; /* never upwards */
}

static int32_t step_order(const struct schedule *schedule, int32_t level)
{
    int32_t most = schedule->steps - 1 < MOST_ORDER ? schedule->steps - 1 : MOST_ORDER;
    int32_t left = schedule->steps + 1 - level;

    if (most < 1) most = 1;
    if (level < most) return level; /* there are no more pictures yet */
    return left < most ? left : most;
}

/* x of a x = b; both are overwritten. Rows of powers of different numbers: never singular. */
static void solve(int32_t n, double a[MOST_ORDER][MOST_ORDER], double *b, double *x)
{
    for (int32_t k = 0; k < n; k++) {
        for (int32_t i = k + 1; i < n; i++) {
            double factor = a[i][k] / a[k][k];

            for (int32_t j = k; j < n; j++)
                a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (int32_t k = n - 1; k >= 0; k--) {
        x[k] = b[k];
        for (int32_t j = k + 1; j < n; j++)
            x[k] -= a[k][j] * x[j];
        x[k] /= a[k][k];
    }
}

/* A step: x = ratio from + new picture[here] + the sum of old[j] picture[before, j earlier]. */
struct weights {
    double ratio, new, old[MOST_ORDER];
};

/*
 * The step to `level`. The predictor of order p goes through p pictures, the corrector through
 * the one at `level` too. r[j] is where picture j lies, counted in steps from the last one.
 */
static struct weights step_weights(
    const struct schedule *schedule, int32_t level, bool corrects, bool bh2)
{
    double to = level_sigma(schedule, level), from = level_sigma(schedule, level - 1);
    double h = log(to / from), phi = expm1(h) / h - 1, factorial = 1;
    double scale = bh2 ? expm1(h) : h;
    double r[MOST_ORDER], rows[MOST_ORDER][MOST_ORDER], b[MOST_ORDER], rho[MOST_ORDER];
    int32_t order = step_order(schedule, level), count = corrects ? order : order - 1;
    struct weights w = {.ratio = to / from, .old = {-expm1(h)}};

    for (int32_t j = 0; j + 1 < order; j++)
        r[j] = log(level_sigma(schedule, level - 2 - j) / from) / h;
    r[order - 1] = 1;
    for (int32_t k = 0; k < count; k++) {
        for (int32_t j = 0; j < count; j++)
            rows[k][j] = pow(r[j], k);
        b[k] = phi * factorial / scale;
        factorial *= k + 2;
        phi = phi / h - 1 / factorial;
    }
    if (count == 1)
        rho[0] = 0.5; /* as the paper has it for these */
    else
        solve(count, rows, b, rho);
    for (int32_t j = 0; j < count; j++) {
        double weight = -scale * rho[j] / r[j];

        w.old[0] -= weight;
        if (j + 1 < order)
            w.old[j + 1] = weight;
        else
            w.new = weight;
    }
    return w;
}

static void uni_pc_call(
    const struct schedule *schedule, int32_t index, struct sampler_call *call, bool bh2)
{
    struct weights w;

    call->level = index;
    sampler_move(call, PICTURE, 1, SAMPLER_LATENT, -level_sigma(schedule, index));
    if (index) {
        w = step_weights(schedule, index, true, bh2);
        sampler_copy(call, SAMPLER_LATENT, FROM);
        sampler_move(call, SAMPLER_LATENT, w.new, PICTURE, w.ratio);
        for (int32_t j = 0; j < step_order(schedule, index); j++)
            sampler_move(call, SAMPLER_LATENT, w.old[j], picture_slot(index - 1 - j), 1);
    }
    sampler_copy(call, picture_slot(index), PICTURE);
    sampler_copy(call, FROM, SAMPLER_LATENT);
    w = step_weights(schedule, index + 1, false, bh2);
    sampler_move(call, SAMPLER_LATENT, w.old[0], PICTURE, w.ratio);
    for (int32_t j = 1; j < step_order(schedule, index + 1); j++)
        sampler_move(call, SAMPLER_LATENT, w.old[j], picture_slot(index - j), 1);
}

static void bh1_call(const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    uni_pc_call(schedule, index, call, false);
}

static void bh2_call(const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    uni_pc_call(schedule, index, call, true);
}

const struct sampler sampler_uni_pc = {
    .name = "uni_pc",
    .about = "UniPC with B(h) = h: three steps' answers, each step corrected by the next answer",
    .calls_a_step = 1,
    .kept = 1 + MOST_ORDER,
    .skips = true,
    .call = bh1_call,
};

const struct sampler sampler_uni_pc_bh2 = {
    .name = "uni_pc_bh2",
    .about = "UniPC with B(h) = e^h - 1",
    .calls_a_step = 1,
    .kept = 1 + MOST_ORDER,
    .skips = true,
    .call = bh2_call,
};
