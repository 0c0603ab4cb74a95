/* What files are: family, blocks, dtypes, what is missing. Headers only. */
#include "base/file.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/json.h"
#include "models/dit/dit.h"
#include "pipeline/parts.h"
#include "pipeline/tokens.h"

#include <stdio.h>
#include <string.h>

/* ---- collecting: one JSON object says it all; the text is made from it ---- */

/* In all of these *failed is set when out of memory, and what is made is not to be used then. */
/* Bytes as computed with and as stored, of the tensors of each type; packed ones apart. */
static json_t *dtypes_json(const struct checkpoint *checkpoint, bool *failed)
{
    uint64_t bytes[DTYPE_COUNT][2] = {{0}}, stored[DTYPE_COUNT] = {0};
    json_t *object = json_object();

    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);

        bytes[tensor->dtype][tensor->packed] += tensor->bytes;
        if (tensor->packed) stored[tensor->dtype] += tensor->stored_bytes;
    }
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const char *name = dtype_name((enum dtype)i);
        char packed[32];

        snprintf(packed, sizeof packed, "%s, packed", name);
        if (bytes[i][0]) json_put(object, name, json_integer((json_int_t)bytes[i][0]), failed);
        if (bytes[i][1])
            json_put(object, packed,
                json_pack("{s:I, s:I}", "bytes", (json_int_t)bytes[i][1], "stored_bytes",
                    (json_int_t)stored[i]),
                failed);
    }
    return object;
}

/* What its tensors take in their files. */
static uint64_t block_stored_bytes(const struct block *block)
{
    uint64_t bytes = 0;

    for (int32_t w = 0; w < block->weight_count; w++)
        for (int32_t p = 0; p < block->weights[w].piece_count; p++)
            bytes += block->weights[w].pieces[p]->stored_bytes;
    return bytes;
}

/* What is said of files that cannot be described: why not. */
static void put_problem(json_t *object, const struct shoal_error *problem, bool *failed)
{
    if (problem->status == SHOAL_E_MEMORY) *failed = true;
    json_put(object, "problem", json_text(problem->text), failed);
}

/* Scales of weights in F8: how many are not 1, and their range; and of inputs, which are not used.
 * NULL: there are none. */
static json_t *scales_json(const struct model *model)
{
    double least = 0, largest = 0;
    json_int_t count = 0;

    for (int32_t i = 0; i < model->block_count; i++)
        for (int32_t w = 0; w < model->blocks[i].weight_count; w++) {
            const double scale = (double)model->blocks[i].weights[w].scale;

            if (!model->blocks[i].weights[w].piece_count || scale == 1) continue;
            if (!count || scale < least) least = scale;
            if (!count || scale > largest) largest = scale;
            count++;
        }
    if (!count && !model->input_scales) return NULL;
    return json_pack("{s:I, s:f, s:f, s:I}", "weights", count, "least", least, "largest", largest,
        "unused_of_inputs", (json_int_t)model->input_scales);
}

/* The part that the checkpoint holds of a family's kind. */
static json_t *part_json(const struct checkpoint *checkpoint, const struct family *family,
    const char *config, bool *failed)
{
    struct shoal_error error = {0};
    struct model *model = NULL;
    json_t *part, *blocks, *scales;
    uint64_t total = 0, stored = 0;

    part = json_pack("{s:s, s:s, s:s}", "kind", family_kind_name(family->kind), "family",
        family->name, "title", family->title);
    if (family_open(checkpoint, family->kind, config, &model, &error)) {
        put_problem(part, &error, failed);
        return part;
    }
    blocks = json_array();
    for (int32_t i = 0; i < model->block_count; i++) {
        uint64_t block_stored = block_stored_bytes(&model->blocks[i]);

        total += model->blocks[i].bytes;
        stored += block_stored;
        json_append(blocks,
            json_pack("{s:s, s:I, s:I}", "name", model->blocks[i].name, "bytes",
                (json_int_t)model->blocks[i].bytes, "stored_bytes", (json_int_t)block_stored),
            failed);
    }
    json_put(part, "bytes", json_integer((json_int_t)total), failed);
    json_put(part, "stored_bytes", json_integer((json_int_t)stored), failed);
    json_put(part, "blocks", blocks, failed);
    if (family->kind == FAMILY_DIT)
        json_put(part, "tokenizers", json_integer(dit_config(model)->family->text.second ? 2 : 1),
            failed);
    scales = scales_json(model);
    if (scales) json_put(part, "scales", scales, failed);
    model_destroy(&model);
    return part;
}

/* One checkpoint: a file, a set of shards. */
static enum shoal_status checkpoint_json(
    const char *path, json_t **object, struct shoal_error *error)
{
    struct checkpoint *checkpoint = NULL;
    json_t *parts = json_array();
    bool failed = false;
    uint64_t bytes = 0, stored = 0;
    const char *beside;
    char *config = NULL;
    enum shoal_status status;

    *object = NULL;
    TRY_OR_FAIL(part_open_files(path, NULL, &checkpoint, error));
    beside = checkpoint_beside_path(checkpoint);
    TRY_OR_FAIL(family_config_beside(path, &config, error));
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        bytes += checkpoint_at(checkpoint, i)->bytes;
        stored += checkpoint_at(checkpoint, i)->stored_bytes;
    }
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        const struct family *family = family_detect(checkpoint, (enum family_kind)kind);

        if (family) json_append(parts, part_json(checkpoint, family, config, &failed), &failed);
    }
    *object = json_object();
    json_put(*object, "path", json_text(path), &failed);
    if (beside) json_put(*object, "beside", json_text(beside), &failed);
    json_put(*object, "tensors", json_integer((json_int_t)checkpoint_count(checkpoint)), &failed);
    json_put(*object, "bytes", json_integer((json_int_t)bytes), &failed);
    json_put(*object, "stored_bytes", json_integer((json_int_t)stored), &failed);
    json_put(*object, "dtypes", dtypes_json(checkpoint, &failed), &failed);
    json_put(*object, "parts", json_incref(parts), &failed);
    if (tokens_within(checkpoint)) json_put(*object, "tokenizer", json_true(), &failed);
    if (failed) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
fail:
    if (status) json_decref(*object);
    json_decref(parts);
    mem_free(config);
    checkpoint_close(&checkpoint);
    return status;
}

/* ---- folders ---- */

/* What there is of a model's parts. */
struct inventory {
    json_t *checkpoints, *missing, *damaged;
    bool there[FAMILY_KINDS]; /* a folder of its own, with something in it */
    bool failed;
};

/* Adds the checkpoint of a part's folder. Files that are too many, or of a type that this build
 * does not know, are there and whole. */
static void add_folder(struct inventory *all, const char *folder, enum family_kind kind)
{
    struct shoal_error problem = {0};
    json_t *object = NULL;
    enum shoal_status status = checkpoint_json(folder, &object, &problem);

    if (status) {
        object = json_object();
        json_put(object, "path", json_text(folder), &all->failed);
        put_problem(object, &problem, &all->failed);
    }
    json_append(all->checkpoints, object, &all->failed);
    all->there[kind] |= status != SHOAL_E_MISSING;
    if (status == SHOAL_E_FORMAT || status == SHOAL_E_IO)
        json_append(all->damaged, json_string(family_kind_name(kind)), &all->failed);
}

/* Whether one of the checkpoints holds a part of that kind. */
static bool holds(const json_t *checkpoints, enum family_kind kind)
{
    for (size_t i = 0; i < json_array_size(checkpoints); i++) {
        const json_t *parts = json_object_get(json_array_get(checkpoints, i), "parts");

        for (size_t k = 0; k < json_array_size(parts); k++) {
            const json_t *is = json_object_get(json_array_get(parts, k), "kind");

            if (is && !strcmp(json_string_value(is), family_kind_name(kind))) return true;
        }
    }
    return false;
}

/* Adds the tokenizers that the DiT takes prompts in and that are not there. */
static void add_missing_tokenizers(const char *folder, struct inventory *all)
{
    static const char *const names[MODEL_TOKENIZERS] = {
        "tokenizer (tokenizer/tokenizer.json or spiece.model)",
        "second tokenizer (t5_tokenizer/tokenizer.json or spiece.model)"};
    json_int_t wanted = 1;
    bool within = false;

    for (size_t i = 0; i < json_array_size(all->checkpoints); i++) {
        const json_t *checkpoint = json_array_get(all->checkpoints, i), *part;
        size_t k;

        within |= json_object_get(checkpoint, "tokenizer") != NULL;
        json_array_foreach(json_object_get(checkpoint, "parts"), k, part)
        {
            const json_int_t takes = json_integer_value(json_object_get(part, "tokenizers"));

            wanted = takes > wanted ? takes : wanted;
        }
    }
    for (int which = 0; which < wanted; which++) {
        struct shoal_error error = {0};
        char *path = NULL;

        if (tokens_find(folder, which, &path, &error)) all->failed = true;
        if (!(path && file_kind(path) == FILE_REGULAR) && !(within && !which))
            json_append(all->missing, json_string(names[which]), &all->failed);
        mem_free(path);
    }
}

/* A model's folder: every part's folder that is there, and what a model needs that is not. */
static void model_json(const char *path, struct inventory *all)
{
    for (int i = 0; part_folder_names[i]; i++) {
        char *folder = mem_format("%s/%s", path, part_folder_names[i]);

        if (!folder) all->failed = true;
        if (folder && file_kind(folder) == FILE_FOLDER)
            add_folder(all, folder, part_folder_kind(part_folder_names[i]));
        mem_free(folder);
    }
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        if (!all->there[kind] && !holds(all->checkpoints, (enum family_kind)kind))
            json_append(
                all->missing, json_string(family_kind_name((enum family_kind)kind)), &all->failed);
    add_missing_tokenizers(path, all);
}

/* ---- the text ---- */

static uint64_t number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* ", BF16 1.2 GiB" or ", BF16, packed: 22.8 GiB in 15.6 GiB (0.683)" */
static void dtype_text(const char *name, const json_t *value, struct text *t)
{
    char size[SIZE_TEXT_BYTES], stored[SIZE_TEXT_BYTES];

    if (!json_is_object(value))
        text_append(t, ", %s %s", name, size_format(size, (uint64_t)json_integer_value(value)));
    else
        text_append(t, ", %s: %s in %s (%.3f)", name, size_format(size, number(value, "bytes")),
            size_format(stored, number(value, "stored_bytes")),
            (double)number(value, "stored_bytes") / (double)number(value, "bytes"));
}

static void scales_text(const json_t *scales, struct text *t)
{
    if (number(scales, "weights"))
        text_append(t, "    %llu weights have a scale, from %.3g to %.3g\n",
            (unsigned long long)number(scales, "weights"),
            json_real_value(json_object_get(scales, "least")),
            json_real_value(json_object_get(scales, "largest")));
    if (number(scales, "unused_of_inputs"))
        text_append(t,
            "    %llu scales of inputs are not used: products are computed in more than 8 bits\n",
            (unsigned long long)number(scales, "unused_of_inputs"));
}

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
    text_append(
        t, ", %zu blocks, %s\n", json_array_size(blocks), size_format(size, number(part, "bytes")));
    scales_text(json_object_get(part, "scales"), t);
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
    const json_t *parts = json_object_get(object, "parts"), *value;
    const json_t *beside = json_object_get(object, "beside");
    char size[SIZE_TEXT_BYTES];
    const char *dtype;

    text_append(t, "%s\n", json_string_value(json_object_get(object, "path")));
    if (beside) text_append(t, "  with %s\n", json_string_value(beside));
    if (problem) {
        text_append(t, "  problem: %s\n", json_string_value(problem));
        return;
    }
    text_append(t, "  %llu tensors, %s", (unsigned long long)number(object, "tensors"),
        size_format(size, number(object, "bytes")));
    json_object_foreach(json_object_get(object, "dtypes"), dtype, value)
        dtype_text(dtype, value, t);
    text_append(t, "\n");
    if (json_object_get(object, "tokenizer")) text_append(t, "  a tokenizer in its metadata\n");
    if (!json_array_size(parts)) text_append(t, "  no family that shoal knows\n");
    for (size_t i = 0; i < json_array_size(parts); i++)
        part_text(json_array_get(parts, i), t);
}

static void list_text(const char *what, const json_t *names, struct text *t)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        text_append(t, "%s: %s\n", what, json_string_value(json_array_get(names, i)));
}

static char *inspection_text(const json_t *object)
{
    const json_t *checkpoints = json_object_get(object, "checkpoints");
    struct text t = {0};

    for (size_t i = 0; i < json_array_size(checkpoints); i++)
        checkpoint_text(json_array_get(checkpoints, i), &t);
    list_text("missing", json_object_get(object, "missing"), &t);
    list_text("damaged or unreadable", json_object_get(object, "damaged"), &t);
    if (!t.failed) return t.data;
    mem_free(t.data);
    return NULL;
}

/* NULL when out of memory. */
static char *print_inventory(struct inventory *all, bool json)
{
    json_t *object = json_object();
    char *text = NULL;

    json_put(object, "checkpoints", json_incref(all->checkpoints), &all->failed);
    json_put(object, "missing", json_incref(all->missing), &all->failed);
    json_put(object, "damaged", json_incref(all->damaged), &all->failed);
    if (!all->failed) text = json ? json_print(object) : inspection_text(object);
    json_decref(object);
    return text;
}

enum shoal_status shoal_inspect(
    const char *path, bool json, char **text, bool *damaged, struct shoal_error *error)
{
    struct inventory all = {
        .checkpoints = json_array(), .missing = json_array(), .damaged = json_array()};
    enum shoal_status status = SHOAL_OK;
    bool folders;
    json_t *one;

    *text = NULL;
    TRY_OR_FAIL(part_folders_in(path, &folders, error));
    if (folders) {
        model_json(path, &all);
    } else {
        TRY_OR_FAIL(checkpoint_json(path, &one, error));
        json_append(all.checkpoints, one, &all.failed);
    }
    *text = print_inventory(&all, json);
    if (!*text) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    if (damaged) *damaged = json_array_size(all.damaged) > 0;
fail:
    json_decref(all.checkpoints);
    json_decref(all.missing);
    json_decref(all.damaged);
    return status;
}

void shoal_text_free(char **text)
{
    if (!text) return;
    mem_free(*text);
    *text = NULL;
}
