/*
 * Pinning host memory: spans of pages, one after the other, by a thread of its own, so that a span
 * is pinned when the reads into it begin and nobody waits for the rest. Devices that copy from any
 * memory alike (the CPU) have nothing to pin.
 */
#ifndef STREAM_PINS_H
#define STREAM_PINS_H

#include "base/thread.h"
#include "device/device.h"

struct pins_span {
    char *pages;
    uint64_t bytes;
};

struct pins {
    struct device *device;
    const struct pins_span *spans;
    int32_t count;
    struct mutex *mutex;          /* guards what follows */
    int32_t done;                 /* spans that are pinned, if none failed */
    bool ended;                   /* no more will be */
    struct shoal_error error;     /* status: why not all */
    void (*advanced)(void *user); /* held */
    void *user;
    struct thread thread;
    bool started, stop;
};

/* Fill device, spans, count (> 0), mutex, advanced and user before; spans stay the caller's. */
enum shoal_status pins_open(struct pins *pins, struct shoal_error *error) SHOAL_CHECKED;
void pins_stop(struct pins *pins); /* not held; accepts a zeroed one */
void pins_close(
    struct pins *pins); /* when no copy reads the spans any more; accepts a zeroed one */

/* held: whether span `index` may be used; if so, whether it is pinned. */
static inline bool pins_settled(const struct pins *pins, int32_t index, bool *pinned)
{
    *pinned = index < pins->done;
    return *pinned || pins->ended;
}

#endif
