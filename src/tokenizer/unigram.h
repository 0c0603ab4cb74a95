/*
 * The unigram model: of all ways to cut a text into the vocabulary's pieces, the one whose scores
 * add up to the most. Where words begin and end, and what spaces become, is not its business.
 *
 * Two references read such vocabularies a little differently: SentencePiece its own models, and
 * the `tokenizers` library a tokenizer.json. Each kind of file is read as its own does.
 */
#ifndef TOKENIZER_UNIGRAM_H
#define TOKENIZER_UNIGRAM_H

#include "tokenizer/buffer.h"

#define UNIGRAM_MAX_PIECE 512 /* bytes */

/* Types of pieces, by their numbers in SentencePiece models and GGUF files. */
enum unigram_type {
    UNIGRAM_NORMAL = 1,
    UNIGRAM_UNKNOWN,
    UNIGRAM_CONTROL,
    UNIGRAM_USER_DEFINED,
    UNIGRAM_UNUSED,
    UNIGRAM_BYTE
};

/* One that texts are cut into. */
struct unigram_piece {
    uint64_t head; /* its first eight bytes, so that most comparisons look no further */
    double score;
    uint32_t at; /* in `text` */
    uint16_t bytes;
    bool user_defined;
    int32_t id;
};

struct unigram {
    /*
     * As SentencePiece does: sums are rounded to float, types count, the lowest score is of normal
     * pieces, and each unknown character becomes bytes. Else as `tokenizers` does: sums in double,
     * all pieces are alike, and a run of unknown characters becomes bytes as one.
     */
    bool sentencepiece;
    bool byte_fallback;
    int32_t unknown_id; /* -1: none */
    int32_t byte_ids[256];
    double lowest, highest;       /* scores */
    struct unigram_piece *pieces; /* sorted, once unigram_finish was called */
    size_t count, room;
    size_t user_defined; /* how many are */
    struct buffer text;
    uint32_t starts[257]; /* pieces that begin with byte b are [starts[b], starts[b + 1]) */
    int32_t id_end;       /* one more than the highest id */
};

/* Empty, for `room` pieces. It is unigram_fini'd after a failure too. */
enum shoal_status unigram_init(struct unigram *unigram, size_t room, bool sentencepiece,
    struct shoal_error *error) SHOAL_CHECKED;

/* The piece of the next id. Types are SentencePiece's; of a tokenizer.json all are normal. */
enum shoal_status unigram_add(struct unigram *unigram, const char *text, size_t bytes, double score,
    enum unigram_type type, struct shoal_error *error) SHOAL_CHECKED;

/* After the last: sorts them, and checks that what unknown characters become is there. */
enum shoal_status unigram_finish(struct unigram *unigram, struct shoal_error *error) SHOAL_CHECKED;

void unigram_fini(struct unigram *unigram);

/* Host memory of `count` pieces with `text_bytes` of text together, at the most. */
uint64_t unigram_bytes(uint64_t count, uint64_t text_bytes);

/* The id of just this piece, or -1. */
int32_t unigram_find(const struct unigram *unigram, const char *text, size_t bytes);

/* Bytes of the longest user-defined piece that the text begins with, or 0. */
size_t unigram_user_defined(const struct unigram *unigram, const char *text, size_t bytes);

/* Working memory of unigram_encode, kept between texts. Zero-initialise it. */
struct unigram_scratch {
    struct unigram_node *nodes;
    size_t room;
};

void unigram_scratch_fini(struct unigram_scratch *scratch);

/* The ids of a text, valid UTF-8: at most `bytes` of them, into `ids`. */
enum shoal_status unigram_encode(const struct unigram *unigram, struct unigram_scratch *scratch,
    const char *text, size_t bytes, int32_t *ids, size_t *count,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
