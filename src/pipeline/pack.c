/*
 * Writing one packed or plain file. While a tensor is encoded on all cores, the next one is read
 * (fetch.h).
 *
 * Sizes of payloads are known when they have been made, so the header comes last, into room that is
 * kept for it; and a block's tensors that are not packed come after its payloads, so that what is
 * wanting to the next multiple of 4096 can be given to the last payload.
 */
#include "pipeline/pack.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "base/size.h"
#include "checkpoint/container.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"
#include "pipeline/fetch.h"
#include "pipeline/scan.h"
#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_LENGTH_BYTES 8

/* What is fetched whole: what shall be packed, and what must be unpacked. */
static bool is_whole(const struct pack_item *item, bool packed)
{
    return item->tensor->packed || (packed && item->packs);
}

/* ---- putting tensors into the file ---- */

struct packing {
    const struct pack_work *work;
    struct writer *writer;
    bool unprefixed; /* tensors are called as in their file */
    struct appender appender;
    struct fetch fetch;
    const struct checkpoint_tensor **whole; /* in the order in which they are wanted */
    size_t whole_count;
    struct pack_item *items; /* of the file, in order */
    size_t count;
    bool *written;                   /* [count] */
    struct container_entry *entries; /* in the file's order */
    size_t entry_count;
    uint64_t data_offset; /* of the first byte after the header */
    uint64_t at;          /* where the next tensor begins, from there */
    struct scan scan;     /* of tensors that are copied */
    char *payload;
    uint64_t payload_room;
    struct pack_result result;
};

static enum shoal_status report(
    const struct packing *p, uint64_t read_bytes, uint64_t written_bytes, struct shoal_error *error)
{
    if (p->work->go_on(p->work->user, read_bytes, written_bytes)) return SHOAL_OK;
    FAIL(error, SHOAL_E_CANCELLED, "cancelled");
}

static struct container_entry *add_entry(struct packing *p, size_t index, uint64_t stored_bytes)
{
    struct container_entry *entry = &p->entries[p->entry_count++];

    *entry = (struct container_entry){.tensor = p->items[index].tensor,
        .unprefixed = p->unprefixed,
        .offset = p->at,
        .bytes = stored_bytes,
        .stored_bytes = stored_bytes};
    p->written[index] = true;
    return entry;
}

static enum shoal_status put(
    struct packing *p, const void *data, uint64_t bytes, struct shoal_error *error)
{
    TRY(appender_put(&p->appender, data, bytes, error));
    p->at += bytes;
    return SHOAL_OK;
}

/* Packs item `index`, unless it comes to about as many bytes as it has. */
static enum shoal_status try_packing(struct packing *p, size_t index, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = p->items[index].tensor;
    struct container_entry *entry;
    const void *data;
    uint64_t count = 0, bytes;

    TRY(fetch_take(&p->fetch, &data, error));
    (void)!shape_count(&tensor->shape, &count); /* it was checked */
    bytes = wire_encode(p->work->pool, tensor->dtype, data, count, p->payload);
    fetch_give(&p->fetch);
    /* What is packed stays so: it cannot be read in pieces. */
    if (!tensor->packed && !wire_is_worth(bytes, tensor->bytes)) return report(p, 0, 0, error);
    entry = add_entry(p, index, bytes);
    entry->packed = true;
    entry->checksum = checksum_of(p->payload, bytes);
    p->result.packed++;
    TRY(put(p, p->payload, bytes, error));
    return report(p, tensor->bytes, bytes, error);
}

static enum shoal_status copy_pieces(struct packing *p, const struct checkpoint_tensor *tensor,
    struct checksum *sum, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES];
    const char *data;
    uint64_t bytes;

    scan_begin(&p->scan, tensor);
    for (;;) {
        TRY(scan_next(&p->scan, &data, &bytes, error));
        if (!bytes) break;
        checksum_add(sum, data, bytes);
        TRY(put(p, data, bytes, error));
        TRY(report(p, bytes, bytes, error));
    }
    TRY(file_check_unchanged(tensor->file, error));
    if (tensor->has_checksum && tensor->checksum != checksum_value(sum))
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor '%s' is damaged: its checksum differs; convert the original again",
            tensor->file->path, json_show(name, tensor->name));
    return SHOAL_OK;
}

/* Puts item `index` as it is computed with. */
static enum shoal_status copy_plain(struct packing *p, size_t index, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = p->items[index].tensor;
    struct container_entry *entry = add_entry(p, index, tensor->bytes);
    struct checksum sum;
    const void *data;

    checksum_begin(&sum);
    if (tensor->packed) {
        TRY(fetch_take(&p->fetch, &data, error));
        checksum_add(&sum, data, tensor->bytes);
        TRY(put(p, data, tensor->bytes, error));
        fetch_give(&p->fetch);
        TRY(report(p, tensor->bytes, tensor->bytes, error));
    } else {
        TRY(copy_pieces(p, tensor, &sum, error));
    }
    entry->checksum = checksum_value(&sum);
    return SHOAL_OK;
}

/* ---- groups ---- */

static size_t group_end(const struct packing *p, size_t first)
{
    size_t end = first;

    while (end < p->count && p->items[end].group == p->items[first].group)
        end++;
    return end;
}

/* Gives zeros to the last payload, so that `bytes` after it end on a block's boundary. */
static enum shoal_status pad(struct packing *p, uint64_t bytes, struct shoal_error *error)
{
    static const char zeros[CONTAINER_BLOCK_BYTES];
    uint64_t more = size_align(p->at + bytes, CONTAINER_BLOCK_BYTES) - p->at - bytes;

    p->entries[p->entry_count - 1].bytes += more;
    return put(p, zeros, more, error);
}

/* A block's payloads, then the rest of it; nothing, if nothing of it packs. */
static enum shoal_status pack_group(
    struct packing *p, size_t first, size_t end, struct shoal_error *error)
{
    uint64_t before = p->result.packed, plain_bytes = 0;

    for (size_t i = first; i < end; i++)
        if (is_whole(&p->items[i], true)) TRY(try_packing(p, i, error));
    if (p->result.packed == before) return SHOAL_OK;
    for (size_t i = first; i < end; i++)
        if (!p->written[i]) plain_bytes += p->items[i].tensor->bytes;
    TRY(pad(p, plain_bytes, error));
    /* They end on the boundary, so the largest elements come last to lie at multiples of it. */
    for (size_t i = end; i-- > first;)
        if (!p->written[i]) TRY(copy_plain(p, i, error));
    return SHOAL_OK;
}

static enum shoal_status put_all(struct packing *p, struct shoal_error *error)
{
    for (size_t i = 0, end; i < p->count && p->work->packed; i = end) {
        end = group_end(p, i);
        TRY(pack_group(p, i, end, error));
    }
    for (size_t i = 0; i < p->count; i++)
        if (!p->written[i]) TRY(copy_plain(p, i, error));
    return SHOAL_OK;
}

/* ---- the whole ---- */

static enum shoal_status put_header(struct packing *p, struct shoal_error *error)
{
    char *text = container_header(
        p->entries, p->entry_count, json_deep_copy(p->work->metadata), p->work->packed);
    uint64_t room = p->data_offset - HEADER_LENGTH_BYTES, length = text ? strlen(text) : 0;
    char *header = text ? mem_alloc(p->data_offset) : NULL;
    enum shoal_status status;

    if (header) {
        for (int i = 0; i < HEADER_LENGTH_BYTES; i++)
            header[i] = (char)(room >> 8 * i & 255);
        memcpy(header + HEADER_LENGTH_BYTES, text, length);
        memset(header + HEADER_LENGTH_BYTES + length, ' ', room - length);
        status = writer_put(p->writer, 0, header, p->data_offset, error);
    } else {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    }
    mem_free(header);
    mem_free(text);
    return status;
}

/* The file's own items, and where its data begin. */
static enum shoal_status take_items(struct packing *p, const struct pack_list *list,
    const struct file *file, struct shoal_error *error)
{
    size_t header_bytes = 0;

    p->items = mem_calloc(list->count, sizeof *p->items);
    p->written = mem_calloc(list->count, sizeof *p->written);
    p->entries = mem_calloc(list->count, sizeof *p->entries);
    p->whole = mem_calloc(list->count, sizeof *p->whole);
    if (!p->items || !p->written || !p->entries || !p->whole) FAIL_MEMORY(error);
    for (size_t i = 0; i < list->count; i++) {
        if (file && list->items[i].tensor->file != file) continue;
        p->entries[p->count].tensor = list->items[i].tensor;
        p->result.bytes += list->items[i].tensor->bytes;
        if (is_whole(&list->items[i], p->work->packed))
            p->whole[p->whole_count++] = list->items[i].tensor;
        p->items[p->count++] = list->items[i];
    }
    p->result.tensors = p->count;
    header_bytes = container_header_bound(p->entries, p->count, json_deep_copy(p->work->metadata));
    if (!header_bytes) FAIL_MEMORY(error);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: its header would have %zu bytes, over the format's limit of %u", p->writer->path,
            header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    p->data_offset = size_align(HEADER_LENGTH_BYTES + header_bytes, CONTAINER_BLOCK_BYTES);
    return SHOAL_OK;
}

static enum shoal_status make_payload_room(struct packing *p, struct shoal_error *error)
{
    for (size_t i = 0; i < p->count && p->work->packed; i++) {
        const struct checkpoint_tensor *tensor = p->items[i].tensor;
        uint64_t count, bound;

        if (!is_whole(&p->items[i], true) || !shape_count(&tensor->shape, &count)) continue;
        bound = wire_bound(tensor->dtype, count);
        if (bound > p->payload_room) p->payload_room = bound;
    }
    if (!p->payload_room) return SHOAL_OK;
    p->payload = pages_alloc(p->payload_room);
    if (!p->payload) FAIL_MEMORY(error);
    return SHOAL_OK;
}

enum shoal_status pack_write(const struct pack_list *list, const struct file *file,
    const struct pack_work *work, struct writer *writer, struct pack_result *result,
    struct shoal_error *error)
{
    struct packing p = {.work = work, .writer = writer, .unprefixed = file != NULL};
    enum shoal_status status = take_items(&p, list, file, error);

    if (!status) status = make_payload_room(&p, error);
    if (!status) status = scan_init(&p.scan, error);
    if (!status) status = appender_init(&p.appender, writer, p.data_offset, error);
    if (!status) {
        status = fetch_start(&p.fetch, p.whole, p.whole_count, error);
        if (!status) status = put_all(&p, error);
        fetch_stop(&p.fetch);
    }
    if (!status) status = appender_finish(&p.appender, error);
    if (!status) status = put_header(&p, error);
    p.result.file_bytes = p.data_offset + p.at;
    *result = p.result;
    appender_fini(&p.appender);
    if (p.payload) pages_free(p.payload, p.payload_room);
    scan_fini(&p.scan);
    mem_free(p.whole);
    mem_free(p.items);
    mem_free(p.written);
    mem_free(p.entries);
    return status;
}
