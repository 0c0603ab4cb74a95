/* Cutting with a regular expression, over PCRE2. */
#include "tokenizer/split.h"

#include "tokenizer/json_field.h"
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#define MAX_PATTERN 16384
#define FIRST_MATCH_LIMIT 64u
#define MATCH_STEPS 30000000u /* for one text; an ordinary one needs some hundred a byte */
#define MATCH_HEAP_KIB 16384u

static void *pcre_take(PCRE2_SIZE bytes, void *user)
{
    (void)user;
    return mem_alloc(bytes);
}

static void pcre_give(void *block, void *user)
{
    (void)user;
    mem_free(block);
}

/* ---- patterns ---- */

/* Where a pattern is looked at, and what was found that would be read differently. */
struct pattern_scan {
    const char *at;
    const char *trouble; /* NULL: nothing */
};

/* After a backslash. Both libraries agree on these, and on escaped punctuation. */
static void scan_escape(struct pattern_scan *scan)
{
    char c = *scan->at;

    if (c == 'p' || c == 'P') {
        if (scan->at[1] != '{') scan->trouble = "\\p without braces";
        for (scan->at += 2; !scan->trouble && *scan->at != '}'; scan->at++)
            if (!strchr("^_ ", *scan->at) && !(*scan->at >= '0' && *scan->at <= '9') &&
                !((*scan->at | 32) >= 'a' && (*scan->at | 32) <= 'z'))
                scan->trouble = "a property name with other than letters";
        if (!scan->trouble) scan->at++;
        return;
    }
    if (!c)
        scan->trouble = "a backslash at its end";
    else if ((c >= '0' && c <= '9') ||
             (((c | 32) >= 'a' && (c | 32) <= 'z') && !strchr("rntfsSdDAz", c)))
        scan->trouble = "a backslash with a letter or digit other than r, n, t, f, s, S, d, D, p, "
                        "P, A, z";
    scan->at++;
}

/* After the opening bracket of a character class. */
static void scan_class(struct pattern_scan *scan)
{
    if (*scan->at == '^') scan->at++;
    if (*scan->at == ']') scan->trouble = "an empty class";
    while (!scan->trouble && *scan->at != ']') {
        if (!*scan->at)
            scan->trouble = "a class without end";
        else if (*scan->at == '[')
            scan->trouble = "a class in a class";
        else if (scan->at[0] == '&' && scan->at[1] == '&')
            scan->trouble = "\"&&\" in a class";
        else if (*scan->at++ == '\\')
            scan_escape(scan);
    }
    if (!scan->trouble) scan->at++;
}

/* After an opening parenthesis. */
static void scan_group(struct pattern_scan *scan)
{
    static const char *const known[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?i)", "?-i:"};

    if (*scan->at == '*') scan->trouble = "\"(*\"";
    if (*scan->at != '?') return;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(scan->at, known[i], strlen(known[i]))) continue;
        scan->at += strlen(known[i]);
        return;
    }
    scan->trouble = "a group that begins with \"(?\" and is none of (?: (?= (?! (?<= (?<! (?> (?i";
}

/* After an opening brace: only {n}, {n,} and {n,m} without a suffix mean the same in both. */
static void scan_count(struct pattern_scan *scan)
{
    size_t digits = strspn(scan->at, "0123456789");

    scan->at += digits;
    if (digits && *scan->at == ',') scan->at += 1 + strspn(scan->at + 1, "0123456789");
    if (!digits || *scan->at++ != '}')
        scan->trouble = "a brace that is neither escaped nor a count";
    else if (*scan->at == '+' || *scan->at == '?')
        scan->trouble = "a count followed by + or ?";
}

/* One letter or two that a caseless pattern may match as one ligature, in one of the libraries. */
static bool has_ligature(const char *pattern)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};

    for (; *pattern; pattern++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if ((pattern[0] | 32) == pairs[i][0] && (pattern[1] | 32) == pairs[i][1]) return true;
    return false;
}

static enum shoal_status check_pattern(const char *pattern, struct shoal_error *error)
{
    struct pattern_scan scan = {.at = pattern};

    while (*scan.at && !scan.trouble) {
        switch (*scan.at++) {
        case '\\':
            scan_escape(&scan);
            break;
        case '[':
            scan_class(&scan);
            break;
        case '(':
            scan_group(&scan);
            break;
        case '{':
            scan_count(&scan);
            break;
        default:
            break;
        }
    }
    if (!scan.trouble && strstr(pattern, "(?i") && has_ligature(pattern))
        scan.trouble = "a caseless part and one of ss, ff, fi, fl, st";
    if (scan.trouble)
        FAIL(error, SHOAL_E_UNSUPPORTED, "the pattern \"%.300s\" has %s, which is not supported",
            pattern, scan.trouble);
    return SHOAL_OK;
}

enum shoal_status split_init(
    struct split *split, const char *pattern, bool literal, struct shoal_error *error)
{
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_general_context *general;
    pcre2_compile_context *context;
    PCRE2_SIZE offset = 0;
    int code = 0;

    *split = (struct split){0};
    if (strlen(pattern) > MAX_PATTERN)
        FAIL(error, SHOAL_E_UNSUPPORTED, "a pattern has %zu bytes; %d are supported",
            strlen(pattern), MAX_PATTERN);
    if (!literal) TRY(check_pattern(pattern, error));
    general = pcre2_general_context_create(pcre_take, pcre_give, NULL);
    context = general ? pcre2_compile_context_create(general) : NULL;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        split->code = pcre2_compile(
            (PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &offset, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (!context || (!split->code && code == PCRE2_ERROR_HEAP_FAILED)) FAIL_MEMORY(error);
    if (!split->code) {
        char message[120] = "";

        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        FAIL(error, SHOAL_E_FORMAT, "the pattern \"%.300s\" is wrong at byte %zu: %s", pattern,
            (size_t)offset, message);
    }
    return SHOAL_OK;
}

enum shoal_status split_read_pattern(
    struct split *split, const json_t *json, const char *what, struct shoal_error *error)
{
    const json_t *pattern = json_field(json, "pattern");
    const char *regex, *literal;

    TRY(json_field_string(pattern, "Regex", &regex, error));
    TRY(json_field_string(pattern, "String", &literal, error));
    if (!regex == !literal)
        FAIL(error, SHOAL_E_FORMAT, "%s needs a \"pattern\" with \"Regex\" or \"String\"", what);
    return split_init(split, regex ? regex : literal, !regex, error);
}

void split_fini(struct split *split)
{
    pcre2_code_free(split->code);
    *split = (struct split){0};
}

/* ---- subjects ---- */

enum shoal_status split_subject(const char *text, size_t bytes, struct buffer *out,
    const char **subject, struct shoal_error *error)
{
    bool copied = false;

    *subject = text;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point, other;
        size_t length = (size_t)utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &point);

        other = unicode_stand_in(point);
        if (other != point && !copied) {
            out->used = 0;
            TRY(buffer_append(out, text, bytes, error));
            *subject = out->data;
            copied = true;
        }
        if (other != point) utf8proc_encode_char(other, (utf8proc_uint8_t *)out->data + at);
        at += length;
    }
    return SHOAL_OK;
}

/* ---- matching ---- */

enum shoal_status split_budget_init(struct split_budget *budget, struct shoal_error *error)
{
    pcre2_general_context *general = pcre2_general_context_create(pcre_take, pcre_give, NULL);

    *budget = (struct split_budget){.left = MATCH_STEPS};
    if (general) {
        budget->data = pcre2_match_data_create(1, general);
        budget->context = pcre2_match_context_create(general);
    }
    pcre2_general_context_free(general);
    if (!budget->data || !budget->context) {
        split_budget_fini(budget);
        FAIL_MEMORY(error);
    }
    pcre2_set_heap_limit(budget->context, MATCH_HEAP_KIB);
    return SHOAL_OK;
}

void split_budget_fini(struct split_budget *budget)
{
    pcre2_match_data_free(budget->data);
    pcre2_match_context_free(budget->context);
    *budget = (struct split_budget){0};
}

/*
 * Whether there is a match that begins at `at`. PCRE2 counts its steps against a limit but does not
 * tell the count; so the limit starts low and grows, and each try is charged its limit in full.
 */
static enum shoal_status match_at(const struct split_cursor *cursor, size_t at,
    struct split_budget *budget, bool *found, struct shoal_error *error)
{
    for (uint64_t limit = FIRST_MATCH_LIMIT;; limit *= 4) {
        char message[120] = "";
        int code;

        if (limit > budget->left)
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "the tokenizer's pattern needs too many steps for this text");
        budget->left -= limit;
        pcre2_set_match_limit(budget->context, (uint32_t)limit);
        code = pcre2_match(cursor->split->code, (PCRE2_SPTR)cursor->subject, cursor->bytes, at,
            PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, budget->data, budget->context);
        if (code == PCRE2_ERROR_MATCHLIMIT) continue;
        *found = code >= 0;
        if (code >= 0 || code == PCRE2_ERROR_NOMATCH) return SHOAL_OK;
        if (code == PCRE2_ERROR_NOMEMORY) FAIL_MEMORY(error);
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        FAIL(
            error, SHOAL_E_UNSUPPORTED, "the tokenizer's pattern failed on this text: %s", message);
    }
}

static size_t next_character(const struct split_cursor *cursor, size_t at)
{
    do
        at++;
    while (at < cursor->bytes && ((unsigned char)cursor->subject[at] & 0xc0) == 0x80);
    return at;
}

enum shoal_status split_next(struct split_cursor *cursor, struct split_budget *budget, bool *found,
    size_t *begin, size_t *end, struct shoal_error *error)
{
    *found = false;
    for (size_t at = cursor->at; at <= cursor->bytes; at = next_character(cursor, at)) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(budget->data);

        TRY(match_at(cursor, at, budget, found, error));
        if (!*found) continue;
        *begin = span[0];
        *end = span[1];
        /* An empty match where the last one ended says nothing new. */
        if (*begin == *end && *end == cursor->last_end) {
            *found = false;
            continue;
        }
        cursor->at = *end;
        cursor->last_end = *end;
        return SHOAL_OK;
    }
    cursor->at = cursor->bytes + 1;
    return SHOAL_OK;
}
