/* Repeated noise. */
#include "pipeline/noise.h"

#include "base/memory.h"
#include "base/number.h"
#include "base/rng.h"

#define DEVIATION 0.02f

void noise_values(float *values, uint64_t count)
{
    struct rng rng;

    rng_init(&rng, 1);
    rng_normal(&rng, values, count < NOISE_PERIOD ? count : NOISE_PERIOD);
    for (uint64_t i = NOISE_PERIOD; i < count; i++)
        values[i] = values[i - NOISE_PERIOD];
}

enum shoal_status noise_weights(uint16_t *weights, uint64_t count, struct shoal_error *error)
{
    float *normal = mem_alloc(NOISE_PERIOD * sizeof *normal);

    if (!normal) FAIL_MEMORY(error);
    noise_values(normal, NOISE_PERIOD);
    for (uint64_t i = 0; i < count; i++)
        weights[i] = bf16_from_float(DEVIATION * normal[i % NOISE_PERIOD]);
    mem_free(normal);
    return SHOAL_OK;
}
