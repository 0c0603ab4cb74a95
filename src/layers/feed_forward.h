/* A feed-forward residual under a norm, gated (as SwiGLU is) or plain. */
#ifndef LAYERS_FEED_FORWARD_H
#define LAYERS_FEED_FORWARD_H

#include "layers/exec.h"

struct feed_forward_layer {
    float eps;
    enum activation activation; /* SILU or GELU_TANH; without w3 any */
    struct matrix norm;         /* [1, dim]: of an RMS norm; none: a LayerNorm without weights */
    struct matrix scale, shift; /* [1, dim], optional; shift: of a LayerNorm only */
    struct matrix w1, w3;    /* [ffn_dim, dim]: the one that it is taken of; the other, optional */
    struct matrix w2;        /* [dim, ffn_dim] */
    struct matrix b1, b2;    /* [1, ffn_dim], [1, dim]: biases of w1 and w2, optional */
    struct matrix post_norm; /* [1, dim], optional */
    struct matrix gate;      /* [1, dim], optional */
};

/*
 * hidden [tokens, dim] += gate * post_norm(w2(f(w1 n + b1) * w3 n) + b2), n = norm(hidden) *
 * (1 + scale) + shift, or of w2(f(w1 n + b1)) + b2 without w3; chunk after chunk of rows, which is
 * the scratch: dim and ffn_dim numbers for each, the latter twice with w3.
 */
void feed_forward_add(struct exec *x, struct matrix hidden, const struct feed_forward_layer *layer);

#endif
