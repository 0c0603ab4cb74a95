/*
 * The samplers that go straight along the velocity: Euler's method, Heun's, which looks again where
 * that ends, and the ancestral one, which goes too far and adds noise. The formulas are those that
 * ComfyUI's users get (comfy/k_diffusion/sampling.py: sample_euler, sample_heun without churn,
 * sample_euler_ancestral_RF and, for EDM, sample_euler_ancestral, with eta 1 and s_noise 1).
 */
#include "sampling/sampler.h"

#include <math.h>

static void euler_call(const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    float distance = schedule->sigmas[index + 1] - schedule->sigmas[index];

    call->level = index;
    sampler_move(call, SAMPLER_LATENT, (double)distance, SAMPLER_ANSWER, 1);
}

const struct sampler sampler_euler = {
    .name = "euler",
    .about = "Euler's method",
    .calls_a_step = 1,
    .call = euler_call,
};

/*
 * From s to t by way of d = t^2 / s, which is below t: x = (1 - s) picture + s noise becomes
 * (1 - d) picture + d noise, is scaled until there is 1 - t of the picture, and fresh noise, which
 * adds up with the old by squares, makes up what is missing to t.
 */
static void ancestral_call(
    const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    double s = (double)schedule->sigmas[index], t = (double)schedule->sigmas[index + 1];
    double d = t * t / s, scale = (1 - t) / (1 - d), noise;

    if (schedule->edm) { /* nothing is scaled: d^2 is what t^2 (s^2 - t^2) / s^2 of noise leaves */
        noise = fmin(t, t * sqrt((s - t) * (s + t)) / s);
        d = sqrt((t - noise) * (t + noise));
        scale = 1;
    } else {
        noise = sqrt(t * t - d * d * scale * scale);
    }
    call->level = index;
    call->draws = t > 0;
    sampler_move(call, SAMPLER_LATENT, scale * (d - s), SAMPLER_ANSWER, scale);
    if (call->draws) sampler_move(call, SAMPLER_LATENT, noise, SAMPLER_NOISE, 1);
}

const struct sampler sampler_euler_ancestral = {
    .name = "euler_ancestral",
    .about = "Euler's method, with fresh noise after each step but the last",
    .calls_a_step = 1,
    .noisy = true,
    .call = ancestral_call,
};

/* With the mean of the velocities at both ends; the last step, to no noise, is Euler's. */
static void heun_call(const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    int32_t step = index / 2;
    double distance = (double)schedule->sigmas[step + 1] - (double)schedule->sigmas[step];

    if (index % 2) { /* Euler's step has been made: half of its way becomes this velocity's */
        call->level = step + 1;
        sampler_move(call, SAMPLER_LATENT, distance / 2, SAMPLER_ANSWER, 1);
        sampler_move(call, SAMPLER_LATENT, -distance / 2, SAMPLER_KEPT, 1);
    } else {
        call->level = step;
        if (step + 1 < schedule->steps) sampler_copy(call, SAMPLER_KEPT, SAMPLER_ANSWER);
        sampler_move(call, SAMPLER_LATENT, distance, SAMPLER_ANSWER, 1);
    }
}

const struct sampler sampler_heun = {
    .name = "heun",
    .about = "Heun's method: the mean of the velocities at both ends of a step",
    .calls_a_step = 2,
    .kept = 1,
    .call = heun_call,
};
