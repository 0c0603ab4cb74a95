/*
 * SentencePiece models of the unigram kind (spiece.model): a protobuf message, of which what
 * encoding needs is read. Their ids are those of the `sentencepiece` library.
 */
#ifndef TOKENIZER_SENTENCEPIECE_H
#define TOKENIZER_SENTENCEPIECE_H

#include "tokenizer/tokenizer.h"

/* Whether a file's bytes begin as such a model's do, and no JSON text's. */
bool sentencepiece_begins(const char *bytes, size_t count);

/*
 * From a model in memory, which stays the caller's; `path` stands for the file in messages. What
 * it takes at the most is added to `allowance` (NULL: without). The template adds the model's end
 * of text after a text.
 */
enum shoal_status tokenizer_from_sentencepiece(const void *bytes, size_t count, const char *path,
    struct allowance *allowance, struct tokenizer **tokenizer,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
