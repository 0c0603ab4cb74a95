/* Prefixes, shapes and configurations: what families' open functions share. */
#include "models/source.h"

#include "base/memory.h"
#include "checkpoint/json.h"
#include "checkpoint/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_DIM (1 << 24)
#define MAX_GROUPS 1024

#define SOURCE_FAIL(s, code, ...)                                                                  \
    ((s)->status = error_set((s)->error, (code), __FILE__, __LINE__, __VA_ARGS__))

const struct checkpoint_tensor *source_probe(const struct checkpoint *checkpoint, const char *key)
{
    const struct checkpoint_tensor *best = NULL;
    size_t key_bytes = strlen(key), best_bytes = 0;

    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);
        size_t bytes = strlen(tensor->name);

        if (bytes < key_bytes || (best && bytes >= best_bytes)) continue;
        if (strcmp(tensor->name + (bytes - key_bytes), key) != 0) continue;
        if (bytes > key_bytes && tensor->name[bytes - key_bytes - 1] != '.') continue;
        best = tensor;
        best_bytes = bytes;
    }
    return best;
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);

    return a >= b && strcmp(text + (a - b), end) == 0;
}

/* A tensor under the prefix that shows that weights are quantised as nothing here computes with, or
 * NULL. */
static const struct checkpoint_tensor *find_quantised(
    const struct checkpoint *checkpoint, const char *prefix)
{
    static const char *const endings[] = {".weight_scale_2", ".qweight", ".weight.absmax"};

    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);

        if (strncmp(tensor->name, prefix, strlen(prefix)) != 0) continue;
        for (size_t e = 0; e < sizeof endings / sizeof *endings; e++)
            if (ends_with(tensor->name, endings[e])) return tensor;
        if (tensor->shape.rank >= 2 && !dtype_computes(tensor->dtype) &&
            dtype_block_bytes(tensor->dtype) <= dtype_block_elements(tensor->dtype) &&
            ends_with(tensor->name, ".weight"))
            return tensor;
    }
    return NULL;
}

static enum shoal_status refuse_quantised(const struct source *s, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = find_quantised(s->checkpoint, s->prefix);

    if (!tensor) return SHOAL_OK;
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: its weights are quantised (tensor %s, %s), which this build cannot compute with: use "
        "the same model in one of " DTYPES_COMPUTED_TEXT,
        tensor->file->path, tensor->name, dtype_name(tensor->dtype));
}

/* Whether `text` is one of the alternatives. */
static bool is_one_of(const char *text, const char *names)
{
    while (*names) {
        size_t length = strcspn(names, "|");

        if (strlen(text) == length && !memcmp(text, names, length)) return true;
        names += length + (names[length] == '|');
    }
    return false;
}

static enum shoal_status read_config(
    struct source *s, const struct source_family *family, struct shoal_error *error)
{
    const json_t *found;
    json_t *nested;

    TRY(json_read_settings(s->config_path, &s->config, error));
    found = json_object_get(s->config, family->type_key);
    if (json_is_string(found) && !is_one_of(json_string_value(found), family->type)) {
        char shown[JSON_SHOWN_BYTES];

        FAIL(error, SHOAL_E_FORMAT, "%s: %s is \"%s\", but the tensors of %s are those of a %.*s",
            s->config_path, family->type_key, json_show(shown, json_string_value(found)),
            checkpoint_path(s->checkpoint), (int)strcspn(family->type, "|"), family->type);
    }
    nested = family->nested ? json_object_get(s->config, family->nested) : NULL;
    if (json_is_object(nested) && json_object_update(s->config, nested)) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* One value of the metadata becomes a member of the config, which may have it already. */
static enum shoal_status take_metadata(
    struct source *s, const char *type, const struct source_key *key, struct shoal_error *error)
{
    const json_t *said = json_object_get(s->config, key->config);
    char name[128];
    json_t *value;

    snprintf(name, sizeof name, "%s.%s", type, key->gguf);
    TRY(checkpoint_value(s->checkpoint, name, NULL, &value, error));
    if (!value) return SHOAL_OK;
    if (json_is_number(said) && json_is_number(value) &&
        (float)json_number_value(said) != (float)json_number_value(value)) {
        double number = json_number_value(value);

        json_decref(value);
        FAIL(error, SHOAL_E_FORMAT,
            "%s says \"%s\": %g, but %s in %s is %g: they are not of the same model",
            s->config_path, key->config, json_number_value(said), name,
            checkpoint_path(s->checkpoint), number);
    }
    if (json_object_set_new(s->config, key->config, value)) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* A GGUF file's metadata go over what a config.json says, which must agree. */
static enum shoal_status read_metadata(
    struct source *s, const struct source_family *family, struct shoal_error *error)
{
    const char *type = checkpoint_metadata(s->checkpoint, "general.architecture");
    char shown[JSON_SHOWN_BYTES];

    if (!type || !family->gguf_type) return SHOAL_OK;
    if (!is_one_of(type, family->gguf_type))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: general.architecture is \"%s\", but its tensors are named as those of \"%.*s\", "
            "which this build runs",
            checkpoint_path(s->checkpoint), json_show(shown, type),
            (int)strcspn(family->gguf_type, "|"), family->gguf_type);
    if (!s->config) s->config = json_object();
    if (!s->config) FAIL_MEMORY(error);
    for (const struct source_key *key = family->gguf_keys; key->config; key++)
        TRY(take_metadata(s, type, key, error));
    if (!s->config_path) s->config_path = checkpoint_path(s->checkpoint);
    return SHOAL_OK;
}

static enum shoal_status source_init(struct source *s, const struct source_family *family,
    const struct checkpoint *checkpoint, const char *config_path, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor = source_probe(checkpoint, family->key);

    *s = (struct source){
        .checkpoint = checkpoint,
        .config_path = config_path,
        .error = error,
    };
    if (!tensor)
        FAIL(error, SHOAL_E_MISSING, "%s: tensor %s is missing", checkpoint_path(checkpoint),
            family->key);
    s->prefix = mem_strdup(tensor->name);
    if (!s->prefix) FAIL_MEMORY(error);
    s->prefix[strlen(tensor->name) - strlen(family->key)] = 0;
    /* Before sizes are read, which such weights would give wrong. */
    TRY(scales_open(&s->scales, checkpoint, s->prefix, error));
    TRY(refuse_quantised(s, error));
    if (config_path) TRY(read_config(s, family, error));
    return read_metadata(s, family, error);
}

static void source_fini(struct source *s)
{
    mem_free(s->prefix);
    scales_close(&s->scales);
    json_decref(s->config);
    s->prefix = NULL;
    s->config = NULL;
}

/* ---- from the tensors ---- */

const struct checkpoint_tensor *source_tensor(const struct source *s, const char *name)
{
    return keys_find(s->checkpoint, s->prefix, name);
}

/* The first of the alternatives that exists. */
static const struct checkpoint_tensor *any_tensor(const struct source *s, const char *names)
{
    while (*names) {
        size_t length = strcspn(names, "|");
        char name[200];
        const struct checkpoint_tensor *tensor;

        snprintf(name, sizeof name, "%.*s", (int)length, names);
        tensor = source_tensor(s, name);
        if (tensor) return tensor;
        names += length + (names[length] == '|');
    }
    return NULL;
}

int64_t source_dim(struct source *s, const char *names, int32_t axis)
{
    const struct checkpoint_tensor *tensor;
    char shown[SHAPE_TEXT_BYTES];

    if (s->status) return 1;
    tensor = any_tensor(s, names);
    if (!tensor) {
        SOURCE_FAIL(s, SHOAL_E_MISSING, "%s: tensor %s%.*s is missing",
            checkpoint_path(s->checkpoint), s->prefix, (int)strcspn(names, "|"), names);
        return 1;
    }
    if (axis < tensor->shape.rank && tensor->shape.dim[axis] >= 1 &&
        tensor->shape.dim[axis] <= MAX_DIM)
        return tensor->shape.dim[axis];
    SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: tensor %s has the shape %s, which no such model has",
        tensor->file->path, tensor->name, shape_format(shown, &tensor->shape));
    return 1;
}

int32_t source_count(struct source *s, const char *group)
{
    size_t prefix_bytes = strlen(s->prefix), group_bytes = strlen(group);
    int32_t count = 0;

    if (s->status) return 0;
    for (size_t i = 0; i < checkpoint_count(s->checkpoint); i++) {
        const char *name = checkpoint_at(s->checkpoint, i)->name;
        const char *at = name + prefix_bytes + group_bytes;
        int32_t number = 0;

        if (strncmp(name, s->prefix, prefix_bytes) != 0 ||
            strncmp(name + prefix_bytes, group, group_bytes) != 0)
            continue;
        if (*at < '0' || *at > '9') continue;
        for (; *at >= '0' && *at <= '9' && number < MAX_GROUPS; at++)
            number = number * 10 + (*at - '0');
        if (number >= MAX_GROUPS) {
            SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: tensor %s: more than %d layers",
                checkpoint_path(s->checkpoint), name, MAX_GROUPS);
            return 0;
        }
        if (*at == '.' && number >= count) count = number + 1;
    }
    return count;
}

/* ---- from the config ---- */

/* NULL when there is no config, no such key, or null there. */
static const json_t *get(const struct source *s, const char *key)
{
    const json_t *found = s->config ? json_object_get(s->config, key) : NULL;

    return json_is_null(found) ? NULL : found;
}

double source_number(struct source *s, const char *key, double fallback, double low, double high)
{
    const json_t *found = get(s, key);
    double value;

    if (s->status || !found) return fallback;
    value = json_number_value(found);
    if (json_is_number(found) && value >= low && value <= high) return value;
    SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: \"%s\" must be a number from %g to %g", s->config_path, key,
        low, high);
    return fallback;
}

bool source_numbers(
    struct source *s, const char *key, float *values, int32_t count, double low, double high)
{
    const json_t *found = get(s, key);

    if (s->status || !found) return false;
    for (int32_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(found, (size_t)i);
        double value = json_number_value(item);

        if (json_array_size(found) != (size_t)count || !json_is_number(item) || value < low ||
            value > high) {
            SOURCE_FAIL(s, SHOAL_E_FORMAT,
                "%s: \"%s\" must be an array of %d numbers from %g to %g", s->config_path, key,
                (int)count, low, high);
            return false;
        }
        values[i] = (float)value;
    }
    return true;
}

void source_agrees(struct source *s, const char *key, int64_t value, const char *tensor)
{
    const json_t *found = get(s, key);

    if (s->status || !found) return;
    if (!json_is_integer(found))
        SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: \"%s\" must be a whole number", s->config_path, key);
    else if (json_integer_value(found) != value)
        SOURCE_FAIL(s, SHOAL_E_FORMAT,
            "%s says \"%s\": %lld, but by %s%s in %s it is %lld: they are not of the same model",
            s->config_path, key, (long long)json_integer_value(found), s->prefix, tensor,
            checkpoint_path(s->checkpoint), (long long)value);
}

void source_requires_bool(struct source *s, const char *key, bool value)
{
    const json_t *found = get(s, key);

    if (s->status || !found) return;
    if (!json_is_boolean(found) || json_is_true(found) != value)
        SOURCE_FAIL(s, SHOAL_E_UNSUPPORTED, "%s: \"%s\" is not %s, and this build runs no other",
            s->config_path, key, value ? "true" : "false");
}

void source_requires_null(struct source *s, const char *key)
{
    if (s->status || !get(s, key)) return;
    SOURCE_FAIL(s, SHOAL_E_UNSUPPORTED,
        "%s: \"%s\" is set, and this build runs only models without it", s->config_path, key);
}

void source_requires_text(struct source *s, const char *key, const char *value)
{
    const json_t *found = get(s, key);

    if (s->status || !found) return;
    if (!json_is_string(found) || strcmp(json_string_value(found), value) != 0)
        SOURCE_FAIL(s, SHOAL_E_UNSUPPORTED,
            "%s: \"%s\" is not \"%s\", and this build runs no other", s->config_path, key, value);
}

int32_t source_integers(
    struct source *s, const char *key, int64_t *values, int32_t room, int64_t low, int64_t high)
{
    const json_t *found = get(s, key);
    size_t count = json_array_size(found);

    if (s->status || !found) return 0;
    if (!json_is_array(found) || count > (size_t)room) {
        SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: \"%s\" must be an array of at most %d whole numbers",
            s->config_path, key, (int)room);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(found, i);

        values[i] = json_integer_value(item);
        if (json_is_integer(item) && values[i] >= low && values[i] <= high) continue;
        SOURCE_FAIL(s, SHOAL_E_FORMAT, "%s: \"%s\" must hold whole numbers from %lld to %lld",
            s->config_path, key, (long long)low, (long long)high);
        return 0;
    }
    return (int32_t)count;
}

void source_axes(struct source *s, const char *key, int32_t width, int32_t axes[3])
{
    int64_t found[3], sum = 0;
    int32_t count = source_integers(s, key, found, 3, 2, width);

    if (s->status) return;
    for (int32_t i = 0; i < (count ? count : 3); i++) {
        if (count) axes[i] = (int32_t)found[i];
        sum += axes[i] < 2 || axes[i] % 2 ? -width : axes[i];
    }
    if ((count && count != 3) || sum != width)
        SOURCE_FAIL(s, SHOAL_E_FORMAT,
            "%s: \"%s\" must be three even numbers whose sum is %d, the width of a head in %s",
            s->config_path ? s->config_path : "no config.json was found", key, (int)width,
            checkpoint_path(s->checkpoint));
}

enum shoal_status source_open(const struct source_family *family,
    const struct checkpoint *checkpoint, const char *config_path, struct model **model,
    struct shoal_error *error)
{
    void *config = mem_calloc(1, family->config_bytes);
    struct model_builder b;
    struct source source = {0};
    enum shoal_status status;

    *model = NULL;
    if (!config) FAIL_MEMORY(error);
    TRY_OR_FAIL(source_init(&source, family, checkpoint, config_path, error));
    family->read_config(&source, config);
    TRY_OR_FAIL(source.status);
    builder_begin(&b, family->name, config, checkpoint, source.prefix, error);
    if (!b.status) family->build(&b, config); /* else config is gone */
    config = NULL;                            /* the model's now */
    status = builder_finish(&b, model);

fail:
    source_fini(&source);
    mem_free(config);
    return status;
}
