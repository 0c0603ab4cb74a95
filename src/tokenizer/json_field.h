/* Members of JSON objects with their types checked. A member that is absent or null is no error. */
#ifndef TOKENIZER_JSON_FIELD_H
#define TOKENIZER_JSON_FIELD_H

#include "base/error.h"

#include <jansson.h>

/* NULL when absent or null. */
const json_t *json_field(const json_t *object, const char *key);

enum shoal_status json_field_bool(const json_t *object, const char *key, bool missing, bool *value,
    struct shoal_error *error) SHOAL_CHECKED;

/* *value is NULL when absent; it lives as long as the object. */
enum shoal_status json_field_string(const json_t *object, const char *key, const char **value,
    struct shoal_error *error) SHOAL_CHECKED;

/* The "type" of a part of the tokenizer called `what`: it must be there. */
enum shoal_status json_field_type(const json_t *object, const char *what, const char **type,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
