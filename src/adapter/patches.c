/* Joining adapters: runs of rows between which terms begin and end. */
#include "adapter/patches.h"

#include "base/memory.h"
#include "base/size.h"

#include <stdlib.h>

/* The block that is being joined: of each use its items there. */
struct joining {
    const struct adapter_use *uses;
    int32_t count;
    const struct adapter_item *items[PATCH_TERMS];
    int32_t item_counts[PATCH_TERMS];
    int32_t source[PATCH_TERMS]; /* of the block, of each use */
    struct block_patch *patch;
};

static const struct adapter_item *items_of(
    const struct adapter *a, enum family_kind kind, int32_t block, int32_t *count)
{
    int32_t first = 0, end;

    while (
        first < a->item_count && (a->items[first].kind != kind || a->items[first].block != block))
        first++;
    for (end = first;
         end < a->item_count && a->items[end].kind == kind && a->items[end].block == block; end++)
        continue;
    *count = end - first;
    return *count ? &a->items[first] : NULL;
}

static int by_row(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* The rows of a weight at which some term begins or ends, sorted, 0 and the end included. */
static int32_t list_edges(const struct joining *j, int32_t weight, int64_t extent, int64_t *edges)
{
    int32_t count = 0;

    edges[count++] = 0;
    edges[count++] = extent;
    for (int32_t u = 0; u < j->count; u++)
        for (int32_t i = 0; i < j->item_counts[u]; i++) {
            const struct adapter_item *item = &j->items[u][i];

            if (item->weight != weight) continue;
            edges[count++] = item->first;
            edges[count++] = item->first + item->count;
        }
    qsort(edges, (size_t)count, sizeof *edges, by_row);
    return count;
}

static struct adapter_factor moved(struct adapter_factor f, uint64_t by)
{
    f.b.offset += by;
    f.a.offset += by;
    return f;
}

/* One run, with the terms that cover it, in the order of the uses. */
static void add_run(struct joining *j, int32_t weight, int64_t first, int64_t end)
{
    struct block_patch *p = j->patch;
    struct patch_run *run = &p->runs[p->run_count++];

    *run = (struct patch_run){
        .weight = weight, .first = first, .count = end - first, .first_term = p->term_count};
    for (int32_t u = 0; u < j->count; u++)
        for (int32_t i = 0; i < j->item_counts[u]; i++) {
            const struct adapter_item *item = &j->items[u][i];
            const struct adapter_use *use = &j->uses[u];
            const struct adapter_span *span;
            uint64_t by;

            if (item->weight != weight || item->first > first || item->first + item->count < end)
                continue;
            span = adapter_span_of(use->adapter, item->kind, item->block);
            by = p->sources[j->source[u]].at - span->offset; /* wraps; the sum is right */
            p->terms[p->term_count++] = (struct patch_recipe){
                .factors = {moved(item->factors[0], by), moved(item->factors[1], by)},
                .kron = item->kron,
                .scale = (float)((double)use->strength * item->scale),
                .from = item->from + (first - item->first)};
            run->term_count++;
        }
}

static void add_sources(struct joining *j, enum family_kind kind, int32_t block)
{
    struct block_patch *p = j->patch;

    for (int32_t u = 0; u < j->count; u++) {
        const struct adapter *a = j->uses[u].adapter;
        const struct adapter_span *span = adapter_span_of(a, kind, block);

        if (!span) continue;
        j->source[u] = p->source_count;
        p->sources[p->source_count++] =
            (struct patch_source){a->factors + span->offset, span->bytes, p->factor_bytes};
        p->factor_bytes += span->bytes;
    }
}

static enum shoal_status join_block(struct joining *j, const struct model *model,
    enum family_kind kind, int32_t index, struct shoal_error *error)
{
    const struct block *block = &model->blocks[index];
    int64_t *edges;
    int32_t items = 0, most;

    for (int32_t u = 0; u < j->count; u++) {
        j->items[u] = items_of(j->uses[u].adapter, kind, index, &j->item_counts[u]);
        items += j->item_counts[u];
    }
    if (!items) return SHOAL_OK;
    /* Two edges an item, and two a weight. A run has a term of each use at the most. */
    most = 2 * items + 2 * block->weight_count;
    j->patch->runs = mem_calloc((size_t)most, sizeof *j->patch->runs);
    j->patch->terms = mem_calloc((size_t)most * (size_t)j->count, sizeof *j->patch->terms);
    edges = mem_calloc((size_t)most, sizeof *edges);
    if (!j->patch->runs || !j->patch->terms || !edges) {
        mem_free(edges);
        FAIL_MEMORY(error);
    }
    add_sources(j, kind, index);
    for (int32_t w = 0; w < block->weight_count; w++) {
        const struct weight *weight = &block->weights[w];
        const int64_t extent = weight->rows == 1 ? weight->cols : weight->rows;
        const int32_t count = list_edges(j, w, extent, edges);

        if (count == 2) continue; /* no item is of it */
        for (int32_t e = 1; e < count; e++)
            if (edges[e] > edges[e - 1]) add_run(j, w, edges[e - 1], edges[e]);
    }
    mem_free(edges);
    return SHOAL_OK;
}

enum shoal_status patches_open(struct patches *patches, const struct adapter_use *uses,
    int32_t count, const struct model *const models[FAMILY_KINDS], struct shoal_error *error)
{
    struct adapter_use used[PATCH_TERMS];
    struct joining j = {.uses = used};
    enum shoal_status status = SHOAL_OK;

    *patches = (struct patches){0};
    for (int32_t u = 0; u < count; u++) {
        if (uses[u].strength == 0.0f) continue;
        if (j.count == PATCH_TERMS)
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%d adapters at once are the most: merge some into one file", PATCH_TERMS);
        patches->pages[patches->page_count++] =
            (struct patch_pages){uses[u].adapter->factors, uses[u].adapter->factor_bytes};
        used[j.count++] = uses[u];
    }
    for (int kind = 0; kind < FAMILY_KINDS && j.count && !status; kind++) {
        struct model_patches *m = &patches->models[kind];

        if (!models[kind]) continue;
        m->model = models[kind];
        m->blocks = mem_calloc((size_t)m->model->block_count, sizeof *m->blocks);
        if (!m->blocks)
            status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        for (int32_t b = 0; b < m->model->block_count && !status; b++) {
            j.patch = &m->blocks[b];
            status = join_block(&j, m->model, (enum family_kind)kind, b, error);
        }
    }
    if (status) patches_close(patches);
    return status;
}

void patches_close(struct patches *patches)
{
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        struct model_patches *m = &patches->models[kind];

        for (int32_t b = 0; m->blocks && b < m->model->block_count; b++) {
            mem_free(m->blocks[b].runs);
            mem_free(m->blocks[b].terms);
        }
        mem_free(m->blocks);
    }
    *patches = (struct patches){0};
}

const struct block_patch *patches_of(
    const struct patches *patches, const struct model *model, int32_t block)
{
    for (int kind = 0; patches && kind < FAMILY_KINDS; kind++) {
        const struct model_patches *m = &patches->models[kind];

        if (m->blocks && m->model == model)
            return m->blocks[block].run_count ? &m->blocks[block] : NULL;
    }
    return NULL;
}

const struct patch_run *block_patch_runs(
    const struct block_patch *patch, int32_t weight, int32_t *count)
{
    int32_t first = 0, end;

    *count = 0;
    if (!patch) return NULL;
    while (first < patch->run_count && patch->runs[first].weight != weight)
        first++;
    for (end = first; end < patch->run_count && patch->runs[end].weight == weight; end++)
        continue;
    *count = end - first;
    return *count ? &patch->runs[first] : NULL;
}

void block_patch_types(
    const struct block_patch *patch, const struct block *block, struct matrix *weights)
{
    for (int32_t w = 0; w < block->weight_count; w++) {
        if (!block_patch_has(patch, w)) continue;
        weights[w].dtype = patch_dtype(weights[w].dtype);
        weights[w].scale = 1.0f;
    }
}

/* Where a matrix's bytes lie. */
static struct matrix matrix_on(
    const struct block_patch *patch, struct adapter_matrix m, device_addr factors)
{
    device_addr at = factors + m.offset;

    if (!m.rows) return MATRIX_NONE;
    for (int32_t s = 0; !factors && s < patch->source_count; s++) {
        const struct patch_source *source = &patch->sources[s];

        if (m.offset >= source->at && m.offset < source->at + source->bytes)
            at = (device_addr)(uintptr_t)source->data + (m.offset - source->at);
    }
    return matrix_at(at, m.dtype, m.rows, m.cols);
}

void block_patch_terms(const struct block_patch *patch, const struct patch_run *run, bool vector,
    int64_t first, device_addr factors, struct patch *terms)
{
    *terms = (struct patch){.count = run->term_count};
    for (int32_t i = 0; i < run->term_count; i++) {
        const struct patch_recipe *recipe = &patch->terms[run->first_term + i];
        struct patch_term *t = &terms->terms[i];

        *t = (struct patch_term){.kron = recipe->kron, .scale = recipe->scale};
        for (int f = 0; f < 2; f++)
            t->factors[f] = (struct patch_factor){matrix_on(patch, recipe->factors[f].b, factors),
                matrix_on(patch, recipe->factors[f].a, factors)};
        *(vector ? &t->col : &t->row) = recipe->from + (first - run->first);
    }
}

double block_patch_operations(const struct block_patch *patch, const struct block *block)
{
    double operations = 0;

    for (int32_t r = 0; r < patch->run_count; r++) {
        const struct patch_run *run = &patch->runs[r];
        const struct weight *w = &block->weights[run->weight];
        const double elements = (double)run->count * (double)(w->rows == 1 ? 1 : w->cols);

        for (int32_t i = 0; i < run->term_count; i++) {
            const struct patch_recipe *recipe = &patch->terms[run->first_term + i];

            operations +=
                elements * (double)(1 + recipe->factors[0].a.rows + recipe->factors[1].a.rows);
        }
    }
    return operations;
}
