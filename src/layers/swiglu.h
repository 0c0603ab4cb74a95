/* A gated feed-forward residual. */
#ifndef LAYERS_SWIGLU_H
#define LAYERS_SWIGLU_H

#include "layers/exec.h"

struct swiglu_layer {
    float eps;
    struct matrix norm;      /* [1, dim] */
    struct matrix scale;     /* [1, dim], optional */
    struct matrix w1, w3;    /* [ffn_dim, dim]: the one that SiLU is taken of, and the other */
    struct matrix w2;        /* [dim, ffn_dim] */
    struct matrix post_norm; /* [1, dim], optional */
    struct matrix gate;      /* [1, dim], optional */
};

/*
 * hidden [tokens, dim] += gate * post_norm(w2(silu(w1 n) * w3 n)), n = norm(hidden) * (1 + scale);
 * chunk after chunk of rows.
 */
void swiglu_add(struct exec *x, struct matrix hidden, const struct swiglu_layer *layer);

#endif
