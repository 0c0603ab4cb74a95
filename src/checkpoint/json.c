/* JSON of checkpoints, over jansson. */
#include "checkpoint/json.h"

#include "base/file.h"
#include "base/memory.h"

#include <string.h>

#define SETTINGS_MOST_BYTES (1u << 20)

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

bool json_has_controls(const char *text)
{
    for (; *text; text++)
        if (is_control(*text)) return true;
    return false;
}

char *json_show(char shown[JSON_SHOWN_BYTES], const char *text)
{
    static const char ellipsis[] = "...";
    size_t length = strlen(text), room = JSON_SHOWN_BYTES - 1, used = length;

    if (length > room) {
        used = room - (sizeof ellipsis - 1);
        /* Not in the middle of a character. */
        while (used && ((unsigned char)text[used] & 0xc0) == 0x80)
            used--;
    }
    for (size_t i = 0; i < used; i++)
        shown[i] = is_control(text[i]) ? '?' : text[i];
    strcpy(shown + used, length > room ? ellipsis : "");
    return shown;
}

enum shoal_status json_parse_object(const char *path, const char *what, const char *text,
    size_t bytes, json_t **object, struct shoal_error *error)
{
    char shown[JSON_SHOWN_BYTES];
    json_error_t cause;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &cause);

    *object = NULL;
    if (!root) {
        json_show(shown, cause.text);
        if (json_ran_out_of_memory(&cause, text, bytes))
            FAIL(error, SHOAL_E_MEMORY, "%s: out of memory for %s", path, what);
        if (json_error_code(&cause) == json_error_invalid_utf8)
            FAIL(error, SHOAL_E_FORMAT, "%s: %s is not UTF-8 (%s)", path, what, shown);
        FAIL(error, SHOAL_E_FORMAT, "%s: %s is not valid JSON: %s, at byte %d", path, what, shown,
            cause.position);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        FAIL(error, SHOAL_E_FORMAT, "%s: %s is not a JSON object", path, what);
    }
    *object = root;
    return SHOAL_OK;
}

enum shoal_status json_read_settings(const char *path, json_t **object, struct shoal_error *error)
{
    enum shoal_status status;
    size_t bytes;
    char *text;

    *object = NULL;
    TRY(file_read_all(path, SETTINGS_MOST_BYTES, &text, &bytes, error));
    if (json_load_bytes(text, bytes) > SETTINGS_MOST_BYTES)
        status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s holds too much for settings: reading it would take more than %u bytes of memory",
            path, SETTINGS_MOST_BYTES);
    else
        status = json_parse_object(path, "the file", text, bytes, object, error);
    mem_free(text);
    return status;
}

json_t *json_text(const char *text)
{
    json_t *string = json_string(text);
    char *copy;

    if (string) return string;
    copy = mem_strdup(text);
    if (!copy) return NULL;
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    string = json_string(copy);
    mem_free(copy);
    return string;
}
