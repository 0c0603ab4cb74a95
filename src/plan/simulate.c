/* The queues of a phase. */
#include "plan/simulate.h"

#include "base/ring.h"

#include <math.h>

#define MOST_WALKS 6     /* simulated to find a steady walk */
#define STEADY 0.001     /* two walks that differ by less are steady */
#define COPIES_KEPT 128u /* of the staging ring's past */

/* A copy out of the staging ring. */
struct copy {
    double begin_bytes, end_bytes; /* of all that was ever staged */
    double begin, end;             /* seconds */
};

struct simulation {
    const struct plan_input *in;
    const struct rates *rates;
    const struct plan_phase *phase;
    /* When each is done with all that it was given, in seconds. */
    double disk, packer, link, compute;

    struct ring ring;
    uint64_t streamed; /* visits placed in it */
    /* Of streamed visit v at v % RING_MAX_SPANS: when its bytes may be overwritten. */
    double released[RING_MAX_SPANS];

    double staging_bytes, staged_bytes; /* its size; all that ever went through */
    struct copy copies[COPIES_KEPT];    /* a queue */
    uint32_t copy_first, copy_end;
};

/* What crosses for one visit. */
struct transfer {
    double read_bytes; /* 0: it lies in RAM */
    double copy_bytes;
    bool staged;       /* read into the staging ring, not into an image that stays */
    double pack_bytes; /* that go through the encoder in between */
    double room;       /* when there is room for it on the device, in seconds */
};

/* When so many bytes of all that was staged have left the staging ring. Asked in rising order. */
static double left_staging(struct simulation *s, double bytes)
{
    const struct copy *c;

    if (bytes <= 0 || s->copy_first == s->copy_end) return 0;
    while (
        s->copy_first + 1 < s->copy_end && s->copies[s->copy_first % COPIES_KEPT].end_bytes < bytes)
        s->copy_first++;
    c = &s->copies[s->copy_first % COPIES_KEPT];
    if (bytes >= c->end_bytes) return c->end;
    if (bytes <= c->begin_bytes) return c->begin;
    return c->begin +
           (c->end - c->begin) * (bytes - c->begin_bytes) / (c->end_bytes - c->begin_bytes);
}

static void keep_copy(struct simulation *s, double bytes, double begin, double end)
{
    if (s->copy_end - s->copy_first == COPIES_KEPT) s->copy_first++;
    s->copies[s->copy_end++ % COPIES_KEPT] =
        (struct copy){s->staged_bytes, s->staged_bytes + bytes, begin, end};
    s->staged_bytes += bytes;
}

static double first_chunk(double bytes)
{
    return fmin(bytes, PLAN_CHUNK_BYTES);
}

/* Of as many chunks as `read_bytes` take. */
static double last_chunk(double bytes, double read_bytes)
{
    double whole = floor((read_bytes - 1) / PLAN_CHUNK_BYTES) * PLAN_CHUNK_BYTES;

    return bytes * (1 - whole / read_bytes);
}

/* When `bytes` can have been read into the staging ring, after all that was staged before. */
static double after_others(const struct simulation *s, double bytes)
{
    const double disk_rate = s->rates->disk_bytes, free = s->staged_bytes - s->staging_bytes;
    double seconds = 0;

    /* Each copy, once it begins, makes room for what follows. */
    for (uint32_t i = s->copy_first; i != s->copy_end; i++) {
        const struct copy *c = &s->copies[i % COPIES_KEPT];
        double before = fmax(c->begin_bytes - free, 0);
        double chunk = first_chunk(c->end_bytes - c->begin_bytes);

        if (c->end_bytes <= free) continue;
        if (before >= bytes) break;
        seconds =
            fmax(seconds, c->begin + chunk / s->rates->link_bytes + (bytes - before) / disk_rate);
        if (c->end_bytes - free <= bytes)
            seconds = fmax(seconds, c->end + (bytes - (c->end_bytes - free) + chunk) / disk_rate);
    }
    return seconds;
}

/* Reads what lies on disk and copies it to the device; returns when it is all there. */
static double transfer(struct simulation *s, const struct transfer *t)
{
    const double disk_rate = s->rates->disk_bytes, link_rate = s->rates->link_bytes;
    double begin = fmax(s->link, t->room), read, arrived;
    const double copy_seconds = t->copy_bytes / link_rate;

    if (t->read_bytes <= 0) return s->link = begin + copy_seconds;

    const double read_chunk = first_chunk(t->read_bytes) / disk_rate;
    const double copy_chunk = first_chunk(t->copy_bytes) / link_rate;
    const double copy_last = last_chunk(t->copy_bytes, t->read_bytes) / link_rate;
    const double ahead = fmin(t->read_bytes, s->staging_bytes);

    read = s->disk;
    if (t->staged)
        read = fmax(
            read, left_staging(s, s->staged_bytes + first_chunk(t->read_bytes) - s->staging_bytes));
    arrived = read + t->read_bytes / disk_rate;
    begin = fmax(begin, read + read_chunk);
    if (t->staged) {
        double rest = (t->read_bytes - ahead) / disk_rate;

        /* What fits waits for the copies of blocks before... */
        arrived = fmax(arrived, after_others(s, ahead) + rest);
        /* ...and what does not fit for this block's own copy. */
        if (rest > 0)
            arrived = fmax(arrived,
                begin + fmax(copy_chunk + rest, (t->read_bytes - ahead) / link_rate + read_chunk));
        keep_copy(s, t->read_bytes, begin, fmax(begin + copy_seconds, arrived + copy_last));
    }
    s->disk = arrived;
    if (t->pack_bytes > 0) {
        s->packer = fmax(s->packer, read + read_chunk) + t->pack_bytes / s->rates->pack_bytes;
        arrived = fmax(arrived, s->packer);
    }
    return s->link = fmax(begin + copy_seconds, arrived + copy_last);
}

/* One block of one walk. `tax` stretches the arithmetic. */
static void visit(struct simulation *s, int32_t index, bool first, double tax)
{
    const struct plan_block_input *block = &s->in->blocks[index];
    const struct plan_placement at = s->phase->blocks[index];
    const bool packs = at.packed && s->in->source == PLAN_SOURCE_RAW;
    struct transfer t = {.copy_bytes = (double)simulate_form(block, at)->bytes};
    const bool once = first && (block->crossing_bytes ||
                                   (s->in->source == PLAN_SOURCE_PACKED && block->packed.bytes));
    double ready = 0, freed, unpack_seconds = 0;

    if (!at.resident) {
        uint64_t offset, retired[RING_MAX_SPANS];
        int32_t count;

        /* Which blocks must have been computed does not depend on time. */
        ring_place(&s->ring, simulate_form(block, at)->bytes, s->streamed, UINT64_MAX, &offset,
            retired, &count);
        if (count) t.room = s->released[retired[count - 1] % RING_MAX_SPANS];
    }
    if (first) {
        t.read_bytes = (double)simulate_first_read(block, s->in->source);
        if (packs) t.pack_bytes = (double)block->raw.bytes;
        /* What is packed on the way is staged too, but the encoder takes it out at once. */
        t.staged = (at.resident || at.disk) && !packs;
    } else if (at.disk) {
        t.read_bytes = (double)simulate_form(block, at)->host_bytes;
        t.staged = true;
    }
    if (first || !at.resident) ready = transfer(s, &t);
    if (at.packed || once) unpack_seconds = tax * plan_open_seconds(block, s->rates);
    /* Copies follow what unpacks: it is faster than they are. */
    freed = fmax(s->compute, ready) + unpack_seconds / RING_PARTS;
    s->compute = fmax(s->compute, ready) + unpack_seconds + tax * block->compute_seconds;
    if (!at.resident) s->released[s->streamed++ % RING_MAX_SPANS] = at.packed ? freed : s->compute;
}

static double walk(struct simulation *s, bool first, double tax)
{
    for (int32_t i = 0; i < s->in->block_count; i++)
        visit(s, i, first, tax);
    return s->compute;
}

/* How long each queue is busy in a walk. */
struct busy {
    double compute, link, disk, tax;
};

static struct busy busy_of(const struct rates *rates, const struct plan_phase *phase, bool first)
{
    double loaded = first ? (double)phase->globals_bytes + (double)phase->resident_bytes : 0;
    struct busy b = {
        .compute = phase->compute_seconds,
        .link = ((double)phase->stream_bytes + loaded) / rates->link_bytes,
        .disk = (double)(first ? phase->first_disk_bytes : phase->disk_bytes) / rates->disk_bytes,
    };

    /* Arithmetic takes longer for as long as copies and reads go on beside it. */
    b.tax = 1;
    if (b.compute > 0)
        b.tax += rates->copy_tax * fmin(1, b.link / b.compute) +
                 rates->read_tax * fmin(1, b.disk / b.compute);
    b.compute *= b.tax;
    return b;
}

static double longest(struct busy b)
{
    return fmax(b.compute, fmax(b.link, b.disk));
}

double simulate_bound(
    const struct plan_input *in, const struct rates *rates, const struct plan_phase *phase)
{
    return longest(busy_of(rates, phase, true)) +
           (double)(in->walks - 1) * longest(busy_of(rates, phase, false));
}

void simulate(const struct plan_input *in, const struct rates *rates, struct plan_phase *phase)
{
    const double chunk = (double)PLAN_CHUNK_BYTES / (PLAN_CHUNK_BYTES + PLAN_CHUNK_SLOP_BYTES);
    const struct busy first = busy_of(rates, phase, true), later = busy_of(rates, phase, false);
    struct busy shown = in->walks > 1 ? later : first;
    struct simulation s = {.in = in,
        .rates = rates,
        .phase = phase,
        .staging_bytes = (double)phase->staging_bytes * chunk};
    double before, last = 0, steady = 0;
    int64_t i = 1;

    ring_init(&s.ring, phase->ring_bytes);
    if (in->globals.bytes)
        s.compute = transfer(&s, &(struct transfer){.read_bytes = (double)in->globals.host_bytes,
                                     .copy_bytes = (double)in->globals.bytes,
                                     .staged = true});
    before = phase->first_walk_seconds = phase->walk_seconds = walk(&s, true, first.tax);
    while (i < in->walks && i < MOST_WALKS) {
        last = steady;
        steady = walk(&s, false, later.tax) - before;
        before = s.compute;
        i++;
        if (fabs(steady - last) <= STEADY * steady) break;
    }
    phase->seconds = before + (double)(in->walks - i) * steady;
    if (in->walks > 1)
        phase->walk_seconds =
            (phase->seconds - phase->first_walk_seconds) / (double)(in->walks - 1);
    phase->limit = shown.disk > shown.link && shown.disk > shown.compute ? PLAN_LIMIT_DISK
                   : shown.link > shown.compute                          ? PLAN_LIMIT_LINK
                                                                         : PLAN_LIMIT_COMPUTE;
}
