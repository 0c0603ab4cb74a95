/* The fake driver's queues. See fake_streams.h. */
#include "support.h"

#include "cuda/fake_streams.h"

#include "base/clock.h"

#include <stdlib.h>

struct CUstream_st {
    CUstream next;                 /* of all */
    struct fake_command *commands; /* command n is at n % room; from `done` to `given` they wait */
    uint64_t room, given, done;
    uint64_t begun; /* copies before it have spoilt their destinations */
    bool dropped;   /* stays as a shell: events may point at it */
};

struct CUevent_st {
    CUevent next;    /* of all */
    CUstream stream; /* NULL: never recorded */
    uint64_t place, time_ns;
};

static struct {
    enum fake_pace pace;
    uint64_t random;
    CUstream streams;
    CUevent events;
    int count;
    bool pacing;
} all;

void fake_spoil(void *at, size_t bytes)
{
    memset(at, 0xff, bytes);
}

static struct fake_command *command_at(CUstream s, uint64_t n)
{
    return &s->commands[n % s->room];
}

static bool has_passed(CUstream s, uint64_t place)
{
    return !s || s->done >= place;
}

/* ---- doing what waits ---- */

/* Copies that nothing holds back any more may write at any moment: their destinations are lost. */
static void begin_copies(CUstream s)
{
    uint64_t n = s->begun < s->done ? s->done : s->begun;

    for (; n < s->given; n++) {
        const struct fake_command *c = command_at(s, n);

        if (c->kind == FAKE_AWAIT ? !has_passed(c->awaited, c->place)
                                  : c->kind != FAKE_COPY_IN && c->kind != FAKE_RECORD)
            break;
        if (c->kind == FAKE_COPY_IN) fake_spoil(c->to, c->bytes);
    }
    s->begun = n;
}

static void run_until(CUstream s, uint64_t place);
static void pace(void);

/* Does the next of the stream's commands; of a wait, what is waited for. */
static void run_one(CUstream s)
{
    struct fake_command c = *command_at(s, s->done);

    switch (c.kind) {
    case FAKE_AWAIT:
        if (has_passed(c.awaited, c.place)) break;
        run_until(c.awaited, c.place);
        return; /* the pace may have taken this stream further already */
    case FAKE_RECORD:
        if (c.event) c.event->time_ns = clock_ns();
        break;
    case FAKE_RUN:
        c.run(c.given);
        break;
    default:
        memcpy(c.to, c.from, c.bytes);
    }
    s->done++;
    for (CUstream other = all.streams; other; other = other->next)
        begin_copies(other);
    pace();
}

static void run_until(CUstream s, uint64_t place)
{
    while (!has_passed(s, place))
        run_one(s);
}

static bool may_run(CUstream s)
{
    const struct fake_command *c;

    if (s->done == s->given) return false;
    c = command_at(s, s->done);
    return c->kind != FAKE_AWAIT || has_passed(c->awaited, c->place);
}

/* Lets streams go forward, after something was given or done. */
static void pace(void)
{
    bool moved = all.pace == PACE_EAGER;

    if (all.pacing) return;
    all.pacing = true;
    while (moved) {
        moved = false;
        for (CUstream s = all.streams; s; s = s->next)
            for (; may_run(s); moved = true)
                run_one(s);
    }
    for (CUstream s = all.streams; s && all.pace == PACE_RANDOM; s = s->next) {
        uint32_t count = test_random(&all.random) % 8;

        /* Often not at all, sometimes far. */
        for (count = count < 5 ? 0 : count * count; count && may_run(s); count--)
            run_one(s);
    }
    all.pacing = false;
}

/* ---- all of them ---- */

void fake_streams_open(enum fake_pace pace_wanted, uint64_t seed)
{
    fake_streams_forget();
    all.pace = pace_wanted;
    all.random = seed;
}

void fake_streams_forget(void)
{
    while (all.streams) {
        CUstream s = all.streams;

        for (uint64_t n = s->done; n < s->given; n++)
            if (command_at(s, n)->kind == FAKE_RUN) free(command_at(s, n)->given);
        all.streams = s->next;
        free(s->commands);
        free(s);
    }
    while (all.events) {
        CUevent e = all.events;

        all.events = e->next;
        free(e);
    }
    all.count = 0;
}

int fake_streams_count(void)
{
    return all.count;
}

void fake_streams_run(void)
{
    for (CUstream s = all.streams; s; s = s->next)
        run_until(s, s->given);
}

bool fake_streams_wait_for_work(void)
{
    for (CUstream s = all.streams; s; s = s->next)
        if (s->done < s->given) return true;
    return false;
}

bool fake_streams_use(uintptr_t at, size_t bytes)
{
    for (CUstream s = all.streams; s; s = s->next)
        for (uint64_t n = s->done; n < s->given; n++) {
            const struct fake_command *c = command_at(s, n);
            uintptr_t host = c->kind == FAKE_COPY_IN    ? (uintptr_t)c->from
                             : c->kind == FAKE_COPY_OUT ? (uintptr_t)c->to
                                                        : 0;

            if (host && host < at + bytes && at < host + c->bytes) return true;
        }
    return false;
}

/* ---- streams ---- */

CUstream fake_stream_new(void)
{
    CUstream s = calloc(1, sizeof *s);

    if (!s) abort();
    s->next = all.streams;
    all.streams = s;
    all.count++;
    return s;
}

void fake_stream_drop(CUstream s)
{
    run_until(s, s->given);
    if (s->dropped) abort();
    s->dropped = true;
    all.count--;
}

void fake_stream_give(CUstream s, struct fake_command command)
{
    if (s->given - s->done == s->room) {
        uint64_t room = s->room ? 2 * s->room : 64;
        struct fake_command *grown = malloc(room * sizeof *grown);

        if (!grown) abort();
        for (uint64_t n = s->done; n < s->given; n++)
            grown[n % room] = *command_at(s, n);
        free(s->commands);
        s->commands = grown;
        s->room = room;
    }
    if (command.kind == FAKE_COPY_OUT) fake_spoil(command.to, command.bytes);
    *command_at(s, s->given++) = command;
    begin_copies(s);
    pace();
}

void fake_stream_run(CUstream s)
{
    run_until(s, s->given);
}

void fake_stream_record(CUstream s, CUevent event)
{
    event->stream = s;
    event->place = s->given + 1;
    fake_stream_give(s, (struct fake_command){.kind = FAKE_RECORD, .event = event});
}

void fake_stream_await(CUstream s, CUevent event)
{
    if (event->stream)
        fake_stream_give(
            s, (struct fake_command){
                   .kind = FAKE_AWAIT, .awaited = event->stream, .place = event->place});
}

/* ---- events ---- */

CUevent fake_event_new(void)
{
    CUevent e = calloc(1, sizeof *e);

    if (!e) abort();
    e->next = all.events;
    all.events = e;
    all.count++;
    return e;
}

bool fake_event_drop(CUevent event)
{
    CUevent *at = &all.events;
    bool awaited = false;

    for (CUstream s = all.streams; s; s = s->next)
        for (uint64_t n = s->done; n < s->given; n++)
            if (command_at(s, n)->event == event) {
                command_at(s, n)->event = NULL;
                awaited = true;
            }
    while (*at && *at != event)
        at = &(*at)->next;
    if (!*at) abort(); /* destroyed twice */
    *at = event->next;
    free(event);
    all.count--;
    return awaited;
}

bool fake_event_happened(CUevent event)
{
    if (!has_passed(event->stream, event->place) && test_random(&all.random) % 4 == 0)
        run_one(event->stream);
    return has_passed(event->stream, event->place);
}

void fake_event_run(CUevent event)
{
    run_until(event->stream, event->place);
}

bool fake_event_time(CUevent event, uint64_t *time_ns)
{
    *time_ns = event->time_ns;
    return has_passed(event->stream, event->place);
}
