/*
 * SentencePiece's "precompiled charsmap": rules that turn a run of bytes at the start of a text
 * into another, such as those of NFKC. Read once and checked, so that looking up needs no checks.
 *
 * A u32 (little-endian, as all of them): the bytes of the trie; the trie, a Darts double array of
 * u32 units; the replacements, each ended by a 0 byte. A unit has in bits 0 to 7 its label, in bit
 * 8 whether a rule ends at it, and from bit 10 on (shifted left by 8 more if bit 9 is set) the
 * offset: its child of label c is at (its own index XOR offset) XOR c, the value of its rule at
 * c = 0. A value is where the replacement begins. Bit 31 tells values from others.
 */
#ifndef TOKENIZER_CHARSMAP_H
#define TOKENIZER_CHARSMAP_H

#include "base/error.h"

struct charsmap {
    uint32_t *units; /* owned; NULL: no rules */
    size_t unit_count;
    char *replacements; /* owned */
    size_t replacement_bytes;
};

/* From the bytes as they are in a SentencePiece model. On failure *map is zeroed. */
enum shoal_status charsmap_init(
    struct charsmap *map, const void *bytes, size_t count, struct shoal_error *error) SHOAL_CHECKED;

/* The same from base64, as a tokenizer.json has it. */
enum shoal_status charsmap_from_base64(
    struct charsmap *map, const char *text, struct shoal_error *error) SHOAL_CHECKED;

void charsmap_fini(struct charsmap *map);

/*
 * How many bytes the rule takes that the text begins with: of several the one that takes most, or
 * if `longest` is not set fewest. 0: none does. *replacement ends with a 0 byte.
 */
size_t charsmap_match(const struct charsmap *map, const char *text, size_t bytes, bool longest,
    const char **replacement);

#endif
