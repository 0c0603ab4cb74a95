/* Rotary position tables. */
#include "layers/rope.h"

#include <math.h>

void rope_frequencies(double *frequencies, int32_t dim, double theta)
{
    for (int32_t i = 0; i < dim / 2; i++)
        frequencies[i] = 1.0 / pow(theta, (double)(2 * i) / dim);
}

void rope_frequencies_single(double *frequencies, int32_t dim, double theta)
{
    for (int32_t i = 0; i < dim / 2; i++)
        frequencies[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)dim);
}

/* A single-precision frequency times a position is exact in double, so rounding the product gives
 * what a single-precision product gives. */
void rope_row(float *row, int64_t pairs, int64_t first, int64_t count, const double *frequencies,
    int64_t position)
{
    for (int64_t i = 0; i < count; i++) {
        float angle = (float)((double)position * frequencies[i]);

        row[first + i] = cosf(angle);
        row[pairs + first + i] = sinf(angle);
    }
}
