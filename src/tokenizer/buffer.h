/* A growing run of bytes: text on its way through the tokenizer. Not NUL-terminated. */
#ifndef TOKENIZER_BUFFER_H
#define TOKENIZER_BUFFER_H

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* Zero-initialise it. mem_free(data) releases it. */
struct buffer {
    char *data;
    size_t used, room;
};

static inline enum shoal_status SHOAL_CHECKED buffer_append(
    struct buffer *buffer, const void *data, size_t bytes, struct shoal_error *error)
{
    if (bytes > buffer->room - buffer->used) {
        size_t room = 2 * buffer->room + bytes + 64;
        char *grown = mem_realloc(buffer->data, room, 1);

        if (!grown) FAIL_MEMORY(error);
        buffer->data = grown;
        buffer->room = room;
    }
    if (bytes) memcpy(buffer->data + buffer->used, data, bytes);
    buffer->used += bytes;
    return SHOAL_OK;
}

#endif
