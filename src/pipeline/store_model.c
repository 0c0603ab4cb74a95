/* A store's blocks as a model. */
#include "pipeline/store_model.h"

#include "base/memory.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

#define MOST_BLOCKS 100000
#define MOST_TENSORS 10000 /* of a block */

/* ---- files ---- */

/* One for all tensors of a path. `files` has room for every tensor, so that none ever moves. */
static enum shoal_status open_file(
    struct store_model *m, const char *path, const struct file **file, struct shoal_error *error)
{
    for (int32_t i = 0; i < m->opened_count; i++)
        if (strcmp(m->opened[i].path, path) == 0) {
            *file = &m->opened[i];
            return SHOAL_OK;
        }
    TRY(file_open(path, &m->opened[m->opened_count], error));
    *file = &m->opened[m->opened_count++];
    return SHOAL_OK;
}

/* ---- tensors ---- */

static enum shoal_status refuse(const char *block, const struct shoal_store_tensor *from,
    const char *why, struct shoal_error *error)
{
    FAIL(error, SHOAL_E_INVALID, "tensor %s of block %s: %s",
        from->name ? from->name : "without a name", block, why);
}

/* Of a type that is known, if the bytes are whole elements of it; else as bytes. */
static enum dtype type_of(const struct shoal_store_tensor *from)
{
    enum dtype dtype;

    if (!from->dtype || !dtype_parse(from->dtype, &dtype)) return DTYPE_U8;
    return from->bytes % (uint64_t)dtype_block_bytes(dtype) ? DTYPE_U8 : dtype;
}

static enum shoal_status place_tensor(struct store_model *m, int32_t index, const char *block,
    const struct shoal_store_tensor *from, struct shoal_error *error)
{
    struct checkpoint_tensor *t = &m->tensors[index];
    const char *name = from->name ? from->name : "?";
    const enum dtype dtype = type_of(from);
    const int64_t elements =
        (int64_t)from->bytes / dtype_block_bytes(dtype) * dtype_block_elements(dtype);

    if (!from->bytes || from->bytes > INT64_MAX / 2)
        return refuse(block, from, "it has no bytes, or too many", error);
    if (!from->data == !from->path)
        return refuse(
            block, from, "it must lie either in memory (data) or in a file (path)", error);
    m->names[index] = mem_alloc(strlen(name) + 1);
    if (!m->names[index]) FAIL_MEMORY(error);
    strcpy(m->names[index], name);
    *t = (struct checkpoint_tensor){.name = m->names[index],
        .dtype = dtype,
        .shape = {.rank = 1, .dim = {elements}},
        .bytes = from->bytes,
        .stored_bytes = from->bytes,
        .unchecked = true,
        .offset = from->path ? from->offset : 0,
        .file = &m->files[index]};
    if (from->data) {
        m->files[index] = file_of_memory(m->names[index], from->data, from->bytes);
        return SHOAL_OK;
    }
    TRY(open_file(m, from->path, &t->file, error));
    if (from->offset > t->file->bytes || from->bytes > t->file->bytes - from->offset)
        FAIL(error, SHOAL_E_INVALID,
            "tensor %s of block %s: %s has %llu bytes, and it would end at byte %llu", name, block,
            from->path, (unsigned long long)t->file->bytes,
            (unsigned long long)(from->offset + from->bytes));
    return SHOAL_OK;
}

static void place_weight(struct store_model *m, struct block *block, int32_t index, int32_t first)
{
    struct checkpoint_tensor *t = &m->tensors[first + index];

    block->weights[index] = (struct weight){.name = m->names[first + index],
        .dtype = t->dtype,
        .rows = 1,
        .cols = t->shape.dim[0],
        .offset = block->bytes,
        .bytes = t->bytes,
        .pieces = {t},
        .piece_count = 1};
    block->bytes += size_align(t->bytes, BLOCK_WEIGHT_ALIGNMENT);
    m->bytes += t->bytes;
}

/* ---- all of them ---- */

static enum shoal_status count_tensors(struct store_model *m,
    const struct shoal_store_block *blocks, int32_t count, struct shoal_error *error)
{
    if (count < 1 || count > MOST_BLOCKS)
        FAIL(error, SHOAL_E_INVALID, "a store of %d blocks: it must have 1 to %d", (int)count,
            MOST_BLOCKS);
    for (int32_t i = 0; i < count; i++) {
        if (blocks[i].tensor_count < 1 || blocks[i].tensor_count > MOST_TENSORS)
            FAIL(error, SHOAL_E_INVALID, "block %d has %d tensors: it must have 1 to %d", (int)i,
                (int)blocks[i].tensor_count, MOST_TENSORS);
        m->tensor_count += blocks[i].tensor_count;
    }
    m->block_count = count;
    return SHOAL_OK;
}

static enum shoal_status reserve(struct store_model *m, struct shoal_error *error)
{
    const size_t tensors = (size_t)m->tensor_count;

    m->blocks = mem_calloc((size_t)m->block_count, sizeof *m->blocks);
    m->weights = mem_calloc(tensors, sizeof *m->weights);
    m->tensors = mem_calloc(tensors, sizeof *m->tensors);
    m->names = mem_calloc(tensors, sizeof *m->names);
    m->files = mem_calloc(tensors, sizeof *m->files);
    m->opened = mem_calloc(tensors, sizeof *m->opened);
    if (!m->blocks || !m->weights || !m->tensors || !m->names || !m->files || !m->opened)
        FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status fill(
    struct store_model *m, const struct shoal_store_block *blocks, struct shoal_error *error)
{
    int32_t first = 0;

    for (int32_t i = 0; i < m->block_count; first += blocks[i++].tensor_count) {
        struct block *block = &m->blocks[i];

        *block = (struct block){
            .index = i, .weights = m->weights + first, .weight_count = blocks[i].tensor_count};
        if (blocks[i].name)
            snprintf(block->name, sizeof block->name, "%s", blocks[i].name);
        else
            snprintf(block->name, sizeof block->name, "%d", (int)i);
        for (int32_t t = 0; t < block->weight_count; t++) {
            TRY(place_tensor(m, first + t, block->name, &blocks[i].tensors[t], error));
            place_weight(m, block, t, first);
        }
    }
    return SHOAL_OK;
}

enum shoal_status store_model_open(struct store_model *m, const struct shoal_store_block *blocks,
    int32_t count, struct shoal_error *error)
{
    enum shoal_status status;

    *m = (struct store_model){0};
    TRY(count_tensors(m, blocks, count, error));
    status = reserve(m, error);
    if (!status) status = fill(m, blocks, error);
    if (status) {
        store_model_close(m);
        return status;
    }
    m->model = (struct model){.family = "store",
        .blocks = m->blocks,
        .block_count = count,
        .passes = {{.name = "walk", .count = count, .globals = -1}},
        .pass_count = 1};
    return SHOAL_OK;
}

void store_model_close(struct store_model *m)
{
    for (int32_t i = 0; i < m->opened_count; i++)
        file_close(&m->opened[i]);
    for (int32_t i = 0; m->names && i < m->tensor_count; i++)
        mem_free(m->names[i]);
    mem_free(m->opened);
    mem_free(m->files);
    mem_free(m->names);
    mem_free(m->tensors);
    mem_free(m->weights);
    mem_free(m->blocks);
    *m = (struct store_model){0};
}
