/* What files are: family, blocks, dtypes, what is missing. Headers only. */
#include "base/file.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/json.h"
#include "models/family.h"

#include <jansson.h>
#include <string.h>

/* ---- collecting: one JSON object says it all; the text is made from it ---- */

static json_t *dtypes_json(const struct checkpoint *checkpoint)
{
    uint64_t bytes[DTYPE_COUNT] = {0};
    json_t *object = json_object();

    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);

        bytes[tensor->dtype] += tensor->bytes;
    }
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (bytes[i])
            json_object_set_new(
                object, dtype_name((enum dtype)i), json_integer((json_int_t)bytes[i]));
    return object;
}

/* The part of one kind in the checkpoint, or NULL when there is none. */
static json_t *part_json(
    const struct checkpoint *checkpoint, enum family_kind kind, const char *config)
{
    const struct family *family = family_detect(checkpoint, kind);
    struct shoal_error error = {0};
    struct model *model = NULL;
    json_t *part, *blocks = json_array();
    uint64_t total = 0;

    if (!family) {
        json_decref(blocks);
        return NULL;
    }
    part = json_pack("{s:s, s:s, s:s}", "kind", family_kind_name(kind), "family", family->name,
        "title", family->title);
    if (family_open(checkpoint, kind, config, &model, &error)) {
        json_object_set_new(part, "problem", json_text(error.text));
        json_decref(blocks);
        return part;
    }
    for (int32_t i = 0; i < model->block_count; i++) {
        total += model->blocks[i].bytes;
        json_array_append_new(blocks, json_pack("{s:s, s:I}", "name", model->blocks[i].name,
                                          "bytes", (json_int_t)model->blocks[i].bytes));
    }
    json_object_set_new(part, "bytes", json_integer((json_int_t)total));
    json_object_set_new(part, "blocks", blocks);
    model_destroy(&model);
    return part;
}

/* One checkpoint: a file, a set of shards. NULL when out of memory. */
static enum shoal_status checkpoint_json(
    const char *path, json_t **object, struct shoal_error *error)
{
    struct checkpoint *checkpoint = NULL;
    json_t *parts = json_array();
    uint64_t bytes = 0;
    char *config = NULL;
    enum shoal_status status;

    TRY_OR_FAIL(checkpoint_open(path, &checkpoint, error));
    TRY_OR_FAIL(family_config_beside(path, &config, error));
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++)
        bytes += checkpoint_at(checkpoint, i)->bytes;
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        json_t *part = part_json(checkpoint, (enum family_kind)kind, config);

        if (part) json_array_append_new(parts, part);
    }
    *object = json_pack("{s:o, s:I, s:I, s:o, s:O}", "path", json_text(path), "tensors",
        (json_int_t)checkpoint_count(checkpoint), "bytes", (json_int_t)bytes, "dtypes",
        dtypes_json(checkpoint), "parts", parts);
    if (!*object) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    if (!status && (checkpoint_metadata(checkpoint, "tokenizer.ggml.model") ||
                       checkpoint_metadata(checkpoint, "tokenizer.huggingface.json")))
        json_object_set_new(*object, "tokenizer", json_true());
fail:
    json_decref(parts);
    mem_free(config);
    checkpoint_close(&checkpoint);
    return status;
}

/* ---- folders ---- */

static const char *const model_folders[] = {
    "transformer", "text_encoder", "vae", "diffusion_models", "unet", "text_encoders", "clip"};

/* A model's folder: every part's folder that is there, and what a model needs that is not. */
static enum shoal_status model_json(const char *path, json_t *checkpoints, json_t *missing)
{
    bool kinds[FAMILY_KINDS] = {false}, has_tokenizer = false;

    for (size_t i = 0; i < sizeof model_folders / sizeof *model_folders; i++) {
        struct shoal_error problem = {0};
        char *folder = mem_format("%s/%s", path, model_folders[i]);
        json_t *object = NULL;

        if (!folder) return SHOAL_E_MEMORY;
        if (file_kind(folder) == FILE_FOLDER) {
            if (checkpoint_json(folder, &object, &problem))
                object = json_pack(
                    "{s:o, s:o}", "path", json_text(folder), "problem", json_text(problem.text));
            json_array_append_new(checkpoints, object);
        }
        mem_free(folder);
    }
    for (size_t i = 0; i < json_array_size(checkpoints); i++) {
        const json_t *parts = json_object_get(json_array_get(checkpoints, i), "parts");

        if (json_object_get(json_array_get(checkpoints, i), "tokenizer")) has_tokenizer = true;
        for (size_t k = 0; k < json_array_size(parts); k++)
            for (int kind = 0; kind < FAMILY_KINDS; kind++)
                if (!strcmp(json_string_value(json_object_get(json_array_get(parts, k), "kind")),
                        family_kind_name((enum family_kind)kind)))
                    kinds[kind] = true;
    }
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        if (!kinds[kind])
            json_array_append_new(missing, json_string(family_kind_name((enum family_kind)kind)));
    char *tokenizer = mem_format("%s/tokenizer/tokenizer.json", path);

    if (!tokenizer) return SHOAL_E_MEMORY;
    if (file_kind(tokenizer) != FILE_REGULAR && !has_tokenizer)
        json_array_append_new(missing, json_string("tokenizer (tokenizer/tokenizer.json)"));
    mem_free(tokenizer);
    return SHOAL_OK;
}

static bool is_model_folder(const char *path)
{
    bool found = false;

    if (file_kind(path) != FILE_FOLDER) return false;
    for (size_t i = 0; i < sizeof model_folders / sizeof *model_folders && !found; i++) {
        char *folder = mem_format("%s/%s", path, model_folders[i]);

        found = folder && file_kind(folder) == FILE_FOLDER;
        mem_free(folder);
    }
    return found;
}

/* ---- the text ---- */

static void part_text(const json_t *part, struct text *t)
{
    const json_t *problem = json_object_get(part, "problem");
    const json_t *blocks = json_object_get(part, "blocks");
    char size[SIZE_TEXT_BYTES];

    text_append(t, "  %s: %s", json_string_value(json_object_get(part, "kind")),
        json_string_value(json_object_get(part, "title")));
    if (problem) {
        text_append(t, "\n    cannot be run: %s\n", json_string_value(problem));
        return;
    }
    text_append(t, ", %zu blocks, %s\n", json_array_size(blocks),
        size_format(size, (uint64_t)json_integer_value(json_object_get(part, "bytes"))));
    /* Runs of blocks of one size take one line. */
    for (size_t i = 0, k; i < json_array_size(blocks); i = k) {
        json_int_t bytes = json_integer_value(json_object_get(json_array_get(blocks, i), "bytes"));
        const char *first = json_string_value(json_object_get(json_array_get(blocks, i), "name"));
        const char *last = first;

        for (k = i + 1; k < json_array_size(blocks); k++) {
            const json_t *block = json_array_get(blocks, k);

            if (json_integer_value(json_object_get(block, "bytes")) != bytes) break;
            last = json_string_value(json_object_get(block, "name"));
        }
        text_append(t, "    %-44s %4zu x %s\n", first, k - i, size_format(size, (uint64_t)bytes));
        if (k - i > 1) text_append(t, "      to %s\n", last);
    }
}

static void checkpoint_text(const json_t *object, struct text *t)
{
    const json_t *problem = json_object_get(object, "problem");
    const json_t *parts = json_object_get(object, "parts"), *bytes;
    char size[SIZE_TEXT_BYTES];
    const char *dtype;

    text_append(t, "%s\n", json_string_value(json_object_get(object, "path")));
    if (problem) {
        text_append(t, "  problem: %s\n", json_string_value(problem));
        return;
    }
    text_append(t, "  %lld tensors, %s",
        (long long)json_integer_value(json_object_get(object, "tensors")),
        size_format(size, (uint64_t)json_integer_value(json_object_get(object, "bytes"))));
    json_object_foreach(json_object_get(object, "dtypes"), dtype, bytes)
        text_append(t, ", %s %s", dtype, size_format(size, (uint64_t)json_integer_value(bytes)));
    text_append(t, "\n");
    if (json_object_get(object, "tokenizer")) text_append(t, "  a tokenizer in its metadata\n");
    if (!json_array_size(parts)) text_append(t, "  no family that shoal knows\n");
    for (size_t i = 0; i < json_array_size(parts); i++)
        part_text(json_array_get(parts, i), t);
}

static char *inspection_text(const json_t *object)
{
    const json_t *checkpoints = json_object_get(object, "checkpoints");
    const json_t *missing = json_object_get(object, "missing");
    struct text t = {0};

    for (size_t i = 0; i < json_array_size(checkpoints); i++)
        checkpoint_text(json_array_get(checkpoints, i), &t);
    for (size_t i = 0; i < json_array_size(missing); i++)
        text_append(&t, "missing: %s\n", json_string_value(json_array_get(missing, i)));
    if (!t.failed) return t.data;
    mem_free(t.data);
    return NULL;
}

enum shoal_status shoal_inspect(const char *path, bool json, char **text, struct shoal_error *error)
{
    json_t *checkpoints = json_array(), *missing = json_array(), *object = NULL, *one = NULL;
    enum shoal_status status = SHOAL_OK;

    *text = NULL;
    if (is_model_folder(path)) {
        status = model_json(path, checkpoints, missing);
    } else {
        TRY_OR_FAIL(checkpoint_json(path, &one, error));
        json_array_append_new(checkpoints, one);
    }
    object = json_pack("{s:O, s:O}", "checkpoints", checkpoints, "missing", missing);
    if (!status && object && json) {
        *text = json_dumps(object, JSON_INDENT(2));
    } else if (!status && object) {
        *text = inspection_text(object);
    }
    if (!*text) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
fail:
    json_decref(object);
    json_decref(checkpoints);
    json_decref(missing);
    return status;
}

void shoal_text_free(char **text)
{
    if (!text) return;
    mem_free(*text);
    *text = NULL;
}
