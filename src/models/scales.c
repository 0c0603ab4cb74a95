/* Scales of F8 weights: see scales.h. */
#include "models/scales.h"

#include "base/memory.h"
#include "checkpoint/json.h"
#include "tensor/quant.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 512
#define BLOB_MOST_BYTES 4096
#define METADATA "_quantization_metadata"
#define METADATA_MOST_BYTES (1u << 20)
#define USE_ANOTHER "use the same model in one of " DTYPES_COMPUTED_TEXT
#define BF16_MOST 0x1.fep127

static const struct {
    const char *name;
    enum dtype dtype;
    double most; /* of a code */
} formats[] = {{"float8_e4m3fn", DTYPE_F8_E4M3, 448}, {"float8_e5m2", DTYPE_F8_E5M2, 57344}};
#define FORMATS (sizeof formats / sizeof *formats)

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);

    return a >= b && strcmp(text + (a - b), end) == 0;
}

/* ---- formats ---- */

/* What a layer's description says that it is in; `where` it is said. */
static enum shoal_status read_format(const char *path, const char *where, const char *layer,
    const json_t *said, size_t *format, struct shoal_error *error)
{
    const char *name = json_string_value(json_object_get(said, "format"));
    char shown[JSON_SHOWN_BYTES];

    if (!name)
        FAIL(error, SHOAL_E_FORMAT, "%s: %s has no \"format\" for layer %s", path, where,
            json_show(shown, layer));
    for (*format = 0; *format < FORMATS; (*format)++)
        if (!strcmp(name, formats[*format].name)) return SHOAL_OK;
    json_show(shown, name);
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: its weights are quantised as \"%s\" (%.200s, by %s), which this build cannot compute "
        "with: " USE_ANOTHER,
        path, shown, layer, where);
}

/* The format by a layer's tensor of JSON. */
static enum shoal_status read_blob(
    const struct checkpoint_tensor *tensor, size_t *format, struct shoal_error *error)
{
    char text[BLOB_MOST_BYTES], shown[SHAPE_TEXT_BYTES], what[NAME_BYTES], layer[NAME_BYTES];
    enum shoal_status status;
    json_t *said = NULL;

    snprintf(what, sizeof what, "tensor %.400s", tensor->name);
    snprintf(layer, sizeof layer, "%.*s", (int)(strlen(tensor->name) - strlen(".comfy_quant")),
        tensor->name);
    if (tensor->dtype != DTYPE_U8 || !tensor->bytes || tensor->bytes > sizeof text)
        FAIL(error, SHOAL_E_FORMAT, "%s: %s is %s %s, but must be 1 to %d bytes (U8) of JSON",
            tensor->file->path, what, dtype_name(tensor->dtype),
            shape_format(shown, &tensor->shape), BLOB_MOST_BYTES);
    TRY(checkpoint_read(tensor, text, error));
    TRY(json_parse_object(tensor->file->path, what, text, (size_t)tensor->bytes, &said, error));
    status = read_format(tensor->file->path, what, layer, said, format, error);
    json_decref(said);
    return status;
}

static enum shoal_status check_blobs(
    const struct checkpoint *checkpoint, const char *prefix, struct shoal_error *error)
{
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);
        size_t format;

        if (begins_with(tensor->name, prefix) && ends_with(tensor->name, ".comfy_quant"))
            TRY(read_blob(tensor, &format, error));
    }
    return SHOAL_OK;
}

static enum shoal_status read_layers(
    struct scales *s, const char *prefix, struct shoal_error *error)
{
    const char *text = checkpoint_metadata(s->checkpoint, METADATA), *layer;
    const char *path = checkpoint_path(s->checkpoint);
    json_t *all = NULL, *said;
    size_t format;

    if (!text) return SHOAL_OK;
    if (json_load_bytes(text, strlen(text)) > METADATA_MOST_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: " METADATA " holds too much: reading it would take more than %u bytes of memory",
            path, METADATA_MOST_BYTES);
    TRY(json_parse_object(path, METADATA, text, strlen(text), &all, error));
    s->layers = json_incref(json_object_get(all, "layers"));
    json_decref(all);
    if (!json_is_object(s->layers))
        FAIL(error, SHOAL_E_FORMAT, "%s: " METADATA " has no object \"layers\"", path);
    json_object_foreach(s->layers, layer, said) if (begins_with(layer, prefix))
        TRY(read_format(path, METADATA, layer, said, &format, error));
    return SHOAL_OK;
}

enum shoal_status scales_open(struct scales *scales, const struct checkpoint *checkpoint,
    const char *prefix, struct shoal_error *error)
{
    enum shoal_status status;

    *scales = (struct scales){.checkpoint = checkpoint};
    status = read_layers(scales, prefix, error);
    if (!status) status = check_blobs(checkpoint, prefix, error);
    if (status) scales_close(scales);
    return status;
}

void scales_close(struct scales *scales)
{
    json_decref(scales->layers);
    *scales = (struct scales){0};
}

/* ---- a weight's ---- */

/* The tensor LAYER.NAME; of "LAYER.weight". */
static const struct checkpoint_tensor *beside(
    const struct scales *s, const struct checkpoint_tensor *weight, const char *name)
{
    char full[NAME_BYTES];
    int layer = (int)(strlen(weight->name) - strlen("weight"));
    int written = snprintf(full, sizeof full, "%.*s%s", layer, weight->name, name);

    if (written < 0 || written >= (int)sizeof full) return NULL;
    return checkpoint_find(s->checkpoint, full);
}

/* The format that the checkpoint says that the weight is in; FORMATS: it says none. */
static enum shoal_status format_of(const struct scales *s, const struct checkpoint_tensor *weight,
    size_t *format, struct shoal_error *error)
{
    const struct checkpoint_tensor *blob = beside(s, weight, "comfy_quant");
    char layer[NAME_BYTES];
    const json_t *said;

    *format = FORMATS;
    if (blob) return read_blob(blob, format, error);
    snprintf(
        layer, sizeof layer, "%.*s", (int)(strlen(weight->name) - strlen(".weight")), weight->name);
    said = s->layers ? json_object_get(s->layers, layer) : NULL;
    if (!said) return SHOAL_OK;
    return read_format(weight->file->path, METADATA, layer, said, format, error);
}

static enum shoal_status read_scale(const struct checkpoint_tensor *tensor,
    const struct checkpoint_tensor *weight, float *scale, struct shoal_error *error)
{
    const bool plain = dtype_computes(tensor->dtype) && !dtype_is_quantised(tensor->dtype);
    const double most = weight->dtype == formats[0].dtype ? formats[0].most : formats[1].most;
    char shown[SHAPE_TEXT_BYTES], stored[4];
    uint64_t count;

    if (!plain || !shape_count(&tensor->shape, &count) || count != 1)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is %s %s, but this build takes one scale for a whole tensor, F32, F16 "
            "or BF16: " USE_ANOTHER,
            tensor->file->path, tensor->name, dtype_name(tensor->dtype),
            shape_format(shown, &tensor->shape));
    TRY(checkpoint_read(tensor, stored, error));
    quant_widen(scale, stored, tensor->dtype, 1.0f, 0, 1);
    if (!(*scale > 0 && (double)*scale * most <= BF16_MOST))
        FAIL(error, SHOAL_E_NUMERIC,
            "%s: tensor %s is %g, but the scale of %s must be a positive number with which no "
            "weight becomes infinite; the file is damaged or was badly converted: get it again",
            tensor->file->path, tensor->name, (double)*scale, weight->name);
    return SHOAL_OK;
}

/* Scales as others write them: of blocks of weights, or by names of their own. Weights would be
 * taken without them. */
static enum shoal_status refuse_others(
    const struct scales *s, const struct checkpoint_tensor *weight, struct shoal_error *error)
{
    static const char *const names[] = {"weight_scale_inv", "weight_scales", "weight.scale",
        "weight.absmax", "weight_quantizer._scale", "scale", "scales", "scale_inv", "absmax"};
    const struct checkpoint_tensor *tensor = NULL;

    for (size_t i = 0; i < sizeof names / sizeof *names && !tensor; i++)
        tensor = beside(s, weight, names[i]);
    if (tensor)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is scaled by %s, in a way that this build does not know; it takes one "
            "weight_scale or scale_weight for a whole tensor: " USE_ANOTHER,
            weight->file->path, weight->name, tensor->name);
    return SHOAL_OK;
}

enum shoal_status scales_find(const struct scales *scales, const struct checkpoint_tensor *weight,
    float *scale, struct shoal_error *error)
{
    const struct checkpoint_tensor *tensor, *older;
    size_t format;

    *scale = 1.0f;
    if (!ends_with(weight->name, ".weight")) return SHOAL_OK;
    TRY(format_of(scales, weight, &format, error));
    if (dtype_is_f8(weight->dtype)) TRY(refuse_others(scales, weight, error));
    if (format < FORMATS && formats[format].dtype != weight->dtype)
        FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s is %s, but is said to be \"%s\"",
            weight->file->path, weight->name, dtype_name(weight->dtype), formats[format].name);
    tensor = beside(scales, weight, "weight_scale");
    older = beside(scales, weight, "scale_weight");
    if (tensor && older)
        FAIL(error, SHOAL_E_FORMAT, "%s: tensor %s has two scales, weight_scale and scale_weight",
            weight->file->path, weight->name);
    if (!tensor) tensor = older;
    if (!tensor && format < FORMATS)
        FAIL(error, SHOAL_E_MISSING,
            "%s: tensor %s is said to be \"%s\", but its scale %.*s_scale is missing",
            weight->file->path, weight->name, formats[format].name, (int)strlen(weight->name),
            weight->name);
    if (!tensor) return SHOAL_OK;
    if (!dtype_is_f8(weight->dtype))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: tensor %s is %s and has a scale, %s, which this build takes for F8_E4M3 and "
            "F8_E5M2 only: " USE_ANOTHER,
            weight->file->path, weight->name, dtype_name(weight->dtype), tensor->name);
    return read_scale(tensor, weight, scale, error);
}

size_t scales_of_inputs(const struct checkpoint *checkpoint, const char *prefix)
{
    size_t count = 0;

    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const char *name = checkpoint_at(checkpoint, i)->name;

        if (!begins_with(name, prefix)) continue;
        count += ends_with(name, ".input_scale") || ends_with(name, ".scale_input");
    }
    return count;
}
