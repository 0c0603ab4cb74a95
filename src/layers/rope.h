/* Rotary position tables, made on the host: a row for each token, cosines then sines. */
#ifndef LAYERS_ROPE_H
#define LAYERS_ROPE_H

#include <stdint.h>

/*
 * Angular frequencies theta^(-2 i / dim) of dim / 2 pairs. References differ in the precision they
 * compute them in, and at large positions it shows: hence two.
 */
void rope_frequencies(double *frequencies, int32_t dim, double theta);
void rope_frequencies_single(double *frequencies, int32_t dim, double theta);

/*
 * Pairs [first, first + count) of one table row that has `pairs` in all: angle = position *
 * frequency, rounded to float.
 */
void rope_row(float *row, int64_t pairs, int64_t first, int64_t count, const double *frequencies,
    int64_t position);

#endif
