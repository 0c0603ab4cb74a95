/*
 * Where the Unicode versions of the libraries used here and of the reference differ.
 *
 * The `tokenizers` library knows Unicode in three ages: its normal forms are of version 11, its
 * patterns of version 16, its lower case of version 17. utf8proc and PCRE2 have ages of their own.
 * These tables hold what was found by comparing them over all characters, so that ids are the
 * same for every text. Not a Unicode library.
 */
#ifndef TOKENIZER_UNICODE_H
#define TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* Normal forms leave it as it is, and it keeps its neighbours apart: it is too new. */
bool unicode_is_inert(int32_t point);

/* A character that patterns take as this one is meant: of its category, and as long in UTF-8. */
int32_t unicode_stand_in(int32_t point);

/* Too new for some versions of utf8proc to know that it belongs to the cluster before it. */
bool unicode_extends(int32_t point);

bool unicode_is_space(int32_t point); /* White_Space */

/* Lower case of one character to one; U+0130 is not handled. */
int32_t unicode_lowercase(int32_t point);

#endif
