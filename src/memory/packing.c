/* Sampling tensors: many small reads at once. */
#include "memory/packing.h"

#include "base/memory.h"
#include "base/reader.h"
#include "base/size.h"

#include <string.h>

#define PAGES 8  /* of a tensor that are looked at: 16 tiles of a 16-bit type */
#define BATCH 16 /* tensors at once: what keeps a drive busy, in half a MiB */

/* What a room has beyond what the sample says. Where tiles are of two sizes, because their bases
 * differ, the standard error is half a per cent; else much less. */
#define MARGIN (1.0 / 128)
#define MARGIN_ERRORS 4
#define MARGIN_BYTES 512

struct candidate {
    const struct checkpoint_tensor *tensor;
    struct cargo_room *room;
};

struct sampling {
    struct candidate *candidates;
    size_t count;
    struct reader *reader;
    char *pages; /* [BATCH][PAGES] */
};

#define PAGES_BYTES ((uint64_t)BATCH * PAGES * READER_ALIGNMENT)

/* ---- which ---- */

static bool holds_payloads(const struct block *block)
{
    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++)
            if (block->weights[w].pieces[p]->packed) return true;
    return false;
}

static bool overlap(const struct checkpoint_tensor *a, const struct checkpoint_tensor *b)
{
    return a->file == b->file && a->offset < b->offset + b->stored_bytes &&
           b->offset < a->offset + a->stored_bytes;
}

/* Whether one piece of a block may be packed. One encoder takes them as they come from the file, so
 * those that overlap others stay as they are. */
static bool may_pack(const struct block *block, const struct checkpoint_tensor *tensor)
{
    int32_t overlaps = 0;

    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++)
            overlaps += overlap(block->weights[w].pieces[p], tensor);
    return overlaps == 1 && wire_packs(tensor->dtype) &&
           wire_may_pack(tensor->dtype, checkpoint_elements(tensor));
}

static void add_candidates(struct sampling *s, const struct block *block, struct cargo_room *rooms)
{
    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++, rooms++)
            if (may_pack(block, block->weights[w].pieces[p]))
                s->candidates[s->count++] = (struct candidate){block->weights[w].pieces[p], rooms};
}

/* Of all blocks, empty. */
static enum shoal_status make_rooms(
    struct packing *packing, const struct block *blocks, struct shoal_error *error)
{
    packing->rooms = mem_calloc((size_t)packing->count, sizeof *packing->rooms);
    if (!packing->rooms) FAIL_MEMORY(error);
    for (int32_t i = 0; i < packing->count; i++) {
        packing->rooms[i] =
            mem_calloc((size_t)block_piece_count(&blocks[i]), sizeof *packing->rooms[i]);
        if (!packing->rooms[i]) FAIL_MEMORY(error);
    }
    return SHOAL_OK;
}

static enum shoal_status list_candidates(struct sampling *s, struct packing *packing,
    const struct block *blocks, struct shoal_error *error)
{
    size_t pieces = 0;

    for (int32_t i = 0; i < packing->count; i++)
        pieces += (size_t)block_piece_count(&blocks[i]);
    TRY(make_rooms(packing, blocks, error));
    s->candidates = mem_calloc(pieces, sizeof *s->candidates);
    if (!s->candidates) FAIL_MEMORY(error);
    for (int32_t i = 0; i < packing->count; i++)
        add_candidates(s, &blocks[i], packing->rooms[i]);
    return SHOAL_OK;
}

/* ---- what of it ---- */

/* Where page `index` of a sample lies in the file: all spread evenly over the whole pages. */
static uint64_t page_offset(const struct checkpoint_tensor *tensor, int index)
{
    uint64_t first = size_align(tensor->offset, READER_ALIGNMENT);
    uint64_t end = (tensor->offset + tensor->bytes) / READER_ALIGNMENT * READER_ALIGNMENT;
    uint64_t pages = (end - first) / READER_ALIGNMENT;

    return first + (2 * (uint64_t)index + 1) * pages / (2 * PAGES) * READER_ALIGNMENT;
}

/* Puts the whole tiles of a sample's pages together, in place; the elements in them. */
static uint64_t join_pages(const struct checkpoint_tensor *tensor, char *pages)
{
    const uint64_t element = (uint64_t)dtype_bytes(tensor->dtype, 1), tile = element * WIRE_TILE;
    uint64_t used = 0;

    for (int i = 0; i < PAGES; i++) {
        uint64_t into = (page_offset(tensor, i) - tensor->offset) % element;
        uint64_t skip = into ? element - into : 0;
        uint64_t bytes = (READER_ALIGNMENT - skip) / tile * tile;

        memmove(pages + used, pages + (uint64_t)i * READER_ALIGNMENT + skip, bytes);
        used += bytes;
    }
    return used / element;
}

static void keep_room(const struct candidate *c, char *pages)
{
    const struct checkpoint_tensor *tensor = c->tensor;
    uint64_t count = checkpoint_elements(tensor);
    uint64_t sampled = join_pages(tensor, pages), bound = wire_bound(tensor->dtype, count), bytes;
    struct wire_estimate estimate = wire_estimate(tensor->dtype, pages, sampled);
    double part = estimate.part * (1 + MARGIN) + MARGIN_ERRORS * estimate.error;

    memcpy(c->room->table, estimate.table, WIRE_TABLE);
    bytes = (uint64_t)(part * (double)(wire_tiles(count) *
                                       (uint64_t)dtype_bytes(tensor->dtype, WIRE_TILE)));
    bytes = size_align(bytes + MARGIN_BYTES, WIRE_ALIGNMENT);
    if (bytes > bound) bytes = bound;
    if (wire_is_worth(bytes, tensor->bytes)) c->room->bytes = bytes;
}

static enum shoal_status read_batch(
    struct sampling *s, const struct candidate *batch, size_t count, struct shoal_error *error)
{
    struct read done;

    for (size_t i = 0; i < count * PAGES; i++)
        TRY(reader_submit(s->reader,
            &(struct read){.file = batch[i / PAGES].tensor->file,
                .offset = page_offset(batch[i / PAGES].tensor, (int)(i % PAGES)),
                .bytes = READER_ALIGNMENT,
                .least = READER_ALIGNMENT,
                .to = s->pages + i * READER_ALIGNMENT},
            error));
    for (size_t i = 0; i < count * PAGES;) {
        if (!reader_next(s->reader, true, &done, error)) continue;
        if (done.status) return done.status;
        i++;
    }
    return SHOAL_OK;
}

static enum shoal_status sample(struct sampling *s, struct shoal_error *error)
{
    s->pages = pages_alloc(PAGES_BYTES);
    if (!s->pages) FAIL_MEMORY(error);
    TRY(reader_create(&s->reader, READER_AUTO, BATCH * PAGES, error));
    for (size_t first = 0, count; first < s->count; first += count) {
        count = s->count - first < BATCH ? s->count - first : BATCH;
        TRY(read_batch(s, &s->candidates[first], count, error));
        for (size_t i = 0; i < count; i++)
            keep_room(&s->candidates[first + i], s->pages + i * PAGES * READER_ALIGNMENT);
    }
    return SHOAL_OK;
}

/* ---- the whole ---- */

/* Blocks of which nothing packs have no rooms. */
static void drop_empty(struct packing *packing, const struct block *blocks)
{
    for (int32_t i = 0; i < packing->count; i++) {
        uint64_t bytes = 0;

        for (int32_t p = 0; p < block_piece_count(&blocks[i]); p++)
            bytes += packing->rooms[i][p].bytes;
        if (bytes) continue;
        mem_free(packing->rooms[i]);
        packing->rooms[i] = NULL;
    }
}

static void keep_wide(
    const struct block *block, const struct block_patch *patch, struct cargo_room *rooms)
{
    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++, rooms++) {
            const struct checkpoint_tensor *t = block->weights[w].pieces[p];
            const uint64_t blocks = t->bytes / (uint64_t)dtype_block_bytes(t->dtype);

            if (block_patch_has(patch, w))
                *rooms = (struct cargo_room){.bytes = (uint64_t)dtype_bytes(patch_dtype(t->dtype),
                                                 (int64_t)blocks * dtype_block_elements(t->dtype)),
                    .bakes = true};
            else if (dtype_is_f8(t->dtype))
                *rooms = (struct cargo_room){.bytes = 2 * t->bytes, .widens = true};
        }
}

enum shoal_status packing_init_widening(struct packing *packing, const struct model *model,
    const struct pass *pass, const struct patches *patches, struct shoal_error *error)
{
    const struct block *blocks = &model->blocks[pass->first];
    enum shoal_status status;

    *packing = (struct packing){.count = pass->count};
    for (int32_t i = 0; i < pass->count; i++)
        if (holds_payloads(&blocks[i])) return SHOAL_OK;
    status = make_rooms(packing, blocks, error);
    for (int32_t i = 0; !status && i < pass->count; i++)
        keep_wide(&blocks[i], patches_of(patches, model, pass->first + i), packing->rooms[i]);
    if (!status) drop_empty(packing, blocks);
    if (status) packing_fini(packing);
    return status;
}

enum shoal_status packing_init(struct packing *packing, const struct model *model,
    const struct pass *pass, struct shoal_error *error)
{
    const struct block *blocks = &model->blocks[pass->first];
    struct sampling s = {0};
    enum shoal_status status;

    *packing = (struct packing){.count = pass->count};
    for (int32_t i = 0; i < pass->count; i++)
        if (holds_payloads(&blocks[i])) return SHOAL_OK;
    status = list_candidates(&s, packing, blocks, error);
    if (!status && s.count) status = sample(&s, error);
    if (!status) drop_empty(packing, blocks);
    reader_destroy(&s.reader);
    pages_free(s.pages, PAGES_BYTES);
    mem_free(s.candidates);
    if (status) packing_fini(packing);
    return status;
}

void packing_fini(struct packing *packing)
{
    for (int32_t i = 0; packing->rooms && i < packing->count; i++)
        mem_free(packing->rooms[i]);
    mem_free(packing->rooms);
    *packing = (struct packing){0};
}
