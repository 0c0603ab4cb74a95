/* Traces that generate --trace wrote, read back. Anything else is refused. */
#ifndef TRACE_FILE_H
#define TRACE_FILE_H

#include "cli.h"

enum span_kind {
    SPAN_PHASE,
    SPAN_READ,
    SPAN_COPY,
    SPAN_UNPACK,
    SPAN_COMPUTE,
    SPAN_WAIT,
    SPAN_KINDS,
};

struct trace_span {
    double begin, end; /* seconds from the trace's first span */
    double bytes;
    enum span_kind kind;
    const char *name; /* printable ASCII, owned by the file */
};

struct trace_file {
    void *json;               /* everything read; the strings are its */
    struct trace_span *spans; /* sorted by begin; an outer one before those in it */
    size_t count;
    double seconds; /* when the last span ends */
    const char *title;
    uint64_t dropped; /* spans that the run had no room for */
};

/* False, having said why. trace_file_close is due either way. */
bool trace_file_read(const char *path, struct trace_file *file);
void trace_file_close(struct trace_file *file);

/* "read", "compute" ... */
const char *span_kind_name(enum span_kind kind);

#endif
