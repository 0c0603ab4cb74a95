/*
 * Attention of several streams over all of their tokens, each with weights of its own: the residual
 * of a double-stream block.
 */
#ifndef LAYERS_JOINT_ATTENTION_H
#define LAYERS_JOINT_ATTENTION_H

#include "layers/exec.h"

#define JOINT_STREAMS 2
#define JOINT_PARTS 3

struct joint_stream {
    struct matrix hidden;       /* [tokens, dim], added to */
    struct matrix scale, shift; /* [1, dim] */
    /* [3 heads head_dim, dim] together: one matrix and two without rows, or three. */
    struct matrix qkv[JOINT_PARTS];
    struct matrix qkv_bias;       /* [1, 3 heads head_dim], optional */
    struct matrix q_norm, k_norm; /* [1, head_dim] */
    struct matrix out, out_bias;  /* [dim, heads head_dim]; [1, dim], optional */
    struct matrix gate;           /* [1, dim], optional */
    struct matrix rope;           /* [tokens, head_dim] */
};

struct joint_attention {
    int32_t heads, head_dim;
    float eps, head_eps; /* of the streams' LayerNorm; of q_norm and k_norm */
    enum rope_layout layout;
    struct joint_stream streams[JOINT_STREAMS]; /* in the order of the joint sequence */
};

/*
 * For each stream: hidden += gate * (out(attention(q, K, V)) + out_bias), q, k, v =
 * qkv(layer_norm(hidden) * (1 + scale) + shift) + qkv_bias, K and V those of all streams. q and k
 * are normed head by head and rotated.
 *
 * Scratch: K and V, and two rows' worth of activations for each token of a chunk. Keys and values
 * of all tokens come first; then each chunk's queries are attended with and its rows of `hidden`
 * updated. The chunks depend on the streams' numbers of tokens only.
 */
void joint_attention_add(struct exec *x, const struct joint_attention *layer);

#endif
