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

/*
 * Measured with jansson 2.14 as peak RSS under glibc, on made texts of 3 to 12 MB of one kind each
 * (numbers, texts, empty and small objects and arrays, merges, a header's tensors), and rounded up:
 * the sum below was 1.1 to 1.7 times the peak. Growing tables and their copies are in it. The
 * longest string is there three times while it is parsed.
 */
#define OBJECT_BYTES 224
#define ARRAY_BYTES 120
#define VALUE_BYTES 56
#define PAIR_BYTES 72
#define STRING_BYTES 48 /* more than another value takes, without its characters */
#define LONGEST_FACTOR 2

/* The bytes of the string that begins after a '"' at text[at - 1], up to its other one. */
static size_t string_bytes(const char *text, size_t bytes, size_t at)
{
    size_t end = at;

    while (end < bytes && text[end] != '"')
        end += text[end] == '\\' ? 2 : 1;
    return (end < bytes ? end : bytes) - at;
}

uint64_t json_load_bytes(const char *text, size_t bytes)
{
    uint64_t taken = bytes + VALUE_BYTES, longest = 0;

    for (size_t i = 0; i < bytes; i++) {
        size_t length;

        switch (text[i]) {
        case '{':
            taken += OBJECT_BYTES;
            break;
        case '[':
            taken += ARRAY_BYTES;
            break;
        case ':':
            taken += PAIR_BYTES;
            break;
        case ',':
            taken += VALUE_BYTES;
            break;
        case '"':
            length = string_bytes(text, bytes, i + 1);
            taken += STRING_BYTES;
            if (length > longest) longest = length;
            i += length + 1;
            break;
        default:
            break;
        }
    }
    return taken + LONGEST_FACTOR * longest;
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
