/* Cargo: from a block's tensors to reads and copies. Pure arithmetic; reading is intake's. */
#include "memory/cargo.h"

#include "base/memory.h"
#include "base/reader.h"
#include "base/size.h"
#include "tensor/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranges that lie closer than this are read as one: the drive would have been there anyway. */
#define GAP_BYTES (64u << 10)

/* ---- parts ---- */

static bool any_widens(const struct block *block, const struct cargo_room *rooms)
{
    bool widens = false;

    for (int32_t p = 0; rooms && p < block_piece_count(block); p++)
        widens = widens || rooms[p].widens;
    return widens;
}

static void list_parts(struct cargo *c, const struct cargo_room *rooms)
{
    struct cargo_part *part = c->parts;

    c->widens = any_widens(c->block, rooms);
    for (int32_t i = 0; i < c->block->weight_count; i++) {
        const struct weight *w = &c->block->weights[i];
        uint64_t at = c->widens ? c->bytes : w->offset;

        for (int32_t p = 0; p < w->piece_count; p++) {
            const struct cargo_room *room = rooms && rooms->bytes ? rooms : NULL;

            *part = (struct cargo_part){.tensor = w->pieces[p],
                .room = room,
                .bytes = room ? room->bytes : w->pieces[p]->stored_bytes,
                .values_offset = at,
                .weight = i,
                .packed = (room && !room->widens) || w->pieces[p]->packed};
            at += c->widens ? part->bytes : w->pieces[p]->bytes;
            c->packed = c->packed || part->packed;
            c->packs = c->packs || room;
            part++;
            rooms += rooms != NULL;
        }
        if (c->widens) c->bytes = size_align(at, BLOCK_WEIGHT_ALIGNMENT);
    }
}

/* As the block is laid out; packed, one payload after another in the order of the file: so runs of
 * copies are long, and what unpacks part by part gives up the span from its begin on. */
static void place_parts(struct cargo *c)
{
    if (!c->widens) c->bytes = c->packed ? 0 : c->block->bytes;
    for (int32_t i = 0; i < c->part_count; i++) {
        struct cargo_part *part = &c->parts[i];

        part->offset = c->packed ? c->bytes : part->values_offset;
        if (c->packed) c->bytes = size_align(c->bytes + part->bytes, BLOCK_WEIGHT_ALIGNMENT);
    }
}

static int by_file(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = ((const struct cargo_part *)a)->tensor;
    const struct checkpoint_tensor *y = ((const struct cargo_part *)b)->tensor;

    if (x->file != y->file) return (uintptr_t)x->file < (uintptr_t)y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* ---- chunks ---- */

/* A run of parts, in file order, that is read as one range. */
struct run {
    int32_t first, count;
    uint64_t begin, end;
};

/* The run that begins at part `first`. */
static struct run run_at(const struct cargo *c, int32_t first)
{
    const struct checkpoint_tensor *t = c->parts[first].tensor;
    struct run run = {
        first, 1, t->offset / READER_ALIGNMENT * READER_ALIGNMENT, t->offset + t->stored_bytes};

    for (int32_t i = first + 1; i < c->part_count; i++) {
        const struct checkpoint_tensor *next = c->parts[i].tensor;
        uint64_t end = next->offset + next->stored_bytes;

        if (next->file != t->file || next->offset > run.end + GAP_BYTES) break;
        if (end > run.end) run.end = end;
        run.count++;
    }
    return run;
}

static uint64_t chunks_of(const struct run *run)
{
    return (run->end - run->begin + CARGO_CHUNK_BYTES - 1) / CARGO_CHUNK_BYTES;
}

/* The bytes of the run's parts that lie in the chunk. */
static void list_copies(struct cargo *c, const struct run *run, struct cargo_chunk *chunk)
{
    uint64_t chunk_end = chunk->offset + chunk->bytes;

    chunk->first_copy = c->copy_count;
    for (int32_t i = run->first; i < run->first + run->count; i++) {
        const struct cargo_part *part = &c->parts[i];
        uint64_t begin = part->tensor->offset, end = begin + part->tensor->stored_bytes;
        uint64_t from = begin > chunk->offset ? begin : chunk->offset;
        uint64_t to = end < chunk_end ? end : chunk_end;

        if (from >= to) continue;
        c->copies[c->copy_count++] = (struct cargo_copy){.from = from - chunk->offset,
            .to = part->offset + (from - begin),
            .bytes = to - from,
            .part = i};
    }
    chunk->copy_count = c->copy_count - chunk->first_copy;
}

static void list_chunks(struct cargo *c)
{
    struct run run;

    for (int32_t first = 0; first < c->part_count; first += run.count) {
        run = run_at(c, first);
        for (uint64_t at = run.begin; at < run.end; at += CARGO_CHUNK_BYTES) {
            struct cargo_chunk *chunk = &c->chunks[c->chunk_count++];
            uint64_t left = run.end - at;
            uint64_t least = left < CARGO_CHUNK_BYTES ? left : CARGO_CHUNK_BYTES;

            *chunk = (struct cargo_chunk){.file = c->parts[first].tensor->file,
                .offset = at,
                .bytes = size_align(least, READER_ALIGNMENT),
                .least = least,
                .at = c->read_bytes};
            list_copies(c, &run, chunk);
            c->read_bytes += chunk->bytes;
        }
    }
}

/* What is packed while it is read waits as it crosses. */
static uint64_t image_bytes(const struct cargo *c, uint64_t read_bytes)
{
    return c->packs ? size_align(c->bytes, READER_ALIGNMENT) : read_bytes;
}

/* ---- the whole ---- */

static enum shoal_status init_parts(struct cargo *c, const struct block *block,
    const struct cargo_room *rooms, struct shoal_error *error)
{
    *c = (struct cargo){.block = block, .part_count = block_piece_count(block)};
    c->parts = mem_calloc((size_t)c->part_count, sizeof *c->parts);
    if (!c->parts) FAIL_MEMORY(error);
    list_parts(c, rooms);
    qsort(c->parts, (size_t)c->part_count, sizeof *c->parts, by_file);
    place_parts(c);
    return SHOAL_OK;
}

enum shoal_status cargo_init(struct cargo *cargo, const struct block *block,
    const struct cargo_room *rooms, struct shoal_error *error)
{
    uint64_t chunks = 0;
    struct run run;

    TRY(init_parts(cargo, block, rooms, error));
    for (int32_t first = 0; first < cargo->part_count; first += run.count) {
        run = run_at(cargo, first);
        chunks += chunks_of(&run);
    }
    cargo->chunks = mem_calloc((size_t)chunks, sizeof *cargo->chunks);
    /* Every part has a first copy, and every cut between chunks makes at most one more. */
    cargo->copies = mem_calloc((size_t)chunks + (size_t)cargo->part_count, sizeof *cargo->copies);
    if (!cargo->chunks || !cargo->copies) {
        cargo_fini(cargo);
        FAIL_MEMORY(error);
    }
    list_chunks(cargo);
    cargo->image_bytes = image_bytes(cargo, cargo->read_bytes);
    return SHOAL_OK;
}

void cargo_fini(struct cargo *cargo)
{
    mem_free(cargo->parts);
    mem_free(cargo->chunks);
    mem_free(cargo->copies);
    *cargo = (struct cargo){0};
}

enum shoal_status cargo_measure(const struct block *block, const struct cargo_room *rooms,
    struct cargo_size *size, struct shoal_error *error)
{
    uint64_t read_bytes = 0;
    struct cargo c;
    struct run run;

    TRY(init_parts(&c, block, rooms, error));
    *size = (struct cargo_size){.bytes = c.bytes, .packed = c.packed};
    for (int32_t first = 0; first < c.part_count; first += run.count) {
        run = run_at(&c, first);
        read_bytes += size_align(run.end - run.begin, READER_ALIGNMENT);
    }
    size->image_bytes = image_bytes(&c, read_bytes);
    cargo_fini(&c);
    return SHOAL_OK;
}

void cargo_bind(const struct cargo *cargo, device_addr span, struct matrix *weights)
{
    block_bind(cargo->block, span, weights);
    if (!cargo->widens) return;
    for (int32_t i = 0; i < cargo->part_count; i++) {
        const struct cargo_part *part = &cargo->parts[i];
        struct matrix *m = &weights[part->weight];

        /* Its pieces lie one after another. */
        if (part->tensor != cargo->block->weights[part->weight].pieces[0]) continue;
        m->addr = span + part->values_offset;
        if (!part->room) continue;
        m->dtype = DTYPE_BF16;
        m->scale = 1.0f;
    }
}

/* ---- checking ---- */

/* The header of a payload that begins in this chunk: decoding relies on it. */
static enum shoal_status check_payload(const struct checkpoint_tensor *tensor, const char *data,
    uint64_t bytes, struct shoal_error *error)
{
    uint64_t count = checkpoint_elements(tensor);
    enum shoal_status status;
    struct wire_info info;
    char what[64];

    if (bytes < WIRE_HEADER_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor %s: packed data that does not begin at a multiple of %d",
            tensor->file->path, tensor->name, WIRE_ALIGNMENT);
    snprintf(what, sizeof what, "tensor %.50s", tensor->name);
    status = wire_check_header(data, tensor->stored_bytes, what, &info, error);
    if (!status && (info.dtype != tensor->dtype || info.count != count))
        status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: packed data of another type or size than the header of the file says", what);
    if (status) error_prefix(error, "%s: ", tensor->file->path);
    return status;
}

static enum shoal_status check_values(const struct cargo *cargo, const struct cargo_copy *copy,
    const struct cargo_chunk *chunk, const char *data, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = cargo->parts[copy->part].tensor;
    const uint64_t element =
        dtype_block_elements(tensor->dtype) > 1 ? 2 : (uint64_t)dtype_bytes(tensor->dtype, 1);
    const uint64_t at = chunk->offset + copy->from - tensor->offset;

    /* A tensor that lies askew in its file is left to the check of the picture. */
    if (tensor->unchecked || tensor->offset % element) return SHOAL_OK;
    if (quant_has_nonfinite(data + copy->from, tensor->dtype, at, copy->bytes))
        FAIL(error, SHOAL_E_NUMERIC,
            "%s: tensor %s (block %s) holds NaN or infinite values; the file is damaged or was "
            "badly converted: get it again",
            tensor->file->path, tensor->name, cargo->block->name);
    return SHOAL_OK;
}

/* A tensor's bytes go into the sum as they come, chunk by chunk; at their end it is compared. */
static enum shoal_status check_sum(const struct cargo *cargo, const struct cargo_copy *copy,
    uint64_t offset, const char *data, struct checksum *sum, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = cargo->parts[copy->part].tensor;

    if (!tensor->has_checksum) return SHOAL_OK;
    if (offset == tensor->offset) checksum_begin(sum);
    checksum_add(sum, data, (size_t)copy->bytes);
    if (offset + copy->bytes < tensor->offset + tensor->stored_bytes) return SHOAL_OK;
    if (checksum_value(sum) != tensor->checksum)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor %s (block %s) is not what was written: its checksum differs; the file is "
            "damaged: convert the original again, or if it is a copy in a disk cache remove it "
            "there (shoal cache)",
            tensor->file->path, tensor->name, cargo->block->name);
    return SHOAL_OK;
}

enum shoal_status cargo_check(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct checksum *sum, struct shoal_error *error)
{
    for (int32_t i = 0; i < chunk->copy_count; i++) {
        const struct cargo_copy *copy = &cargo->copies[chunk->first_copy + i];
        const struct checkpoint_tensor *tensor = cargo->parts[copy->part].tensor;

        if (!tensor->packed)
            TRY(check_values(cargo, copy, chunk, data, error));
        else if (chunk->offset + copy->from == tensor->offset)
            TRY(check_payload(tensor, data + copy->from, copy->bytes, error));
        TRY(check_sum(cargo, copy, chunk->offset + copy->from, data + copy->from, sum, error));
    }
    return SHOAL_OK;
}

/* No header lies across two chunks: the first visit refused payloads that begin so. */
enum shoal_status cargo_check_again(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct shoal_error *error)
{
    for (int32_t i = 0; i < chunk->copy_count; i++) {
        const struct cargo_copy *copy = &cargo->copies[chunk->first_copy + i];
        const struct checkpoint_tensor *tensor = cargo->parts[copy->part].tensor;

        if (!tensor->packed || chunk->offset + copy->from != tensor->offset) continue;
        if (check_payload(tensor, data + copy->from, copy->bytes, NULL))
            FAIL(error, SHOAL_E_IO,
                "%s was changed while it was in use (tensor %s, block %s): run again",
                tensor->file->path, tensor->name, cargo->block->name);
    }
    return SHOAL_OK;
}

/* ---- packing and widening ---- */

static void widen(const struct cargo *cargo, const struct cargo_copy *copy, uint64_t first,
    const char *codes, char *image)
{
    const struct cargo_part *part = &cargo->parts[copy->part];
    uint16_t *to = (uint16_t *)(void *)(image + part->offset) + first;

    quant_f8_to_bf16(to, (const uint8_t *)codes, part->tensor->dtype,
        cargo->block->weights[part->weight].scale, copy->bytes);
}

/* A tensor's last bytes have been packed. */
static enum shoal_status end_part(const struct cargo *cargo, const struct cargo_part *part,
    struct cargo_packer *packer, struct shoal_error *error)
{
    uint64_t bytes = wire_end(&packer->encoder);

    if (bytes <= part->room->bytes) return SHOAL_OK;
    packer->outgrown = part->tensor;
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: tensor %s (block %s) packs worse than its sample: it takes %llu bytes where %llu were "
        "kept for it: give --wire raw",
        part->tensor->file->path, part->tensor->name, cargo->block->name, (unsigned long long)bytes,
        (unsigned long long)part->room->bytes);
}

enum shoal_status cargo_pack(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct cargo_packer *packer, char *image, struct shoal_error *error)
{
    for (int32_t i = 0; i < chunk->copy_count; i++) {
        const struct cargo_copy *copy = &cargo->copies[chunk->first_copy + i];
        const struct cargo_part *part = &cargo->parts[copy->part];
        const struct checkpoint_tensor *tensor = part->tensor;
        uint64_t offset = chunk->offset + copy->from;

        if (!part->room) {
            memcpy(image + copy->to, data + copy->from, copy->bytes);
            continue;
        }
        if (part->room->widens) {
            widen(cargo, copy, offset - tensor->offset, data + copy->from, image);
            continue;
        }
        if (offset == tensor->offset)
            wire_begin(&packer->encoder, tensor->dtype, checkpoint_elements(tensor),
                part->room->table, image + part->offset, part->room->bytes);
        wire_add(&packer->encoder, packer->pool, data + copy->from, copy->bytes);
        if (offset + copy->bytes == tensor->offset + tensor->stored_bytes)
            TRY(end_part(cargo, part, packer, error));
    }
    return SHOAL_OK;
}
