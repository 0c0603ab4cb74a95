/* Prompts in a template. */
#include "tokenizer/chat.h"

#include "base/memory.h"

static enum shoal_status append(struct chat_tokens *tokens, int32_t id, struct shoal_error *error)
{
    int32_t *ids = mem_realloc(tokens->ids, tokens->count + 1, sizeof *ids);

    if (!ids) FAIL_MEMORY(error);
    ids[tokens->count++] = id;
    tokens->ids = ids;
    return SHOAL_OK;
}

enum shoal_status chat_encode(const struct tokenizer *tokenizer, const struct chat *chat,
    const char *prompt, struct chat_tokens *tokens, struct shoal_error *error)
{
    const size_t most = chat->most - (chat->ends && chat->most);

    /* Before the template, so that a message counts the prompt's own bytes. */
    enum shoal_status status = tokenizer_check_text(prompt, error);

    if (!status) {
        char *text = mem_format("%s%s%s", chat->before, prompt, chat->after);
        if (!text) FAIL_MEMORY(error);
        status = tokenizer_encode(tokenizer, text, &tokens->ids, &tokens->count, error);
        mem_free(text);
    }
    if (status) return status;
    tokens->dropped = tokens->count > most ? tokens->count - most : 0;
    tokens->count -= tokens->dropped;
    if (chat->ends) return append(tokens, tokenizer_end(tokenizer), error);
    return SHOAL_OK;
}
