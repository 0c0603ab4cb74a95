/*
 * One kind of spans of one stream, timed by the device's events and written to a trace. Without a
 * trace nothing is recorded.
 */
#ifndef STREAM_TIMELINE_H
#define STREAM_TIMELINE_H

#include "base/trace.h"
#include "device/device.h"

#define TIMELINE_MARKS 32 /* spans whose end may not have come yet */

struct timeline {
    struct trace *trace; /* NULL: everything here does nothing */
    struct device *device;
    enum trace_kind kind;
    struct {
        struct event *begin, *end;
        const char *name;
        uint64_t bytes;
    } marks[TIMELINE_MARKS];
    uint64_t begun, written;
};

enum shoal_status timeline_open(struct timeline *timeline, struct trace *trace,
    struct device *device, enum trace_kind kind, struct shoal_error *error) SHOAL_CHECKED;
/* Writes what is left: after the stream's work has ended. */
void timeline_flush(struct timeline *timeline);
/* The same, and ends it. Accepts a zeroed one. */
void timeline_close(struct timeline *timeline);

/* A span of work given to `stream` in between, one at a time. `name` stays valid until close. */
void timeline_begin(
    struct timeline *timeline, struct stream *stream, const char *name, uint64_t bytes);
void timeline_end(struct timeline *timeline, struct stream *stream);

#endif
