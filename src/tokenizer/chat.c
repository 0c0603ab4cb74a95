/* Prompts in a template. */
#include "tokenizer/chat.h"

#include "base/memory.h"

enum shoal_status chat_encode(const struct tokenizer *tokenizer, const struct chat *chat,
    const char *prompt, struct chat_tokens *tokens, struct shoal_error *error)
{
    /* Before the template, so that a message counts the prompt's own bytes. */
    enum shoal_status status = tokenizer_check_text(prompt, error);

    if (!status) {
        char *text = mem_format("%s%s%s", chat->before, prompt, chat->after);
        if (!text) FAIL_MEMORY(error);
        status = tokenizer_encode(tokenizer, text, &tokens->ids, &tokens->count, error);
        mem_free(text);
    }
    if (status) return status;
    tokens->dropped = tokens->count > chat->most ? tokens->count - chat->most : 0;
    tokens->count -= tokens->dropped;
    return SHOAL_OK;
}
