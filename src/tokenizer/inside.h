/* A tokenizer's parts, for those who make one and those who encode with it. */
#ifndef TOKENIZER_INSIDE_H
#define TOKENIZER_INSIDE_H

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/spaces.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"

#define TOKENIZER_MAX_STEPS 16
#define TOKENIZER_MAX_TEMPLATE 8 /* ids on a side */

enum tokenizer_kind {
    TOKENIZER_BPE,
    TOKENIZER_UNIGRAM,      /* a tokenizer.json's */
    TOKENIZER_SENTENCEPIECE /* a model's: `spaces` and `unigram` are all there is */
};

/* Whether a text, or a stretch of one, that does not begin with a mark is given one. */
enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

/* The Metaspace pre-tokenizer: spaces become a mark, before which words are cut. */
struct metaspace {
    char mark[5]; /* empty: the step is none */
    enum prepend prepend;
    bool cut;
};

/* A pre-tokenizer: cuts every word of the one before it. */
struct tokenizer_step {
    bool prefix_space; /* a word that does not begin with a space is given one */
    struct split split;
    struct metaspace metaspace;
};

/* What stands around a text's own ids. */
struct tokenizer_template {
    int32_t before[TOKENIZER_MAX_TEMPLATE], after[TOKENIZER_MAX_TEMPLATE];
    size_t before_count, after_count;
};

struct tokenizer {
    enum tokenizer_kind kind;
    struct normalizer normalizer;
    struct added added;
    struct tokenizer_step steps[TOKENIZER_MAX_STEPS];
    int32_t step_count;
    bool closed; /* ByteLevel or Metaspace was seen, and nothing may follow it */
    struct bpe bpe;
    struct unigram unigram;
    struct spaces spaces;
    struct tokenizer_template around;
};

#endif
