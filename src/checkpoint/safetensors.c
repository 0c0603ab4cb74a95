/*
 * The safetensors header, checked. Every number is hostile until it has passed here: afterwards a
 * tensor's shape, type and byte range agree, lie in the file and overlap no other. What is packed
 * has its own marks in the header, which container.c reads.
 */
#include "checkpoint/safetensors.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/container.h"
#include "checkpoint/json.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

/* What else a file of that name often turns out to be. */
static enum shoal_status check_other_formats(
    const char *path, const char *start, size_t count, struct shoal_error *error)
{
    static const struct {
        const char *magic, *what;
    } others[] = {
        {"PK\3\4", "a zip archive, as torch.save writes: convert it to .safetensors"},
        {"version ", "a Git LFS pointer, not the file itself: fetch it, e.g. with git lfs pull"},
        {"<!DOCTYP", "a web page: the download failed, repeat it"},
        {"<!doctyp", "a web page: the download failed, repeat it"},
        {"<html", "a web page: the download failed, repeat it"},
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t length = strlen(others[i].magic);

        if (count >= length && !memcmp(start, others[i].magic, length))
            FAIL(error, SHOAL_E_UNSUPPORTED, "%s is not a safetensors file but %s", path,
                others[i].what);
    }
    return SHOAL_OK;
}

enum shoal_status safetensors_header_bytes(const char *path, const void *start, size_t count,
    uint64_t file_bytes, size_t *bytes, struct shoal_error *error)
{
    const unsigned char *byte = start;
    uint64_t length = 0;

    if (!file_bytes)
        FAIL(error, SHOAL_E_FORMAT, "%s is empty, not a safetensors file: download it again", path);
    TRY(check_other_formats(path, start, count, error));
    if (count < SAFETENSORS_LENGTH_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s is too short for a safetensors file: %llu bytes, where the length of its header "
            "alone takes 8",
            path, (ull)file_bytes);
    for (int i = SAFETENSORS_LENGTH_BYTES; i-- > 0;)
        length = length << 8 | byte[i];
    if (length > SAFETENSORS_MAX_HEADER_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s is not a safetensors file: its header would have %llu bytes, over the format's "
            "limit of %u",
            path, (ull)length, SAFETENSORS_MAX_HEADER_BYTES);
    if (length > file_bytes - SAFETENSORS_LENGTH_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s is truncated: its header of %llu bytes goes beyond the file's end by %llu; "
            "download it again",
            path, (ull)length, (ull)(length - (file_bytes - SAFETENSORS_LENGTH_BYTES)));
    *bytes = (size_t)length;
    return SHOAL_OK;
}

/* ---- one entry ---- */

struct entry {
    const char *path;
    char name[JSON_SHOWN_BYTES]; /* for messages */
    json_t *json;
    struct shoal_error *error;
};

#define FAIL_ENTRY(e, status, format, ...)                                                         \
    FAIL((e)->error, (status), "%s: tensor '%s' " format, (e)->path, (e)->name, __VA_ARGS__)

static enum shoal_status read_dtype(const struct entry *e, enum dtype *dtype)
{
    const char *name = json_string_value(json_object_get(e->json, "dtype"));
    char shown[JSON_SHOWN_BYTES];
    struct text known = {0};

    if (!name) FAIL_ENTRY(e, SHOAL_E_FORMAT, "has no %s", "dtype that is a string");
    if (dtype_parse(name, dtype)) return SHOAL_OK;
    for (int i = 0; i < DTYPE_PLAIN_COUNT; i++)
        text_append(&known, i ? ", %s" : "%s", dtype_name((enum dtype)i));
    error_set(e->error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
        "%s: tensor '%s' has the unknown dtype '%s'; known are %s", e->path, e->name,
        json_show(shown, name), known.failed ? "others" : known.data);
    mem_free(known.data);
    return SHOAL_E_UNSUPPORTED;
}

static enum shoal_status read_shape(const struct entry *e, struct shape *shape)
{
    json_t *dims = json_object_get(e->json, "shape");
    uint64_t count;

    if (!json_is_array(dims)) FAIL_ENTRY(e, SHOAL_E_FORMAT, "has no %s", "shape that is an array");
    if (json_array_size(dims) > SHAPE_MAX_RANK)
        FAIL_ENTRY(e, SHOAL_E_UNSUPPORTED,
            "has a shape of %zu dimensions; at most %d are supported", json_array_size(dims),
            SHAPE_MAX_RANK);
    shape->rank = (int32_t)json_array_size(dims);
    for (int32_t i = 0; i < shape->rank; i++) {
        json_t *dim = json_array_get(dims, (size_t)i);

        if (!json_is_integer(dim))
            FAIL_ENTRY(e, SHOAL_E_FORMAT, "has a shape whose dimension %d is not an integer", i);
        shape->dim[i] = json_integer_value(dim);
        if (shape->dim[i] < 0)
            FAIL_ENTRY(e, SHOAL_E_FORMAT, "has a shape with the negative dimension %lld",
                (long long)shape->dim[i]);
    }
    if (!shape_count(shape, &count)) {
        char text[SHAPE_TEXT_BYTES];

        FAIL_ENTRY(e, SHOAL_E_FORMAT, "has the shape %s, whose size overflows 64 bits",
            shape_format(text, shape));
    }
    return SHOAL_OK;
}

static enum shoal_status read_offsets(const struct entry *e, uint64_t *begin, uint64_t *end)
{
    json_t *pair = json_object_get(e->json, "data_offsets");
    json_t *first = json_array_get(pair, 0), *last = json_array_get(pair, 1);

    if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < 0)
        FAIL_ENTRY(e, SHOAL_E_FORMAT, "has no %s",
            "data_offsets that are two non-negative integers, [begin, end]");
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    if (*begin > *end)
        FAIL_ENTRY(e, SHOAL_E_FORMAT, "has data_offsets that begin at %llu, after their end %llu",
            (ull)*begin, (ull)*end);
    return SHOAL_OK;
}

/* Leaves the offset relative to the first byte after the header. */
static enum shoal_status read_entry(
    struct entry *e, const char *name, struct checkpoint_tensor *tensor)
{
    char text[SHAPE_TEXT_BYTES];
    uint64_t end = 0, bytes;

    json_show(e->name, name);
    if (json_has_controls(name))
        FAIL_ENTRY(e, SHOAL_E_FORMAT, "has %s", "control characters in its name");
    if (!json_is_object(e->json)) FAIL_ENTRY(e, SHOAL_E_FORMAT, "is not %s", "a JSON object");
    TRY(read_dtype(e, &tensor->dtype));
    TRY(read_shape(e, &tensor->shape));
    TRY(read_offsets(e, &tensor->offset, &end));
    tensor->bytes = tensor->stored_bytes = end - tensor->offset;
    if (!shape_bytes(&tensor->shape, tensor->dtype, &bytes))
        FAIL_ENTRY(e, SHOAL_E_FORMAT,
            "of shape %s and dtype %s is too big or makes no whole number of bytes",
            shape_format(text, &tensor->shape), dtype_name(tensor->dtype));
    if (bytes != tensor->bytes)
        FAIL_ENTRY(e, SHOAL_E_FORMAT,
            "of shape %s and dtype %s needs %llu bytes but its data_offsets span %llu",
            shape_format(text, &tensor->shape), dtype_name(tensor->dtype), (ull)bytes,
            (ull)tensor->bytes);
    return SHOAL_OK;
}

/* ---- the header ---- */

static enum shoal_status check_metadata(
    const char *path, json_t *metadata, struct shoal_error *error)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        FAIL(error, SHOAL_E_FORMAT, "%s: __metadata__ is not a JSON object", path);
    json_object_foreach(metadata, key, value)
    {
        char shown[JSON_SHOWN_BYTES];

        if (!json_is_string(value))
            FAIL(error, SHOAL_E_FORMAT, "%s: __metadata__ value '%s' is not a string", path,
                json_show(shown, key));
    }
    return SHOAL_OK;
}

static const char *put_text(char **to, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *at = memcpy(*to, text, bytes);

    *to += bytes;
    return at;
}

/* Storage for everything, sized by one walk over the header. */
static enum shoal_status make_room(const char *path, json_t *header, json_t *metadata,
    struct safetensors *parsed, struct shoal_error *error)
{
    size_t tensors = json_object_size(header) - (metadata ? 1 : 0), text = 0;
    const char *key;
    json_t *value;

    json_object_foreach(header, key, value) text += strlen(key) + 1;
    json_object_foreach(metadata, key, value) text +=
        strlen(key) + strlen(json_string_value(value)) + 2;
    parsed->tensors = mem_calloc(tensors, sizeof *parsed->tensors);
    parsed->metadata = mem_calloc(json_object_size(metadata), sizeof *parsed->metadata);
    parsed->text = mem_alloc(text);
    if (!parsed->tensors || !parsed->metadata || !parsed->text)
        FAIL(error, SHOAL_E_MEMORY, "out of memory for the header of %s", path);
    return SHOAL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    /* Empty tensors before the one that begins where they lie. */
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(
        ((const struct checkpoint_tensor *)a)->name, ((const struct checkpoint_tensor *)b)->name);
}

/*
 * The format wants the data covered from end to end: no overlap, no hole, nothing after it. So
 * does the reference implementation, hence so do files in the wild; what breaks the rule is
 * damaged, and reading it would give wrong weights.
 */
static enum shoal_status check_coverage(const char *path, const struct checkpoint_tensor *tensors,
    size_t count, uint64_t data_bytes, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES], before[JSON_SHOWN_BYTES];
    uint64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        const struct checkpoint_tensor *tensor = &tensors[i];

        if (tensor->offset < at)
            FAIL(error, SHOAL_E_FORMAT, "%s: tensor '%s' overlaps '%s' in the file", path,
                json_show(name, tensor->name), json_show(before, tensors[i - 1].name));
        if (tensor->offset > at)
            FAIL(error, SHOAL_E_FORMAT,
                "%s: a hole of %llu bytes that belong to no tensor lies before '%s'; the file is "
                "damaged",
                path, (ull)(tensor->offset - at), json_show(name, tensor->name));
        at += tensor->bytes;
    }
    for (size_t i = 0; i < count && at > data_bytes; i++)
        if (tensors[i].offset + tensors[i].bytes > data_bytes)
            FAIL(error, SHOAL_E_FORMAT,
                "%s is truncated: %llu bytes are missing, from tensor '%s' on; download it again",
                path, (ull)(at - data_bytes), json_show(name, tensors[i].name));
    if (at < data_bytes)
        FAIL(error, SHOAL_E_FORMAT,
            "%s has %llu trailing bytes after its last tensor; the file is damaged or was written "
            "twice over: download it again",
            path, (ull)(data_bytes - at));
    return SHOAL_OK;
}

static enum shoal_status list_tensors(const char *path, json_t *header, uint64_t data_offset,
    uint64_t data_bytes, struct safetensors *parsed, struct shoal_error *error)
{
    json_t *metadata = json_object_get(header, "__metadata__"), *value;
    struct entry entry = {.path = path, .error = error};
    const char *key;
    char *to;

    if (metadata) TRY(check_metadata(path, metadata, error));
    TRY(make_room(path, header, metadata, parsed, error));
    to = parsed->text;
    json_object_foreach(metadata, key, value)
    {
        struct safetensors_pair *pair = &parsed->metadata[parsed->metadata_count];

        if (container_owns(key)) continue;
        parsed->metadata_count++;
        pair->key = put_text(&to, key);
        pair->value = put_text(&to, json_string_value(value));
    }
    json_object_foreach(header, key, value)
    {
        struct checkpoint_tensor *tensor = &parsed->tensors[parsed->count];

        if (value == metadata) continue;
        entry.json = value;
        TRY(read_entry(&entry, key, tensor));
        tensor->name = put_text(&to, key);
        parsed->count++;
    }
    qsort(parsed->tensors, parsed->count, sizeof *parsed->tensors, by_offset);
    TRY(check_coverage(path, parsed->tensors, parsed->count, data_bytes, error));
    qsort(parsed->tensors, parsed->count, sizeof *parsed->tensors, by_name);
    for (size_t i = 0; i < parsed->count; i++)
        parsed->tensors[i].offset += data_offset;
    return container_read(path, metadata, parsed->tensors, parsed->count, error);
}

enum shoal_status safetensors_parse(const char *path, const char *header, size_t bytes,
    uint64_t file_bytes, struct safetensors *parsed, struct shoal_error *error)
{
    uint64_t data_offset = SAFETENSORS_LENGTH_BYTES + (uint64_t)bytes;
    enum shoal_status status;
    json_t *json;

    *parsed = (struct safetensors){0};
    if (data_offset > file_bytes)
        FAIL(error, SHOAL_E_FORMAT, "%s is truncated within its header; download it again", path);
    TRY(json_parse_object(path, "its header", header, bytes, &json, error));
    status = list_tensors(path, json, data_offset, file_bytes - data_offset, parsed, error);
    json_decref(json);
    if (status) safetensors_fini(parsed);
    return status;
}

/* The header's own text; later the names, keys and values from it, and a pointer to each of these,
 * of which one takes no fewer bytes than 4. */
#define TEXT_FACTOR 4

enum shoal_status safetensors_read(const struct file *file, struct allowance *allowance,
    struct safetensors *parsed, struct shoal_error *error)
{
    size_t count =
        file->bytes < SAFETENSORS_LENGTH_BYTES ? (size_t)file->bytes : SAFETENSORS_LENGTH_BYTES;
    char start[SAFETENSORS_LENGTH_BYTES], *header = NULL;
    enum shoal_status status;
    size_t bytes;

    *parsed = (struct safetensors){0};
    TRY(file_read_at(file, 0, start, count, error));
    TRY(safetensors_header_bytes(file->path, start, count, file->bytes, &bytes, error));
    TRY(allowance_take(allowance, file->path, TEXT_FACTOR * (uint64_t)bytes, error));
    header = mem_alloc(bytes);
    if (!header) FAIL(error, SHOAL_E_MEMORY, "out of memory for the header of %s", file->path);
    status = file_read_at(file, SAFETENSORS_LENGTH_BYTES, header, bytes, error);
    if (!status)
        status = allowance_take(allowance, file->path, json_load_bytes(header, bytes), error);
    if (!status) status = safetensors_parse(file->path, header, bytes, file->bytes, parsed, error);
    for (size_t i = 0; i < parsed->count; i++)
        parsed->tensors[i].file = file;
    parsed->bytes = bytes;
    mem_free(header);
    return status;
}

void safetensors_fini(struct safetensors *parsed)
{
    mem_free(parsed->tensors);
    mem_free(parsed->metadata);
    mem_free(parsed->text);
    *parsed = (struct safetensors){0};
}
