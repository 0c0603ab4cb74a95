/* Prompts in chat form. */
#include "tokenizer/chat.h"

#include "base/memory.h"

enum shoal_status chat_encode(const struct tokenizer *tokenizer, const char *prompt, size_t limit,
    int32_t **ids, size_t *count, size_t *dropped, struct shoal_error *error)
{
    /* Before the template, so that a message counts the prompt's own bytes. */
    enum shoal_status status = tokenizer_check_text(prompt, error);

    if (!status) {
        char *text = mem_format("<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", prompt);
        if (!text) FAIL_MEMORY(error);
        status = tokenizer_encode(tokenizer, text, ids, count, error);
        mem_free(text);
    }
    if (status) return status;
    *dropped = *count > limit ? *count - limit : 0;
    *count -= *dropped;
    return SHOAL_OK;
}
