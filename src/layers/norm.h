/* What residual branches begin with. */
#ifndef LAYERS_NORM_H
#define LAYERS_NORM_H

#include "layers/exec.h"

#include <assert.h>

/*
 * y = norm(rows) * (1 + scale) + shift, rows and y [tokens, dim], the others [1, dim]. With gamma
 * an RMS norm of these weights, which has no shift; without, a LayerNorm without weights. Scale and
 * shift are optional.
 */
static inline void norm_rows(struct exec *x, struct matrix y, struct matrix rows,
    struct matrix gamma, struct matrix scale, struct matrix shift, float eps)
{
    if (matrix_given(gamma)) {
        assert(!matrix_given(shift));
        x->ops->rms_norm(x->stream, y, rows, gamma, scale, eps);
    } else {
        x->ops->layer_norm(x->stream, y, rows, MATRIX_NONE, scale, shift, eps);
    }
}

#endif
