/* Where jansson runs out of memory unnoticed. */
#include "base/json.h"

#include "base/memory.h"

#include <string.h>

bool json_ran_out_of_memory(const json_error_t *cause, const char *text, size_t bytes)
{
    /* What it says of a string that it has no memory for, and of no other. */
    static const char *const said[] = {"invalid token", "string or '}' expected"};
    size_t at = (size_t)cause->position;

    if (!cause->text[0] || json_error_code(cause) == json_error_out_of_memory) return true;
    if (cause->position < 1 || at > bytes || text[at - 1] != '"') return false;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (!strncmp(cause->text, said[i], strlen(said[i]))) return true;
    return false;
}

void json_append(json_t *array, json_t *value, bool *failed)
{
    if (json_array_append_new(array, value)) *failed = true;
}

void json_put(json_t *object, const char *key, json_t *value, bool *failed)
{
    if (json_object_set_new(object, key, value)) *failed = true;
}

static char *print(const json_t *json, size_t flags)
{
    size_t bytes = json_dumpb(json, NULL, 0, flags);
    char *text = bytes ? mem_alloc(bytes + 1) : NULL;

    if (!text) return NULL;
    if (json_dumpb(json, text, bytes, flags) != bytes) {
        mem_free(text);
        return NULL;
    }
    text[bytes] = 0;
    return text;
}

char *json_print(const json_t *json)
{
    return print(json, JSON_INDENT(2));
}

char *json_print_compact(const json_t *json)
{
    return print(json, JSON_COMPACT);
}
