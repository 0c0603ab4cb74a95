/* Timelines. */
#include "stream/timeline.h"

enum shoal_status timeline_open(struct timeline *t, struct trace *trace, struct device *device,
    enum trace_kind kind, struct shoal_error *error)
{
    *t = (struct timeline){.trace = trace, .device = device, .kind = kind};
    for (int i = 0; trace && i < TIMELINE_MARKS; i++) {
        TRY(device->ops->event_create(device, &t->marks[i].begin, error));
        TRY(device->ops->event_create(device, &t->marks[i].end, error));
    }
    return SHOAL_OK;
}

static void write_oldest(struct timeline *t)
{
    const struct device_ops *ops = t->device->ops;
    uint64_t i = t->written++ % TIMELINE_MARKS;

    ops->event_synchronize(t->marks[i].end);
    trace_add(t->trace, t->kind, t->marks[i].name, ops->event_time_ns(t->marks[i].begin),
        ops->event_time_ns(t->marks[i].end), t->marks[i].bytes);
}

void timeline_flush(struct timeline *t)
{
    while (t->written < t->begun)
        write_oldest(t);
}

void timeline_close(struct timeline *t)
{
    timeline_flush(t);
    for (int i = 0; t->trace && i < TIMELINE_MARKS; i++) {
        if (t->marks[i].begin) t->device->ops->event_destroy(&t->marks[i].begin);
        if (t->marks[i].end) t->device->ops->event_destroy(&t->marks[i].end);
    }
    *t = (struct timeline){0};
}

void timeline_begin(struct timeline *t, struct stream *stream, const char *name, uint64_t bytes)
{
    uint64_t i = t->begun % TIMELINE_MARKS;

    if (!t->trace) return;
    if (t->begun == t->written + TIMELINE_MARKS) write_oldest(t);
    t->marks[i].name = name;
    t->marks[i].bytes = bytes;
    t->device->ops->event_record(stream, t->marks[i].begin);
}

void timeline_end(struct timeline *t, struct stream *stream)
{
    if (!t->trace) return;
    t->device->ops->event_record(stream, t->marks[t->begun++ % TIMELINE_MARKS].end);
}
