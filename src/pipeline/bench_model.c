/* The blocks of a made-up model, and the file that holds their weights. */
#include "pipeline/bench_model.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/writer.h"
#include "pipeline/noise.h"

#include <stdio.h>

/* A width of 3072, as Qwen-Image has it, for blocks that have several products of it. */
#define MOST_HIDDEN 3072
#define LEAST_HIDDEN 128
#define SQUARES 16 /* that a block has at least, hidden x hidden */
#define UNIT 64    /* products are this wide, or multiples of it */

/* Where the weights begin: as in a checkpoint, whose header has any length, not on a page. */
#define WEIGHTS_OFFSET 9000

/* ---- forwards ---- */

/*
 * hidden += down(up(norm(hidden))), pair by pair: so that every weight has its part in what comes
 * out, and in which order.
 */
static void forward(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct matrix hidden = ((struct bench_lane *)lane)->hidden;
    struct matrix normed = exec_alloc(x, hidden.rows, hidden.cols);

    for (int32_t i = 0; i < block->weight_count; i += 2) {
        struct matrix wide = exec_alloc(x, hidden.rows, weights[i].rows);

        x->ops->rms_norm(x->stream, normed, hidden, MATRIX_NONE, MATRIX_NONE, 1e-6f);
        x->ops->linear(x->stream, wide, normed, weights[i], MATRIX_NONE);
        x->ops->linear(x->stream, normed, wide, weights[i + 1], MATRIX_NONE);
        x->ops->gated_add(x->stream, hidden, MATRIX_NONE, normed, MATRIX_NONE, 0);
        exec_free(x, &wide);
    }
    exec_free(x, &normed);
}

/* ---- shapes ---- */

struct shape_of_block {
    int64_t hidden, units; /* UNIT columns each, of all its pairs */
    int32_t pairs;
};

/* Pairs of products of twice the width, or a little more: large enough to pack. */
static struct shape_of_block shape_block(uint64_t bytes)
{
    const uint64_t square = sizeof(uint16_t) * SQUARES;
    struct shape_of_block s = {.hidden = MOST_HIDDEN};

    if (bytes < square * MOST_HIDDEN * MOST_HIDDEN)
        for (s.hidden = LEAST_HIDDEN; square * 4 * (uint64_t)(s.hidden * s.hidden) <= bytes;)
            s.hidden *= 2;
    s.units = (int64_t)(bytes / (2 * sizeof(uint16_t) * UNIT * (uint64_t)s.hidden));
    s.pairs = (int32_t)(s.units * UNIT / (2 * s.hidden));
    return s;
}

/* Weight `index` of a block, up or down of a pair; its place is set by the caller. */
static struct weight shape_weight(const struct shape_of_block *s, int32_t index)
{
    const int64_t pair = index / 2;
    const int64_t wide = UNIT * ((pair + 1) * s->units / s->pairs - pair * s->units / s->pairs);
    const bool down = index % 2;

    return (struct weight){.name = down ? "down" : "up",
        .dtype = DTYPE_BF16,
        .rows = down ? s->hidden : wide,
        .cols = down ? wide : s->hidden,
        .bytes = (uint64_t)dtype_bytes(DTYPE_BF16, wide * s->hidden),
        .piece_count = 1};
}

/* The weights of block `index`, one tensor after another, from `offset` of the file on. */
static void lay_weights(
    struct bench_model *m, const struct shape_of_block *s, int32_t index, uint64_t *offset)
{
    struct block *block = &m->blocks[index];
    const int32_t first = index * block->weight_count;

    for (int32_t i = 0; i < block->weight_count; i++) {
        struct checkpoint_tensor *t = &m->tensors[first + i];
        struct weight *w = &m->weights[first + i];

        *w = shape_weight(s, i);
        w->offset = block->bytes;
        w->pieces[0] = t;
        *t = (struct checkpoint_tensor){.name = w->name,
            .dtype = w->dtype,
            .shape = {.rank = 2, .dim = {w->rows, w->cols}},
            .bytes = w->bytes,
            .offset = *offset,
            .stored_bytes = w->bytes,
            .file = &m->file};
        *offset += w->bytes;
        block->bytes += size_align(w->bytes, BLOCK_WEIGHT_ALIGNMENT);
    }
}

enum shoal_status bench_model_open(
    struct bench_model *m, const struct bench_model_spec *spec, struct shoal_error *error)
{
    const struct shape_of_block s = shape_block(spec->block_bytes);
    const int32_t distinct =
        spec->blocks < BENCH_MODEL_DISTINCT ? spec->blocks : BENCH_MODEL_DISTINCT;
    const size_t weights = (size_t)distinct * 2 * (size_t)s.pairs;
    uint64_t offset = WEIGHTS_OFFSET;

    *m = (struct bench_model){.file = {.fd = -1}, .tokens = spec->tokens, .hidden = s.hidden};
    m->tensors = mem_calloc(weights, sizeof *m->tensors);
    m->weights = mem_calloc(weights, sizeof *m->weights);
    m->blocks = mem_calloc((size_t)spec->blocks, sizeof *m->blocks);
    if (!m->tensors || !m->weights || !m->blocks) {
        bench_model_close(m);
        FAIL_MEMORY(error);
    }
    for (int32_t i = 0; i < spec->blocks; i++) {
        struct block *block = &m->blocks[i];

        *block = (struct block){.forward = forward,
            .index = i,
            .weights = m->weights + i % distinct * 2 * s.pairs,
            .weight_count = 2 * s.pairs};
        snprintf(block->name, sizeof block->name, "block %d", (int)i);
        if (i < distinct)
            lay_weights(m, &s, i, &offset);
        else
            block->bytes = m->blocks[i % distinct].bytes;
    }
    m->model = (struct model){.family = "bench",
        .blocks = m->blocks,
        .block_count = spec->blocks,
        .passes = {[BENCH_MODEL_STEP] = {.name = "step", .count = spec->blocks, .globals = -1},
            [BENCH_MODEL_RESIDENT] = {.name = "resident", .count = distinct, .globals = -1}},
        .pass_count = 2};
    return SHOAL_OK;
}

void bench_model_close(struct bench_model *m)
{
    file_close(&m->file);
    mem_free(m->tensors);
    mem_free(m->weights);
    mem_free(m->blocks);
    *m = (struct bench_model){.file = {.fd = -1}};
}

/* ---- the file ---- */

uint64_t bench_model_file_bytes(const struct bench_model *m)
{
    return WEIGHTS_OFFSET +
           m->blocks[0].bytes * (uint64_t)m->model.passes[BENCH_MODEL_RESIDENT].count;
}

static enum shoal_status write_weights(struct bench_model *m, const struct bench_model_spec *spec,
    struct writer *writer, struct shoal_error *error)
{
    const uint64_t bytes = NOISE_PERIOD * sizeof(uint16_t), end = bench_model_file_bytes(m);
    uint16_t *pattern = mem_alloc(bytes);
    enum shoal_status status = SHOAL_OK;

    if (!pattern) FAIL_MEMORY(error);
    status = noise_weights(pattern, NOISE_PERIOD, error);
    for (uint64_t at = WEIGHTS_OFFSET; !status && at < end; at += bytes) {
        if (spec->cancelled && spec->cancelled(spec->user))
            status = error_set(error, SHOAL_E_CANCELLED, __FILE__, __LINE__, "cancelled");
        else
            status = writer_put(writer, at, pattern, min_u64(bytes, end - at), error);
    }
    mem_free(pattern);
    return status;
}

enum shoal_status bench_model_check_room(
    const struct bench_model *m, const char *folder, struct shoal_error *error)
{
    const uint64_t bytes = bench_model_file_bytes(m), free_bytes = file_free_bytes(folder);
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    if (bytes <= free_bytes) return SHOAL_OK;
    FAIL(error, SHOAL_E_IO,
        "the weights take %s in %s, where %s are free: name another folder with --dir, or give a "
        "smaller --block-size",
        size_format_up(a, bytes), folder, size_format(b, free_bytes));
}

enum shoal_status bench_model_write(
    struct bench_model *m, const struct bench_model_spec *spec, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    char size[SIZE_TEXT_BYTES];
    struct writer writer = {.fd = -1};

    TRY_OR_FAIL(writer_open_nameless(spec->folder, "shoal-bench-stream", &writer, &m->file, error));
    TRY_OR_FAIL(write_weights(m, spec, &writer, error));
    status = writer_commit_nameless(&writer, &m->file, error);
fail:
    writer_close(&writer);
    if (status && status != SHOAL_E_CANCELLED)
        error_prefix(error, "the weights (%s; --dir names the folder): ",
            size_format_up(size, bench_model_file_bytes(m)));
    return status;
}
