/* An attention residual. */
#include "layers/attention.h"

#include "layers/chunk.h"
#include "layers/norm.h"
#include "layers/project.h"

#include <math.h>

/* What becomes of queries and keys of heads once they are made: normed, rotated, neither. */
static void place(struct exec *x, struct matrix heads, struct matrix gamma,
    const struct attention_layer *l, struct matrix rope)
{
    if (matrix_given(gamma) || matrix_given(rope))
        x->ops->rms_norm_rope(x->stream, heads, gamma, l->head_eps, rope, l->layout);
}

/* Rows [t, t + count) of what keys and values are of; `normed` has room for them if they are to be
 * normed. */
static struct matrix seen_rows(struct exec *x, struct matrix hidden,
    const struct attention_layer *l, struct matrix normed, int64_t t, int64_t count)
{
    struct matrix n = matrix_rows(normed, 0, count);

    if (matrix_given(l->context)) return matrix_rows(l->context, t, count);
    norm_rows(x, n, matrix_rows(hidden, t, count), l->norm, l->scale, l->shift, l->eps);
    return n;
}

/* All keys and values: kv [keys, 2 kv_heads head_dim]. */
static void keys_and_values(
    struct exec *x, struct matrix hidden, const struct attention_layer *l, struct matrix kv)
{
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    int64_t step = chunk_rows(kv.rows, x->device->traits.chunk_rows);
    bool own = !matrix_given(l->context);
    struct matrix normed = own ? exec_alloc(x, step, hidden.cols) : MATRIX_NONE;

    for (int64_t t = 0; t < kv.rows; t += step) {
        int64_t count = kv.rows - t < step ? kv.rows - t : step;
        struct matrix seen = seen_rows(x, hidden, l, normed, t, count);

        project(x, matrix_rows(kv, t, count), seen, l->qkv, ATTENTION_PARTS, l->qkv_bias, q_dim);
    }
    exec_free(x, &normed);
    place(x, matrix_cols(kv, 0, kv_dim), l->k_norm, l, own ? l->rope : l->context_rope);
}

/* Rows [t, t + count) of hidden; a and b have room for count rows of dim or q_dim numbers. */
static void attend(struct exec *x, struct matrix hidden, const struct attention_layer *l,
    struct matrix kv, int64_t t, int64_t count, device_addr a, device_addr b)
{
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    const enum dtype type = x->device->traits.activation;
    struct matrix rows = matrix_rows(hidden, t, count);
    struct matrix normed = matrix_at(a, type, count, hidden.cols);
    struct matrix queries = matrix_at(b, type, count, q_dim);
    struct matrix attended = matrix_at(a, type, count, q_dim);
    struct matrix projected = matrix_at(b, type, count, hidden.cols);
    struct matrix distances = l->distances;

    if (matrix_given(distances))
        distances = matrix_cols(distances, hidden.rows - t - count, count + hidden.rows - 1);
    norm_rows(x, normed, rows, l->norm, l->scale, l->shift, l->eps);
    project(x, queries, normed, l->qkv, ATTENTION_PARTS, l->qkv_bias, 0);
    place(x, queries, l->q_norm, l, matrix_rows(l->rope, t, count));
    x->ops->attention(x->stream, attended, queries, matrix_cols(kv, 0, kv_dim),
        matrix_cols(kv, kv_dim, kv_dim),
        &(struct attention){.heads = l->heads,
            .kv_heads = l->kv_heads,
            .scale = l->unscaled ? 1.0f : 1.0f / sqrtf((float)l->head_dim),
            .causal = l->causal,
            .bias = distances});
    x->ops->linear(x->stream, projected, attended, l->out, MATRIX_NONE);
    x->ops->gated_add(x->stream, rows, l->gate, projected, l->post_norm, l->eps);
}

void attention_add(struct exec *x, struct matrix hidden, const struct attention_layer *l)
{
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    int64_t widest = q_dim > hidden.cols ? q_dim : hidden.cols;
    /* Causal attention counts queries from the first key, so they stay together. */
    int64_t step = l->causal ? hidden.rows : chunk_rows(hidden.rows, x->device->traits.chunk_rows);
    int64_t keys = matrix_given(l->context) ? l->context.rows : hidden.rows;
    struct matrix kv = exec_alloc(x, keys, 2 * kv_dim), a, b;

    keys_and_values(x, hidden, l, kv);
    a = exec_alloc(x, step, widest);
    b = exec_alloc(x, step, widest);
    for (int64_t t = 0; t < hidden.rows; t += step) {
        int64_t count = hidden.rows - t < step ? hidden.rows - t : step;

        attend(x, hidden, l, kv, t, count, a.addr, b.addr);
    }
    exec_free(x, &b);
    exec_free(x, &a);
    exec_free(x, &kv);
}
