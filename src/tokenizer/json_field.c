/* Members of JSON objects with their types checked. */
#include "tokenizer/json_field.h"

const json_t *json_field(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

enum shoal_status json_field_bool(
    const json_t *object, const char *key, bool missing, bool *value, struct shoal_error *error)
{
    const json_t *field = json_field(object, key);

    if (field && !json_is_boolean(field))
        FAIL(error, SHOAL_E_FORMAT, "\"%s\" must be true or false", key);
    *value = field ? json_is_true(field) : missing;
    return SHOAL_OK;
}

enum shoal_status json_field_string(
    const json_t *object, const char *key, const char **value, struct shoal_error *error)
{
    const json_t *field = json_field(object, key);

    if (field && !json_is_string(field))
        FAIL(error, SHOAL_E_FORMAT, "\"%s\" must be a string", key);
    *value = field ? json_string_value(field) : NULL;
    return SHOAL_OK;
}

enum shoal_status json_field_type(
    const json_t *object, const char *what, const char **type, struct shoal_error *error)
{
    if (!json_is_object(object)) FAIL(error, SHOAL_E_FORMAT, "%s must be an object", what);
    TRY(json_field_string(object, "type", type, error));
    if (!*type) FAIL(error, SHOAL_E_FORMAT, "%s has no \"type\"", what);
    return SHOAL_OK;
}
