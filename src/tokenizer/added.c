/* Added tokens: loading, and leftmost-longest search in a sorted list. */
#include "tokenizer/added.h"

#include "tokenizer/json_field.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- loading ---- */

static int by_content(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    int order = memcmp(x->content, y->content, x->bytes < y->bytes ? x->bytes : y->bytes);

    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static enum shoal_status sort_set(struct added_set *set, struct shoal_error *error)
{
    if (set->count) qsort(set->tokens, set->count, sizeof *set->tokens, by_content);
    for (size_t i = 0; i < set->count; i++) {
        set->starts[(unsigned char)set->tokens[i].content[0]] = true;
        if (i && !by_content(&set->tokens[i - 1], &set->tokens[i]))
            FAIL(error, SHOAL_E_FORMAT, "the added token \"%.*s\" is there twice",
                (int)set->tokens[i].bytes, set->tokens[i].content);
    }
    return SHOAL_OK;
}

static enum shoal_status read_token(struct added_token *token, bool *normalized,
    const json_t *entry, const json_t *vocab, struct shoal_error *error)
{
    const json_t *id = json_object_get(entry, "id"), *known;
    const char *content;
    bool special;

    TRY(json_field_string(entry, "content", &content, error));
    if (!content || !*content) FAIL(error, SHOAL_E_FORMAT, "an added token has no \"content\"");
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= TOKENIZER_MAX_IDS)
        FAIL(error, SHOAL_E_FORMAT,
            "the id of the added token \"%.100s\" is not a whole number from 0 to %d", content,
            TOKENIZER_MAX_IDS - 1);
    token->id = (int32_t)json_integer_value(id);
    known = json_object_get(vocab, content);
    if (known && json_integer_value(known) != token->id)
        FAIL(error, SHOAL_E_FORMAT,
            "the added token \"%.100s\" has the id %d, but %d in the vocabulary", content,
            token->id, (int)json_integer_value(known));
    TRY(json_field_bool(entry, "special", false, &special, error));
    TRY(json_field_bool(entry, "normalized", !special, normalized, error));
    TRY(json_field_bool(entry, "single_word", false, &token->single_word, error));
    TRY(json_field_bool(entry, "lstrip", false, &token->lstrip, error));
    return json_field_bool(entry, "rstrip", false, &token->rstrip, error);
}

/* Puts the token into the set it belongs to, with its content as it is sought. */
static enum shoal_status add_token(struct added *added, const json_t *entry, const json_t *vocab,
    const struct normalizer *normalizer, struct shoal_error *error)
{
    struct added_token token = {0};
    struct added_set *set;
    struct buffer content = {0};
    enum shoal_status status;
    const char *text;
    bool normalized;

    TRY(read_token(&token, &normalized, entry, vocab, error));
    text = json_string_value(json_object_get(entry, "content"));
    if (normalized)
        status = normalizer_apply(normalizer, text, strlen(text), &content, error);
    else
        status = buffer_append(&content, text, strlen(text), error);
    if (!status && (!content.used || content.used > ADDED_MAX_BYTES))
        status = error_set(error, SHOAL_E_UNSUPPORTED, __FILE__, __LINE__,
            "the added token \"%.100s\" has %zu bytes; 1 to %d are supported", text, content.used,
            ADDED_MAX_BYTES);
    if (status) {
        mem_free(content.data);
        return status;
    }
    set = normalized ? &added->normalized : &added->plain;
    token.content = content.data;
    token.bytes = content.used;
    set->tokens[set->count++] = token;
    if (token.id >= added->id_end) added->id_end = token.id + 1;
    return SHOAL_OK;
}

/* False if `id` was there already. */
static bool take_id(uint8_t *taken, json_int_t id)
{
    bool fresh = !(taken[id / 8] >> id % 8 & 1);

    taken[id / 8] = (uint8_t)(taken[id / 8] | 1 << id % 8);
    return fresh;
}

/* The ids of tokens that the model's vocabulary lacks must be new, and differ from each other. */
static enum shoal_status check_ids(
    const json_t *json, json_t *vocab, int32_t below, struct shoal_error *error)
{
    uint8_t *taken = mem_calloc(TOKENIZER_MAX_IDS / 8, 1);
    const json_t *entry;
    const char *token;
    json_t *id;
    size_t i;

    if (!taken) FAIL_MEMORY(error);
    for (int32_t own = 0; own < below; own++)
        take_id(taken, own);
    json_object_foreach(vocab, token, id) take_id(taken, json_integer_value(id));
    json_array_foreach(json, i, entry)
    {
        token = json_string_value(json_object_get(entry, "content"));
        id = json_object_get(entry, "id");
        if (json_object_get(vocab, token) || take_id(taken, json_integer_value(id))) continue;
        mem_free(taken);
        FAIL(error, SHOAL_E_FORMAT,
            "the added token \"%.100s\" has the id %d, as another token has", token,
            (int)json_integer_value(id));
    }
    mem_free(taken);
    return SHOAL_OK;
}

enum shoal_status added_init(struct added *added, const json_t *json, json_t *vocab, int32_t taken,
    const struct normalizer *normalizer, struct shoal_error *error)
{
    size_t count = json_array_size(json), i;
    const json_t *entry;
    enum shoal_status status = SHOAL_OK;

    *added = (struct added){0};
    if (json && !json_is_array(json))
        FAIL(error, SHOAL_E_FORMAT, "\"added_tokens\" must be an array");
    if (count > TOKENIZER_MAX_IDS)
        FAIL(error, SHOAL_E_FORMAT, "there are %zu added tokens; %d are allowed", count,
            TOKENIZER_MAX_IDS);
    added->plain.tokens = mem_calloc(count, sizeof *added->plain.tokens);
    added->normalized.tokens = mem_calloc(count, sizeof *added->normalized.tokens);
    if (!added->plain.tokens || !added->normalized.tokens) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    json_array_foreach(json, i, entry)
        TRY_OR_FAIL(add_token(added, entry, vocab, normalizer, error));
    TRY_OR_FAIL(check_ids(json, vocab, taken, error));
    TRY_OR_FAIL(sort_set(&added->plain, error));
    TRY_OR_FAIL(sort_set(&added->normalized, error));
    return SHOAL_OK;
fail:
    added_fini(added);
    return status;
}

static void set_fini(struct added_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        mem_free(set->tokens[i].content);
    mem_free(set->tokens);
}

void added_fini(struct added *added)
{
    set_fini(&added->plain);
    set_fini(&added->normalized);
    *added = (struct added){0};
}

/* ---- searching ---- */

static utf8proc_int32_t point_at(const char *text, size_t bytes)
{
    utf8proc_int32_t point;

    utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &point);
    return point;
}

static size_t step_back(const char *text, size_t at)
{
    do
        at--;
    while (at && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

/* A word character of regular expressions: Alphabetic, mark, digit, connector or joiner. */
static bool is_word(utf8proc_int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        /* Joiners, and the symbols that are Alphabetic: letters in circles and squares. */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
               (c >= 0x1f170 && c <= 0x1f189);
    }
}

/* The longest token that text begins with, or NULL: narrows the sorted list byte by byte. */
static const struct added_token *longest_prefix(
    const struct added_set *set, const char *text, size_t bytes)
{
    const struct added_token *best = NULL;
    size_t low = 0, high = set->count;

    for (size_t depth = 0; low < high; depth++) {
        size_t from = low, to = high;

        if (set->tokens[low].bytes == depth) best = &set->tokens[low++];
        if (depth == bytes) break;
        from = low;
        while (from < to) {
            size_t middle = from + (to - from) / 2;

            if ((unsigned char)set->tokens[middle].content[depth] < (unsigned char)text[depth])
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;

            if ((unsigned char)set->tokens[middle].content[depth] <= (unsigned char)text[depth])
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

static bool touches_word(const char *text, size_t bytes, size_t begin, size_t end)
{
    if (begin && is_word(point_at(text + step_back(text, begin), bytes))) return true;
    return end < bytes && is_word(point_at(text + end, bytes - end));
}

bool added_find(const struct added_set *set, const char *text, size_t bytes, size_t from,
    size_t floor, struct added_match *match)
{
    for (size_t at = from; at < bytes; at++) {
        const struct added_token *token;

        if (!set->starts[(unsigned char)text[at]]) continue;
        token = longest_prefix(set, text + at, bytes - at);
        if (!token) continue;
        match->resume = at + token->bytes;
        if (token->single_word && touches_word(text, bytes, at, match->resume)) {
            at = match->resume - 1;
            continue;
        }
        match->id = token->id;
        match->begin = at;
        match->end = match->resume;
        if (token->lstrip) {
            while (match->begin) {
                size_t before = step_back(text, match->begin);

                if (!unicode_is_space(point_at(text + before, bytes - before))) break;
                match->begin = before;
            }
            if (match->begin < floor) match->begin = floor;
        }
        while (token->rstrip && match->end < bytes &&
               unicode_is_space(point_at(text + match->end, bytes - match->end))) {
            utf8proc_int32_t point;

            match->end += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + match->end,
                (utf8proc_ssize_t)(bytes - match->end), &point);
        }
        return true;
    }
    return false;
}
