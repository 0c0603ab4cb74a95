/* A growing string, for explained plans and descriptions. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise it. `data` is NULL until the first append; mem_free(data) releases it. */
struct text {
    char *data;
    size_t length, capacity;
    bool failed; /* out of memory at some append; data is then incomplete */
};

void text_append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
