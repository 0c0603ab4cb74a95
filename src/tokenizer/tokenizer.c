/* Reading a tokenizer.json, and opening tokenizers. */
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/inside.h"
#include "tokenizer/json_field.h"
#include "tokenizer/sentencepiece.h"

#include <utf8proc.h>

/* ---- reading ---- */

/* The pattern of the ByteLevel pre-tokenizer, GPT-2's. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum shoal_status read_byte_level(
    struct tokenizer_step *step, const json_t *json, struct shoal_error *error)
{
    bool use_regex;

    TRY(json_field_bool(json, "add_prefix_space", true, &step->prefix_space, error));
    TRY(json_field_bool(json, "use_regex", true, &use_regex, error));
    if (use_regex) TRY(split_init(&step->split, byte_level_pattern, false, error));
    return SHOAL_OK;
}

static enum shoal_status read_split(
    struct tokenizer_step *step, const json_t *json, struct shoal_error *error)
{
    const char *behavior;
    bool invert;

    TRY(json_field_string(json, "behavior", &behavior, error));
    TRY(json_field_bool(json, "invert", false, &invert, error));
    if (!behavior) FAIL(error, SHOAL_E_FORMAT, "a Split pre-tokenizer has no \"behavior\"");
    if (strcmp(behavior, "Isolated") && strcmp(behavior, "Removed"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the Split behavior \"%.100s\" is not supported; Isolated and Removed are", behavior);
    TRY(split_read_pattern(&step->split, json, "a Split pre-tokenizer", error));
    step->split.remove = !strcmp(behavior, "Removed");
    step->split.invert = invert;
    return SHOAL_OK;
}

static enum shoal_status read_prepend(
    const json_t *json, enum prepend *prepend, struct shoal_error *error)
{
    static const char *const schemes[] = {
        [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always"};
    const char *scheme;
    bool prefix;
    int i = 0;

    TRY(json_field_string(json, "prepend_scheme", &scheme, error));
    TRY(json_field_bool(json, "add_prefix_space", true, &prefix, error));
    if (!scheme) scheme = prefix ? "always" : "never";
    while (i < 3 && strcmp(scheme, schemes[i]) != 0)
        i++;
    if (i == 3 || (!prefix && i != PREPEND_NEVER))
        FAIL(error, SHOAL_E_FORMAT,
            "a Metaspace pre-tokenizer has the \"prepend_scheme\" \"%.60s\"%s", scheme,
            i == 3 ? "; never, first and always are known"
                   : ", though \"add_prefix_space\" is false");
    *prepend = (enum prepend)i;
    return SHOAL_OK;
}

static enum shoal_status read_metaspace(const struct tokenizer *t, struct tokenizer_step *step,
    const json_t *json, struct shoal_error *error)
{
    const char *mark;
    utf8proc_int32_t point;
    size_t bytes;

    TRY(json_field_string(json, "replacement", &mark, error));
    bytes = mark ? strlen(mark) : 0;
    if (!bytes ||
        utf8proc_iterate((const utf8proc_uint8_t *)mark, -1, &point) != (utf8proc_ssize_t)bytes)
        FAIL(error, SHOAL_E_FORMAT,
            "a Metaspace pre-tokenizer needs a \"replacement\" of one character");
    memcpy(step->metaspace.mark, mark, bytes);
    TRY(json_field_bool(json, "split", true, &step->metaspace.cut, error));
    TRY(read_prepend(json, &step->metaspace.prepend, error));
    if (step->metaspace.prepend == PREPEND_FIRST && t->step_count > 1)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "a Metaspace pre-tokenizer with the \"prepend_scheme\" first follows another, which is "
            "not supported");
    return SHOAL_OK;
}

/* A pre-tokenizer that is no Sequence. */
static enum shoal_status read_step(
    struct tokenizer *t, const char *type, const json_t *json, struct shoal_error *error)
{
    const char *last = t->kind == TOKENIZER_BPE ? "ByteLevel" : "Metaspace";
    struct tokenizer_step *step;

    if (t->closed)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer \"%.100s\" follows %s, which is supported as the last only", type,
            last);
    if (t->step_count == TOKENIZER_MAX_STEPS)
        FAIL(error, SHOAL_E_UNSUPPORTED, "there are more than %d pre-tokenizers",
            TOKENIZER_MAX_STEPS);
    step = &t->steps[t->step_count++];
    if (!strcmp(type, "Split")) return read_split(step, json, error);
    t->closed = !strcmp(type, last);
    if (t->closed && t->kind == TOKENIZER_BPE) return read_byte_level(step, json, error);
    if (t->closed) return read_metaspace(t, step, json, error);
    if (t->kind == TOKENIZER_BPE || strcmp(type, "WhitespaceSplit"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer \"%.100s\" is not supported; Split, %s and Sequence are", type,
            t->kind == TOKENIZER_BPE ? "ByteLevel" : "WhitespaceSplit, Metaspace");
    TRY(split_init(&step->split, "\\s", false, error));
    step->split.remove = true;
    return SHOAL_OK;
}

static enum shoal_status read_steps(
    struct tokenizer *t, const json_t *json, int depth, struct shoal_error *error)
{
    const json_t *list, *entry;
    const char *type;
    size_t i;

    TRY(json_field_type(json, "the pre-tokenizer", &type, error));
    if (strcmp(type, "Sequence") != 0) return read_step(t, type, json, error);
    list = json_field(json, "pretokenizers");
    if (!json_is_array(list) || depth > 8)
        FAIL(error, SHOAL_E_FORMAT,
            "a Sequence pre-tokenizer has no \"pretokenizers\" or is too deep");
    json_array_foreach(list, i, entry) TRY(read_steps(t, entry, depth + 1, error));
    return SHOAL_OK;
}

/* ---- what stands around a text ---- */

/* Adds the ids that `tokens`, the template's table, gives for a special token. */
static enum shoal_status add_special(struct tokenizer *t, const json_t *tokens, const char *name,
    int32_t *side, size_t *count, struct shoal_error *error)
{
    const json_t *ids = json_object_get(json_object_get(tokens, name), "ids"), *id;
    size_t i;

    if (!json_array_size(ids))
        FAIL(
            error, SHOAL_E_FORMAT, "the post-processor's template has no ids for \"%.100s\"", name);
    json_array_foreach(ids, i, id)
    {
        json_int_t value = json_integer_value(id);

        if (!json_is_integer(id) || value < 0 || value >= tokenizer_vocab(t))
            FAIL(error, SHOAL_E_FORMAT,
                "the post-processor's id of \"%.100s\" is not in the vocabulary", name);
        if (*count == TOKENIZER_MAX_TEMPLATE)
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "the post-processor adds more than %d tokens on a side of the text",
                TOKENIZER_MAX_TEMPLATE);
        side[(*count)++] = (int32_t)value;
    }
    return SHOAL_OK;
}

/* What TemplateProcessing adds to a single text. */
static enum shoal_status read_template(
    struct tokenizer *t, const json_t *json, struct shoal_error *error)
{
    const json_t *list = json_field(json, "single"), *tokens = json_field(json, "special_tokens"),
                 *entry;
    struct tokenizer_template *around = &t->around;
    bool text = false;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        const json_t *special = json_object_get(entry, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));

        if (json_object_get(entry, "Sequence") && !text) {
            text = true;
            continue;
        }
        if (!name)
            FAIL(error, SHOAL_E_FORMAT,
                "the post-processor's template has an entry that is no special token, nor the one "
                "text");
        TRY(add_special(t, tokens, name, text ? around->after : around->before,
            text ? &around->after_count : &around->before_count, error));
    }
    if (!text) FAIL(error, SHOAL_E_FORMAT, "the post-processor's template has no text");
    return SHOAL_OK;
}

/* Byte-level BPE is for those who write a template as text: there none may add ids. */
static enum shoal_status read_processor(
    struct tokenizer *t, const json_t *json, int depth, struct shoal_error *error)
{
    const json_t *list, *entry;
    const char *type;
    size_t i;

    if (!json) return SHOAL_OK;
    TRY(json_field_type(json, "the post-processor", &type, error));
    if (!strcmp(type, "ByteLevel")) return SHOAL_OK;
    if (!strcmp(type, "Sequence") && depth < 8) {
        list = json_field(json, "processors");
        json_array_foreach(list, i, entry) TRY(read_processor(t, entry, depth + 1, error));
        return SHOAL_OK;
    }
    if (!strcmp(type, "TemplateProcessing")) {
        if (t->kind != TOKENIZER_BPE) return read_template(t, json, error);
        list = json_field(json, "single");
        if (json_array_size(list) == 1 && json_object_get(json_array_get(list, 0), "Sequence"))
            return SHOAL_OK;
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the post-processor TemplateProcessing adds tokens, which is not supported with BPE");
    }
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "the post-processor \"%.100s\" is not supported; ByteLevel and TemplateProcessing are, "
        "with BPE one that adds nothing",
        type);
}

/* ---- the model ---- */

static enum shoal_status read_bpe(
    struct tokenizer *t, const json_t *root, const json_t *model, struct shoal_error *error)
{
    if (!t->closed)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer is not ByteLevel; only byte-level BPE and Unigram are supported");
    TRY(read_processor(t, json_field(root, "post_processor"), 0, error));
    TRY(bpe_init(&t->bpe, model, error));
    return added_init(&t->added, json_field(root, "added_tokens"), json_object_get(model, "vocab"),
        0, &t->normalizer, error);
}

static enum shoal_status read_pieces(
    struct unigram *unigram, const json_t *model, struct shoal_error *error)
{
    const json_t *vocab = json_field(model, "vocab"), *unknown = json_field(model, "unk_id"),
                 *entry;
    json_int_t id = json_integer_value(unknown);
    size_t i;

    TRY(unigram_init(unigram, json_array_size(vocab), false, error));
    TRY(json_field_bool(model, "byte_fallback", false, &unigram->byte_fallback, error));
    if (unknown && (!json_is_integer(unknown) || id < 0 || id >= TOKENIZER_MAX_IDS))
        FAIL(error, SHOAL_E_FORMAT, "\"unk_id\" is no whole number from 0 to %d",
            TOKENIZER_MAX_IDS - 1);
    if (unknown) unigram->unknown_id = (int32_t)id;
    json_array_foreach(vocab, i, entry)
    {
        const json_t *text = json_array_get(entry, 0), *score = json_array_get(entry, 1);

        if (json_array_size(entry) != 2 || !json_is_string(text) || !json_is_number(score))
            FAIL(error, SHOAL_E_FORMAT, "entry %zu of the vocabulary is not a text and a score", i);
        TRY(unigram_add(unigram, json_string_value(text), json_string_length(text),
            json_number_value(score), UNIGRAM_NORMAL, error));
    }
    return unigram_finish(unigram, error);
}

static enum shoal_status read_unigram(
    struct tokenizer *t, const json_t *root, const json_t *model, struct shoal_error *error)
{
    const json_t *added = json_field(root, "added_tokens"), *entry;
    json_t *known;
    enum shoal_status status = SHOAL_OK;
    bool failed = false;
    size_t i;

    TRY(read_pieces(&t->unigram, model, error));
    known = json_object(); /* of the vocabulary, the added tokens that are in it */
    json_array_foreach(added, i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "content"));
        int32_t id = text ? unigram_find(&t->unigram, text, strlen(text)) : -1;

        if (id >= 0) json_put(known, text, json_integer(id), &failed);
    }
    if (!known || failed)
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    else
        status = added_init(&t->added, added, known, t->unigram.id_end, &t->normalizer, error);
    json_decref(known);
    if (status) return status;
    return read_processor(t, json_field(root, "post_processor"), 0, error);
}

static enum shoal_status read_all(
    struct tokenizer *t, const json_t *root, struct shoal_error *error)
{
    const json_t *model = json_field(root, "model"), *steps = json_field(root, "pre_tokenizer");
    const char *type;

    if (!json_is_object(root) || !json_is_object(model))
        FAIL(error, SHOAL_E_FORMAT, "there is no \"model\"");
    TRY(json_field_string(model, "type", &type, error));
    t->kind = type && !strcmp(type, "Unigram") ? TOKENIZER_UNIGRAM : TOKENIZER_BPE;
    TRY(normalizer_init(&t->normalizer, json_field(root, "normalizer"), error));
    if (steps) TRY(read_steps(t, steps, 0, error));
    if (t->kind == TOKENIZER_UNIGRAM) return read_unigram(t, root, model, error);
    return read_bpe(t, root, model, error);
}

enum shoal_status tokenizer_from_json(
    const json_t *root, const char *label, struct tokenizer **tokenizer, struct shoal_error *error)
{
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    enum shoal_status status;

    if (!t) FAIL_MEMORY(error);
    status = read_all(t, root, error);
    if (status) {
        error_prefix(error, "%s: ", label);
        tokenizer_close(&t);
        return status;
    }
    *tokenizer = t;
    return SHOAL_OK;
}

enum shoal_status tokenizer_parse(const char *json, size_t bytes, const char *label,
    struct allowance *allowance, struct tokenizer **tokenizer, struct shoal_error *error)
{
    enum shoal_status status;
    json_error_t where;
    json_t *root;

    TRY(allowance_take(allowance, label, json_load_bytes(json, bytes), error));
    root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        if (json_ran_out_of_memory(&where, json, bytes)) FAIL_MEMORY(error);
        FAIL(error, SHOAL_E_FORMAT, "%s: not valid JSON at line %d: %s", label, where.line,
            where.text);
    }
    status = tokenizer_from_json(root, label, tokenizer, error);
    json_decref(root);
    return status;
}

enum shoal_status tokenizer_open(
    const char *path, struct tokenizer **tokenizer, struct shoal_error *error)
{
    return tokenizer_open_within(path, NULL, tokenizer, error);
}

/* What the file's own text will take, known before it is read. */
static enum shoal_status take_text(
    struct allowance *allowance, const char *path, struct shoal_error *error)
{
    struct file file;
    uint64_t bytes;

    TRY(file_open(path, &file, error));
    bytes = file.bytes;
    file_close(&file);
    return allowance_take(allowance, path, bytes, error);
}

/* The file itself, or what there is in a folder: *name is mem_free'd by the caller. */
static enum shoal_status find_file(const char *path, char **name, struct shoal_error *error)
{
    static const char *const names[] = {"/tokenizer.json", "/spiece.model"};
    bool folder = file_kind(path) == FILE_FOLDER;

    for (size_t i = 0; i < 2; i++) {
        *name = mem_format("%s%s", path, folder ? names[i] : "");
        if (!*name) FAIL_MEMORY(error);
        if (!folder || file_kind(*name) != FILE_NONE) return SHOAL_OK;
        mem_free(*name);
    }
    FAIL(error, SHOAL_E_MISSING,
        "%s holds no tokenizer.json and no spiece.model; vocab.json and merges.txt alone are not "
        "supported",
        path);
}

enum shoal_status tokenizer_open_within(const char *path, struct allowance *allowance,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    enum shoal_status status;
    char *name, *data = NULL;
    size_t bytes;

    TRY(find_file(path, &name, error));
    status = take_text(allowance, name, error);
    if (!status) status = file_read_all(name, TOKENIZER_MAX_FILE, &data, &bytes, error);
    if (!status) {
        if (sentencepiece_begins(data, bytes))
            status = tokenizer_from_sentencepiece(data, bytes, name, allowance, tokenizer, error);
        else
            status = tokenizer_parse(data, bytes, name, allowance, tokenizer, error);
    }
    mem_free(data);
    mem_free(name);
    return status;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    struct tokenizer *t = *tokenizer;

    if (!t) return;
    for (int32_t i = 0; i < t->step_count; i++)
        split_fini(&t->steps[i].split);
    normalizer_fini(&t->normalizer);
    added_fini(&t->added);
    bpe_fini(&t->bpe);
    unigram_fini(&t->unigram);
    charsmap_fini(&t->spaces.map);
    mem_free(t);
    *tokenizer = NULL;
}

int32_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
    int32_t model =
        tokenizer->kind == TOKENIZER_BPE ? tokenizer->bpe.id_end : tokenizer->unigram.id_end;
    int32_t added = tokenizer->added.id_end;

    return model > added ? model : added;
}

int32_t tokenizer_end(const struct tokenizer *tokenizer)
{
    const struct tokenizer_template *around = &tokenizer->around;

    return around->after_count ? around->after[around->after_count - 1] : -1;
}
