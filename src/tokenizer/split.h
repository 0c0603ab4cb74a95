/*
 * Cutting a text into words with a regular expression, as the pre-tokenizers Split and ByteLevel
 * do. Patterns are Oniguruma's in a tokenizer.json and PCRE2's here: what the two read differently
 * is refused by name, and where their Unicode versions differ a stand-in decides.
 */
#ifndef TOKENIZER_SPLIT_H
#define TOKENIZER_SPLIT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/buffer.h"

#include <jansson.h>
#include <pcre2.h>

/* A way of cutting. Zero-initialised, it leaves the text whole. */
struct split {
    pcre2_code *code;
    bool remove; /* matches are dropped rather than words of their own ... */
    bool invert; /* ... or, what lies between matches is */
};

/* `literal`: the pattern is plain text. */
enum shoal_status split_init(struct split *split, const char *pattern, bool literal,
    struct shoal_error *error) SHOAL_CHECKED;
/* From the "pattern" of `what`: {"Regex": ...} or {"String": ...}. */
enum shoal_status split_read_pattern(struct split *split, const json_t *json, const char *what,
    struct shoal_error *error) SHOAL_CHECKED;
void split_fini(struct split *split);

/*
 * The text as patterns see it: each character that the two libraries take differently is replaced
 * by one of the same length that both take as the pattern's author meant. `subject` points to the
 * text itself or to out->data.
 */
enum shoal_status split_subject(const char *text, size_t bytes, struct buffer *out,
    const char **subject, struct shoal_error *error) SHOAL_CHECKED;

/* Searching in one text. */
struct split_cursor {
    const struct split *split;
    const char *subject;
    size_t bytes;
    size_t at;       /* where to search next */
    size_t last_end; /* of the match before, or SIZE_MAX */
};

/* Work allowed for one text, so that no pattern can take for ever. */
struct split_budget {
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t left;
};

enum shoal_status split_budget_init(
    struct split_budget *budget, struct shoal_error *error) SHOAL_CHECKED;
void split_budget_fini(struct split_budget *budget);

/* The next match: *begin and *end, or *found false. Empty matches occur. */
enum shoal_status split_next(struct split_cursor *cursor, struct split_budget *budget, bool *found,
    size_t *begin, size_t *end, struct shoal_error *error) SHOAL_CHECKED;

#endif
