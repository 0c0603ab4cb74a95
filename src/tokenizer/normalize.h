/* Unicode normal forms and lower case, as a tokenizer.json's "normalizer" asks for them. */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include "tokenizer/buffer.h"

#include <jansson.h>

#define NORMALIZER_MAX_STEPS 16

enum normalizer_step {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE
};

struct normalizer {
    enum normalizer_step steps[NORMALIZER_MAX_STEPS];
    int32_t count;
};

/* From the "normalizer" member, which may be NULL: none. */
enum shoal_status normalizer_init(
    struct normalizer *normalizer, const json_t *json, struct shoal_error *error) SHOAL_CHECKED;

/* text, valid UTF-8, into `out`, whose former content is replaced. */
enum shoal_status normalizer_apply(const struct normalizer *normalizer, const char *text,
    size_t bytes, struct buffer *out, struct shoal_error *error) SHOAL_CHECKED;

#endif
