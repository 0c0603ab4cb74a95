/* The packed container's header, both ways. Every mark is hostile until it has passed here. */
#include "checkpoint/container.h"

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/json.h"
#include "wire/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES (sizeof CONTAINER_KEY - 1)
#define CHECKSUM_DIGITS 16

bool container_owns(const char *key)
{
    return !strncmp(key, CONTAINER_KEY, KEY_BYTES) && (!key[KEY_BYTES] || key[KEY_BYTES] == '.');
}

/* ---- reading a mark ---- */

/* Digits of base 10 or 16 from *at on, which is moved past them. False: none, or too many. */
static bool read_number(const char **at, unsigned base, uint64_t *number)
{
    static const char digits[] = "0123456789abcdef";
    const char *start = *at, *digit;

    for (*number = 0; **at && (digit = memchr(digits, **at, base)); ++*at)
        if (__builtin_mul_overflow(*number, base, number) ||
            __builtin_add_overflow(*number, (uint64_t)(digit - digits), number))
            return false;
    return *at > start;
}

static bool read_checksum(const char **at, uint64_t *checksum)
{
    const char *start = *at;

    return read_number(at, 16, checksum) && *at - start == CHECKSUM_DIGITS && !**at;
}

static bool read_dims(const char **at, struct shape *shape)
{
    *shape = (struct shape){0};
    do {
        uint64_t dim;

        if (shape->rank == SHAPE_MAX_RANK || !read_number(at, 10, &dim) || dim > INT64_MAX)
            return false;
        shape->dim[shape->rank++] = (int64_t)dim;
    } while (**at == ',' && ++*at);
    return true;
}

/* What a mark says: "BF16 3840,2560 13774080 0123456789abcdef", or of a plain tensor its type and
 * checksum. */
struct mark {
    bool packed;
    char dtype[16];
    struct shape shape;
    uint64_t bytes, checksum;
};

static bool read_mark(const char *text, struct mark *mark)
{
    size_t length = strcspn(text, " ");

    if (!text[length] || length >= sizeof mark->dtype) return false;
    memcpy(mark->dtype, text, length);
    mark->dtype[length] = 0;
    text += length + 1;
    mark->packed = strchr(text, ' ') != NULL;
    if (!mark->packed) return read_checksum(&text, &mark->checksum);
    return read_dims(&text, &mark->shape) && *text++ == ' ' &&
           read_number(&text, 10, &mark->bytes) && *text++ == ' ' &&
           read_checksum(&text, &mark->checksum);
}

/* ---- applying it ---- */

#define FAIL_MARK(path, name, status, format, ...)                                                 \
    FAIL(error, (status), "%s: packed tensor '%s' " format, (path), (name), __VA_ARGS__)

static enum shoal_status unpack_entry(const char *path, const char *name, const struct mark *mark,
    struct checkpoint_tensor *tensor, struct shoal_error *error)
{
    char shape[SHAPE_TEXT_BYTES], shown[JSON_SHOWN_BYTES];
    uint64_t count, bytes;
    enum dtype dtype;

    if (tensor->dtype != DTYPE_U8 || tensor->shape.rank != 1)
        FAIL_MARK(path, name, SHOAL_E_FORMAT, "is stored as %s %s and not as bytes (U8)",
            dtype_name(tensor->dtype), shape_format(shape, &tensor->shape));
    if (!dtype_parse(mark->dtype, &dtype) || !wire_packs(dtype))
        FAIL_MARK(path, name, SHOAL_E_UNSUPPORTED,
            "is of the type '%s', which this build cannot unpack", json_show(shown, mark->dtype));
    if (!shape_count(&mark->shape, &count) || !shape_bytes(&mark->shape, dtype, &bytes) ||
        count > WIRE_MOST)
        FAIL_MARK(path, name, SHOAL_E_FORMAT, "has the shape %s, which is too big",
            shape_format(shape, &mark->shape));
    if (mark->bytes < WIRE_ALIGNMENT || mark->bytes % WIRE_ALIGNMENT ||
        mark->bytes > tensor->bytes || mark->bytes > wire_bound(dtype, count))
        FAIL_MARK(path, name, SHOAL_E_FORMAT,
            "of shape %s cannot have a payload of %" PRIu64 " bytes in the %" PRIu64 " it takes",
            shape_format(shape, &mark->shape), mark->bytes, tensor->bytes);
    tensor->dtype = dtype;
    tensor->shape = mark->shape;
    tensor->bytes = bytes;
    tensor->stored_bytes = mark->bytes;
    tensor->packed = true;
    return SHOAL_OK;
}

static enum shoal_status apply_mark(
    const char *path, const char *text, struct checkpoint_tensor *tensor, struct shoal_error *error)
{
    char name[JSON_SHOWN_BYTES], shown[JSON_SHOWN_BYTES];
    struct mark mark;

    json_show(name, tensor->name);
    if (!text)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor '%s' has no '" CONTAINER_KEY "' mark, as all have in a packed file; it was "
            "changed by another program: convert it again",
            path, name);
    if (!read_mark(text, &mark))
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor '%s' has a '" CONTAINER_KEY "' mark that is "
            "malformed: '%s'",
            path, name, json_show(shown, text));
    /* The checksum does not cover the file's header. */
    if (!mark.packed && strcmp(mark.dtype, dtype_name(tensor->dtype)) != 0)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: tensor '%s' is %s, but was written as %s; the file was changed by another "
            "program: convert it again",
            path, name, dtype_name(tensor->dtype), json_show(shown, mark.dtype));
    tensor->has_checksum = true;
    tensor->checksum = mark.checksum;
    return mark.packed ? unpack_entry(path, name, &mark, tensor, error) : SHOAL_OK;
}

static int by_name(const void *key, const void *tensor)
{
    return strcmp(key, ((const struct checkpoint_tensor *)tensor)->name);
}

enum shoal_status container_read(const char *path, json_t *metadata,
    struct checkpoint_tensor *tensors, size_t count, struct shoal_error *error)
{
    const char *version = json_string_value(json_object_get(metadata, CONTAINER_KEY));
    char shown[JSON_SHOWN_BYTES], key[1024];
    const char *name;
    json_t *value;

    if (version && strcmp(version, CONTAINER_VERSION) != 0)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s is a packed file of version '%s'; this build reads version " CONTAINER_VERSION
            ": convert the original again",
            path, json_show(shown, version));
    json_object_foreach(metadata, name, value)
    {
        if (!container_owns(name) || !name[KEY_BYTES]) continue;
        if (version && bsearch(name + KEY_BYTES + 1, tensors, count, sizeof *tensors, by_name))
            continue;
        FAIL(error, SHOAL_E_FORMAT, "%s: __metadata__ has '%s', but there is no %s", path,
            json_show(shown, name), version ? "tensor of that name" : "'" CONTAINER_KEY "'");
    }
    for (size_t i = 0; i < count && version; i++) {
        int length = snprintf(key, sizeof key, CONTAINER_KEY ".%s", tensors[i].name);

        if (length < 0 || (size_t)length >= sizeof key)
            FAIL(error, SHOAL_E_FORMAT, "%s: tensor '%s' has too long a name", path,
                json_show(shown, tensors[i].name));
        TRY(apply_mark(
            path, json_string_value(json_object_get(metadata, key)), &tensors[i], error));
    }
    return SHOAL_OK;
}

/* ---- writing ---- */

static json_t *entry_json(const struct container_entry *entry, bool *failed)
{
    const struct shape *shape = &entry->tensor->shape;
    json_t *dims = json_array(), *json = json_object();

    if (entry->packed) json_append(dims, json_integer((json_int_t)entry->bytes), failed);
    for (int32_t i = 0; i < shape->rank && !entry->packed; i++)
        json_append(dims, json_integer(shape->dim[i]), failed);
    json_put(json, "dtype",
        json_string(dtype_name(entry->packed ? DTYPE_U8 : entry->tensor->dtype)), failed);
    json_put(json, "shape", dims, failed);
    json_put(json, "data_offsets",
        json_pack("[I, I]", (json_int_t)entry->offset, (json_int_t)(entry->offset + entry->bytes)),
        failed);
    return json;
}

static const char *name_of(const struct container_entry *entry)
{
    return entry->tensor->name + (entry->unprefixed ? entry->tensor->prefix_bytes : 0);
}

static void put_mark(json_t *metadata, const struct container_entry *entry, bool *failed)
{
    const struct shape *shape = &entry->tensor->shape;
    struct text key = {0}, mark = {0};

    text_append(&key, CONTAINER_KEY ".%s", name_of(entry));
    text_append(&mark, "%s ", dtype_name(entry->tensor->dtype));
    if (entry->packed) {
        for (int32_t i = 0; i < shape->rank; i++)
            text_append(&mark, "%s%" PRId64, i ? "," : "", shape->dim[i]);
        text_append(&mark, " %" PRIu64 " ", entry->stored_bytes);
    }
    text_append(&mark, "%0*" PRIx64, CHECKSUM_DIGITS, entry->checksum);
    if (key.failed || mark.failed)
        *failed = true;
    else
        json_put(metadata, key.data, json_string(mark.data), failed);
    mem_free(key.data);
    mem_free(mark.data);
}

char *container_header(
    const struct container_entry *entries, size_t count, json_t *metadata, bool marked)
{
    json_t *header = json_object(), *said = metadata ? metadata : json_object();
    bool failed = false;
    char *text = NULL;

    if (marked) json_put(said, CONTAINER_KEY, json_string(CONTAINER_VERSION), &failed);
    for (size_t i = 0; i < count && marked; i++)
        put_mark(said, &entries[i], &failed);
    if (json_object_size(said)) json_put(header, "__metadata__", json_incref(said), &failed);
    for (size_t i = 0; i < count; i++)
        json_put(header, name_of(&entries[i]), entry_json(&entries[i], &failed), &failed);
    if (said && !failed) text = json_print_compact(header);
    json_decref(said);
    json_decref(header);
    return text;
}

size_t container_header_bound(const struct container_entry *entries, size_t count, json_t *metadata)
{
    struct container_entry *longest = mem_calloc(count, sizeof *longest);
    char *text = NULL;
    size_t bytes = 0;

    for (size_t i = 0; longest && i < count; i++)
        longest[i] = (struct container_entry){.tensor = entries[i].tensor,
            .packed = entries[i].tensor->shape.rank > 0,
            .offset = INT64_MAX / 2,
            .bytes = INT64_MAX / 2,
            .stored_bytes = INT64_MAX / 2};
    if (longest)
        text = container_header(longest, count, metadata, true);
    else
        json_decref(metadata);
    if (text) bytes = strlen(text);
    mem_free(text);
    mem_free(longest);
    return bytes;
}
