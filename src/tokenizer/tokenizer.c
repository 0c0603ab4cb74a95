/* Reading a tokenizer.json, and running a text through its parts. */
#include "tokenizer/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/json_field.h"
#include "tokenizer/split.h"

#include <utf8proc.h>

#define MAX_STEPS 16

/* A pre-tokenizer: cuts every word of the one before it. */
struct step {
    bool prefix_space; /* a word that does not begin with a space is given one */
    struct split split;
};

struct tokenizer {
    struct normalizer normalizer;
    struct added added;
    struct step steps[MAX_STEPS];
    int32_t step_count;
    bool byte_level; /* seen, and nothing may follow it */
    struct bpe bpe;
};

/* ---- reading ---- */

/* The pattern of the ByteLevel pre-tokenizer, GPT-2's. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum shoal_status read_byte_level(
    struct step *step, const json_t *json, struct shoal_error *error)
{
    bool use_regex;

    TRY(json_field_bool(json, "add_prefix_space", true, &step->prefix_space, error));
    TRY(json_field_bool(json, "use_regex", true, &use_regex, error));
    if (use_regex) TRY(split_init(&step->split, byte_level_pattern, false, error));
    return SHOAL_OK;
}

static enum shoal_status read_split(
    struct step *step, const json_t *json, struct shoal_error *error)
{
    const json_t *pattern = json_field(json, "pattern");
    const char *behavior, *regex, *literal;
    bool invert;

    TRY(json_field_string(json, "behavior", &behavior, error));
    TRY(json_field_bool(json, "invert", false, &invert, error));
    TRY(json_field_string(pattern, "Regex", &regex, error));
    TRY(json_field_string(pattern, "String", &literal, error));
    if (!behavior || !regex == !literal)
        FAIL(error, SHOAL_E_FORMAT,
            "a Split pre-tokenizer needs \"behavior\" and a \"pattern\" with \"Regex\" or "
            "\"String\"");
    if (strcmp(behavior, "Isolated") && strcmp(behavior, "Removed"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the Split behavior \"%.100s\" is not supported; Isolated and Removed are", behavior);
    TRY(split_init(&step->split, regex ? regex : literal, !regex, error));
    step->split.remove = !strcmp(behavior, "Removed");
    step->split.invert = invert;
    return SHOAL_OK;
}

static enum shoal_status read_steps(
    struct tokenizer *t, const json_t *json, int depth, struct shoal_error *error)
{
    const json_t *list, *entry;
    const char *type;
    struct step *step;
    size_t i;

    TRY(json_field_type(json, "the pre-tokenizer", &type, error));
    if (!strcmp(type, "Sequence")) {
        list = json_field(json, "pretokenizers");
        if (!json_is_array(list) || depth > 8)
            FAIL(error, SHOAL_E_FORMAT,
                "a Sequence pre-tokenizer has no \"pretokenizers\" or is too deep");
        json_array_foreach(list, i, entry) TRY(read_steps(t, entry, depth + 1, error));
        return SHOAL_OK;
    }
    if (t->byte_level)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer \"%.100s\" follows ByteLevel, which is supported as the last only",
            type);
    if (t->step_count == MAX_STEPS)
        FAIL(error, SHOAL_E_UNSUPPORTED, "there are more than %d pre-tokenizers", MAX_STEPS);
    step = &t->steps[t->step_count++];
    if (!strcmp(type, "Split")) return read_split(step, json, error);
    if (strcmp(type, "ByteLevel"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer \"%.100s\" is not supported; Split, ByteLevel and Sequence are",
            type);
    t->byte_level = true;
    return read_byte_level(step, json, error);
}

/* Post-processors may add ids around the text's own; only those that add none are accepted. */
static enum shoal_status check_processor(const json_t *json, int depth, struct shoal_error *error)
{
    const json_t *list, *entry;
    const char *type;
    size_t i;

    if (!json) return SHOAL_OK;
    TRY(json_field_type(json, "the post-processor", &type, error));
    if (!strcmp(type, "ByteLevel")) return SHOAL_OK;
    if (!strcmp(type, "Sequence") && depth < 8) {
        list = json_field(json, "processors");
        json_array_foreach(list, i, entry) TRY(check_processor(entry, depth + 1, error));
        return SHOAL_OK;
    }
    if (!strcmp(type, "TemplateProcessing")) {
        list = json_field(json, "single");
        if (json_array_size(list) == 1 && json_object_get(json_array_get(list, 0), "Sequence"))
            return SHOAL_OK;
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the post-processor TemplateProcessing adds tokens, which is not supported");
    }
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "the post-processor \"%.100s\" is not supported; ByteLevel and a TemplateProcessing that "
        "adds nothing are",
        type);
}

static enum shoal_status read_all(
    struct tokenizer *t, const json_t *root, struct shoal_error *error)
{
    const json_t *model = json_field(root, "model"), *steps = json_field(root, "pre_tokenizer");

    if (!json_is_object(root) || !json_is_object(model))
        FAIL(error, SHOAL_E_FORMAT, "there is no \"model\"");
    TRY(normalizer_init(&t->normalizer, json_field(root, "normalizer"), error));
    if (steps) TRY(read_steps(t, steps, 0, error));
    if (!t->byte_level)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the pre-tokenizer is not ByteLevel; only byte-level BPE is supported");
    TRY(check_processor(json_field(root, "post_processor"), 0, error));
    TRY(bpe_init(&t->bpe, model, error));
    return added_init(&t->added, json_field(root, "added_tokens"), json_object_get(model, "vocab"),
        &t->normalizer, error);
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

enum shoal_status tokenizer_open_within(const char *path, struct allowance *allowance,
    struct tokenizer **tokenizer, struct shoal_error *error)
{
    bool folder = file_kind(path) == FILE_FOLDER;
    char *name = mem_format("%s%s", path, folder ? "/tokenizer.json" : "");
    enum shoal_status status;
    char *json = NULL;
    size_t bytes;

    if (!name) FAIL_MEMORY(error);
    if (folder && file_kind(name) == FILE_NONE)
        status = error_set(error, SHOAL_E_MISSING, __FILE__, __LINE__,
            "%s holds no tokenizer.json; vocab.json and merges.txt alone are not supported", path);
    else
        status = take_text(allowance, name, error);
    if (!status) status = file_read_all(name, TOKENIZER_MAX_FILE, &json, &bytes, error);
    if (!status) status = tokenizer_parse(json, bytes, name, allowance, tokenizer, error);
    mem_free(json);
    mem_free(name);
    return status;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    struct tokenizer *t = *tokenizer;

    if (!t) return;
    for (int32_t i = 0; i < t->step_count; i++)
        split_fini(&t->steps[i].split);
    added_fini(&t->added);
    bpe_fini(&t->bpe);
    mem_free(t);
    *tokenizer = NULL;
}

int32_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
    int32_t model = tokenizer->bpe.id_end, added = tokenizer->added.id_end;

    return model > added ? model : added;
}

/* ---- encoding ---- */

/* A stretch of text with what patterns see in its place: the same number of bytes. */
struct piece {
    const char *text, *subject;
    size_t bytes;
};

struct encoder {
    const struct tokenizer *t;
    struct buffer normal, subject; /* of the stretch at hand */
    struct split_budget budget;
    struct bpe_scratch scratch;
    int32_t *ids;
    size_t count, room;
    struct shoal_error *error;
};

static enum shoal_status reserve_ids(struct encoder *e, size_t more)
{
    if (more > e->room - e->count) {
        size_t room = 2 * e->room + more;
        int32_t *grown = mem_realloc(e->ids, room, sizeof *grown);

        if (!grown) FAIL_MEMORY(e->error);
        e->ids = grown;
        e->room = room;
    }
    return SHOAL_OK;
}

static enum shoal_status encode_piece(struct encoder *e, int32_t step, struct piece piece);

static struct piece slice(struct piece piece, size_t begin, size_t end)
{
    return (struct piece){piece.text + begin, piece.subject + begin, end - begin};
}

/* Cuts the piece and hands on its words. */
static enum shoal_status split_piece(struct encoder *e, int32_t step, struct piece piece)
{
    const struct split *split = &e->t->steps[step].split;
    struct split_cursor cursor = {
        .split = split, .subject = piece.subject, .bytes = piece.bytes, .last_end = SIZE_MAX};
    size_t done = 0, begin, end;
    bool found;

    for (;;) {
        TRY(split_next(&cursor, &e->budget, &found, &begin, &end, e->error));
        if (!found) begin = end = piece.bytes;
        if (!(split->remove && split->invert))
            TRY(encode_piece(e, step + 1, slice(piece, done, begin)));
        if (!found) return SHOAL_OK;
        if (!split->remove || split->invert)
            TRY(encode_piece(e, step + 1, slice(piece, begin, end)));
        done = end;
    }
}

static enum shoal_status prefix_piece(struct encoder *e, int32_t step, struct piece piece)
{
    bool cut = e->t->steps[step].split.code != NULL;
    char *copy = mem_alloc(2 * (piece.bytes + 1));
    enum shoal_status status;

    if (!copy) FAIL_MEMORY(e->error);
    copy[0] = copy[piece.bytes + 1] = ' ';
    memcpy(copy + 1, piece.text, piece.bytes);
    memcpy(copy + piece.bytes + 2, piece.subject, piece.bytes);
    piece = (struct piece){copy, copy + piece.bytes + 1, piece.bytes + 1};
    status = cut ? split_piece(e, step, piece) : encode_piece(e, step + 1, piece);
    mem_free(copy);
    return status;
}

/* From pre-tokenizer `step` on; past the last one the piece is a word. */
static enum shoal_status encode_piece(struct encoder *e, int32_t step, struct piece piece)
{
    const struct tokenizer *t = e->t;
    size_t count;

    if (!piece.bytes) return SHOAL_OK;
    if (step < t->step_count) {
        if (t->steps[step].prefix_space && piece.text[0] != ' ')
            return prefix_piece(e, step, piece);
        if (t->steps[step].split.code) return split_piece(e, step, piece);
        return encode_piece(e, step + 1, piece);
    }
    TRY(reserve_ids(e, piece.bytes));
    TRY(bpe_encode(
        &t->bpe, &e->scratch, piece.text, piece.bytes, e->ids + e->count, &count, e->error));
    e->count += count;
    return SHOAL_OK;
}

/* Text without added tokens of any kind. */
static enum shoal_status encode_words(struct encoder *e, const char *text, size_t bytes)
{
    const char *subject;

    TRY(split_subject(text, bytes, &e->subject, &subject, e->error));
    return encode_piece(e, 0, (struct piece){text, subject, bytes});
}

static enum shoal_status encode_stretch(struct encoder *e, const char *text, size_t bytes);

/* Takes out the tokens of `set`, and gives what lies between them to `rest`. */
static enum shoal_status encode_around(struct encoder *e, const struct added_set *set,
    const char *text, size_t bytes,
    enum shoal_status (*rest)(struct encoder *e, const char *text, size_t bytes))
{
    struct added_match match = {.resume = 0};
    size_t done = 0;

    while (added_find(set, text, bytes, match.resume, done, &match)) {
        if (done < match.begin) TRY(rest(e, text + done, match.begin - done));
        TRY(reserve_ids(e, 1));
        e->ids[e->count++] = match.id;
        done = match.end;
    }
    return done < bytes ? rest(e, text + done, bytes - done) : SHOAL_OK;
}

/* Text without the added tokens that are sought before normalisation. */
static enum shoal_status encode_stretch(struct encoder *e, const char *text, size_t bytes)
{
    TRY(normalizer_apply(&e->t->normalizer, text, bytes, &e->normal, e->error));
    return encode_around(e, &e->t->added.normalized, e->normal.data, e->normal.used, encode_words);
}

enum shoal_status tokenizer_check_text(const char *text, struct shoal_error *error)
{
    size_t bytes = strlen(text);

    if (bytes > TOKENIZER_MAX_TEXT)
        FAIL(error, SHOAL_E_INVALID, "the text has %zu bytes; at most %u are allowed", bytes,
            TOKENIZER_MAX_TEXT);
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length = utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);

        if (length <= 0)
            FAIL(error, SHOAL_E_INVALID, "the text is not valid UTF-8 at byte %zu (0x%02x)", at,
                (unsigned char)text[at]);
        at += (size_t)length;
    }
    return SHOAL_OK;
}

enum shoal_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
    int32_t **ids, size_t *count, struct shoal_error *error)
{
    struct encoder e = {.t = tokenizer, .error = error};
    size_t bytes = strlen(text);
    enum shoal_status status;

    TRY_OR_FAIL(tokenizer_check_text(text, error));
    TRY_OR_FAIL(split_budget_init(&e.budget, error));
    TRY_OR_FAIL(reserve_ids(&e, bytes + 1));
    TRY_OR_FAIL(encode_around(&e, &tokenizer->added.plain, text, bytes, encode_stretch));
    *ids = e.ids;
    *count = e.count;
    e.ids = NULL;
fail:
    mem_free(e.ids);
    mem_free(e.normal.data);
    mem_free(e.subject.data);
    bpe_scratch_fini(&e.scratch);
    split_budget_fini(&e.budget);
    return status;
}
