/*
 * From what a VAE decodes to pixels, rounded as diffusers' VaeImageProcessor rounds. Not a file
 * format: see png.h.
 */
#ifndef MEDIA_PIXELS_H
#define MEDIA_PIXELS_H

#include "base/error.h"

/*
 * SHOAL_E_NUMERIC if one of the channels x height x width values is not a finite number; the
 * message says where the first one is, how many there are, and calls the values `what` ("the
 * picture").
 */
enum shoal_status pixels_check(const float *values, int64_t channels, int64_t height, int64_t width,
    const char *what, struct shoal_error *error) SHOAL_CHECKED;

/*
 * planes [3, height, width] in [-1, 1], beyond which it is clamped -> rgb [height, width, 3]. Not a
 * number gives 0: use pixels_check first.
 */
void pixels_from_planes(uint8_t *rgb, const float *planes, int64_t height, int64_t width);

#endif
