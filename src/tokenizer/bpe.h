/*
 * Byte-pair encoding: a word's bytes become symbols, and neighbours merge in the order of the
 * merges' ranks until none can. Where words begin and end is not its business.
 */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include "base/error.h"

#include <jansson.h>

struct bpe_merge {
    int32_t left, right, result, rank;
};

struct bpe {
    int32_t byte_ids[256]; /* -1: the vocabulary has none */
    int32_t id_end;        /* one more than the highest id */
    /* Sorted by (left, right); those of one left symbol are [first[left], first[left + 1]). */
    struct bpe_merge *merges;
    int32_t *first;
    json_t *words; /* the vocabulary, if a word that is in it is taken whole; else NULL */
};

/* From the "model" object. On failure *bpe is zeroed. */
enum shoal_status bpe_init(
    struct bpe *bpe, const json_t *model, struct shoal_error *error) SHOAL_CHECKED;
void bpe_fini(struct bpe *bpe);

/* Working memory of bpe_encode, kept between words. Zero-initialise it. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_pair *heap;
    size_t room; /* bytes of the longest word it is good for */
};

void bpe_scratch_fini(struct bpe_scratch *scratch);

/* The ids of one word: at most `bytes` of them, into `ids`. */
enum shoal_status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word,
    size_t bytes, int32_t *ids, size_t *count, struct shoal_error *error) SHOAL_CHECKED;

#endif
