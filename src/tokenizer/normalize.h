/*
 * What a tokenizer.json's "normalizer" asks for: Unicode normal forms and lower case,
 * SentencePiece's charsmap, and text that is replaced or taken off the ends.
 */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include "tokenizer/charsmap.h"
#include "tokenizer/split.h"

#include <jansson.h>

#define NORMALIZER_MAX_STEPS 16
#define NORMALIZER_MAX_TEXT (2u << 20) /* bytes that charsmaps and replacements may give */

enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_CHARSMAP,
    NORMALIZE_STRIP,
    NORMALIZE_REPLACE
};

struct normalizer_step {
    enum normalizer_kind kind;
    struct charsmap map;
    bool left, right; /* strip these ends of white space */
    struct split pattern;
    char *content; /* what replaces its matches */
};

struct normalizer {
    struct normalizer_step steps[NORMALIZER_MAX_STEPS];
    int32_t count;
};

/* From the "normalizer" member, which may be NULL: none. It is normalizer_fini'd after a failure
 * too. */
enum shoal_status normalizer_init(
    struct normalizer *normalizer, const json_t *json, struct shoal_error *error) SHOAL_CHECKED;

void normalizer_fini(struct normalizer *normalizer);

/* SHOAL_E_UNSUPPORTED when `out` has become longer than NORMALIZER_MAX_TEXT. */
enum shoal_status normalizer_check_length(
    const struct buffer *out, struct shoal_error *error) SHOAL_CHECKED;

/* text, valid UTF-8, into `out`, whose former content is replaced. */
enum shoal_status normalizer_apply(const struct normalizer *normalizer, const char *text,
    size_t bytes, struct buffer *out, struct shoal_error *error) SHOAL_CHECKED;

#endif
