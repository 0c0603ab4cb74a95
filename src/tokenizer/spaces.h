/*
 * SentencePiece's own normalisation: the charsmap's rules, and what becomes of spaces. Its models
 * carry it; a tokenizer.json has normalizers and pre-tokenizers instead.
 */
#ifndef TOKENIZER_SPACES_H
#define TOKENIZER_SPACES_H

#include "tokenizer/charsmap.h"
#include "tokenizer/unigram.h"

#define SPACES_MARK "\xe2\x96\x81" /* U+2581, what a space is in a vocabulary */

struct spaces {
    struct charsmap map;
    bool extra_begin; /* a text is given a space before it ... */
    bool extra_end;   /* ... or after it */
    bool fold;        /* spaces at the ends go, and several are one */
    bool mark;        /* a space becomes SPACES_MARK */
};

/* text, valid UTF-8, into `out`, whose former content is replaced. User-defined pieces stay. */
enum shoal_status spaces_apply(const struct spaces *spaces, const struct unigram *unigram,
    const char *text, size_t bytes, struct buffer *out, struct shoal_error *error) SHOAL_CHECKED;

#endif
