/*
 * Reading a trace. The file may come from anywhere, so nothing in it is believed: an event that
 * shoal does not write, a time that is none, a name with odd characters end the reading.
 */
#include "trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (512ll << 20) /* of a file; a full trace has a third of it */
#define MOST_US 1e13             /* of a time: four months */
#define NAME_MOST 64             /* characters */
#define TITLE_MOST 240

static const char *const kind_names[SPAN_KINDS] = {
    "phase", "read", "copy", "unpack", "compute", "wait"};

const char *span_kind_name(enum span_kind kind)
{
    return kind_names[kind];
}

/* ---- the file ---- */

static json_t *load(const char *path)
{
    struct stat status;
    json_error_t cause;
    json_t *root = NULL;
    FILE *file;
    /* O_NONBLOCK: opening a FIFO without a writer would wait for ever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        cli_error("cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        cli_error("cannot read %s: it is no regular file", path);
    } else if (status.st_size > MOST_BYTES) {
        cli_error("%s has %lld bytes; at most %lld are read", path, (long long)status.st_size,
            MOST_BYTES);
    } else if ((file = fdopen(fd, "rb")) != NULL) {
        fd = -1;
        root = json_loadf(file, JSON_REJECT_DUPLICATES, &cause);
        fclose(file);
        if (!root)
            cli_error("%s: no valid JSON: %s, in line %d", path,
                cause.text[0] ? cause.text : "out of memory", cause.line);
    } else {
        cli_error("cannot read %s: %s", path, strerror(errno));
    }
    if (fd >= 0) close(fd);
    return root;
}

/* The string if it is one that shoal writes, else NULL. */
static const char *plain(const json_t *value, size_t most)
{
    const char *text = json_string_value(value);

    if (!text || json_string_length(value) > most) return NULL;
    for (const char *c = text; *c; c++)
        if (*c < 0x20 || *c > 0x7e) return NULL;
    return text;
}

/* Whether `event` has a number in range at `member`; else says so. */
static bool read_number(
    const char *path, size_t index, const json_t *event, const char *member, double *value)
{
    const json_t *number = json_object_get(event, member);

    *value = json_number_value(number);
    if (json_is_number(number) && *value >= 0 && *value <= MOST_US) return true;
    cli_error("%s: event %zu: \"%s\" is no time in microseconds", path, index, member);
    return false;
}

/* Of a complete event. */
static bool read_span(const char *path, size_t index, const json_t *event, struct trace_span *span)
{
    const json_t *bytes = json_object_get(json_object_get(event, "args"), "bytes");
    const char *kind = plain(json_object_get(event, "cat"), NAME_MOST);
    double begin, duration;
    int found = 0;

    while (kind && found < SPAN_KINDS && strcmp(kind, kind_names[found]) != 0)
        found++;
    if (!kind || found == SPAN_KINDS) {
        cli_error("%s: event %zu: \"cat\" is none of phase, read, copy, unpack, compute and wait",
            path, index);
        return false;
    }
    span->kind = (enum span_kind)found;
    span->name = plain(json_object_get(event, "name"), NAME_MOST);
    if (!span->name) {
        cli_error("%s: event %zu: \"name\" is no name that shoal writes", path, index);
        return false;
    }
    if (!read_number(path, index, event, "ts", &begin) ||
        !read_number(path, index, event, "dur", &duration))
        return false;
    if (bytes && (!json_is_integer(bytes) || json_integer_value(bytes) < 0)) {
        cli_error("%s: event %zu: \"bytes\" is no number of bytes", path, index);
        return false;
    }
    span->begin = begin * 1e-6;
    span->end = (begin + duration) * 1e-6;
    span->bytes = (double)json_integer_value(bytes);
    return true;
}

/* ---- all of it ---- */

static int by_time(const void *a, const void *b)
{
    const struct trace_span *x = a, *y = b;

    if (x->begin < y->begin || x->begin > y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end < y->end || x->end > y->end) return x->end > y->end ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->bytes < y->bytes || x->bytes > y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool read_events(const char *path, const json_t *events, struct trace_file *file)
{
    const json_t *event;
    size_t i;

    file->spans = calloc(json_array_size(events) + 1, sizeof *file->spans);
    if (!file->spans) {
        cli_error("%s: out of memory for %zu events", path, json_array_size(events));
        return false;
    }
    json_array_foreach(events, i, event)
    {
        const char *type = json_string_value(json_object_get(event, "ph"));
        struct trace_span *span = &file->spans[file->count];

        if (type && !strcmp(type, "M")) continue; /* names of threads, for other viewers */
        if (!type || strcmp(type, "X") != 0) {
            cli_error("%s: event %zu is none that shoal writes: \"ph\" is not X or M", path, i);
            return false;
        }
        if (!read_span(path, i, event, span)) return false;
        if (span->end > file->seconds) file->seconds = span->end;
        file->count++;
    }
    if (file->count == 0) {
        cli_error("%s: the trace is empty: there is nothing to draw", path);
        return false;
    }
    qsort(file->spans, file->count, sizeof *file->spans, by_time);
    return true;
}

bool trace_file_read(const char *path, struct trace_file *file)
{
    const json_t *events, *other;
    const char *program;

    *file = (struct trace_file){.json = load(path)};
    if (!file->json) return false;
    events = json_object_get(file->json, "traceEvents");
    other = json_object_get(file->json, "otherData");
    program = json_string_value(json_object_get(other, "program"));
    if (!json_is_array(events) || !program || strcmp(program, "shoal") != 0) {
        cli_error("%s: no trace of shoal's: make one with shoal generate --trace", path);
        return false;
    }
    file->title = plain(json_object_get(other, "title"), TITLE_MOST);
    if (!file->title) {
        cli_error("%s: \"title\" is no title that shoal writes", path);
        return false;
    }
    file->dropped = (uint64_t)json_integer_value(json_object_get(other, "dropped"));
    return read_events(path, events, file);
}

void trace_file_close(struct trace_file *file)
{
    json_decref(file->json);
    free(file->spans);
    *file = (struct trace_file){0};
}
