/*
 * What a run did when: spans of time, for pictures. Recording takes a lock and a few stores; a
 * trace of NULL records nothing. Threads may record at once.
 *
 * The file is the Chrome trace event format, which chrome://tracing and Perfetto open and
 * `shoal trace` draws: one event a line, times in microseconds from the first span, which began at
 * `begin_ns`. A kind is a thread of the picture, and spans of a kind that overlap, such as reads
 * under way at once, get more of them: viewers show nothing but nested spans in one thread.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include "base/error.h"

enum trace_kind {
    TRACE_PHASE,   /* a whole phase, or within it one step, prompt or picture */
    TRACE_READ,    /* file -> host memory */
    TRACE_COPY,    /* host memory -> device */
    TRACE_UNPACK,  /* packed weights -> weights, on the device */
    TRACE_COMPUTE, /* a block's forward, all lanes */
    TRACE_WAIT,    /* the compute stream idle until its block is there */
    TRACE_KINDS
};

#define TRACE_MOST_SPANS (1 << 20) /* of a run: 80 MiB */
#define TRACE_NAME_BYTES 36        /* longer names are cut */

struct trace;

/* Keeps the last `most_spans`, a multiple of 1024 and 2048 or more: if it is full, the oldest 1024
 * are forgotten at once. It takes memory as it grows, 80 bytes a span. */
enum shoal_status trace_create(
    struct trace **trace, size_t most_spans, struct shoal_error *error) SHOAL_CHECKED;
void trace_destroy(struct trace **trace);

/* Forgets everything, and that anything was dropped. */
void trace_clear(struct trace *trace);

/* Times are clock_ns(). `name` is copied, e.g. a block's; what is not printable ASCII in it becomes
 * '?'. Those forgotten, or lost for want of memory, are dropped: the file says how many were. */
void trace_add(struct trace *trace, enum trace_kind kind, const char *name, uint64_t begin_ns,
    uint64_t end_ns, uint64_t bytes);

/*
 * Writes the file, whole or not at all. `title` says what ran; printable ASCII as above. Not while
 * others record.
 */
enum shoal_status trace_write(const struct trace *trace, const char *title, const char *path,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
