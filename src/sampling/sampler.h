/*
 * Samplers: how one step goes from a noise level to the next. A sampler is pure arithmetic: it
 * gives coefficients, and whoever holds the latents applies them on the device.
 */
#ifndef SAMPLING_SAMPLER_H
#define SAMPLING_SAMPLER_H

#include "sampling/schedule.h"

/* next = sample x + velocity v, where v = d x / d sigma is the model's answer at this step. */
struct sampler_step {
    float sample, velocity;
};

struct sampler {
    const char *name;
    struct sampler_step (*step)(const struct schedule *schedule, int32_t index);
};

extern const struct sampler sampler_euler;

/* The sampler called `name`; NULL is the default, "euler". Static storage. */
enum shoal_status sampler_find(
    const char *name, const struct sampler **sampler, struct shoal_error *error) SHOAL_CHECKED;

#endif
