/* Normalizers: those of Unicode over utf8proc, and those that T5's tokenizers have. */
#include "tokenizer/normalize.h"

#include "tokenizer/json_field.h"
#include "tokenizer/unicode.h"

#include <utf8proc.h>

static const struct {
    const char *name;
    enum normalizer_kind kind;
} names[] = {{"NFC", NORMALIZE_NFC}, {"NFD", NORMALIZE_NFD}, {"NFKC", NORMALIZE_NFKC},
    {"NFKD", NORMALIZE_NFKD}, {"Lowercase", NORMALIZE_LOWERCASE},
    {"Precompiled", NORMALIZE_CHARSMAP}, {"Strip", NORMALIZE_STRIP},
    {"Replace", NORMALIZE_REPLACE}};

static enum shoal_status read_charsmap(
    struct normalizer_step *step, const json_t *json, struct shoal_error *error)
{
    const char *text;

    TRY(json_field_string(json, "precompiled_charsmap", &text, error));
    if (!text)
        FAIL(error, SHOAL_E_FORMAT, "a Precompiled normalizer has no \"precompiled_charsmap\"");
    return charsmap_from_base64(&step->map, text, error);
}

static enum shoal_status read_replace(
    struct normalizer_step *step, const json_t *json, struct shoal_error *error)
{
    const char *content;

    TRY(split_read_pattern(&step->pattern, json, "a Replace normalizer", error));
    TRY(json_field_string(json, "content", &content, error));
    if (!content) FAIL(error, SHOAL_E_FORMAT, "a Replace normalizer has no \"content\"");
    step->content = mem_strdup(content);
    if (!step->content) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status read_step(
    struct normalizer_step *step, const json_t *json, struct shoal_error *error)
{
    switch (step->kind) {
    case NORMALIZE_CHARSMAP:
        return read_charsmap(step, json, error);
    case NORMALIZE_STRIP:
        TRY(json_field_bool(json, "strip_left", true, &step->left, error));
        return json_field_bool(json, "strip_right", true, &step->right, error);
    case NORMALIZE_REPLACE:
        return read_replace(step, json, error);
    default:
        return SHOAL_OK;
    }
}

/* Sequences may hold sequences; `depth` bounds how far. */
static enum shoal_status add_steps(
    struct normalizer *normalizer, const json_t *json, int depth, struct shoal_error *error)
{
    const json_t *list, *entry;
    const char *type;
    size_t i;

    TRY(json_field_type(json, "a normalizer", &type, error));
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        struct normalizer_step *step;

        if (strcmp(type, names[i].name)) continue;
        if (normalizer->count == NORMALIZER_MAX_STEPS)
            FAIL(error, SHOAL_E_UNSUPPORTED, "there are more than %d normalizers",
                NORMALIZER_MAX_STEPS);
        step = &normalizer->steps[normalizer->count++];
        *step = (struct normalizer_step){.kind = names[i].kind};
        return read_step(step, json, error);
    }
    if (strcmp(type, "Sequence"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the normalizer \"%.100s\" is not supported; NFC, NFD, NFKC, NFKD, Lowercase, "
            "Precompiled, Strip, Replace and Sequence are",
            type);
    list = json_field(json, "normalizers");
    if (!json_is_array(list) || depth > 8)
        FAIL(error, SHOAL_E_FORMAT, "a Sequence normalizer has no \"normalizers\" or is too deep");
    json_array_foreach(list, i, entry) TRY(add_steps(normalizer, entry, depth + 1, error));
    return SHOAL_OK;
}

enum shoal_status normalizer_init(
    struct normalizer *normalizer, const json_t *json, struct shoal_error *error)
{
    normalizer->count = 0;
    return json ? add_steps(normalizer, json, 0, error) : SHOAL_OK;
}

void normalizer_fini(struct normalizer *normalizer)
{
    for (int32_t i = 0; i < normalizer->count; i++) {
        charsmap_fini(&normalizer->steps[i].map);
        split_fini(&normalizer->steps[i].pattern);
        mem_free(normalizer->steps[i].content);
    }
    normalizer->count = 0;
}

static enum shoal_status append_point(
    struct buffer *out, utf8proc_int32_t point, struct shoal_error *error)
{
    utf8proc_uint8_t bytes[4];

    return buffer_append(out, bytes, (size_t)utf8proc_encode_char(point, bytes), error);
}

/* Each character alone, whatever stands around it. */
static enum shoal_status lowercase(
    const char *text, size_t bytes, struct buffer *out, struct shoal_error *error)
{
    while (bytes) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point);

        /* The one character whose lower case is two: I with a dot above. */
        if (point == 0x130)
            TRY(buffer_append(out, "i\xcc\x87", 3, error));
        else
            TRY(append_point(out, unicode_lowercase(point), error));
        text += length;
        bytes -= (size_t)length;
    }
    return SHOAL_OK;
}

/* Sorts each run of combining marks by class, stably. Counting keeps a long run from costing its
 * square. `spare` is as long as `points`. */
static void order_marks(utf8proc_int32_t *points, utf8proc_int32_t *spare, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end + 1) {
        size_t starts[257] = {0};

        for (end = begin; end < count; end++) {
            utf8proc_propval_t class = utf8proc_get_property(points[end])->combining_class;

            if (!class) break;
            starts[class + 1]++;
        }
        if (end - begin < 2) continue;
        for (size_t class = 1; class < 257; class ++)
            starts[class] += starts[class - 1];
        memcpy(spare, points + begin, (end - begin) * sizeof *spare);
        for (size_t i = 0; i < end - begin; i++)
            points[begin + starts[utf8proc_get_property(spare[i])->combining_class]++] = spare[i];
    }
}

/* The decomposed characters of the text: into `points`, or, if that is NULL, only how many. */
static size_t decompose(const char *text, size_t bytes, utf8proc_option_t options,
    utf8proc_int32_t *points, size_t room)
{
    size_t count = 0;
    int boundary = 0;

    while (bytes) {
        utf8proc_int32_t point;
        size_t length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point);
        utf8proc_ssize_t more = utf8proc_decompose_char(point, points ? points + count : NULL,
            points ? (utf8proc_ssize_t)(room - count) : 0, options, &boundary);

        count += (size_t)more; /* cannot fail: the options ask for nothing that can */
        text += length;
        bytes -= length;
    }
    return count;
}

/* Text without inert characters. */
static enum shoal_status normal_form(const char *text, size_t bytes, utf8proc_option_t options,
    struct buffer *out, struct shoal_error *error)
{
    size_t room = decompose(text, bytes, options, NULL, 0);
    utf8proc_int32_t *points = mem_calloc(room, 2 * sizeof *points);
    enum shoal_status status = SHOAL_OK;
    utf8proc_ssize_t count;

    if (!points) FAIL_MEMORY(error);
    decompose(text, bytes, options, points, room);
    order_marks(points, points + room, room);
    count = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)room, options);
    for (utf8proc_ssize_t i = 0; i < count && !status; i++)
        status = append_point(out, points[i], error);
    mem_free(points);
    return status;
}

/* Normalises what lies between inert characters, and copies those. */
static enum shoal_status normal_stretches(const char *text, size_t bytes, utf8proc_option_t options,
    struct buffer *out, struct shoal_error *error)
{
    size_t done = 0;

    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point;
        size_t length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);

        if (unicode_is_inert(point)) {
            TRY(normal_form(text + done, at - done, options, out, error));
            TRY(buffer_append(out, text + at, length, error));
            done = at + length;
        }
        at += length;
    }
    return normal_form(text + done, bytes - done, options, out, error);
}

enum shoal_status normalizer_check_length(const struct buffer *out, struct shoal_error *error)
{
    if (out->used > NORMALIZER_MAX_TEXT)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "the tokenizer's normalizer makes more than %u bytes of this text",
            NORMALIZER_MAX_TEXT);
    return SHOAL_OK;
}

/*
 * As the `tokenizers` library reads the rules: a cluster of less than six bytes is looked up as a
 * whole, and if a rule takes its start, be it only that, all of it is replaced; else each character
 * is. Of several rules the shortest counts.
 */
static enum shoal_status map_cluster(const struct charsmap *map, const char *text, size_t bytes,
    struct buffer *out, struct shoal_error *error)
{
    const char *replacement;

    TRY(normalizer_check_length(out, error));
    if (bytes < 6 && charsmap_match(map, text, bytes, false, &replacement))
        return buffer_append(out, replacement, strlen(replacement), error);
    while (bytes) {
        utf8proc_int32_t point;
        size_t length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point);

        if (charsmap_match(map, text, length, false, &replacement))
            TRY(buffer_append(out, replacement, strlen(replacement), error));
        else
            TRY(buffer_append(out, text, length, error));
        text += length;
        bytes -= length;
    }
    return SHOAL_OK;
}

static enum shoal_status apply_charsmap(const struct charsmap *map, const char *text, size_t bytes,
    struct buffer *out, struct shoal_error *error)
{
    utf8proc_int32_t state = 0, before = 0, point;
    size_t begin = 0;

    for (size_t at = 0; at < bytes; before = point) {
        size_t length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);

        if (at && utf8proc_grapheme_break_stateful(before, point, &state) &&
            !unicode_extends(point)) {
            TRY(map_cluster(map, text + begin, at - begin, out, error));
            begin = at;
        }
        at += length;
    }
    return map_cluster(map, text + begin, bytes - begin, out, error);
}

static enum shoal_status strip(const struct normalizer_step *step, const char *text, size_t bytes,
    struct buffer *out, struct shoal_error *error)
{
    size_t begin = 0, end = 0;
    bool seen = false; /* something that stays */

    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point;

        at += (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);
        if (!unicode_is_space(point)) {
            seen = true;
            end = at;
        } else if (!seen && step->left) {
            begin = at;
        }
    }
    if (!step->right) end = bytes;
    return begin < end ? buffer_append(out, text + begin, end - begin, error) : SHOAL_OK;
}

static enum shoal_status replace(const struct normalizer_step *step, const char *text, size_t bytes,
    struct buffer *out, struct shoal_error *error)
{
    struct split_cursor cursor = {.split = &step->pattern, .bytes = bytes, .last_end = SIZE_MAX};
    struct split_budget budget;
    struct buffer copy = {0};
    size_t done = 0, begin, end;
    enum shoal_status status;
    bool found = true;

    TRY(split_budget_init(&budget, error));
    TRY_OR_FAIL(split_subject(text, bytes, &copy, &cursor.subject, error));
    for (;;) {
        TRY_OR_FAIL(split_next(&cursor, &budget, &found, &begin, &end, error));
        if (!found) break;
        TRY_OR_FAIL(normalizer_check_length(out, error));
        TRY_OR_FAIL(buffer_append(out, text + done, begin - done, error));
        TRY_OR_FAIL(buffer_append(out, step->content, strlen(step->content), error));
        done = end;
    }
    status = buffer_append(out, text + done, bytes - done, error);
fail:
    mem_free(copy.data);
    split_budget_fini(&budget);
    return status;
}

static enum shoal_status apply_step(const struct normalizer_step *step, const char *text,
    size_t bytes, struct buffer *out, struct shoal_error *error)
{
    static const utf8proc_option_t options[] = {
        [NORMALIZE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NORMALIZE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NORMALIZE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMALIZE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };

    switch (step->kind) {
    case NORMALIZE_LOWERCASE:
        return lowercase(text, bytes, out, error);
    case NORMALIZE_CHARSMAP:
        return apply_charsmap(&step->map, text, bytes, out, error);
    case NORMALIZE_STRIP:
        return strip(step, text, bytes, out, error);
    case NORMALIZE_REPLACE:
        return replace(step, text, bytes, out, error);
    default:
        return normal_stretches(text, bytes, options[step->kind], out, error);
    }
}

enum shoal_status normalizer_apply(const struct normalizer *normalizer, const char *text,
    size_t bytes, struct buffer *out, struct shoal_error *error)
{
    struct buffer next = {0};
    enum shoal_status status;

    out->used = 0;
    TRY(buffer_append(out, text, bytes, error));
    for (int32_t i = 0; i < normalizer->count; i++) {
        struct buffer swap;

        next.used = 0;
        status = apply_step(&normalizer->steps[i], out->data, out->used, &next, error);
        if (status) {
            mem_free(next.data);
            return status;
        }
        swap = *out;
        *out = next;
        next = swap;
    }
    mem_free(next.data);
    return SHOAL_OK;
}
