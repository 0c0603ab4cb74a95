/* A product with a matrix that is stored as several, one on top of the other: q, k and v. */
#ifndef LAYERS_PROJECT_H
#define LAYERS_PROJECT_H

#include "layers/exec.h"

/*
 * y [rows, n] = in times rows [first, first + n) of the `count` parts together, and columns of the
 * same numbers of the bias [1, rows of all parts], optional. A part may be without rows.
 */
void project(struct exec *x, struct matrix y, struct matrix in, const struct matrix *parts,
    int32_t count, struct matrix bias, int64_t first);

#endif
