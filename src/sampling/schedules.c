/*
 * The schedules that ComfyUI's users know (comfy/samplers.py, comfy/k_diffusion/sampling.py). They
 * choose among, or between the ends of, a table of 1000 noise levels: of flow matching sigma(t) =
 * shift t / (1 + (shift - 1) t) at t = 1/1000, 2/1000 ... 1 (or 1/10000 ...: ModelSamplingFlux), of
 * EDM (comfy/model_sampling.py: ModelSamplingCosmosRFlow) even in the logarithm from 0.002 to 80.
 * What is shifted is in single precision, as there; the rest is in double and rounded once.
 */
#include "sampling/schedule.h"

#include <math.h>

#define LEVELS 1000
#define KARRAS_RHO 7.0
#define BETA_SHAPE 0.6

#define EDM_LOWEST 0.002
#define EDM_HIGHEST 80.0

static int32_t table(const struct noise_levels *levels)
{
    return levels->table ? levels->table : LEVELS;
}

/* The noise level at a time: what the model is told of it, 0 to 1. */
static float sigma_at(float t, const struct noise_levels *levels)
{
    if (!levels->edm) return (float)levels->shift * t / (1 + (float)(levels->shift - 1) * t);
    return t >= (float)(EDM_HIGHEST / (EDM_HIGHEST + 1)) ? (float)EDM_HIGHEST : t / (1 - t);
}

/* Level `index` of the table. */
static float level(int32_t index, const struct noise_levels *levels)
{
    double low = log(EDM_LOWEST), high = log(EDM_HIGHEST);

    if (levels->edm) return (float)exp(low + (high - low) * index / (table(levels) - 1));
    return sigma_at((float)(index + 1) / (float)table(levels), levels);
}

/* The time of that level, as the model is told it. */
static float level_time(int32_t index, const struct noise_levels *levels)
{
    float sigma = level(index, levels);

    return levels->edm ? sigma / (sigma + 1) : sigma;
}

/* Where value i of `count` lies on the way from the first to the last, 0 to 1. */
static double part(int32_t i, int32_t count)
{
    return count > 1 ? (double)i / (count - 1) : 0;
}

static void fill_simple(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    for (int32_t i = 0; i < count; i++)
        sigmas[i] =
            level(table(levels) - 1 - (int32_t)(i * ((double)table(levels) / count)), levels);
}

/*
 * Even from the first level of the table to the last, read as times: so those of flow matching are
 * shifted twice. Where the last would be no noise at all, it is the end of the run, and there is
 * one more above.
 */
static void fill_normal(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    float first = level_time(table(levels) - 1, levels), last = level_time(0, levels);
    int32_t points = sigma_at(last, levels) <= 1e-5f ? count + 1 : count;

    for (int32_t i = 0; i < count; i++) {
        double t = (double)first + ((double)last - (double)first) * part(i, points);

        sigmas[i] = sigma_at((float)t, levels);
    }
}

void schedule_fill_karras(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    double first = pow((double)level(table(levels) - 1, levels), 1 / KARRAS_RHO);
    double last = pow((double)level(0, levels), 1 / KARRAS_RHO);

    for (int32_t i = 0; i < count; i++)
        sigmas[i] = (float)pow(first + (last - first) * part(i, count), KARRAS_RHO);
}

static void fill_exponential(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    double first = log((double)level(table(levels) - 1, levels)),
           last = log((double)level(0, levels));

    for (int32_t i = 0; i < count; i++)
        sigmas[i] = (float)exp(first + (last - first) * part(i, count));
}

/*
 * The part of a beta distribution's mass below x, where a = b: the regularised incomplete beta
 * function by its continued fraction (DLMF 8.17.22), evaluated by Lentz's method as Thompson and
 * Barnett modified it (J. Comput. Phys. 64, 1986), below the middle, where it converges fast.
 */
static double beta_mass(double x, double a)
{
    double f = 1, c = 1, d = 0, change = 0;

    if (x > 0.5) return 1 - beta_mass(1 - x, a);
    if (x <= 0) return 0;
    for (int n = 1; n < 200 && fabs(change - 1) > 1e-15; n++) {
        int m = n / 2;
        double term = n % 2 ? -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                            : m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m));

        d = 1 / (1 + term * d);
        c = 1 + term / c;
        change = c * d;
        f *= change;
    }
    return pow(x * (1 - x), a) * tgamma(2 * a) / (a * tgamma(a) * tgamma(a) * f);
}

/* Where that is `mass`: it rises, so the place is found by halving. */
static double beta_place(double mass, double a)
{
    double low = 0, high = 1;

    for (int i = 0; i < 64; i++) {
        double middle = (low + high) / 2;

        if (beta_mass(middle, a) < mass)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Dense at both ends, as a beta distribution's mass is (arXiv 2407.12173). */
static void fill_beta(float *sigmas, int32_t count, const struct noise_levels *levels)
{
    for (int32_t i = 0; i < count; i++)
        sigmas[i] = level(
            (int32_t)rint(beta_place(1 - i * (1.0 / count), BETA_SHAPE) * (table(levels) - 1)),
            levels);
}

static const struct schedule_kind simple = {.name = "simple",
                                      .about = "evenly chosen from the model's 1000 noise levels",
                                      .fill = fill_simple},
                                  normal = {.name = "normal",
                                      .about = "even from the highest level to the lowest, shifted",
                                      .fill = fill_normal},
                                  karras = {.name = "karras",
                                      .about = "Karras et al.'s, rho 7: most of it at low noise",
                                      .fill = schedule_fill_karras},
                                  exponential = {.name = "exponential",
                                      .about = "even in the logarithm of the noise level",
                                      .fill = fill_exponential},
                                  beta = {.name = "beta",
                                      .about = "a beta distribution's (0.6, 0.6): dense at both "
                                               "ends",
                                      .fill = fill_beta};

const struct schedule_kind *const schedules[SCHEDULE_COUNT] = {
    &schedule_model, &simple, &normal, &karras, &exponential, &beta};
