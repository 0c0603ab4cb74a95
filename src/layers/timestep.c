/* The sinusoid that timestep embedders start from, in single precision as the references have it.
 */
#include "layers/timestep.h"

#include <math.h>

void timestep_sinusoid(float *row, int32_t width, float t)
{
    int32_t half = width / 2;
    float slope = (float)-log(10000.0);

    for (int32_t i = 0; i < half; i++) {
        float angle = t * expf(slope * (float)i / (float)half);

        row[i] = cosf(angle);
        row[half + i] = sinf(angle);
    }
}
