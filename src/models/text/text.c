/*
 * What text encoders have in common. The embedding table is the largest tensor by far and a prompt
 * needs a few of its rows, so these are read from the file.
 */
#include "models/text/text.h"

#include "base/memory.h"
#include "models/source.h"
#include "tensor/quant.h"

#include <math.h>
#include <string.h>

#define MAX_TOKENS (1 << 16)

/* ---- lanes ---- */

enum shoal_status text_embed(const struct text_config *c, const int32_t *ids, int64_t tokens,
    float *embedded, struct shoal_error *error)
{
    uint64_t row_bytes = (uint64_t)dtype_bytes(c->embedding->dtype, c->width);
    void *row = mem_alloc((size_t)row_bytes);
    enum shoal_status status = SHOAL_OK;

    if (!row) FAIL_MEMORY(error);
    for (int64_t t = 0; t < tokens && !status; t++) {
        if (ids[t] < 0 || ids[t] >= c->vocabulary) {
            status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
                "the tokenizer gives token %d, but %s in %s has %lld rows: they are not of the "
                "same model",
                (int)ids[t], c->embedding->name, c->embedding->file->path,
                (long long)c->vocabulary);
            break;
        }
        status = file_read_at(c->embedding->file,
            c->embedding->offset + (uint64_t)ids[t] * row_bytes, row, row_bytes, error);
        if (status) break;
        quant_widen(
            embedded + t * c->width, row, c->embedding->dtype, c->embedding_scale, 0, c->width);
        for (int64_t i = 0; i < c->width && !status; i++)
            if (!isfinite(embedded[t * c->width + i]))
                status = error_set(error, SHOAL_E_NUMERIC, __FILE__, __LINE__,
                    "%s: row %d of tensor %s holds NaN or infinite values: the file is damaged or "
                    "was badly converted: get it again",
                    c->embedding->file->path, (int)ids[t], c->embedding->name);
    }
    mem_free(row);
    return status;
}

enum shoal_status text_lane_create(const struct model *model, const int32_t *ids, int64_t tokens,
    struct text_lane **lane, struct shoal_error *error)
{
    const struct text_config *config = text_config(model);
    struct text_lane *l;
    enum shoal_status status = SHOAL_E_MEMORY;

    *lane = NULL;
    if (tokens < 1 || tokens > MAX_TOKENS)
        FAIL(error, SHOAL_E_INVALID, "a prompt of %lld tokens: it must have 1 to %d",
            (long long)tokens, MAX_TOKENS);
    l = mem_calloc(1, sizeof *l);
    if (!l) FAIL_MEMORY(error);
    l->model = model;
    l->config = config;
    l->tokens = tokens;
    config->family->measure(l);
    l->host_embedded = mem_calloc((size_t)tokens, (size_t)config->width * sizeof(float));
    l->features = mem_calloc((size_t)tokens, (size_t)config->width * sizeof(float));
    if (!l->host_embedded || !l->features) {
        error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    TRY_OR_FAIL(tables_make(l->tables, TEXT_TABLES, error));
    if (ids) TRY_OR_FAIL(config->family->fill(l, error));
    if (ids) TRY_OR_FAIL(text_embed(config, ids, tokens, l->host_embedded, error));
    *lane = l;
    return SHOAL_OK;

fail:
    text_lane_destroy(NULL, &l);
    return status;
}

uint64_t text_lane_bytes(const struct model *model, int64_t tokens)
{
    struct text_lane lane = {.model = model, .config = text_config(model), .tokens = tokens};

    lane.config->family->measure(&lane);
    return tables_bytes(lane.tables, TEXT_TABLES) +
           (uint64_t)(2 * tokens * lane.config->width) * sizeof(float);
}

void text_lane_destroy(struct exec *x, struct text_lane **lane)
{
    struct text_lane *l = *lane;

    if (!l) return;
    if (x) exec_free(x, &l->hidden);
    tables_fini(x, l->tables, TEXT_TABLES);
    mem_free(l->features);
    mem_free(l->host_embedded);
    mem_free(l);
    *lane = NULL;
}

/* ---- for families: the passes' ends ---- */

void text_begin(struct exec *x, const struct block *block, const struct matrix *weights, void *lane)
{
    struct text_lane *l = lane;

    (void)block;
    (void)weights;
    tables_upload(x, l->tables, TEXT_TABLES);
    l->hidden = exec_alloc_float(x, l->tokens, l->config->width);
    exec_upload(x, l->hidden, l->host_embedded);
}

void text_finish(struct exec *x, struct text_lane *l)
{
    exec_download(x, l->features, l->hidden);
    exec_free(x, &l->hidden);
    tables_release(x, l->tables, TEXT_TABLES);
}

void text_finish_normed(struct exec *x, struct text_lane *l, struct matrix gamma, float eps)
{
    x->ops->rms_norm(x->stream, l->hidden, l->hidden, gamma, MATRIX_NONE, eps);
    text_finish(x, l);
}

/* ---- for families: opening ---- */

void text_read_embedding(struct source *s, const char *name, struct text_config *c)
{
    const struct checkpoint_tensor *e = source_tensor(s, name);
    char shown[SHAPE_TEXT_BYTES];

    c->vocabulary = source_dim(s, name, 0);
    c->embedding = e;
    if (s->status) return;
    if (!dtype_computes(e->dtype) || e->shape.rank != 2 || e->shape.dim[1] != c->width ||
        c->width % dtype_block_elements(e->dtype))
        s->status = error_set(s->error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: tensor %s is %s %s, but must have %lld columns, of one of " DTYPES_COMPUTED_TEXT,
            e->file->path, e->name, dtype_name(e->dtype), shape_format(shown, &e->shape),
            (long long)c->width);
    else if (e->packed)
        s->status = error_set(s->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "%s: tensor %s is packed, but rows are read from it one by one: convert the original "
            "with shoal convert, which leaves it as it is",
            e->file->path, e->name);
    if (!s->status)
        s->status = scales_find(&s->scales, c->embedding, &c->embedding_scale, s->error);
}
