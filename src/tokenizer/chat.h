/*
 * Prompts in the chat form that the Qwen3 text encoders of the Z-Image family are given: one turn
 * of the user, then the assistant's begins, with no thinking block.
 */
#ifndef TOKENIZER_CHAT_H
#define TOKENIZER_CHAT_H

#include "tokenizer/tokenizer.h"

#define CHAT_MAX_TOKENS 512 /* what ZImagePipeline keeps unless told otherwise */

/*
 * The first `limit` ids of the prompt in its template; *dropped is how many there were beyond.
 * *ids is mem_free'd by the caller. The prompt's own "<|im_end|>" and the like are tokens too.
 */
enum shoal_status chat_encode(const struct tokenizer *tokenizer, const char *prompt, size_t limit,
    int32_t **ids, size_t *count, size_t *dropped, struct shoal_error *error) SHOAL_CHECKED;

#endif
