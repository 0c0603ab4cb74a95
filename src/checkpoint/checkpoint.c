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
    const char *prefix; /* of its tensors' names; NULL: none. While it is opened */
    char *names;        /* with the prefix; NULL: they are the header's */
};

struct checkpoint {
    char *path, *beside; /* of what was opened; beside: NULL if nothing was */
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

/* Gives a part's tensors names with its prefix. */
static enum shoal_status add_prefix(struct checkpoint *checkpoint, struct part *part,
    struct checkpoint_tensor *tensors, size_t count, struct shoal_error *error)
{
    const size_t prefix_bytes = strlen(part->prefix);
    size_t bytes = 0;
    char *to;

    for (size_t i = 0; i < count; i++)
        bytes += prefix_bytes + strlen(tensors[i].name) + 1;
    TRY(allowance_take(checkpoint->allowance, part->file.path, bytes, error));
    part->names = to = mem_alloc(bytes);
    if (!to) FAIL_MEMORY(error);
    for (size_t i = 0; i < count; i++) {
        const char *name = tensors[i].name;

        tensors[i].name = to;
        tensors[i].prefix_bytes = prefix_bytes;
        memcpy(to, part->prefix, prefix_bytes);
        strcpy(to + prefix_bytes, name);
        to += strlen(to) + 1;
    }
    return SHOAL_OK;
}

static enum shoal_status refuse_twice(
    const struct checkpoint_tensor *a, const struct checkpoint_tensor *b, struct shoal_error *error)
{
    const struct checkpoint_tensor *beside = a->prefix_bytes ? a : b;
    char name[JSON_SHOWN_BYTES], own[JSON_SHOWN_BYTES];

    json_show(name, a->name);
    if (a->prefix_bytes != b->prefix_bytes)
        FAIL(error, SHOAL_E_FORMAT,
            "tensor '%s' is in %s, and as '%s' in %s: only one of them has it in a model; take one "
            "of the files away",
            name, (beside == a ? b : a)->file->path,
            json_show(own, beside->name + beside->prefix_bytes), beside->file->path);
    FAIL(error, SHOAL_E_FORMAT,
        "tensor '%s' is in two shards, %s and %s; the files do not belong together: "
        "download them again",
        name, a->file->path, b->file->path);
}

static enum shoal_status join_parts(struct checkpoint *checkpoint, struct shoal_error *error)
{
    size_t count = 0;

    for (size_t i = 0; i < checkpoint->part_count; i++)
        count += checkpoint->parts[i].header.count + checkpoint->parts[i].gguf.count;
    checkpoint->tensors = mem_calloc(count, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors) FAIL_MEMORY(error);
    for (size_t i = 0; i < checkpoint->part_count; i++) {
        struct part *part = &checkpoint->parts[i];
        struct checkpoint_tensor *to = checkpoint->tensors + checkpoint->count;
        size_t part_tensors = part->header.count + part->gguf.count;

        if (!part_tensors) continue;
        memcpy(to, part->gguf.count ? part->gguf.tensors : part->header.tensors,
            part_tensors * sizeof *to);
        if (part->prefix) TRY(add_prefix(checkpoint, part, to, part_tensors, error));
        checkpoint->count += part_tensors;
    }
    qsort(checkpoint->tensors, count, sizeof *checkpoint->tensors, by_name);
    for (size_t i = 1; i < count; i++)
        if (!by_name(&checkpoint->tensors[i - 1], &checkpoint->tensors[i]))
            return refuse_twice(&checkpoint->tensors[i - 1], &checkpoint->tensors[i], error);
    return SHOAL_OK;
}

/* ---- shards ---- */

/* What one path stands for: a file, or an index and its shards. */
struct group {
    const char *path;
    const char *prefix; /* NULL: none */
    bool sharded;
    struct index index;
    size_t first; /* of its parts */
};

/* Reads its index, if it is one; index_fini is due, whatever comes of it. */
static enum shoal_status read_index(
    struct group *group, struct allowance *allowance, struct shoal_error *error)
{
    enum shoal_status status;
    char *json;
    size_t bytes;

    group->sharded = ends_with(group->path, ".json");
    if (!group->sharded) return SHOAL_OK;
    TRY(file_read_all(group->path, INDEX_MAX_BYTES, &json, &bytes, error));
    status = allowance_take(
        allowance, group->path, INDEX_FACTOR * bytes + json_load_bytes(json, bytes), error);
    if (!status) status = index_parse(group->path, json, bytes, &group->index, error);
    mem_free(json);
    return status;
}

static enum shoal_status open_shards(
    struct checkpoint *checkpoint, const struct group *group, struct shoal_error *error)
{
    const char *path = group->path, *slash = strrchr(path, '/');
    const struct index *index = &group->index;
    int folder_length = slash ? (int)(slash + 1 - path) : 0;

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
static enum shoal_status check_index(
    const struct checkpoint *checkpoint, const struct group *group, struct shoal_error *error)
{
    const char *prefix = group->prefix ? group->prefix : "";

    for (size_t i = 0; i < group->index.count; i++) {
        const struct index_entry *entry = &group->index.entries[i];
        char *whole = mem_format("%s%s", prefix, entry->tensor), name[JSON_SHOWN_BYTES];
        const struct checkpoint_tensor *tensor = whole ? checkpoint_find(checkpoint, whole) : NULL;

        if (!whole) FAIL_MEMORY(error);
        mem_free(whole);
        if (tensor && tensor->file == &checkpoint->parts[group->first + entry->shard].file)
            continue;
        FAIL(error, SHOAL_E_FORMAT,
            "%s says that tensor '%s' is in the shard %s, which does not have it; the files do not "
            "belong together: download them again",
            group->path, json_show(name, entry->tensor), group->index.shards[entry->shard]);
    }
    return SHOAL_OK;
}

static enum shoal_status open_group(
    struct checkpoint *checkpoint, struct group *group, struct shoal_error *error)
{
    group->first = checkpoint->part_count;
    if (group->sharded)
        TRY(open_shards(checkpoint, group, error));
    else
        TRY(open_part(checkpoint, group->path, error));
    for (size_t i = group->first; i < checkpoint->part_count; i++)
        checkpoint->parts[i].prefix = group->prefix;
    return SHOAL_OK;
}

static enum shoal_status open_groups(struct checkpoint *checkpoint, struct group *groups,
    size_t group_count, struct shoal_error *error)
{
    size_t count = 0;

    for (size_t i = 0; i < group_count; i++) {
        TRY(read_index(&groups[i], checkpoint->allowance, error));
        count += groups[i].sharded ? groups[i].index.shard_count : 1;
    }
    checkpoint->parts = mem_calloc(count, sizeof *checkpoint->parts);
    if (!checkpoint->parts) FAIL_MEMORY(error);
    for (size_t i = 0; i < group_count; i++)
        TRY(open_group(checkpoint, &groups[i], error));
    TRY(join_parts(checkpoint, error));
    for (size_t i = 0; i < group_count; i++)
        TRY(check_index(checkpoint, &groups[i], error));
    return SHOAL_OK;
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
    return checkpoint_open_with(path, NULL, allowance, checkpoint, error);
}

enum shoal_status checkpoint_open_with(const char *path, const struct checkpoint_beside *beside,
    struct allowance *allowance, struct checkpoint **checkpoint, struct shoal_error *error)
{
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    struct group groups[2] = {0};
    enum shoal_status status;

    *checkpoint = NULL;
    if (!c) FAIL_MEMORY(error);
    c->allowance = allowance;
    TRY_OR_FAIL(find_file(path, &c->path, error));
    if (beside) TRY_OR_FAIL(find_file(beside->path, &c->beside, error));
    groups[0].path = c->path;
    groups[1] = (struct group){.path = c->beside, .prefix = beside ? beside->prefix : NULL};
    TRY_OR_FAIL(open_groups(c, groups, beside ? 2 : 1, error));
    c->allowance = NULL;
    *checkpoint = c;
fail:
    for (size_t i = 0; i < 2; i++)
        index_fini(&groups[i].index);
    if (status) checkpoint_close(&c);
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
        mem_free(c->parts[i].names);
    }
    mem_free(c->parts);
    mem_free(c->tensors);
    mem_free(c->path);
    mem_free(c->beside);
    mem_free(c);
    *checkpoint = NULL;
}

const char *checkpoint_path(const struct checkpoint *checkpoint)
{
    return checkpoint->path;
}

const char *checkpoint_beside_path(const struct checkpoint *checkpoint)
{
    return checkpoint->beside;
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
