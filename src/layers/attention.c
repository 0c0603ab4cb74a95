/* A self-attention residual. */
#include "layers/attention.h"

#include "layers/chunk.h"

#include <math.h>

/* y = x times rows [first, first + y.cols) of the parts of qkv. */
static void project(struct exec *x, struct matrix y, struct matrix in,
    const struct attention_layer *l, int64_t first)
{
    int64_t end = first + y.cols, begin = 0;

    for (int i = 0; i < ATTENTION_PARTS; begin += l->qkv[i++].rows) {
        struct matrix part = l->qkv[i];
        int64_t from = first > begin ? first : begin;
        int64_t to = end < begin + part.rows ? end : begin + part.rows;

        if (from < to)
            x->ops->linear(x->stream, matrix_cols(y, from - first, to - from), in,
                matrix_rows(part, from - begin, to - from), MATRIX_NONE);
    }
}

/* All keys and values: kv [tokens, 2 kv_heads head_dim]. */
static void keys_and_values(
    struct exec *x, struct matrix hidden, const struct attention_layer *l, struct matrix kv)
{
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    int64_t step = chunk_rows(hidden.rows, x->device->traits.chunk_rows);
    struct matrix normed = exec_alloc(x, step, hidden.cols);
    struct matrix keys = matrix_cols(kv, 0, kv_dim);

    for (int64_t t = 0; t < hidden.rows; t += step) {
        int64_t count = hidden.rows - t < step ? hidden.rows - t : step;
        struct matrix n = matrix_rows(normed, 0, count);

        x->ops->rms_norm(x->stream, n, matrix_rows(hidden, t, count), l->norm, l->scale, l->eps);
        project(x, matrix_rows(kv, t, count), n, l, q_dim);
    }
    exec_free(x, &normed);
    x->ops->rms_norm_rope(x->stream, keys, l->k_norm, l->head_eps, l->rope, l->layout);
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

    x->ops->rms_norm(x->stream, normed, rows, l->norm, l->scale, l->eps);
    project(x, queries, normed, l, 0);
    x->ops->rms_norm_rope(
        x->stream, queries, l->q_norm, l->head_eps, matrix_rows(l->rope, t, count), l->layout);
    x->ops->attention(x->stream, attended, queries, matrix_cols(kv, 0, kv_dim),
        matrix_cols(kv, kv_dim, kv_dim),
        &(struct attention){.heads = l->heads,
            .kv_heads = l->kv_heads,
            .scale = 1.0f / sqrtf((float)l->head_dim),
            .causal = l->causal});
    x->ops->linear(x->stream, projected, attended, l->out, MATRIX_NONE);
    x->ops->gated_add(x->stream, rows, l->gate, projected, l->post_norm, l->eps);
}

void attention_add(struct exec *x, struct matrix hidden, const struct attention_layer *l)
{
    int64_t q_dim = (int64_t)l->heads * l->head_dim, kv_dim = (int64_t)l->kv_heads * l->head_dim;
    int64_t widest = q_dim > hidden.cols ? q_dim : hidden.cols;
    /* Causal attention counts queries from the first key, so they stay together. */
    int64_t step = l->causal ? hidden.rows : chunk_rows(hidden.rows, x->device->traits.chunk_rows);
    struct matrix kv = exec_alloc(x, hidden.rows, 2 * kv_dim), a, b;

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
