/*
 * The tokenizer that a GGUF file's metadata describe (tokenizer.ggml.*), as llama.cpp's converter
 * writes them: what they leave out, such as the pattern that cuts words, goes by name.
 */
#ifndef TOKENIZER_GGUF_VOCAB_H
#define TOKENIZER_GGUF_VOCAB_H

#include "tokenizer/tokenizer.h"

#include <jansson.h>

/* X(member, what follows "tokenizer.ggml."). JSON values as stored; NULL where there are none. */
#define GGUF_VOCAB_KEYS(X)                                                                         \
    X(model, "model")                                                                              \
    X(pre, "pre")                                                                                  \
    X(tokens, "tokens")                                                                            \
    X(types, "token_type")                                                                         \
    X(scores, "scores")                                                                            \
    X(merges, "merges")                                                                            \
    X(add_bos, "add_bos_token")                                                                    \
    X(add_eos, "add_eos_token")                                                                    \
    X(add_space, "add_space_prefix")                                                               \
    X(fold_spaces, "remove_extra_whitespaces")                                                     \
    X(charsmap, "precompiled_charsmap")                                                            \
    X(end, "eos_token_id")

struct gguf_vocab {
#define GGUF_VOCAB_MEMBER(member, key) json_t *member;
    GGUF_VOCAB_KEYS(GGUF_VOCAB_MEMBER)
#undef GGUF_VOCAB_MEMBER
};

/*
 * "gpt2" is byte-level BPE, "t5" a SentencePiece model's pieces and rules. `label` stands for the
 * file in messages. The vocabulary stays the caller's.
 */
enum shoal_status tokenizer_from_gguf(const struct gguf_vocab *vocab, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error) SHOAL_CHECKED;

#endif
