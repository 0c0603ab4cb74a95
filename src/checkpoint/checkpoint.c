/*
 * Checkpoints: finding the files behind a path, and joining their headers into one sorted list.
 * What one header may contain is safetensors.c's and gguf.c's business.
 */
#include "checkpoint/checkpoint.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/gguf.h"
#include "checkpoint/index.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"
#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_MAX_BYTES 100000000u
#define INDEX_FACTOR 4 /* of its bytes: the text itself, names and entries made of it */
#define FILE_SUFFIX ".safetensors"
#define GGUF_SUFFIX ".gguf"
#define INDEX_SUFFIX ".safetensors.index.json"

/* One file of it; one of the headers is empty. Tensors point at `file`, so the array of these never
 * moves. */
struct part {
    struct file file;
    struct safetensors header;
    struct gguf gguf;
};

struct checkpoint {
    char *path;
    struct part *parts;
    size_t part_count;
    struct checkpoint_tensor *tensors; /* of all parts, sorted by name */
    size_t count;
    struct allowance *allowance; /* while it is opened */
};

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);

    return length >= tail && !strcmp(text + length - tail, suffix);
}

/* ---- finding the file ---- */

/* Appends "a, b, c" of the names with that suffix; adds to *count, sets *only to the last one. */
static enum shoal_status list_suffix(char *const *names, size_t name_count, const char *suffix,
    struct text *list, size_t *count, const char **only, struct shoal_error *error)
{
    for (size_t i = 0; i < name_count; i++) {
        /* Hidden files are no checkpoints: "._model.safetensors" is left by macOS archives. */
        if (names[i][0] == '.' || !ends_with(names[i], suffix)) continue;
        text_append(list, *count ? ", %s" : "%s", names[i]);
        *only = names[i];
        ++*count;
    }
    if (list->failed) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status choose_file(const char *folder, char *const *names, size_t name_count,
    struct text *list, const char **chosen, struct shoal_error *error)
{
    size_t count = 0;

    TRY(list_suffix(names, name_count, INDEX_SUFFIX, list, &count, chosen, error));
    if (count > 1)
        FAIL(error, SHOAL_E_INVALID,
            "%s holds several checkpoint indexes; give the path of one of them: %s", folder,
            list->data);
    if (count == 1) return SHOAL_OK;
    TRY(list_suffix(names, name_count, FILE_SUFFIX, list, &count, chosen, error));
    TRY(list_suffix(names, name_count, GGUF_SUFFIX, list, &count, chosen, error));
    if (count > 1)
        FAIL(error, SHOAL_E_INVALID,
            "%s holds several .safetensors or .gguf files and no index (*" INDEX_SUFFIX
            ") that would join them; add it, or give the path of one of them: %s",
            folder, list->data);
    if (!count)
        FAIL(error, SHOAL_E_MISSING,
            "%s holds no checkpoint: neither a *" FILE_SUFFIX " or *" GGUF_SUFFIX
            " file nor an index (*" INDEX_SUFFIX ")",
            folder);
    return SHOAL_OK;
}

/* The file that `path` stands for: itself, or the one checkpoint in a folder. */
static enum shoal_status find_file(const char *path, char **file, struct shoal_error *error)
{
    const char *chosen = NULL;
    enum shoal_status status;
    struct text list = {0};
    char **names = NULL;
    size_t count;

    if (file_kind(path) == FILE_FOLDER) {
        TRY(file_list(path, &names, &count, error));
        status = choose_file(path, names, count, &list, &chosen, error);
        mem_free(list.data);
        *file = status ? NULL : mem_format(ends_with(path, "/") ? "%s%s" : "%s/%s", path, chosen);
        mem_free(names);
        TRY(status);
    } else {
        *file = mem_strdup(path);
    }
    if (!*file) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* ---- joining the parts ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(
        ((const struct checkpoint_tensor *)a)->name, ((const struct checkpoint_tensor *)b)->name);
}

static enum shoal_status make_parts(
    struct checkpoint *checkpoint, size_t count, struct shoal_error *error)
{
    checkpoint->parts = mem_calloc(count, sizeof *checkpoint->parts);
    if (!checkpoint->parts) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status open_part(
    struct checkpoint *checkpoint, const char *path, struct shoal_error *error)
{
    struct allowance *allowance = checkpoint->allowance;
    struct part *part = &checkpoint->parts[checkpoint->part_count];
    char magic[GGUF_MAGIC_BYTES];
    bool gguf = false;

    TRY(file_open(path, &part->file, error));
    checkpoint->part_count++; /* from here on checkpoint_close closes it */
    if (part->file.bytes >= sizeof magic) {
        TRY(file_read_at(&part->file, 0, magic, sizeof magic, error));
        gguf = gguf_is(magic, sizeof magic);
    }
    if (gguf) return gguf_read(&part->file, allowance, &part->gguf, error);
    if (ends_with(path, GGUF_SUFFIX))
        FAIL(error, SHOAL_E_FORMAT,
            "%s is not a GGUF file: it does not begin with \"GGUF\"; download it again", path);
    return safetensors_read(&part->file, allowance, &part->header, error);
}

static enum shoal_status join_parts(struct checkpoint *checkpoint, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES];
    size_t count = 0;

    for (size_t i = 0; i < checkpoint->part_count; i++)
        count += checkpoint->parts[i].header.count + checkpoint->parts[i].gguf.count;
    checkpoint->tensors = mem_calloc(count, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors) FAIL_MEMORY(error);
    for (size_t i = 0; i < checkpoint->part_count; i++) {
        const struct part *part = &checkpoint->parts[i];
        size_t part_tensors = part->header.count + part->gguf.count;

        if (!part_tensors) continue;
        memcpy(checkpoint->tensors + checkpoint->count,
            part->gguf.count ? part->gguf.tensors : part->header.tensors,
            part_tensors * sizeof *checkpoint->tensors);
        checkpoint->count += part_tensors;
    }
    qsort(checkpoint->tensors, count, sizeof *checkpoint->tensors, by_name);
    for (size_t i = 1; i < count; i++)
        if (!by_name(&checkpoint->tensors[i - 1], &checkpoint->tensors[i]))
            FAIL(error, SHOAL_E_FORMAT,
                "tensor '%s' is in two shards, %s and %s; the files do not belong together: "
                "download them again",
                json_show(name, checkpoint->tensors[i].name), checkpoint->tensors[i - 1].file->path,
                checkpoint->tensors[i].file->path);
    return SHOAL_OK;
}

/* ---- shards ---- */

static enum shoal_status open_shards(struct checkpoint *checkpoint, const char *path,
    const struct index *index, struct shoal_error *error)
{
    const char *slash = strrchr(path, '/');
    int folder_length = slash ? (int)(slash + 1 - path) : 0;

    TRY(make_parts(checkpoint, index->shard_count, error));
    for (size_t i = 0; i < index->shard_count; i++) {
        char *shard = mem_format("%.*s%s", folder_length, path, index->shards[i]);
        enum shoal_status status;

        if (!shard) FAIL_MEMORY(error);
        if (file_kind(shard) == FILE_NONE)
            status = error_set(error, SHOAL_E_MISSING, __FILE__, __LINE__,
                "%s needs the shard %s, which is not there: download it into the same folder", path,
                index->shards[i]);
        else
            status = open_part(checkpoint, shard, error);
        mem_free(shard);
        TRY(status);
    }
    return SHOAL_OK;
}

/* Every tensor that the index lists must be where it says. More than it lists is fine. */
static enum shoal_status check_index(const struct checkpoint *checkpoint, const char *path,
    const struct index *index, struct shoal_error *error)
{
    for (size_t i = 0; i < index->count; i++) {
        const struct index_entry *entry = &index->entries[i];
        const struct checkpoint_tensor *tensor = checkpoint_find(checkpoint, entry->tensor);
        char name[JSON_SHOWN_BYTES];

        if (tensor && tensor->file == &checkpoint->parts[entry->shard].file) continue;
        FAIL(error, SHOAL_E_FORMAT,
            "%s says that tensor '%s' is in the shard %s, which does not have it; the files do not "
            "belong together: download them again",
            path, json_show(name, entry->tensor), index->shards[entry->shard]);
    }
    return SHOAL_OK;
}

static enum shoal_status open_index(
    struct checkpoint *checkpoint, const char *path, struct shoal_error *error)
{
    struct index index = {0};
    enum shoal_status status;
    char *json;
    size_t bytes;

    TRY(file_read_all(path, INDEX_MAX_BYTES, &json, &bytes, error));
    status = allowance_take(
        checkpoint->allowance, path, INDEX_FACTOR * bytes + json_load_bytes(json, bytes), error);
    if (!status) status = index_parse(path, json, bytes, &index, error);
    mem_free(json);
    TRY(status);
    TRY_OR_FAIL(open_shards(checkpoint, path, &index, error));
    TRY_OR_FAIL(join_parts(checkpoint, error));
    TRY_OR_FAIL(check_index(checkpoint, path, &index, error));
fail:
    index_fini(&index);
    return status;
}

/* ---- the interface ---- */

enum shoal_status checkpoint_open(
    const char *path, struct checkpoint **checkpoint, struct shoal_error *error)
{
    return checkpoint_open_within(path, NULL, checkpoint, error);
}

enum shoal_status checkpoint_open_within(const char *path, struct allowance *allowance,
    struct checkpoint **checkpoint, struct shoal_error *error)
{
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    enum shoal_status status;

    *checkpoint = NULL;
    if (!c) FAIL_MEMORY(error);
    c->allowance = allowance;
    TRY_OR_FAIL(find_file(path, &c->path, error));
    if (ends_with(c->path, ".json")) {
        TRY_OR_FAIL(open_index(c, c->path, error));
    } else {
        TRY_OR_FAIL(make_parts(c, 1, error));
        TRY_OR_FAIL(open_part(c, c->path, error));
        TRY_OR_FAIL(join_parts(c, error));
    }
    c->allowance = NULL;
    *checkpoint = c;
    return SHOAL_OK;
fail:
    checkpoint_close(&c);
    return status;
}

void checkpoint_close(struct checkpoint **checkpoint)
{
    struct checkpoint *c = *checkpoint;

    if (!c) return;
    for (size_t i = 0; i < c->part_count; i++) {
        safetensors_fini(&c->parts[i].header);
        gguf_fini(&c->parts[i].gguf);
        file_close(&c->parts[i].file);
    }
    mem_free(c->parts);
    mem_free(c->tensors);
    mem_free(c->path);
    mem_free(c);
    *checkpoint = NULL;
}

const char *checkpoint_path(const struct checkpoint *checkpoint)
{
    return checkpoint->path;
}

size_t checkpoint_count(const struct checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *checkpoint, size_t index)
{
    return &checkpoint->tensors[index];
}

const struct checkpoint_tensor *checkpoint_find(
    const struct checkpoint *checkpoint, const char *name)
{
    const struct checkpoint_tensor key = {.name = name};

    return bsearch(
        &key, checkpoint->tensors, checkpoint->count, sizeof *checkpoint->tensors, by_name);
}

const char *checkpoint_metadata(const struct checkpoint *checkpoint, const char *key)
{
    for (size_t i = 0; i < checkpoint->part_count; i++) {
        const struct safetensors *header = &checkpoint->parts[i].header;
        const struct gguf_pair *pair = gguf_find(&checkpoint->parts[i].gguf, key);

        for (size_t k = 0; k < header->metadata_count; k++)
            if (!strcmp(header->metadata[k].key, key)) return header->metadata[k].value;
        if (pair && pair->text) return pair->text;
    }
    return NULL;
}

enum shoal_status checkpoint_value(const struct checkpoint *checkpoint, const char *key,
    struct allowance *allowance, json_t **value, struct shoal_error *error)
{
    *value = NULL;
    for (size_t i = 0; i < checkpoint->part_count; i++) {
        const struct part *part = &checkpoint->parts[i];
        const struct gguf_pair *pair = gguf_find(&part->gguf, key);

        if (!pair) continue;
        TRY(allowance_take(allowance, part->file.path, gguf_value_bytes(pair), error));
        return gguf_value(part->file.path, pair, value, error);
    }
    return SHOAL_OK;
}

uint64_t checkpoint_header_bytes(const struct checkpoint *checkpoint)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < checkpoint->part_count; i++)
        bytes += checkpoint->parts[i].header.bytes + checkpoint->parts[i].gguf.bytes;
    return bytes;
}

size_t checkpoint_file_count(const struct checkpoint *checkpoint)
{
    return checkpoint->part_count;
}

const struct file *checkpoint_file(const struct checkpoint *checkpoint, size_t index)
{
    return &checkpoint->parts[index].file;
}

bool checkpoint_file_metadata(const struct checkpoint *checkpoint, size_t file, size_t index,
    const char **key, const char **value)
{
    const struct safetensors *header = &checkpoint->parts[file].header;

    if (index >= header->metadata_count) return false;
    *key = header->metadata[index].key;
    *value = header->metadata[index].value;
    return true;
}

/* ---- reading ---- */

static enum shoal_status unpack(const struct checkpoint_tensor *tensor, const void *payload,
    void *data, struct shoal_error *error)
{
    const char *path = tensor->file->path;
    struct wire_info info;
    uint64_t count;

    TRY(wire_check(payload, tensor->stored_bytes, path, &info, error));
    if (!shape_count(&tensor->shape, &count) || info.dtype != tensor->dtype || info.count != count)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: its packed data are %llu of %s, and not what its header says", path,
            (unsigned long long)info.count, dtype_name(info.dtype));
    wire_decode(payload, info, 0, wire_tiles(count), data);
    return SHOAL_OK;
}

static enum shoal_status check_and_unpack(const struct checkpoint_tensor *tensor,
    const void *stored, void *data, struct shoal_error *error)
{
    TRY(file_check_unchanged(tensor->file, error));
    if (tensor->has_checksum && checksum_of(stored, tensor->stored_bytes) != tensor->checksum)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: its bytes are not those that were written (the checksum differs); the file is "
            "damaged: convert the original again, or if it is a copy in a disk cache remove it "
            "there (shoal cache)",
            tensor->file->path);
    return tensor->packed ? unpack(tensor, stored, data, error) : SHOAL_OK;
}

static void name_tensor(struct shoal_error *error, const struct checkpoint_tensor *tensor)
{
    char name[JSON_SHOWN_BYTES];

    error_prefix(error, "tensor '%s': ", json_show(name, tensor->name));
}

enum shoal_status checkpoint_unpack(const struct checkpoint_tensor *tensor, const void *stored,
    void *data, struct shoal_error *error)
{
    enum shoal_status status = check_and_unpack(tensor, stored, data, error);

    if (status) name_tensor(error, tensor);
    return status;
}

enum shoal_status checkpoint_read(
    const struct checkpoint_tensor *tensor, void *data, struct shoal_error *error)
{
    void *payload = tensor->packed ? pages_alloc(tensor->stored_bytes) : NULL;
    void *stored = payload ? payload : data;
    enum shoal_status status;

    if (tensor->packed && !payload) FAIL_MEMORY(error);
    status = file_read_at(tensor->file, tensor->offset, stored, tensor->stored_bytes, error);
    if (!status) status = check_and_unpack(tensor, stored, data, error);
    if (status) name_tensor(error, tensor);
    if (payload) pages_free(payload, tensor->stored_bytes);
    return status;
}
