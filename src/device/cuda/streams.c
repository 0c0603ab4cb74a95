/*
 * Streams, events and copies of the CUDA device, which are the driver's own. Both kinds of stream
 * are ordered by events alone. After a failure no work is given any more; what was given may still
 * use the caller's memory, so it is awaited.
 *
 * The driver gives times of events between two events only, as a float of milliseconds. So there is
 * one event of which the host's time is known, taken anew every so often: a float tells 0.25 us
 * apart for four seconds, and the card's clock and ours need not run alike.
 */
#include "device/cuda/internal.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/size.h"

#include <assert.h>
#include <stdio.h>

#define CLOCK_NS 1000000000u   /* a reference is used for so long */
#define CLOCK_SPREAD_NS 50000u /* one that is known to this is taken, ... */
#define CLOCK_TRIES 4          /* ... or else this many tried */

struct event {
    struct cuda_device *cuda;
    CUevent handle;
    bool recorded; /* ever */
};

/* ---- streams ---- */

enum shoal_status cuda_stream_create(
    struct device *device, bool copy, struct stream **stream, struct shoal_error *error)
{
    struct cuda_device *cuda = cuda_device(device);
    struct cuda_stream *s;
    enum shoal_status status;

    *stream = NULL;
    if (!cuda_enter(cuda)) return cuda_failure(cuda, error);
    s = mem_calloc(1, sizeof *s);
    if (!s) FAIL_MEMORY(error);
    s->base.device = device;
    s->copy = copy;
    status =
        cuda_check(cuda->driver, cuda->driver->stream_create(&s->handle, CU_STREAM_NON_BLOCKING, 0),
            "creating a stream", error);
    if (status) {
        mem_free(s);
        return status;
    }
    s->own = s->handle;
    *stream = &s->base;
    return SHOAL_OK;
}

void cuda_stream_follow(struct stream *stream, void *handle)
{
    ((struct cuda_stream *)stream)->handle = handle;
}

void cuda_stream_return(struct stream *stream)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;

    s->handle = s->own;
}

/* Waits for the stream; what failed in it failed at some time before. */
static void await_stream(struct cuda_device *cuda, struct cuda_stream *s)
{
    CUresult result = cuda->driver->stream_synchronize(s->handle);
    char what[160];

    if (!result) return;
    if (s->copy)
        snprintf(what, sizeof what, "copying");
    else
        snprintf(what, sizeof what,
            "computing (the last kernel given was %s; CUDA_LAUNCH_BLOCKING=1 finds the one)",
            s->kernel ? s->kernel : "none");
    cuda_fail(cuda, result, what);
}

void cuda_stream_destroy(struct stream **stream)
{
    struct cuda_stream *s = (struct cuda_stream *)*stream;
    struct cuda_device *cuda;

    *stream = NULL;
    if (!s) return;
    cuda = cuda_device(s->base.device);
    (void)cuda_enter(cuda);
    await_stream(cuda, s);
    cuda->driver->stream_destroy(s->own);
    mem_free(s);
}

enum shoal_status cuda_stream_synchronize(struct stream *stream, struct shoal_error *error)
{
    struct cuda_device *cuda = cuda_device(stream->device);

    (void)cuda_enter(cuda);
    await_stream(cuda, (struct cuda_stream *)stream);
    return cuda_failure(cuda, error);
}

/* ---- events ---- */

enum shoal_status cuda_event_create(
    struct device *device, struct event **event, struct shoal_error *error)
{
    struct cuda_device *cuda = cuda_device(device);
    struct event *e;
    enum shoal_status status;

    *event = NULL;
    if (!cuda_enter(cuda)) return cuda_failure(cuda, error);
    e = mem_calloc(1, sizeof *e);
    if (!e) FAIL_MEMORY(error);
    e->cuda = cuda;
    status = cuda_check(cuda->driver,
        cuda->driver->event_create(&e->handle, CU_EVENT_BLOCKING_SYNC), "creating an event", error);
    if (status) {
        mem_free(e);
        return status;
    }
    *event = e;
    return SHOAL_OK;
}

void cuda_event_destroy(struct event **event)
{
    struct event *e = *event;

    *event = NULL;
    if (!e) return;
    (void)cuda_enter(e->cuda);
    e->cuda->driver->event_destroy(e->handle);
    mem_free(e);
}

void cuda_event_record(struct stream *stream, struct event *event)
{
    struct cuda_device *cuda = event->cuda;
    CUresult result;

    if (!cuda_enter(cuda)) return;
    result = cuda->driver->event_record(event->handle, ((struct cuda_stream *)stream)->handle);
    if (result) cuda_fail(cuda, result, "recording an event");
    event->recorded = true;
}

void cuda_event_wait(struct stream *stream, struct event *event)
{
    struct cuda_device *cuda = event->cuda;
    CUresult result;

    if (!cuda_enter(cuda)) return;
    result = cuda->driver->stream_wait(((struct cuda_stream *)stream)->handle, event->handle, 0);
    if (result) cuda_fail(cuda, result, "letting a stream wait for an event");
}

void cuda_event_synchronize(struct event *event)
{
    CUresult result;

    (void)cuda_enter(event->cuda);
    result = event->cuda->driver->event_synchronize(event->handle);
    if (result) cuda_fail(event->cuda, result, "work before an event");
}

bool cuda_event_happened(struct event *event)
{
    CUresult result;

    (void)cuda_enter(event->cuda);
    result = event->cuda->driver->event_query(event->handle);
    if (result && result != CUDA_ERROR_NOT_READY)
        cuda_fail(event->cuda, result, "work before an event");
    return result != CUDA_ERROR_NOT_READY; /* with a dead context nobody should wait */
}

/* ---- times ---- */

/* The context is current; the mutex is held or not needed yet. */
static CUresult take_reference(struct cuda_device *cuda)
{
    const struct cuda_driver *driver = cuda->driver;
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < CLOCK_TRIES; i++) {
        uint64_t before = clock_ns(), after;

        result = driver->event_record(cuda->clock_event, cuda->clock_stream);
        if (!result) result = driver->event_synchronize(cuda->clock_event);
        if (result) break;
        after = clock_ns();
        cuda->clock_ns = before + (after - before) / 2;
        if (after - before <= CLOCK_SPREAD_NS) break;
    }
    return result;
}

enum shoal_status cuda_clock_open(struct cuda_device *cuda, struct shoal_error *error)
{
    const struct cuda_driver *driver = cuda->driver;

    TRY(cuda_check(driver, driver->stream_create(&cuda->clock_stream, CU_STREAM_NON_BLOCKING, 0),
        "creating a stream", error));
    /* It is awaited actively, so that its time is known closely. */
    TRY(cuda_check(
        driver, driver->event_create(&cuda->clock_event, 0), "creating an event", error));
    return cuda_check(driver, take_reference(cuda), "reading the card's clock", error);
}

void cuda_clock_close(struct cuda_device *cuda)
{
    if (cuda->clock_event) cuda->driver->event_destroy(cuda->clock_event);
    if (cuda->clock_stream) cuda->driver->stream_destroy(cuda->clock_stream);
}

uint64_t cuda_event_time_ns(struct event *event)
{
    struct cuda_device *cuda = event->cuda;
    float milliseconds = 0; /* from the reference; negative before it */
    CUresult result = CUDA_SUCCESS;
    uint64_t time_ns;

    if (!event->recorded || !cuda_enter(cuda)) return 0;
    mutex_lock(&cuda->mutex);
    if (clock_ns() - cuda->clock_ns > CLOCK_NS) result = take_reference(cuda);
    if (!result)
        result = cuda->driver->event_elapsed(&milliseconds, cuda->clock_event, event->handle);
    time_ns = cuda->clock_ns + (uint64_t)(int64_t)((double)milliseconds * 1e6);
    mutex_unlock(&cuda->mutex);
    if (result && result != CUDA_ERROR_NOT_READY) cuda_fail(cuda, result, "timing an event");
    return result ? 0 : time_ns;
}

/* ---- copies ---- */

static void finish_copy(
    struct cuda_device *cuda, CUresult result, const char *where, uint64_t bytes)
{
    char size[SIZE_TEXT_BYTES], what[80];

    if (!result) return;
    snprintf(what, sizeof what, "copying %s %s", size_format(size, bytes), where);
    cuda_fail(cuda, result, what);
}

void cuda_copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    struct cuda_device *cuda = cuda_device(stream->device);

    if (!bytes || !cuda_enter(cuda)) return;
    finish_copy(cuda, cuda->driver->copy_in(to, from, bytes, s->handle), "to the device", bytes);
}

void cuda_copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    struct cuda_device *cuda = cuda_device(stream->device);

    if (!bytes || !cuda_enter(cuda)) return;
    finish_copy(cuda, cuda->driver->copy_out(to, from, bytes, s->handle), "from the device", bytes);
}

void cuda_copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)stream;
    struct cuda_device *cuda = cuda_device(stream->device);

    if (!bytes || !cuda_enter(cuda)) return;
    finish_copy(
        cuda, cuda->driver->copy_within(to, from, bytes, s->handle), "within the device", bytes);
}
