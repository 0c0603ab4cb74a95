/* The index of a sharded checkpoint: {"metadata": {...}, "weight_map": {tensor: shard file}}. */
#include "checkpoint/index.h"

#include "base/memory.h"
#include "checkpoint/json.h"

#include <stdlib.h>
#include <string.h>

/* A shard lies beside its index: a hostile one must not make us open files elsewhere. */
static enum shoal_status check_entry(
    const char *path, const char *tensor, json_t *value, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES], shown[JSON_SHOWN_BYTES];
    const char *shard = json_string_value(value);

    json_show(name, tensor);
    if (json_has_controls(tensor))
        FAIL(error, SHOAL_E_FORMAT, "%s: tensor '%s' has control characters in its name", path,
            name);
    if (!shard)
        FAIL(
            error, SHOAL_E_FORMAT, "%s: weight_map gives no file name for tensor '%s'", path, name);
    if (!*shard || !strcmp(shard, ".") || !strcmp(shard, "..") || strchr(shard, '/') ||
        json_has_controls(shard))
        FAIL(error, SHOAL_E_FORMAT,
            "%s: weight_map puts tensor '%s' into '%s', which is not the name of a file beside "
            "the index",
            path, name, json_show(shown, shard));
    return SHOAL_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum shoal_status list_entries(
    const char *path, json_t *map, struct index *index, struct shoal_error *error)
{
    size_t count = json_object_size(map), text = 0, last;
    const char *tensor;
    json_t *value;
    char *to;

    json_object_foreach(map, tensor, value)
    {
        TRY(check_entry(path, tensor, value, error));
        text += strlen(tensor) + strlen(json_string_value(value)) + 2;
    }
    index->entries = mem_calloc(count, sizeof *index->entries);
    index->shards = mem_calloc(count, sizeof *index->shards);
    index->text = to = mem_alloc(text);
    if (!index->entries || !index->shards || !index->text)
        FAIL(error, SHOAL_E_MEMORY, "out of memory for the index %s", path);

    json_object_foreach(map, tensor, value)
    {
        index->entries[index->count++].tensor = strcpy(to, tensor);
        to += strlen(to) + 1;
    }
    json_object_foreach(map, tensor, value)
    {
        index->shards[index->shard_count++] = strcpy(to, json_string_value(value));
        to += strlen(to) + 1;
    }
    if (!count) return SHOAL_OK;
    qsort(index->shards, count, sizeof *index->shards, by_text);
    last = 0;
    for (size_t i = 1; i < count; i++)
        if (strcmp(index->shards[last], index->shards[i])) index->shards[++last] = index->shards[i];
    index->shard_count = last + 1;

    count = 0;
    json_object_foreach(map, tensor, value)
    {
        const char *shard = json_string_value(value);
        const char **found =
            bsearch(&shard, index->shards, index->shard_count, sizeof *index->shards, by_text);

        index->entries[count++].shard = (size_t)(found - index->shards);
    }
    return SHOAL_OK;
}

enum shoal_status index_parse(const char *path, const char *json, size_t bytes, struct index *index,
    struct shoal_error *error)
{
    enum shoal_status status;
    json_t *root, *map;

    *index = (struct index){0};
    TRY(json_parse_object(path, "the index", json, bytes, &root, error));
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s: the index has no weight_map that is a JSON object", path);
    else if (!json_object_size(map))
        status =
            error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__, "%s: weight_map is empty", path);
    else
        status = list_entries(path, map, index, error);
    json_decref(root);
    if (status) index_fini(index);
    return status;
}

void index_fini(struct index *index)
{
    mem_free(index->entries);
    mem_free(index->shards);
    mem_free(index->text);
    *index = (struct index){0};
}
