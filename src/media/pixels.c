/* Decoded planes to 8-bit pixels. */
#include "media/pixels.h"

#include <inttypes.h>
#include <math.h>

enum shoal_status pixels_check(const float *values, int64_t channels, int64_t height, int64_t width,
    const char *what, struct shoal_error *error)
{
    int64_t plane = height * width, count = channels * plane, first = -1, bad = 0;

    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i])) continue;
        if (!bad++) first = i;
    }
    if (bad)
        FAIL(error, SHOAL_E_NUMERIC,
            "%s has %" PRId64 " values of %" PRId64
            " that are not finite numbers, the first at channel "
            "%" PRId64 ", row %" PRId64 ", column %" PRId64
            "; a checkpoint or an adapter is damaged or does not fit the others",
            what, bad, count, first / plane, first % plane / width, first % width);
    return SHOAL_OK;
}

void pixels_from_planes(uint8_t *rgb, const float *planes, int64_t height, int64_t width)
{
    int64_t plane = height * width;

    for (int64_t c = 0; c < 3; c++) {
        for (int64_t i = 0; i < plane; i++) {
            float value = planes[c * plane + i] * 0.5f + 0.5f;

            /* Written so that NaN becomes 0. */
            value = value > 0 ? value : 0;
            value = value < 1 ? value : 1;
            rgb[i * 3 + c] = (uint8_t)rintf(value * 255); /* half to even */
        }
    }
}
