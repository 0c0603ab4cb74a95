/* A feed-forward residual. */
#include "layers/feed_forward.h"

#include "layers/chunk.h"
#include "layers/norm.h"

void feed_forward_add(struct exec *x, struct matrix hidden, const struct feed_forward_layer *l)
{
    int64_t step = chunk_rows(hidden.rows, x->device->traits.chunk_rows), ffn_dim = l->w1.rows;
    const bool gated = matrix_given(l->w3);
    struct matrix normed = exec_alloc(x, step, hidden.cols);
    struct matrix a = exec_alloc(x, step, ffn_dim), b = MATRIX_NONE;

    if (gated) b = exec_alloc(x, step, ffn_dim);
    for (int64_t t = 0; t < hidden.rows; t += step) {
        int64_t count = hidden.rows - t < step ? hidden.rows - t : step;
        struct matrix rows = matrix_rows(hidden, t, count), n = matrix_rows(normed, 0, count);
        struct matrix inner = matrix_rows(a, 0, count), linear = matrix_rows(b, 0, count);

        norm_rows(x, n, rows, l->norm, l->scale, l->shift, l->eps);
        x->ops->linear(x->stream, inner, n, l->w1, l->b1);
        if (gated) {
            x->ops->linear(x->stream, linear, n, l->w3, MATRIX_NONE);
            x->ops->gated(x->stream, inner, inner, linear, l->activation);
        } else {
            x->ops->activate(x->stream, inner, inner, l->activation);
        }
        x->ops->linear(x->stream, n, inner, l->w2, l->b2); /* n is free again */
        x->ops->gated_add(x->stream, rows, l->gate, n, l->post_norm, l->eps);
    }
    exec_free(x, &b);
    exec_free(x, &a);
    exec_free(x, &normed);
}
