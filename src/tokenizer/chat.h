/*
 * Prompts in the form that a model was trained with: a chat's turns about it, say, or nothing.
 */
#ifndef TOKENIZER_CHAT_H
#define TOKENIZER_CHAT_H

#include "tokenizer/tokenizer.h"

struct chat {
    const char *before, *after; /* the prompt */
    bool ends;                  /* the tokenizer's end of text comes after them, and is never cut */
    size_t most;                /* tokens, of all */
};

struct chat_tokens {
    int32_t *ids; /* mem_free'd by the owner */
    size_t count;
    size_t dropped; /* tokens beyond the most */
};

/* The prompt's own "<|im_end|>" and the like are tokens too. */
enum shoal_status chat_encode(const struct tokenizer *tokenizer, const struct chat *chat,
    const char *prompt, struct chat_tokens *tokens, struct shoal_error *error) SHOAL_CHECKED;

#endif
