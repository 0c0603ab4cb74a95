/*
 * Added tokens: strings such as "<|im_start|>" that are one token wherever they stand in a text.
 * Those marked `normalized` are sought in the normalised text, the others in the text as given.
 */
#ifndef TOKENIZER_ADDED_H
#define TOKENIZER_ADDED_H

#include "tokenizer/normalize.h"

#define ADDED_MAX_BYTES 512

struct added_token {
    char *content; /* owned */
    size_t bytes;
    int32_t id;
    bool single_word;    /* only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space on that side with it */
};

struct added_set {
    struct added_token *tokens; /* sorted by content */
    size_t count;
    bool starts[256]; /* which bytes a token begins with */
};

struct added {
    struct added_set plain, normalized;
    int32_t id_end; /* one more than the highest id */
};

/*
 * From the "added_tokens" array (NULL: none). `vocab` is the model's: a token that is in it must
 * have the same id, and one that is not must have an id of its own; of the model's are the
 * vocabulary's and all below `taken`. On failure *added is zeroed.
 */
enum shoal_status added_init(struct added *added, const json_t *json, json_t *vocab, int32_t taken,
    const struct normalizer *normalizer, struct shoal_error *error) SHOAL_CHECKED;
void added_fini(struct added *added);

struct added_match {
    int32_t id;
    size_t begin, end; /* of the token, with the white space it strips */
    size_t resume;     /* where to look for the next */
};

/*
 * The leftmost token at or after `from`, the longest if several begin there; false if there is
 * none. White space before `floor` belongs to an earlier match.
 */
bool added_find(const struct added_set *set, const char *text, size_t bytes, size_t from,
    size_t floor, struct added_match *match);

#endif
