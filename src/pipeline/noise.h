/* Random numbers to measure with: drawn once and repeated, since drawing is slow. */
#ifndef PIPELINE_NOISE_H
#define PIPELINE_NOISE_H

#include "base/error.h"

/* A prime number of them, so that no chunk or row holds what another does. */
#define NOISE_PERIOD 1048573

/* `count` BF16 weights, spread as trained ones are. */
enum shoal_status noise_weights(
    uint16_t *weights, uint64_t count, struct shoal_error *error) SHOAL_CHECKED;

/* `count` normal numbers. */
void noise_values(float *values, uint64_t count);

#endif
