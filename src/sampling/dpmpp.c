/*
 * DPM-Solver++(2M) (Lu et al. 2022, arXiv 2211.01095), as ComfyUI's users get it
 * (comfy/k_diffusion/sampling.py: sample_dpmpp_2m): its time is -log sigma, for flow matching too,
 * where half the logarithm of the signal-to-noise ratio would be log((1 - sigma) / sigma).
 */
#include "sampling/sampler.h"

#include <math.h>

#define PICTURE SAMPLER_ANSWER /* once the call has begun with that */
#define LAST_PICTURE SAMPLER_KEPT

static void dpmpp_2m_call(const struct schedule *schedule, int32_t index, struct sampler_call *call)
{
    double from = (double)schedule->sigmas[index], to = (double)schedule->sigmas[index + 1];
    double ratio = to / from, last = 0; /* what the last picture adds to this one */

    call->level = index;
    sampler_move(call, PICTURE, 1, SAMPLER_LATENT, -from);
    if (index && to > 0) {
        double before = (double)schedule->sigmas[index - 1];

        last = log(from / to) / log(before / from) / 2;
    }
    sampler_move(call, SAMPLER_LATENT, (1 - ratio) * (1 + last), PICTURE, ratio);
    if (last > 0) sampler_move(call, SAMPLER_LATENT, -(1 - ratio) * last, LAST_PICTURE, 1);
    sampler_copy(call, LAST_PICTURE, PICTURE);
}

const struct sampler sampler_dpmpp_2m = {
    .name = "dpmpp_2m",
    .about = "DPM-Solver++(2M): two steps' answers, in the logarithm of the noise level",
    .calls_a_step = 1,
    .kept = 1,
    .call = dpmpp_2m_call,
};
