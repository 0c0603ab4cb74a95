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
    X(merges, "merges")                                                                            \
    X(add_bos, "add_bos_token")                                                                    \
    X(add_eos, "add_eos_token")                                                                    \
    X(add_space, "add_space_prefix")

struct gguf_vocab {
#define GGUF_VOCAB_MEMBER(member, key) json_t *member;
    GGUF_VOCAB_KEYS(GGUF_VOCAB_MEMBER)
#undef GGUF_VOCAB_MEMBER
};

/* `label` stands for the file in messages. The vocabulary stays the caller's. */
enum shoal_status tokenizer_from_gguf(const struct gguf_vocab *vocab, const char *label,
    struct tokenizer **tokenizer, struct shoal_error *error) SHOAL_CHECKED;

#endif
