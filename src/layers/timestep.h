/* The sinusoid that timestep embedders start from. */
#ifndef LAYERS_TIMESTEP_H
#define LAYERS_TIMESTEP_H

#include <stdint.h>

/* row [width]: cosines, then sines, of t * 10000^(-i / half), i < half = width / 2. */
void timestep_sinusoid(float *row, int32_t width, float t);

#endif
