/*
 * Attention. A task is one head by a tile of queries; it walks the keys a tile at a time, keeping a
 * running maximum and total for each query (online softmax), so that only one tile of scores
 * exists. `out` itself holds the running sum.
 *
 * A query's result does not depend on the others in its tile, so the tile may shrink to give every
 * thread work. The tiles of keys are fixed: they are the order of summing.
 */
#include "device/check.h"
#include "device/cpu/internal.h"

#include <math.h>
#include <string.h>

#define KEYS 256
#define QUERIES 256 /* fewer when there would be too few tasks */
#define LEAST_QUERIES 32
#define DEPTH 256 /* columns of a head that are packed at a time */

struct attention_job {
    const struct cpu_device *cpu;
    struct matrix out, q, k, v;
    int64_t dim, group; /* columns of a head; heads that share keys */
    float scale;
    bool causal;
    struct matrix bias;
    int64_t queries, tiles; /* rows of a tile; tiles of a head */
};

/* Where a task stands. */
struct state {
    const struct kernels *kernels;
    float *packed, *scores;      /* [KEYS, DEPTH], [QUERIES, KEYS] */
    int64_t first, rows;         /* queries */
    int64_t head, q_col, kv_col; /* the head, and its first column */
    float largest[QUERIES], total[QUERIES];
};

static void score_tile(
    const struct attention_job *job, const struct state *s, int64_t key, int64_t keys)
{
    for (int64_t i = 0; i < job->dim; i += DEPTH) {
        int64_t depth = least(job->dim - i, DEPTH);

        s->kernels->pack(s->packed, row_of(job->k, key) + s->kv_col + i, DTYPE_F32, 1.0f,
            job->k.stride, keys, depth);
        s->kernels->multiply(s->scores, KEYS, row_of(job->q, s->first) + s->q_col + i,
            job->q.stride, s->packed, s->rows, keys, depth, i > 0);
    }
}

/* What is added to the scores of query `row` with the keys from `key` on; NULL: nothing. */
static const float *bias_of(
    const struct attention_job *job, const struct state *s, int64_t row, int64_t key)
{
    if (!job->bias.addr) return NULL;
    return row_of(job->bias, s->head) + key - row + job->q.rows - 1;
}

/* Scores become shares; what has been summed up is brought to the new maximum. */
static void share_tile(const struct attention_job *job, struct state *s, int64_t key, int64_t keys)
{
    for (int64_t r = 0; r < s->rows; r++) {
        float *row = s->scores + r * KEYS, before = 1, scale = job->scale;
        const float *bias = bias_of(job, s, s->first + r, key);
        int64_t seen = keys;

        if (job->causal) seen = least(s->first + r + 1 - key, keys);
        if (seen < 0) seen = 0;
        if (bias && seen) {
            s->kernels->blend(row, scale, row, 1, bias, seen);
            scale = 1;
        }
        if (seen) before = s->kernels->softmax(row, scale, &s->largest[r], &s->total[r], seen);
        memset(row + seen, 0, (size_t)(keys - seen) * sizeof *row);
        if (key && before != 1) {
            float *out = row_of(job->out, s->first + r) + s->q_col;

            s->kernels->multiply_row(out, out, before, job->dim);
        }
    }
}

static void sum_tile(
    const struct attention_job *job, const struct state *s, int64_t key, int64_t keys)
{
    for (int64_t i = 0; i < job->dim; i += DEPTH) {
        int64_t cols = least(job->dim - i, DEPTH);

        s->kernels->pack_columns(
            s->packed, row_of(job->v, key) + s->kv_col + i, job->v.stride, cols, keys);
        s->kernels->multiply(row_of(job->out, s->first) + s->q_col + i, job->out.stride, s->scores,
            KEYS, s->packed, s->rows, cols, keys, key > 0);
    }
}

static void attention_task(void *arg, int64_t index, int worker)
{
    const struct attention_job *job = arg;
    int64_t head = index / job->tiles, keys = job->k.rows;
    struct state s = {.kernels = job->cpu->kernels};

    s.packed = worker_scratch(job->cpu, worker);
    s.scores = s.packed + KEYS * DEPTH;
    s.first = index % job->tiles * job->queries;
    s.rows = least(job->q.rows - s.first, job->queries);
    s.head = head;
    s.q_col = head * job->dim;
    s.kv_col = head / job->group * job->dim;
    for (int64_t r = 0; r < s.rows; r++)
        s.largest[r] = -INFINITY;
    if (job->causal) keys = least(keys, s.first + s.rows);
    for (int64_t key = 0; key < keys; key += KEYS) {
        int64_t count = least(keys - key, KEYS);

        score_tile(job, &s, key, count);
        share_tile(job, &s, key, count);
        sum_tile(job, &s, key, count);
    }
    for (int64_t r = 0; r < s.rows; r++) {
        float *out = row_of(job->out, s.first + r) + s.q_col;

        s.kernels->multiply_row(out, out, 1 / s.total[r], job->dim);
    }
}

void cpu_attention(struct stream *stream, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention)
{
    struct cpu_device *cpu = cpu_device(stream->device);
    struct attention_job job = {.cpu = cpu, .out = out, .q = q, .k = k, .v = v};
    const int64_t heads = attention->heads;

    check_attention(out, q, k, v, attention);
    job.dim = q.cols / heads;
    job.group = heads / attention->kv_heads;
    job.scale = attention->scale;
    job.causal = attention->causal;
    job.bias = attention->bias;
    job.queries = QUERIES;
    while (job.queries > LEAST_QUERIES &&
           ceil_div(q.rows, job.queries) * heads < 4 * (int64_t)pool_workers(cpu->pool))
        job.queries /= 2;
    job.tiles = ceil_div(q.rows, job.queries);
    pool_run(cpu->pool, heads * job.tiles, attention_task, &job);
}

_Static_assert(
    (KEYS * DEPTH + QUERIES * KEYS) * sizeof(float) <= SCRATCH_BYTES, "the tiles fit the buffer");
