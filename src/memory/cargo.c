/* Cargo: from a block's tensors to reads and copies. Pure arithmetic; reading is intake's. */
#include "memory/cargo.h"

#include "base/memory.h"
#include "base/reader.h"
#include "base/size.h"
#include "device/cpu/patch.h"
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
        widens = widens || rooms[p].widens || rooms[p].bakes;
    return widens;
}

/* How many elements it has, of whatever type. */
static int64_t elements_of(const struct checkpoint_tensor *tensor)
{
    return (int64_t)(tensor->bytes / (uint64_t)dtype_block_bytes(tensor->dtype)) *
           dtype_block_elements(tensor->dtype);
}

/* The weight as it is used: patched, widened, or as it is stored. */
static struct cargo_weight used_as(
    const struct cargo *c, int32_t index, const struct cargo_room *room)
{
    const struct weight *w = &c->block->weights[index];
    struct cargo_weight used = {c->open_bytes, w->dtype, w->scale};

    if (block_patch_has(c->patch, index))
        used.dtype = patch_dtype(w->dtype);
    else if (room && room->bytes && room->widens)
        used.dtype = DTYPE_BF16;
    if (used.dtype != w->dtype) used.scale = 1.0f;
    return used;
}

static struct cargo_part part_of(
    const struct cargo *c, int32_t index, int32_t piece, const struct cargo_room *room)
{
    const struct weight *w = &c->block->weights[index];
    const struct checkpoint_tensor *t = w->pieces[piece];

    room = room && room->bytes ? room : NULL;
    return (struct cargo_part){.tensor = t,
        .room = room,
        .bytes = room ? room->bytes : t->stored_bytes,
        .count = w->rows == 1 ? elements_of(t) : elements_of(t) / w->cols,
        .weight = index,
        .packed = (room && !room->widens && !room->bakes) || t->packed,
        .patched = !c->widens && block_patch_has(c->patch, index)};
}

static void list_parts(struct cargo *c, const struct cargo_room *rooms)
{
    struct cargo_part *part = c->parts;

    c->widens = any_widens(c->block, rooms);
    for (int32_t i = 0; i < c->block->weight_count; i++) {
        const struct weight *w = &c->block->weights[i];
        uint64_t at = c->open_bytes;
        int64_t first = 0;

        c->weights[i] = used_as(c, i, rooms);
        for (int32_t p = 0; p < w->piece_count; p++) {
            *part = part_of(c, i, p, rooms);
            part->values_offset = part->unpack_offset = at;
            part->first = first;
            at += (uint64_t)dtype_bytes(c->weights[i].dtype, elements_of(part->tensor));
            first += part->count;
            c->packed = c->packed || part->packed;
            c->opens = c->opens || part->packed || part->patched;
            c->packs = c->packs || part->room;
            part++;
            rooms += rooms != NULL;
        }
        c->open_bytes = size_align(at, BLOCK_WEIGHT_ALIGNMENT);
    }
}

/* Payloads are unpacked to where they are patched in place; where their type becomes another, to a
 * place behind the block that they share. */
static void place_unpacked(struct cargo *c)
{
    const uint64_t behind = c->open_bytes;

    for (int32_t i = 0; i < c->part_count; i++) {
        struct cargo_part *part = &c->parts[i];

        if (!part->packed || !part->patched ||
            part->tensor->dtype == c->weights[part->weight].dtype)
            continue;
        part->unpack_offset = behind;
        c->open_bytes = max_u64(
            c->open_bytes, behind + size_align(part->tensor->bytes, BLOCK_WEIGHT_ALIGNMENT));
    }
}

/* As the block is used; if it opens, one part after another in the order of the file: so runs of
 * copies are long, and what opens part by part gives up the span from its begin on. Factors are
 * needed to the end. */
static void place_parts(struct cargo *c)
{
    place_unpacked(c);
    c->bytes = c->opens ? 0 : c->open_bytes;
    for (int32_t i = 0; i < c->part_count; i++) {
        struct cargo_part *part = &c->parts[i];

        part->offset = c->opens ? c->bytes : part->values_offset;
        if (c->opens) c->bytes = size_align(c->bytes + part->bytes, BLOCK_WEIGHT_ALIGNMENT);
    }
    c->factors_at = c->bytes;
    if (c->opens && c->patch) c->bytes += c->patch->factor_bytes;
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
    const struct cargo_room *rooms, const struct block_patch *patch, struct shoal_error *error)
{
    *c = (struct cargo){.block = block, .patch = patch, .part_count = block_piece_count(block)};
    c->parts = mem_calloc((size_t)c->part_count, sizeof *c->parts);
    c->weights = mem_calloc((size_t)block->weight_count, sizeof *c->weights);
    if (!c->parts || !c->weights) {
        cargo_fini(c);
        FAIL_MEMORY(error);
    }
    list_parts(c, rooms);
    qsort(c->parts, (size_t)c->part_count, sizeof *c->parts, by_file);
    place_parts(c);
    return SHOAL_OK;
}

enum shoal_status cargo_init(struct cargo *cargo, const struct block *block,
    const struct cargo_room *rooms, const struct block_patch *patch, struct shoal_error *error)
{
    uint64_t chunks = 0;
    struct run run;

    TRY(init_parts(cargo, block, rooms, patch, error));
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
    mem_free(cargo->weights);
    mem_free(cargo->chunks);
    mem_free(cargo->copies);
    *cargo = (struct cargo){0};
}

enum shoal_status cargo_measure(const struct block *block, const struct cargo_room *rooms,
    const struct block_patch *patch, struct cargo_size *size, struct shoal_error *error)
{
    uint64_t read_bytes = 0;
    struct cargo c;
    struct run run;

    TRY(init_parts(&c, block, rooms, patch, error));
    *size = (struct cargo_size){
        .bytes = c.bytes, .open_bytes = c.open_bytes, .packed = c.packed, .opens = c.opens};
    for (int32_t first = 0; first < c.part_count; first += run.count) {
        run = run_at(&c, first);
        read_bytes += size_align(run.end - run.begin, READER_ALIGNMENT);
    }
    size->image_bytes = image_bytes(&c, read_bytes);
    cargo_fini(&c);
    return SHOAL_OK;
}

void cargo_bind(const struct cargo *cargo, device_addr base, struct matrix *weights)
{
    for (int32_t i = 0; i < cargo->block->weight_count; i++) {
        const struct weight *w = &cargo->block->weights[i];
        const struct cargo_weight *used = &cargo->weights[i];

        weights[i] = matrix_at(base + used->offset, used->dtype, w->rows, w->cols);
        weights[i].scale = used->scale;
    }
}

/* ---- patching ---- */

/* What a rectangle is cut from: elements of a part, at x and y. */
struct patching {
    const struct cargo *cargo;
    const struct cargo_part *part;
    int64_t first; /* of the elements, in the part */
    device_addr x, y, factors;
    cargo_patch_rows *patch;
    void *user;
};

/* Rows [row, row + rows) of the part, columns [col, col + cols) of them; of a vector one row. */
static void patch_rectangle(
    const struct patching *p, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const struct weight *w = &p->cargo->block->weights[p->part->weight];
    const bool vector = w->rows == 1;
    const int64_t at = row * w->cols * !vector + col - p->first;
    const int64_t begin = p->part->first + (vector ? col : row),
                  end = begin + (vector ? cols : rows);
    struct matrix x = matrix_at(p->x, w->dtype, rows, cols);
    struct matrix y = matrix_at(p->y, p->cargo->weights[p->part->weight].dtype, rows, cols);
    const struct patch_run *run;
    int32_t runs;

    x.stride = y.stride = vector ? cols : w->cols;
    x.addr += (uint64_t)dtype_bytes(x.dtype, at);
    y.addr += (uint64_t)dtype_bytes(y.dtype, at);
    x.scale = w->scale;
    run = block_patch_runs(p->cargo->patch, p->part->weight, &runs);
    for (; runs; runs--, run++) {
        const int64_t from = run->first > begin ? run->first : begin;
        const int64_t to = least(run->first + run->count, end);
        struct patch terms;

        if (from >= to) continue;
        block_patch_terms(p->cargo->patch, run, vector, from, p->factors, &terms);
        for (int32_t i = 0; i < terms.count && !vector; i++)
            terms.terms[i].col = col;
        if (vector)
            p->patch(p->user, matrix_cols(y, from - begin, to - from),
                matrix_cols(x, from - begin, to - from), &terms);
        else
            p->patch(p->user, matrix_rows(y, from - begin, to - from),
                matrix_rows(x, from - begin, to - from), &terms);
    }
}

void cargo_patch(const struct cargo *cargo, const struct cargo_part *part, int64_t first,
    int64_t count, device_addr x, device_addr y, device_addr factors, cargo_patch_rows *patch,
    void *user)
{
    const struct weight *w = &cargo->block->weights[part->weight];
    const struct patching p = {cargo, part, first, x, y, factors, patch, user};
    const int64_t end = first + count;

    if (w->rows == 1) {
        patch_rectangle(&p, 0, 1, first, count);
        return;
    }
    /* The end of a row, whole rows, and the begin of one. */
    while (first < end) {
        const int64_t row = first / w->cols, col = first % w->cols;
        int64_t rows = 1, cols = least(w->cols - col, end - first);

        if (!col && end - first >= w->cols) rows = (end - first) / w->cols;
        patch_rectangle(&p, row, rows, col, cols);
        first += rows * cols;
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

/* ---- packing, widening and baking ---- */

static void widen(const struct cargo *cargo, const struct cargo_copy *copy, uint64_t first,
    const char *codes, char *image)
{
    const struct cargo_part *part = &cargo->parts[copy->part];
    uint16_t *to = (uint16_t *)(void *)(image + part->offset) + first;

    quant_f8_to_bf16(to, (const uint8_t *)codes, part->tensor->dtype,
        cargo->block->weights[part->weight].scale, copy->bytes);
}

static void bake_rows(void *user, struct matrix y, struct matrix x, const struct patch *terms)
{
    patch_on_host(user, y, x, terms);
}

/* Patches whole blocks of a tensor, from its element `first` on, into the image. */
static void bake_blocks(const struct cargo *cargo, const struct cargo_part *part, int64_t first,
    int64_t count, const char *stored, struct cargo_packer *packer, char *to)
{
    if (count)
        cargo_patch(cargo, part, first, count, (device_addr)(uintptr_t)stored,
            (device_addr)(uintptr_t)to, 0, bake_rows, packer->pool);
}

/* A block that lies in two chunks waits for its end where it will go in the image: patched, it is
 * never smaller. */
static void bake(const struct cargo *cargo, const struct cargo_copy *copy, uint64_t offset,
    const char *data, struct cargo_packer *packer, char *image)
{
    const struct cargo_part *part = &cargo->parts[copy->part];
    const enum dtype dtype = part->tensor->dtype, used = cargo->weights[part->weight].dtype;
    const uint64_t block = (uint64_t)dtype_block_bytes(dtype), cut = offset % block;
    const int64_t elements = dtype_block_elements(dtype);
    const uint64_t block_used = (uint64_t)dtype_bytes(used, elements);
    char *to = image + part->offset + offset / block * block_used, whole[256];
    int64_t first = (int64_t)(offset / block) * elements;
    uint64_t left = copy->bytes;

    if (cut) {
        const uint64_t more = min_u64(block - cut, left);

        memcpy(to + cut, data, more);
        if (cut + more < block) return;
        memcpy(whole, to, block);
        bake_blocks(cargo, part, first, elements, whole, packer, to);
        data += more;
        left -= more;
        first += elements;
        to += block_used;
    }
    bake_blocks(cargo, part, first, (int64_t)(left / block) * elements, data, packer, to);
    memcpy(to + left / block * block_used, data + left / block * block, left % block);
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
        if (part->room->bakes) {
            bake(cargo, copy, offset - tensor->offset, data + copy->from, packer, image);
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
