/* Errors, and the version and status texts of the public header. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *shoal_status_text(enum shoal_status status)
{
    static const char *const texts[] = {
#define STATUS_TEXT(name, text) [name] = text,
        SHOAL_STATUSES(STATUS_TEXT)
#undef STATUS_TEXT
    };
    if ((size_t)status >= sizeof texts / sizeof *texts) return "unknown status";
    return texts[status];
}

const char *shoal_version(void)
{
    return SHOAL_VERSION;
}

enum shoal_status error_set(struct shoal_error *error, enum shoal_status status, const char *file,
    int line, const char *format, ...)
{
    if (error) {
        va_list args;
        error->status = status;
        error->file = file;
        error->line = line;
        va_start(args, format);
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return status;
}

void error_prefix(struct shoal_error *error, const char *format, ...)
{
    char text[sizeof error->text];
    va_list args;
    size_t used;

    if (!error) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s", error->text);
    memcpy(error->text, text, sizeof text);
}
