/* Attention of several streams over all of their tokens. */
#include "layers/joint_attention.h"

#include "layers/chunk.h"
#include "layers/project.h"

#include <math.h>

static int64_t step_of(const struct exec *x, const struct joint_stream *s)
{
    return chunk_rows(s->hidden.rows, x->device->traits.chunk_rows);
}

/* A stream's keys and values: kv [tokens, 2 heads head_dim]. */
static void keys_and_values(struct exec *x, const struct joint_attention *l,
    const struct joint_stream *s, struct matrix kv, device_addr room)
{
    int64_t dim = (int64_t)l->heads * l->head_dim, step = step_of(x, s);

    for (int64_t t = 0; t < s->hidden.rows; t += step) {
        int64_t count = s->hidden.rows - t < step ? s->hidden.rows - t : step;
        struct matrix n = matrix_at(room, x->device->traits.activation, count, s->hidden.cols);

        x->ops->layer_norm(x->stream, n, matrix_rows(s->hidden, t, count), MATRIX_NONE, s->scale,
            s->shift, l->eps);
        project(x, matrix_rows(kv, t, count), n, s->qkv, JOINT_PARTS, s->qkv_bias, dim);
    }
    x->ops->rms_norm_rope(
        x->stream, matrix_cols(kv, 0, dim), s->k_norm, l->head_eps, s->rope, l->layout);
}

/* Rows [t, t + count) of a stream; a and b have room for count rows of dim or heads head_dim
 * numbers. */
static void attend(struct exec *x, const struct joint_attention *l, const struct joint_stream *s,
    struct matrix kv, int64_t t, int64_t count, device_addr a, device_addr b)
{
    const enum dtype type = x->device->traits.activation;
    int64_t dim = (int64_t)l->heads * l->head_dim;
    struct matrix rows = matrix_rows(s->hidden, t, count);
    struct matrix normed = matrix_at(a, type, count, rows.cols);
    struct matrix queries = matrix_at(b, type, count, dim);
    struct matrix attended = matrix_at(a, type, count, dim);
    struct matrix projected = matrix_at(b, type, count, rows.cols);

    x->ops->layer_norm(x->stream, normed, rows, MATRIX_NONE, s->scale, s->shift, l->eps);
    project(x, queries, normed, s->qkv, JOINT_PARTS, s->qkv_bias, 0);
    x->ops->rms_norm_rope(
        x->stream, queries, s->q_norm, l->head_eps, matrix_rows(s->rope, t, count), l->layout);
    x->ops->attention(x->stream, attended, queries, matrix_cols(kv, 0, dim),
        matrix_cols(kv, dim, dim),
        &(struct attention){
            .heads = l->heads, .kv_heads = l->heads, .scale = 1.0f / sqrtf((float)l->head_dim)});
    x->ops->linear(x->stream, projected, attended, s->out, s->out_bias);
    x->ops->gated_add(x->stream, rows, s->gate, projected, MATRIX_NONE, 0);
}

void joint_attention_add(struct exec *x, const struct joint_attention *l)
{
    int64_t dim = (int64_t)l->heads * l->head_dim, cols = l->streams[0].hidden.cols;
    int64_t tokens = 0, longest = 0, first = 0;
    struct matrix kv, a, b;

    for (int i = 0; i < JOINT_STREAMS; i++) {
        int64_t step = step_of(x, &l->streams[i]);

        tokens += l->streams[i].hidden.rows;
        if (step > longest) longest = step;
    }
    kv = exec_alloc(x, tokens, 2 * dim);
    a = exec_alloc(x, longest, dim > cols ? dim : cols);
    for (int i = 0; i < JOINT_STREAMS; i++) {
        const struct joint_stream *s = &l->streams[i];

        keys_and_values(x, l, s, matrix_rows(kv, first, s->hidden.rows), a.addr);
        first += s->hidden.rows;
    }
    b = exec_alloc(x, longest, dim > cols ? dim : cols);
    for (int i = 0; i < JOINT_STREAMS; i++) {
        const struct joint_stream *s = &l->streams[i];
        int64_t step = step_of(x, s);

        for (int64_t t = 0; t < s->hidden.rows; t += step) {
            int64_t count = s->hidden.rows - t < step ? s->hidden.rows - t : step;

            attend(x, l, s, kv, t, count, a.addr, b.addr);
        }
    }
    exec_free(x, &b);
    exec_free(x, &a);
    exec_free(x, &kv);
}
