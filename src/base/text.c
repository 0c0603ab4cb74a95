/* A growing string. */
#include "base/text.h"

#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>

void text_append(struct text *text, const char *format, ...)
{
    va_list args;
    int length;

    if (text->failed) return;
    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        text->failed = true;
        return;
    }
    if (text->length + (size_t)length + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + (size_t)length + 1);
        char *data = mem_realloc(text->data, capacity, 1);

        if (!data) {
            text->failed = true;
            return;
        }
        text->data = data;
        text->capacity = capacity;
    }
    va_start(args, format);
    vsnprintf(text->data + text->length, text->capacity - text->length, format, args);
    va_end(args);
    text->length += (size_t)length;
}
