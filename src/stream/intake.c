/* The intake: the reading thread, the RAM tier's images and the staging ring. */
#include "stream/intake.h"

#include "base/memory.h"
#include "base/size.h"
#include "stream/pins.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define DEPTH 16       /* reads under way at once */
#define LEAST_READS 64 /* read or being read, and not yet copied */
#define MOST_READS 1024

/* One core packs 2 to 4 GB/s (BENCH.md). A quarter of the threads, up to four, keep up with a
 * drive, and while the first walk waits for the drive most threads have nothing to compute anyway.
 * Where a card computes none ever has: half of them, as two that share a core copy no more than
 * one, up to eight, which copy the 7 GB/s of one eight times. */
#define MOST_WORKERS 4
#define MOST_WORKERS_OF_CARDS 8

/* Chunks that bounce at once: giving several threads something to do takes some of the time in
 * which they copy one, but meanwhile nobody looks after the drive's reads. */
#define MOST_BOUNCED 8

/* A chunk that is read, waits to be copied, or is being copied. */
struct arrival {
    uint64_t visit;
    int32_t position, chunk;
    uint64_t at, bytes; /* in the image, if there is one */
    char *to;
    bool last; /* of its visit */
    bool complete, staged, packs;
    bool bounces;         /* from its image */
    uint64_t begin;       /* of staged ones: in the staging ring */
    struct event *copied; /* and after it their range is free */
};

/* retired <= taken <= accepted <= issued; arrival n is at n % room. Reads complete in any
 * order, but are looked at and handed out in the order of need. */
struct intake_state {
    struct intake_setup setup;
    struct reader *reader;
    struct thread thread;
    bool started, stop, ended;

    char *shelf; /* all images of the RAM tier */
    uint64_t shelf_bytes;
    uint64_t *image_at; /* by position, in the shelf */
    char *spare;        /* the image of a resident that packs: one at a time */
    uint64_t spare_bytes;
    bool spare_used; /* it is being made, or waits to be copied */
    struct event *spare_copied;
    char *staging; /* a ring of chunks, first in, first out */
    uint64_t head; /* where the next one goes, if there is room */

    struct pins pins;
    struct pins_span *spans; /* images, in the order of need */
    int32_t *span_of;        /* by position, of kept ones */
    bool *bounces; /* by position: kept, and copied through the staging ring all the same */
    bool staging_pinned, spare_pinned;
    struct shoal_error unpinned;

    struct arrival *arrivals; /* [room] */
    uint64_t room;
    uint64_t issued, accepted, taken, retired;
    uint64_t read_visit; /* the next chunk to read */
    int32_t read_chunk;
    uint64_t read_bytes;
    uint64_t arrived;     /* visits before this one have been accepted whole */
    uint64_t dropped;     /* and before this one, nobody takes chunks any more */
    struct checksum *sum; /* of the tensor that is being looked at */
    struct pool *pool;    /* packs and bounces; made when it is needed */
    struct cargo_packer packer;
    char reads[64]; /* how files are read */
};

static struct arrival *arrival_at(const struct intake_state *s, uint64_t index)
{
    return &s->arrivals[index % s->room];
}

/* ---- what is there ---- */

/* Blocks of the RAM tier arrive on their first visit only, unless they bounce. */
static bool arrives(const struct intake_state *s, uint64_t visit)
{
    int32_t position = visits_position(&s->setup.visits, visit);

    return visit < (uint64_t)s->setup.visits.first || !s->setup.kept[position] ||
           s->bounces[position];
}

static char *image_of(const struct intake_state *s, int32_t position)
{
    return s->setup.kept[position] ? s->shelf + s->image_at[position] : s->spare;
}

/* held. Whether all of a block of the RAM tier has come to its image. */
static bool is_there(const struct intake_state *s, int32_t position)
{
    const struct visits *v = &s->setup.visits;

    return s->arrived > (uint64_t)(v->first - v->block_count) + (uint64_t)position;
}

const char *intake_chunk(struct intake *intake, uint64_t visit, int32_t chunk)
{
    struct intake_state *s = intake->state;
    int32_t position = visits_position(&s->setup.visits, visit);
    const struct arrival *next = arrival_at(s, s->taken);

    if (!arrives(s, visit))
        return is_there(s, position)
                   ? image_of(s, position) + s->setup.cargos[position].chunks[chunk].at
                   : NULL;
    if (s->taken == s->accepted || next->visit != visit || next->chunk != chunk) return NULL;
    return next->to;
}

bool intake_is_staged(const struct intake *intake, uint64_t visit)
{
    const struct intake_state *s = intake->state;

    return arrives(s, visit) && arrival_at(s, s->taken)->staged;
}

bool intake_bounces(const struct intake *intake, uint64_t visit)
{
    const struct intake_state *s = intake->state;

    return visit >= (uint64_t)s->setup.visits.first && arrives(s, visit) &&
           s->setup.kept[visits_position(&s->setup.visits, visit)];
}

const char *intake_image(struct intake *intake, uint64_t visit)
{
    const struct intake_state *s = intake->state;
    const int32_t position = visits_position(&s->setup.visits, visit);

    if (arrives(s, visit) ? s->arrived <= visit : !is_there(s, position)) return NULL;
    return image_of(s, position);
}

void intake_image_taken(struct intake *intake, uint64_t visit, struct stream *stream)
{
    struct intake_state *s = intake->state;

    if (s->setup.kept[visits_position(&s->setup.visits, visit)]) return;
    s->setup.device->ops->event_record(stream, s->spare_copied);
    s->spare_used = false;
}

/* held. Passes chunks that are nobody's to take: that have been packed, or dropped. */
static void pass(struct intake_state *s)
{
    while (s->taken < s->accepted &&
           (arrival_at(s, s->taken)->packs || arrival_at(s, s->taken)->visit < s->dropped))
        s->taken++;
}

bool intake_loaded(const struct intake *intake)
{
    return intake->state->arrived >= (uint64_t)intake->state->setup.visits.first;
}

void intake_drop(struct intake *intake, uint64_t visit)
{
    intake->state->dropped = visit;
    pass(intake->state);
}

void intake_taken(struct intake *intake, uint64_t visit, struct stream *stream)
{
    struct intake_state *s = intake->state;
    struct arrival *next = arrival_at(s, s->taken);

    if (!arrives(s, visit)) return;
    if (next->staged) s->setup.device->ops->event_record(stream, next->copied);
    s->taken++;
    pass(s);
}

int intake_workers(int threads, bool card)
{
    const int most = card ? MOST_WORKERS_OF_CARDS : MOST_WORKERS;
    const int workers = threads / (card ? 2 : 4);

    return workers < 1 ? 1 : workers > most ? most : workers;
}

/* ---- reading ---- */

/* held. Forgets the chunks whose copies have ended. `wait`: for the oldest, if it is being copied.
 */
static void retire(struct intake *intake, bool wait)
{
    struct intake_state *s = intake->state;
    const struct device_ops *ops = s->setup.device->ops;

    for (; s->retired < s->taken; s->retired++, wait = false) {
        struct arrival *oldest = arrival_at(s, s->retired);

        if (!oldest->staged || oldest->packs) continue;
        if (wait && !ops->event_happened(oldest->copied)) {
            mutex_unlock(&intake->mutex);
            ops->event_synchronize(oldest->copied);
            mutex_lock(&intake->mutex);
        }
        if (!ops->event_happened(oldest->copied)) return;
    }
}

/* held. Where `bytes` can go in the staging ring; false: nowhere yet. */
static bool stage(struct intake_state *s, uint64_t bytes, uint64_t *begin)
{
    uint64_t oldest = s->retired;
    uint64_t end = s->setup.staging_bytes; /* of the free space that begins at the head */

    assert(bytes <= s->setup.staging_bytes);
    while (oldest < s->issued && !arrival_at(s, oldest)->staged)
        oldest++;
    if (oldest == s->issued) {
        *begin = 0; /* it is empty */
        return true;
    }
    if (s->head <= arrival_at(s, oldest)->begin) end = arrival_at(s, oldest)->begin;
    *begin = s->head;
    if (s->head + bytes <= end) return true;
    *begin = 0;
    return s->head > arrival_at(s, oldest)->begin && bytes <= arrival_at(s, oldest)->begin;
}

static uint64_t largest_chunk(const struct cargo *cargo)
{
    return cargo->image_bytes < CARGO_CHUNK_BYTES ? cargo->image_bytes : CARGO_CHUNK_BYTES;
}

/* held. Whether the block's image is pinned, or will never be: then it may bounce. */
static bool settled(struct intake_state *s, int32_t position)
{
    bool pinned;

    if (!s->setup.kept[position] || !s->spans) return true;
    if (!pins_settled(&s->pins, s->span_of[position], &pinned)) return false;
    /* A ring that was planned for less has no room. */
    s->bounces[position] = !pinned && s->staging_pinned &&
                           largest_chunk(&s->setup.cargos[position]) <= s->setup.staging_bytes;
    return true;
}

static const struct cargo *next_cargo(const struct intake_state *s)
{
    return &s->setup.cargos[visits_position(&s->setup.visits, s->read_visit)];
}

/* The next chunk to read, or to take from its image. One that was packed is cut as files are. */
static struct arrival next_arrival(const struct intake_state *s)
{
    const int32_t position = visits_position(&s->setup.visits, s->read_visit);
    const struct cargo *cargo = next_cargo(s);
    const bool kept = s->setup.kept[position];
    const bool again = s->read_visit >= (uint64_t)s->setup.visits.first;
    struct arrival a = {.visit = s->read_visit,
        .position = position,
        .chunk = s->read_chunk,
        .packs = cargo->packs && !again,
        .bounces = kept && again,
        .staged = cargo->packs || !kept || again};

    if (cargo->packs && again) {
        a.at = (uint64_t)a.chunk * CARGO_CHUNK_BYTES;
        a.bytes = min_u64(cargo->image_bytes - a.at, CARGO_CHUNK_BYTES);
        a.last = a.at + a.bytes == cargo->image_bytes;
    } else {
        a.at = cargo->chunks[a.chunk].at;
        a.bytes = cargo->chunks[a.chunk].bytes;
        a.last = a.chunk == cargo->chunk_count - 1;
    }
    return a;
}

/* held. A place for the chunk; false: none yet. */
static bool place(struct intake_state *s, struct arrival *a)
{
    if (!settled(s, a->position)) return false;
    if (a->bounces && !is_there(s, a->position)) return false;
    if (!a->staged) {
        a->to = image_of(s, a->position) + a->at;
        return true;
    }
    if (!stage(s, a->bytes, &a->begin)) return false;
    a->to = s->staging + a->begin;
    s->head = a->begin + a->bytes;
    return true;
}

static enum shoal_status submit(
    struct intake_state *s, struct arrival *a, struct shoal_error *error)
{
    const struct cargo_chunk *chunk = &s->setup.cargos[a->position].chunks[a->chunk];

    return reader_submit(s->reader,
        &(struct read){.file = chunk->file,
            .offset = chunk->offset,
            .bytes = chunk->bytes,
            .least = chunk->least,
            .to = a->to,
            .tag = a},
        error);
}

/* held. Gives the reader every chunk that has a place; what bounces is there already. */
static enum shoal_status issue(struct intake_state *s, struct shoal_error *error)
{
    const struct visits *v = &s->setup.visits;
    int32_t passed = 0; /* visits in a row of which nothing is read */

    while (s->read_visit < s->setup.visits.total && s->issued - s->retired < s->room) {
        struct arrival *a = arrival_at(s, s->issued);
        struct event *copied = a->copied;

        if (s->read_visit < s->dropped && s->read_visit >= (uint64_t)v->first) {
            s->read_visit = s->dropped;
            s->read_chunk = 0;
            continue;
        }
        if (!arrives(s, s->read_visit) || !next_cargo(s)->chunk_count) {
            /* After a walk without any, none will come: there may be no end of walks. */
            const bool none = ++passed > v->first && s->read_visit >= (uint64_t)v->first;

            s->read_visit = none ? v->total : s->read_visit + 1;
            continue;
        }
        passed = 0;
        *a = next_arrival(s);
        a->copied = copied;
        if (!place(s, a)) return SHOAL_OK;
        a->complete = a->bounces;
        s->read_chunk = a->last ? 0 : a->chunk + 1;
        s->read_visit += a->last;
        s->issued++;
        if (!a->bounces) TRY(submit(s, a, error));
    }
    return SHOAL_OK;
}

/* Looks at what a read brought: values on the first visit, headers of payloads on all of them, the
 * file's identity at a block's end. */
static enum shoal_status check_arrival(
    const struct intake_state *s, const struct arrival *a, struct shoal_error *error)
{
    const struct cargo *cargo = &s->setup.cargos[a->position];
    const struct cargo_chunk *chunk = &cargo->chunks[a->chunk];

    if (a->visit < (uint64_t)s->setup.visits.first)
        TRY(cargo_check(cargo, chunk, a->to, s->sum, error));
    else
        TRY(cargo_check_again(cargo, chunk, a->to, error));
    if (a->last) TRY(file_check_unchanged(chunk->file, error));
    return SHOAL_OK;
}

/* Whether it is the first of a block whose image is the spare one. */
static bool begins_spare(const struct intake_state *s, const struct arrival *a)
{
    return a->packs && !a->chunk && !s->setup.kept[a->position];
}

/* held. Whether the next chunk is there and can be handed out: an image of a resident begins when
 * the one before has been copied. */
static bool acceptable(const struct intake_state *s)
{
    const struct arrival *a = arrival_at(s, s->accepted);

    if (s->accepted == s->issued || !a->complete) return false;
    return !begins_spare(s, a) ||
           (!s->spare_used && s->setup.device->ops->event_happened(s->spare_copied));
}

static enum shoal_status make_pool(struct intake_state *s, struct shoal_error *error)
{
    const bool card = s->setup.device->ops->host_register != NULL;

    if (s->pool) return SHOAL_OK;
    return pool_create(&s->pool, intake_workers(s->setup.threads, card), error);
}

static enum shoal_status look_and_pack(
    struct intake_state *s, const struct arrival *a, struct shoal_error *error)
{
    const struct cargo *cargo = &s->setup.cargos[a->position];

    TRY(check_arrival(s, a, error));
    if (!a->packs) return SHOAL_OK;
    TRY(make_pool(s, error));
    s->packer.pool = s->pool;
    return cargo_pack(
        cargo, &cargo->chunks[a->chunk], a->to, &s->packer, image_of(s, a->position), error);
}

/* held. How many of the next chunks bounce at once, into the bytes from the first one's on: not
 * more than half of the ring, so that others are copied to the device meanwhile. */
static uint64_t count_bounced(const struct intake_state *s, uint64_t *bytes)
{
    const struct arrival *first = arrival_at(s, s->accepted);
    uint64_t count = 0;

    *bytes = 0;
    while (count < MOST_BOUNCED && s->accepted + count < s->issued) {
        const struct arrival *a = arrival_at(s, s->accepted + count);

        if (!a->bounces || a->visit != first->visit || a->to != first->to + *bytes) break;
        if (count && 2 * (*bytes + a->bytes) > s->setup.staging_bytes) break;
        *bytes += a->bytes;
        count++;
    }
    return count;
}

static enum shoal_status bounce(
    struct intake_state *s, const struct arrival *a, uint64_t bytes, struct shoal_error *error)
{
    TRY(make_pool(s, error));
    pool_copy(s->pool, a->to, image_of(s, a->position) + a->at, bytes);
    return SHOAL_OK;
}

/* ---- handing out ---- */

/* held, but not while it looks, packs and copies. Hands out the next chunk, which is acceptable, or
 * some that bounce. */
static enum shoal_status accept(struct intake *intake, struct shoal_error *error)
{
    struct intake_state *s = intake->state;
    const struct arrival *first = arrival_at(s, s->accepted);
    uint64_t bytes;
    const uint64_t bounced = count_bounced(s, &bytes);
    const uint64_t end = s->accepted + (bounced ? bounced : 1);
    enum shoal_status status;

    if (begins_spare(s, first)) s->spare_used = true;
    mutex_unlock(&intake->mutex);
    status = bounced ? bounce(s, first, bytes, error) : look_and_pack(s, first, error);
    mutex_lock(&intake->mutex);
    if (status) return status;
    for (; s->accepted < end; s->accepted++) {
        const struct arrival *a = arrival_at(s, s->accepted);

        if (a->last) s->arrived = a->visit + 1;
        if (!bounced) s->read_bytes += a->bytes;
    }
    pass(s);
    snprintf(s->reads, sizeof s->reads, "%s", reader_describe(s->reader));
    s->setup.arrived(s->setup.user);
    return SHOAL_OK;
}

/* Not held: takes every completion there is, after waiting for the first. */
static enum shoal_status collect(struct intake *intake, struct shoal_error *error)
{
    struct intake_state *s = intake->state;
    struct read done;

    for (bool wait = true; reader_next(s->reader, wait, &done, error); wait = false) {
        struct arrival *a = done.tag;

        if (done.status) {
            error_prefix(error, "block %s: ", s->setup.cargos[a->position].block->name);
            return done.status;
        }
        trace_add(s->setup.trace, TRACE_READ, s->setup.cargos[a->position].block->name,
            done.begin_ns, done.end_ns, done.bytes);
        a->complete = true;
    }
    return SHOAL_OK;
}

/* held. Waits for a copy under way if only that makes room, for chunks or for a resident's image.
 * False: it does not. */
static bool await_copy(struct intake *intake)
{
    struct intake_state *s = intake->state;
    const struct arrival *next = arrival_at(s, s->accepted);

    if (s->taken == s->issued && s->retired < s->taken) {
        retire(intake, true);
        return true;
    }
    if (s->accepted == s->issued || !next->complete || !begins_spare(s, next) || s->spare_used)
        return false;
    mutex_unlock(&intake->mutex);
    s->setup.device->ops->event_synchronize(s->spare_copied);
    mutex_lock(&intake->mutex);
    return true;
}

/* held. Whether nothing is left to read. */
static bool finished(const struct intake_state *s)
{
    return s->read_visit == s->setup.visits.total && s->taken == s->issued;
}

static void read_ahead(void *arg)
{
    struct intake *intake = arg;
    struct intake_state *s = intake->state;
    struct shoal_error error = {0};
    enum shoal_status status = SHOAL_OK;
    struct checksum sum;

    s->sum = &sum;
    mutex_lock(&intake->mutex);
    while (!s->stop && !status && !finished(s)) {
        retire(intake, false);
        status = issue(s, &error);
        if (status) break;
        if (acceptable(s)) {
            status = accept(intake, &error);
            continue;
        }
        if (await_copy(intake)) continue;
        mutex_unlock(&intake->mutex);
        status = collect(intake, &error);
        mutex_lock(&intake->mutex);
    }
    s->ended = true;
    if (status) {
        intake->failed = error;
        intake->outgrown = s->packer.outgrown;
        s->setup.arrived(s->setup.user);
    }
    mutex_unlock(&intake->mutex);
}

/* ---- lifetime ---- */

static uint64_t host_bytes(const struct intake_state *s)
{
    return s->shelf_bytes + s->setup.staging_bytes + s->spare_bytes;
}

/* Large pages: with small ones a drive's transfers take twice the time. */
static bool take_pages(uint64_t bytes, char **pages)
{
    if (!bytes) return true;
    *pages = pages_alloc(bytes);
    if (*pages) pages_want_large(*pages, bytes);
    return *pages != NULL;
}

static enum shoal_status reserve(struct intake_state *s, struct shoal_error *error)
{
    int32_t positions = s->setup.visits.block_count + 1;

    s->image_at = mem_calloc((size_t)positions, sizeof *s->image_at);
    if (!s->image_at) FAIL_MEMORY(error);
    for (int32_t i = 0; i < positions; i++) {
        const struct cargo *cargo = &s->setup.cargos[i];

        if (!s->setup.kept[i]) {
            if (cargo->packs && cargo->image_bytes > s->spare_bytes)
                s->spare_bytes = cargo->image_bytes;
            continue;
        }
        s->image_at[i] = s->shelf_bytes;
        s->shelf_bytes += cargo->image_bytes;
    }
    if (!take_pages(s->shelf_bytes, &s->shelf) ||
        !take_pages(s->setup.staging_bytes, &s->staging) || !take_pages(s->spare_bytes, &s->spare))
        FAIL(error, SHOAL_E_MEMORY,
            "out of host memory for %llu bytes of weights: give less with --ram",
            (unsigned long long)host_bytes(s));
    return SHOAL_OK;
}

static void pins_advanced(void *user)
{
    intake_kick(user);
}

/* Pins a span that all depend on. What is not pinned works, only slower. */
static bool pin(struct intake_state *s, char *pages, uint64_t bytes)
{
    struct device *device = s->setup.device;
    struct shoal_error error = {0};

    if (!bytes || s->setup.pin == SHOAL_PIN_OFF || !device->ops->host_register) return false;
    if (device->ops->host_register(device, pages, bytes, &error) == SHOAL_OK) return true;
    if (!s->unpinned.status) s->unpinned = error;
    return false;
}

/* The images are pinned in the order of their first visits, which is that of positions. */
static enum shoal_status list_spans(struct intake_state *s, struct shoal_error *error)
{
    int32_t positions = s->setup.visits.block_count + 1;

    if (!s->shelf_bytes || !s->setup.device->ops->host_register || s->setup.pin == SHOAL_PIN_OFF)
        return SHOAL_OK;
    s->spans = mem_calloc((size_t)positions, sizeof *s->spans);
    s->span_of = mem_calloc((size_t)positions, sizeof *s->span_of);
    if (!s->spans || !s->span_of) FAIL_MEMORY(error);
    for (int32_t i = 0; i < positions; i++) {
        if (!s->setup.kept[i]) continue;
        s->span_of[i] = s->pins.count;
        s->spans[s->pins.count++] =
            (struct pins_span){image_of(s, i), s->setup.cargos[i].image_bytes};
    }
    return SHOAL_OK;
}

/* Begins pinning what is to be pinned. */
static enum shoal_status start_pins(struct intake *intake, struct shoal_error *error)
{
    struct intake_state *s = intake->state;

    s->bounces = mem_calloc((size_t)s->setup.visits.block_count + 1, sizeof *s->bounces);
    if (!s->bounces) FAIL_MEMORY(error);
    s->staging_pinned = pin(s, s->staging, s->setup.staging_bytes);
    s->spare_pinned = pin(s, s->spare, s->spare_bytes);
    TRY(list_spans(s, error));
    s->pins.ended = !s->spans || s->setup.pin != SHOAL_PIN_ON;
    if (s->pins.ended) return SHOAL_OK;
    s->pins.device = s->setup.device;
    s->pins.spans = s->spans;
    s->pins.mutex = &intake->mutex;
    s->pins.advanced = pins_advanced;
    s->pins.user = intake;
    return pins_open(&s->pins, error);
}

static enum shoal_status create_spare_event(struct intake_state *s, struct shoal_error *error)
{
    const struct device_ops *ops = s->setup.device->ops;
    bool packs = false;

    for (int32_t i = 0; i < s->setup.visits.block_count; i++)
        packs = packs || s->setup.cargos[i].packs;
    if (!packs) return SHOAL_OK;
    return ops->event_create(s->setup.device, &s->spare_copied, error);
}

/* As many as the staging ring holds, and some for the RAM tier; a run's last chunk may be small. */
static enum shoal_status create_arrivals(struct intake_state *s, struct shoal_error *error)
{
    const struct device_ops *ops = s->setup.device->ops;

    s->room = LEAST_READS + 2 * (s->setup.staging_bytes / CARGO_CHUNK_BYTES);
    if (s->room > MOST_READS) s->room = MOST_READS;
    s->arrivals = mem_calloc((size_t)s->room, sizeof *s->arrivals);
    if (!s->arrivals) FAIL_MEMORY(error);
    for (uint64_t i = 0; i < s->room; i++)
        TRY(ops->event_create(s->setup.device, &s->arrivals[i].copied, error));
    return SHOAL_OK;
}

enum shoal_status intake_open(
    struct intake *intake, const struct intake_setup *setup, struct shoal_error *error)
{
    struct intake_state *s = mem_calloc(1, sizeof *s);
    enum shoal_status status;

    *intake = (struct intake){.state = s};
    if (!s) FAIL_MEMORY(error);
    s->setup = *setup;
    mutex_init(&intake->mutex);
    cond_init(&intake->changed);
    TRY_OR_FAIL(reserve(s, error));
    TRY_OR_FAIL(create_arrivals(s, error));
    TRY_OR_FAIL(create_spare_event(s, error));
    TRY_OR_FAIL(reader_create(&s->reader, setup->backend, DEPTH, error));
    TRY_OR_FAIL(start_pins(intake, error));
    TRY_OR_FAIL(thread_start(&s->thread, read_ahead, intake, error));
    s->started = true;
    return SHOAL_OK;
fail:
    intake_close(intake);
    return status;
}

void intake_stop(struct intake *intake)
{
    struct intake_state *s = intake->state;

    if (!s) return;
    if (s->started) {
        mutex_lock(&intake->mutex);
        s->stop = true;
        mutex_unlock(&intake->mutex);
        reader_wake(s->reader);
        thread_join(&s->thread);
        s->started = false;
    }
    pins_stop(&s->pins);
    reader_destroy(&s->reader);
}

void intake_close(struct intake *intake)
{
    struct intake_state *s = intake->state;

    if (!s) return;
    intake_stop(intake);
    pins_close(&s->pins);
    if (s->staging_pinned) s->setup.device->ops->host_unregister(s->setup.device, s->staging);
    if (s->spare_pinned) s->setup.device->ops->host_unregister(s->setup.device, s->spare);
    for (uint64_t i = 0; s->arrivals && i < s->room; i++)
        if (s->arrivals[i].copied) s->setup.device->ops->event_destroy(&s->arrivals[i].copied);
    if (s->spare_copied) s->setup.device->ops->event_destroy(&s->spare_copied);
    pool_destroy(&s->pool);
    mem_free(s->arrivals);
    mem_free(s->spans);
    mem_free(s->span_of);
    mem_free(s->bounces);
    pages_free(s->spare, s->spare_bytes);
    pages_free(s->shelf, s->shelf_bytes);
    pages_free(s->staging, s->setup.staging_bytes);
    cond_fini(&intake->changed);
    mutex_fini(&intake->mutex);
    mem_free(s->image_at);
    mem_free(s);
    *intake = (struct intake){0};
}

void intake_kick(struct intake *intake)
{
    if (!intake->state->ended) reader_wake(intake->state->reader);
}

void intake_describe(struct intake *intake, char *text, size_t bytes)
{
    mutex_lock(&intake->mutex);
    snprintf(text, bytes, "%s", intake->state->reads);
    mutex_unlock(&intake->mutex);
}

struct intake_stats intake_stats(struct intake *intake)
{
    struct intake_state *s = intake->state;
    struct intake_stats stats;

    mutex_lock(&intake->mutex);
    stats = (struct intake_stats){.read_bytes = s->read_bytes, .host_bytes = host_bytes(s)};
    stats.pinned_bytes =
        (s->staging_pinned ? s->setup.staging_bytes : 0) + (s->spare_pinned ? s->spare_bytes : 0);
    for (int32_t i = 0; i < s->pins.done; i++)
        stats.pinned_bytes += s->spans[i].bytes;
    stats.unpinned = s->unpinned.status ? s->unpinned : s->pins.error;
    mutex_unlock(&intake->mutex);
    return stats;
}
