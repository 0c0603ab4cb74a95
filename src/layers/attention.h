/* An attention residual: norm, qkv, per-head norms, positions, attention, projection. Rows attend
 * to each other, or to another sequence. */
#ifndef LAYERS_ATTENTION_H
#define LAYERS_ATTENTION_H

#include "layers/exec.h"

#define ATTENTION_PARTS 3

struct attention_layer {
    int32_t heads, kv_heads, head_dim;
    float eps, head_eps;        /* of norm and post_norm; of q_norm and k_norm */
    struct matrix norm;         /* [1, dim]: of an RMS norm; none: a LayerNorm without weights */
    struct matrix scale, shift; /* [1, dim], optional; shift: of a LayerNorm only */
    /*
     * [(heads + 2 kv_heads) head_dim, dim] together: one matrix and two without rows, or three.
     * With a context q's rows are a matrix of their own, and k's and v's have as many columns as
     * the context.
     */
    struct matrix qkv[ATTENTION_PARTS];
    struct matrix qkv_bias;       /* [1, (heads + 2 kv_heads) head_dim], optional */
    struct matrix q_norm, k_norm; /* [1, head_dim], optional */
    struct matrix out;            /* [dim, heads head_dim] */
    struct matrix post_norm;      /* [1, dim], optional */
    struct matrix gate;           /* [1, dim], optional */
    struct matrix rope;           /* [tokens, head_dim], optional */
    /* [keys, any width], optional: what keys and values are of, as it is; else of hidden, normed.
     * Then neither causal nor with distances. */
    struct matrix context;
    struct matrix context_rope; /* [keys, head_dim], of its keys; optional */
    enum rope_layout layout;
    struct matrix distances; /* [heads, 2 tokens - 1], optional: struct attention's bias */
    bool unscaled;           /* scores are not divided by the root of head_dim */
    bool causal;
};

/*
 * hidden [tokens, dim] += gate * post_norm(out(attention(qkv(norm(hidden) * (1 + scale) +
 * shift) + qkv_bias))); k and v of the context instead, if there is one.
 *
 * Scratch: k and v of all tokens or keys, and two rows' worth of activations for each token of a
 * chunk. Keys and values come first, for all tokens; then each chunk's queries are attended with
 * and its rows of `hidden` updated. The chunks depend on the number of tokens only.
 */
void attention_add(struct exec *x, struct matrix hidden, const struct attention_layer *layer);

#endif
