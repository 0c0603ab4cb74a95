/*
 * Streams and events of the CPU device.
 *
 * A compute stream has no queue: work is done inside the call that gives it, and waiting for an
 * event blocks the caller. A copy stream is a thread with a queue of commands; giving one more than
 * the queue holds blocks the caller until there is room. That cannot dead-lock, because nothing
 * waits for what has not been given yet.
 *
 * Progress is two numbers a copy stream: commands given and commands done. An event is a place in
 * the stream that recorded it last, so awaiting it is awaiting that stream's `done`; recording it
 * again does not concern those who wait already. Recording is a command too, which notes the time.
 * A destroyed stream stays, as a shell with its numbers, until the device goes: events may still
 * point at it.
 *
 * Nothing here can fail once a stream is created, so there is no failure to keep.
 */
#include "device/cpu/internal.h"

#include "base/clock.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

#define QUEUE_COMMANDS 1024

struct command {
    struct cpu_stream *awaited; /* wait until this stream has done `place` commands, or ... */
    uint64_t place;
    struct event *recorded; /* ... note this event's time, or copy */
    void *to;
    const void *from;
    size_t bytes;
};

struct cpu_stream {
    struct stream base;
    struct cpu_stream *next; /* of the device's streams */
    struct thread thread;
    struct command *queue; /* command n is at n % QUEUE_COMMANDS; NULL: a compute stream */

    /* Guarded by the device's mutex. */
    uint64_t given, done;
    bool stop;
};

struct event {
    struct cpu_device *cpu;
    struct cpu_stream *stream; /* NULL: it has happened */
    uint64_t place;            /* commands that stream has done when it happens */
    uint64_t time_ns;
};

static struct cpu_device *device_of(const struct cpu_stream *stream)
{
    return cpu_device(stream->base.device);
}

/* The mutex is held. */
static void await(struct cpu_device *cpu, const struct cpu_stream *stream, uint64_t place)
{
    while (stream->done < place)
        cond_wait(&cpu->changed, &cpu->mutex);
}

static void copy_thread(void *arg)
{
    struct cpu_stream *stream = arg;
    struct cpu_device *cpu = device_of(stream);

    mutex_lock(&cpu->mutex);
    for (;;) {
        struct command command;

        while (stream->done == stream->given && !stream->stop)
            cond_wait(&cpu->changed, &cpu->mutex);
        if (stream->done == stream->given) break;
        command = stream->queue[stream->done % QUEUE_COMMANDS];
        if (command.awaited) {
            await(cpu, command.awaited, command.place);
        } else if (command.recorded) {
            command.recorded->time_ns = clock_ns();
        } else {
            mutex_unlock(&cpu->mutex);
            memcpy(command.to, command.from, command.bytes);
            mutex_lock(&cpu->mutex);
        }
        stream->done++;
        cond_wake_all(&cpu->changed);
    }
    mutex_unlock(&cpu->mutex);
}

/* The mutex is held. */
static void give(struct cpu_stream *stream, struct command command)
{
    struct cpu_device *cpu = device_of(stream);

    if (stream->given >= QUEUE_COMMANDS) await(cpu, stream, stream->given - QUEUE_COMMANDS + 1);
    stream->queue[stream->given++ % QUEUE_COMMANDS] = command;
    cond_wake_all(&cpu->changed);
}

/* ---- streams ---- */

enum shoal_status cpu_stream_create(
    struct device *device, bool copy, struct stream **stream, struct shoal_error *error)
{
    struct cpu_device *cpu = cpu_device(device);
    struct cpu_stream *s = mem_calloc(1, sizeof *s);
    enum shoal_status status = SHOAL_OK;

    *stream = NULL;
    if (!s) FAIL_MEMORY(error);
    s->base.device = device;
    if (copy) {
        s->queue = mem_calloc(QUEUE_COMMANDS, sizeof *s->queue);
        if (!s->queue)
            status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        else
            status = thread_start(&s->thread, copy_thread, s, error);
    }
    if (status) {
        mem_free(s->queue);
        mem_free(s);
        return status;
    }
    mutex_lock(&cpu->mutex);
    s->next = cpu->streams;
    cpu->streams = s;
    mutex_unlock(&cpu->mutex);
    *stream = &s->base;
    return SHOAL_OK;
}

void cpu_stream_destroy(struct stream **stream)
{
    struct cpu_stream *s = (struct cpu_stream *)*stream;
    struct cpu_device *cpu;

    *stream = NULL;
    if (!s || !s->queue) return;
    cpu = device_of(s);
    mutex_lock(&cpu->mutex);
    s->stop = true;
    cond_wake_all(&cpu->changed);
    mutex_unlock(&cpu->mutex);
    thread_join(&s->thread);
    mem_free(s->queue);
    s->queue = NULL;
}

void cpu_streams_free(struct cpu_device *cpu)
{
    while (cpu->streams) {
        struct cpu_stream *s = cpu->streams;

        assert(!s->queue && s->done == s->given);
        cpu->streams = s->next;
        mem_free(s);
    }
}

enum shoal_status cpu_stream_synchronize(struct stream *stream, struct shoal_error *error)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct cpu_device *cpu = device_of(s);

    (void)error;
    mutex_lock(&cpu->mutex);
    await(cpu, s, s->given);
    mutex_unlock(&cpu->mutex);
    return SHOAL_OK;
}

/* ---- events ---- */

enum shoal_status cpu_event_create(
    struct device *device, struct event **event, struct shoal_error *error)
{
    *event = mem_calloc(1, sizeof **event);
    if (!*event) FAIL_MEMORY(error);
    (*event)->cpu = cpu_device(device);
    return SHOAL_OK;
}

void cpu_event_destroy(struct event **event)
{
    mem_free(*event);
    *event = NULL;
}

void cpu_event_record(struct stream *stream, struct event *event)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct cpu_device *cpu = device_of(s);

    mutex_lock(&cpu->mutex);
    event->stream = s->queue ? s : NULL;
    event->place = s->given + 1;
    if (s->queue)
        give(s, (struct command){.recorded = event});
    else
        event->time_ns = clock_ns();
    mutex_unlock(&cpu->mutex);
}

void cpu_event_wait(struct stream *stream, struct event *event)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct cpu_device *cpu = device_of(s);

    mutex_lock(&cpu->mutex);
    if (event->stream && s->queue)
        give(s, (struct command){.awaited = event->stream, .place = event->place});
    else if (event->stream)
        await(cpu, event->stream, event->place);
    mutex_unlock(&cpu->mutex);
}

void cpu_event_synchronize(struct event *event)
{
    mutex_lock(&event->cpu->mutex);
    if (event->stream) await(event->cpu, event->stream, event->place);
    mutex_unlock(&event->cpu->mutex);
}

bool cpu_event_happened(struct event *event)
{
    mutex_lock(&event->cpu->mutex);
    bool happened = !event->stream || event->stream->done >= event->place;
    mutex_unlock(&event->cpu->mutex);
    return happened;
}

uint64_t cpu_event_time_ns(struct event *event)
{
    mutex_lock(&event->cpu->mutex);
    uint64_t time_ns = event->time_ns;
    mutex_unlock(&event->cpu->mutex);
    return time_ns;
}

/* ---- copies ---- */

static void copy(struct stream *stream, void *to, const void *from, uint64_t bytes)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct cpu_device *cpu = device_of(s);

    if (!s->queue) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    mutex_lock(&cpu->mutex);
    give(s, (struct command){.to = to, .from = from, .bytes = (size_t)bytes});
    mutex_unlock(&cpu->mutex);
}

void cpu_copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes)
{
    copy(stream, (void *)(uintptr_t)to, from, bytes);
}

void cpu_copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes)
{
    copy(stream, to, (const void *)(uintptr_t)from, bytes);
}

void cpu_copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes)
{
    copy(stream, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}
