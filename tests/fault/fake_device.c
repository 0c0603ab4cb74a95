/* The fake device: queues of work, and who may go forward when. The maths is in fake_compute.c. */
#include "support.h"

#include "fault/fake_device.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>

#define SPOILT 0xff /* as F32, F16 and BF16: not a number */

enum command_kind { COPY_IN, COPY_OUT, COPY_WITHIN, OPERATION, RECORD, WAIT };

struct command {
    enum command_kind kind;
    bool fails;
    struct event *event;         /* RECORD, WAIT */
    struct fake_stream *awaited; /* WAIT: until this stream has done `place` commands */
    uint64_t place;
    void *to;
    const void *from;
    size_t bytes;
    struct fake_operation operation;
};

struct fake_stream {
    struct stream base;
    struct fake_stream *next; /* of the device's, newest first */
    bool copy, destroyed;     /* destroyed ones stay as shells: events may point at them */
    struct command *commands; /* command n is at n % room; from `done` to `given` they wait */
    uint64_t room, given, done;
    uint64_t begun; /* copies before it have spoilt their destinations */
    struct shoal_error failed;
};

struct event {
    struct fake_device *fake;
    struct fake_stream *stream; /* NULL: it has happened */
    uint64_t place, time_ns;
};

struct fake_device {
    struct device base;
    struct device *cpu;
    struct stream *cpu_stream; /* its compute stream, which works in the call */
    struct fake_options options;
    struct mutex mutex; /* everything below, and all streams and events */
    uint64_t random;
    struct fake_stream *streams;
    struct fake_counts counts;
    bool pacing; /* inside `pace` */
};

static struct fake_device *fake_of(const struct stream *stream)
{
    return (struct fake_device *)stream->device;
}

static void violate(struct fake_device *f, const char *what)
{
    if (!f->counts.violation) f->counts.violation = what;
}

/* ---- doing what waits; the mutex is held in all of these ---- */

static struct command *command_at(const struct fake_stream *s, uint64_t n)
{
    return &s->commands[n % s->room];
}

static bool has_passed(const struct fake_stream *s, uint64_t place)
{
    return !s || s->done >= place;
}

/* Copies that nothing holds back any more may write at any moment: their destinations are lost. */
static void begin_copies(struct fake_stream *s)
{
    uint64_t n = s->begun < s->done ? s->done : s->begun;

    for (; n < s->given; n++) {
        const struct command *c = command_at(s, n);

        if (c->kind == WAIT ? !has_passed(c->awaited, c->place)
                            : c->kind != COPY_IN && c->kind != RECORD)
            break;
        if (c->kind == COPY_IN && !s->failed.status) memset(c->to, SPOILT, c->bytes);
    }
    s->begun = n;
}

static const char *verb(enum command_kind kind)
{
    switch (kind) {
    case COPY_IN:
        return "copying to the device";
    case COPY_OUT:
        return "copying from the device";
    case COPY_WITHIN:
        return "copying within the device";
    default:
        return "an operation";
    }
}

static void run_until(struct fake_stream *s, uint64_t place);
static void pace(struct fake_device *f);

/* Does the next of the stream's commands; of a wait, what is waited for. */
static void run_one(struct fake_stream *s)
{
    struct fake_device *f = fake_of(&s->base);
    struct command c = *command_at(s, s->done);

    if (c.kind == WAIT && !has_passed(c.awaited, c.place)) {
        run_until(c.awaited, c.place);
        return; /* the pace may have taken this stream further already */
    }
    if (c.kind == RECORD) {
        if (c.event) c.event->time_ns = clock_ns();
    } else if (c.fails) {
        error_set(&s->failed, SHOAL_E_DEVICE, __FILE__, __LINE__,
            "%s failed, as it was told to (%zu bytes)", verb(c.kind), c.bytes);
    } else if (c.kind != WAIT && !s->failed.status) {
        if (c.kind == OPERATION)
            c.operation.run(f->cpu->ops->compute, f->cpu_stream, &c.operation);
        else
            memcpy(c.to, c.from, c.bytes);
    }
    s->done++;
    for (struct fake_stream *other = f->streams; other; other = other->next)
        begin_copies(other);
    pace(f);
}

static void run_until(struct fake_stream *s, uint64_t place)
{
    while (!has_passed(s, place))
        run_one(s);
}

static bool may_run(const struct fake_stream *s)
{
    const struct command *c = command_at(s, s->done);

    return s->done < s->given && (c->kind != WAIT || has_passed(c->awaited, c->place));
}

/* Lets streams go forward, after something was given or done. */
static void pace(struct fake_device *f)
{
    bool moved = f->options.pace == FAKE_EAGER;

    if (f->pacing) return;
    f->pacing = true;
    while (moved) {
        moved = false;
        for (struct fake_stream *s = f->streams; s; s = s->next)
            for (; s->copy && s->room && may_run(s); moved = true)
                run_one(s);
    }
    for (struct fake_stream *s = f->streams; s && f->options.pace == FAKE_RANDOM; s = s->next) {
        uint32_t count = test_random(&f->random) % 8;

        /* Often not at all, sometimes far. */
        for (count = count < 5 ? 0 : count * count; count && s->room && may_run(s); count--)
            run_one(s);
    }
    f->pacing = false;
}

static void give(struct stream *stream, const struct command *command)
{
    struct fake_stream *s = (struct fake_stream *)stream;
    struct fake_device *f = fake_of(stream);

    if (s->given - s->done == s->room) {
        uint64_t room = s->room ? 2 * s->room : 64;
        struct command *grown = malloc(room * sizeof *grown);

        if (!grown) abort();
        for (uint64_t n = s->done; n < s->given; n++)
            grown[n % room] = *command_at(s, n);
        free(s->commands);
        s->commands = grown;
        s->room = room;
    }
    *command_at(s, s->given++) = *command;
    begin_copies(s);
    pace(f);
}

/* ---- streams ---- */

/* Counts a creation; SHOAL_E_DEVICE if it is the one to fail. */
static enum shoal_status create(struct fake_device *f, const char *what, struct shoal_error *error)
{
    bool fails;

    mutex_lock(&f->mutex);
    fails = ++f->counts.creations == f->options.failing_creation;
    if (!fails) f->counts.things++;
    mutex_unlock(&f->mutex);
    if (fails) FAIL(error, SHOAL_E_DEVICE, "creating %s failed, as it was told to", what);
    return SHOAL_OK;
}

static enum shoal_status stream_create(
    struct device *device, bool copy, struct stream **stream, struct shoal_error *error)
{
    struct fake_device *f = (struct fake_device *)device;
    struct fake_stream *s;

    *stream = NULL;
    TRY(create(f, "a stream", error));
    s = calloc(1, sizeof *s);
    if (!s) abort();
    s->base.device = device;
    s->copy = copy;
    mutex_lock(&f->mutex);
    s->next = f->streams;
    f->streams = s;
    mutex_unlock(&f->mutex);
    *stream = &s->base;
    return SHOAL_OK;
}

static void stream_destroy(struct stream **stream)
{
    struct fake_stream *s = (struct fake_stream *)*stream;
    struct fake_device *f;

    *stream = NULL;
    if (!s) return;
    f = fake_of(&s->base);
    mutex_lock(&f->mutex);
    run_until(s, s->given);
    if (s->destroyed) violate(f, "a stream was destroyed twice");
    s->destroyed = true;
    f->counts.things--;
    free(s->commands);
    s->commands = NULL;
    s->room = 0;
    mutex_unlock(&f->mutex);
}

static enum shoal_status stream_synchronize(struct stream *stream, struct shoal_error *error)
{
    struct fake_stream *s = (struct fake_stream *)stream;
    struct fake_device *f = fake_of(stream);
    enum shoal_status status;

    mutex_lock(&f->mutex);
    run_until(s, s->given);
    status = s->failed.status;
    if (status && error) *error = s->failed;
    mutex_unlock(&f->mutex);
    return status;
}

/* ---- events ---- */

static enum shoal_status event_create(
    struct device *device, struct event **event, struct shoal_error *error)
{
    struct fake_device *f = (struct fake_device *)device;

    *event = NULL;
    TRY(create(f, "an event", error));
    *event = calloc(1, sizeof **event);
    if (!*event) abort();
    (*event)->fake = f;
    return SHOAL_OK;
}

static void event_destroy(struct event **event)
{
    struct event *e = *event;
    struct fake_device *f;

    *event = NULL;
    if (!e) return;
    f = e->fake;
    mutex_lock(&f->mutex);
    for (const struct fake_stream *s = f->streams; s; s = s->next)
        for (uint64_t n = s->done; n < s->given; n++)
            if (command_at(s, n)->event == e) {
                violate(f, "an event was destroyed that a stream still had to record or await");
                command_at(s, n)->event = NULL;
            }
    f->counts.things--;
    mutex_unlock(&f->mutex);
    free(e);
}

static void event_record(struct stream *stream, struct event *event)
{
    struct fake_stream *s = (struct fake_stream *)stream;
    struct fake_device *f = fake_of(stream);

    mutex_lock(&f->mutex);
    event->stream = s;
    event->place = s->given + 1;
    give(stream, &(struct command){.kind = RECORD, .event = event});
    mutex_unlock(&f->mutex);
}

static void event_wait(struct stream *stream, struct event *event)
{
    struct fake_device *f = fake_of(stream);

    mutex_lock(&f->mutex);
    if (event->stream)
        give(stream,
            &(struct command){
                .kind = WAIT, .event = event, .awaited = event->stream, .place = event->place});
    mutex_unlock(&f->mutex);
}

static void event_synchronize(struct event *event)
{
    mutex_lock(&event->fake->mutex);
    run_until(event->stream, event->place);
    mutex_unlock(&event->fake->mutex);
}

/* Asking often enough helps, or who polls would wait for ever. */
static bool event_happened(struct event *event)
{
    struct fake_device *f = event->fake;
    bool happened;

    mutex_lock(&f->mutex);
    if (!has_passed(event->stream, event->place) && test_random(&f->random) % 4 == 0)
        run_one(event->stream);
    happened = has_passed(event->stream, event->place);
    mutex_unlock(&f->mutex);
    return happened;
}

static uint64_t event_time_ns(struct event *event)
{
    uint64_t time_ns;

    mutex_lock(&event->fake->mutex);
    time_ns = event->time_ns;
    mutex_unlock(&event->fake->mutex);
    return time_ns;
}

/* ---- work ---- */

static void give_copy(
    struct stream *stream, enum command_kind kind, void *to, const void *from, uint64_t bytes)
{
    struct fake_device *f = fake_of(stream);

    mutex_lock(&f->mutex);
    if (((struct fake_stream *)stream)->copy && kind == COPY_WITHIN)
        violate(f, "a copy stream was given a copy within the device");
    if (kind == COPY_OUT) memset(to, SPOILT, (size_t)bytes);
    give(stream, &(struct command){.kind = kind,
                     .fails = ++f->counts.copies == f->options.failing_copy,
                     .to = to,
                     .from = from,
                     .bytes = (size_t)bytes});
    mutex_unlock(&f->mutex);
}

static void copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes)
{
    give_copy(stream, COPY_IN, (void *)(uintptr_t)to, from, bytes);
}

static void copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes)
{
    give_copy(stream, COPY_OUT, to, (const void *)(uintptr_t)from, bytes);
}

static void copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes)
{
    give_copy(stream, COPY_WITHIN, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

void fake_give(struct stream *stream, const struct fake_operation *operation)
{
    struct fake_device *f = fake_of(stream);

    mutex_lock(&f->mutex);
    if (((struct fake_stream *)stream)->copy) violate(f, "a copy stream was told to compute");
    give(stream, &(struct command){.kind = OPERATION,
                     .fails = ++f->counts.operations == f->options.failing_operation,
                     .operation = *operation});
    mutex_unlock(&f->mutex);
}

/* ---- the device ---- */

static enum shoal_status arena_reserve(
    struct device *device, uint64_t bytes, struct shoal_error *error)
{
    struct fake_device *f = (struct fake_device *)device;
    enum shoal_status status;

    TRY(create(f, "the arena", error));
    status = f->cpu->ops->arena_reserve(f->cpu, bytes, error);
    if (status) {
        f->counts.things--;
        return status;
    }
    device->arena = f->cpu->arena;
    device->arena_bytes = bytes;
    /* Work is done after its scratch was given back: ASan's poison would be wrong about it. */
    f->cpu->ops->arena_mark(f->cpu, device->arena, bytes, true);
    memset((void *)(uintptr_t)device->arena, SPOILT, (size_t)bytes);
    return SHOAL_OK;
}

static void arena_release(struct device *device)
{
    struct fake_device *f = (struct fake_device *)device;

    if (!device->arena) return;
    mutex_lock(&f->mutex);
    for (const struct fake_stream *s = f->streams; s; s = s->next)
        if (s->done < s->given) violate(f, "the arena was released under work that waited");
    f->cpu->ops->arena_release(f->cpu);
    f->counts.things--;
    mutex_unlock(&f->mutex);
    device->arena = 0;
    device->arena_bytes = 0;
}

static enum shoal_status host_register(
    struct device *device, void *pages, uint64_t bytes, struct shoal_error *error)
{
    struct fake_device *f = (struct fake_device *)device;
    bool fails;

    mutex_lock(&f->mutex);
    fails = ++f->counts.pins >= f->options.failing_pin && f->options.failing_pin;
    if (!fails) f->counts.things++;
    if ((uintptr_t)pages % HOST_PAGE_BYTES || !bytes) violate(f, "what is no pages was pinned");
    mutex_unlock(&f->mutex);
    if (fails)
        FAIL(error, SHOAL_E_DEVICE, "pinning %llu bytes failed, as it was told to",
            (unsigned long long)bytes);
    return SHOAL_OK;
}

static void host_unregister(struct device *device, void *pages)
{
    struct fake_device *f = (struct fake_device *)device;

    (void)pages;
    mutex_lock(&f->mutex);
    f->counts.things--;
    mutex_unlock(&f->mutex);
}

static void destroy(struct device *device)
{
    struct fake_device *f = (struct fake_device *)device;

    while (f->streams) {
        struct fake_stream *s = f->streams;

        f->streams = s->next;
        free(s->commands);
        free(s);
    }
    if (f->cpu_stream) f->cpu->ops->stream_destroy(&f->cpu_stream);
    device_destroy(&f->cpu);
    mutex_fini(&f->mutex);
    free(f);
}

static const struct device_ops fake_ops = {
    .name = "fake",
    .destroy = destroy,
    .arena_reserve = arena_reserve,
    .arena_release = arena_release,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .event_happened = event_happened,
    .event_time_ns = event_time_ns,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .compute = &fake_compute_ops,
};

enum shoal_status fake_create(
    struct device **device, const struct fake_options *options, struct shoal_error *error)
{
    struct fake_device *f = calloc(1, sizeof *f);
    enum shoal_status status;

    *device = NULL;
    if (!f) FAIL_MEMORY(error);
    f->base.ops = &fake_ops;
    f->base.traits = CPU_TRAITS;
    f->options = *options;
    f->random = options->seed;
    mutex_init(&f->mutex);
    TRY_OR_FAIL(cpu_create(&f->cpu, CPU_KERNELS_FAST, 1, error));
    TRY_OR_FAIL(f->cpu->ops->stream_create(f->cpu, false, &f->cpu_stream, error));
    *device = &f->base;
    return SHOAL_OK;
fail:
    destroy(&f->base);
    return status;
}

struct fake_counts fake_counts(struct device *device)
{
    struct fake_device *f = (struct fake_device *)device;
    struct fake_counts counts;

    mutex_lock(&f->mutex);
    counts = f->counts;
    mutex_unlock(&f->mutex);
    return counts;
}
