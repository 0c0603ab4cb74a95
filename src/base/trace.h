/*
 * What a run did when: spans of time, for pictures. Recording takes a lock and a few stores; a
 * trace of NULL records nothing. Threads may record at once.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include "base/error.h"

enum trace_kind {
    TRACE_PHASE,   /* a whole phase, or one step of it */
    TRACE_READ,    /* file -> host memory */
    TRACE_COPY,    /* host memory -> device */
    TRACE_UNPACK,  /* packed weights -> weights, on the device */
    TRACE_COMPUTE, /* a block's forward, all lanes */
    TRACE_WAIT,    /* the compute stream idle until its block is there */
    TRACE_KINDS
};

struct trace;

enum shoal_status trace_create(struct trace **trace, struct shoal_error *error) SHOAL_CHECKED;
void trace_destroy(struct trace **trace);

/* Times are clock_ns(). `name` is copied, e.g. a block's. Out of memory: the span is counted as
 * dropped, and the file says how many were. */
void trace_add(struct trace *trace, enum trace_kind kind, const char *name, uint64_t begin_ns,
    uint64_t end_ns, uint64_t bytes);

/* The Chrome trace event format, whole or not at all; times count from the first span. */
enum shoal_status trace_write(
    const struct trace *trace, const char *path, struct shoal_error *error) SHOAL_CHECKED;

#endif
