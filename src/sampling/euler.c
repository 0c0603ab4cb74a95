/* Euler's method: straight along the velocity to the next noise level. */
#include "sampling/sampler.h"

static struct sampler_step euler_step(const struct schedule *schedule, int32_t index)
{
    return (struct sampler_step){
        .sample = 1, .velocity = schedule->sigmas[index + 1] - schedule->sigmas[index]};
}

const struct sampler sampler_euler = {.name = "euler", .step = euler_step};
