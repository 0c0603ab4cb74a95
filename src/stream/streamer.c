/* The streamer. */
#include "stream/streamer.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/ring.h"
#include "base/size.h"

#include <assert.h>

/* Copies go in pieces, so that a teardown or another copy never waits for a whole block. */
#define COPY_PIECE_BYTES (16u << 20)

struct streamer {
    struct streamer_setup setup;
    struct store *store;
    struct stream *copy;
    struct event *ready[RING_MAX_SPANS],
        *freed[RING_MAX_SPANS]; /* of visit v at v % RING_MAX_SPANS */
    struct ring ring;
    device_addr globals, ring_addr;
    device_addr *resident; /* [pass->count]; 0: streamed */
    int32_t *streamed;     /* positions in the pass of the streamed blocks */
    int32_t streamed_count;
    uint64_t visits; /* streamed visits in all walks */
    uint64_t given;  /* visits whose copy was given to the copy stream */
    uint64_t acquired, released;
    struct streamer_stats stats;
};

static const struct block *block_at(const struct streamer *s, int32_t position)
{
    return &s->setup.model->blocks[s->setup.pass->first + position];
}

static void copy_block(struct streamer *s, struct stream *stream, device_addr to, int32_t index)
{
    const struct device_ops *ops = s->setup.arena->device->ops;
    const char *from = store_slab(s->store, index);
    uint64_t bytes = s->setup.model->blocks[index].bytes;

    for (uint64_t done = 0; done < bytes; done += COPY_PIECE_BYTES) {
        uint64_t left = bytes - done;

        ops->copy_in(
            stream, to + done, from + done, left < COPY_PIECE_BYTES ? left : COPY_PIECE_BYTES);
    }
    s->stats.copied_bytes += bytes;
}

/* Gives the copy stream every visit that fits now. */
static void fetch_ahead(struct streamer *s)
{
    const struct device_ops *ops = s->setup.arena->device->ops;

    while (s->given < s->visits) {
        int32_t position = s->streamed[s->given % (uint64_t)s->streamed_count];
        uint64_t offset, retired[RING_MAX_SPANS];
        int32_t retired_count;

        if (!ring_place(&s->ring, block_at(s, position)->bytes, s->given, s->released, &offset,
                retired, &retired_count))
            return;
        for (int32_t i = 0; i < retired_count; i++)
            ops->event_wait(s->copy, s->freed[retired[i] % RING_MAX_SPANS]);
        copy_block(s, s->copy, s->ring_addr + offset, s->setup.pass->first + position);
        ops->event_record(s->copy, s->ready[s->given % RING_MAX_SPANS]);
        s->given++;
    }
}

/* Loads a block, copies it to its own place at the arena's bottom, and drops the host's copy. */
static enum shoal_status place_resident(
    struct streamer *s, int32_t index, device_addr *addr, struct shoal_error *error)
{
    struct arena *arena = s->setup.arena;
    uint64_t start = clock_ns();
    enum shoal_status status;

    TRY(arena_take(arena, s->setup.model->blocks[index].bytes, addr, error));
    status = store_load(s->store, index, error);
    s->stats.load_ns += clock_ns() - start;
    if (status) return status;
    copy_block(s, s->setup.compute, *addr, index);
    s->stats.resident_bytes = s->stats.copied_bytes;
    status = arena->device->ops->stream_synchronize(s->setup.compute, error);
    store_drop(s->store, index);
    return status;
}

static enum shoal_status check_cancelled(struct streamer *s, struct shoal_error *error)
{
    if (s->setup.cancelled && s->setup.cancelled(s->setup.user))
        FAIL(error, SHOAL_E_CANCELLED, "cancelled");
    return SHOAL_OK;
}

/* Residents first, so that the shelf holds the streamed blocks only. */
static enum shoal_status place_residents(struct streamer *s, struct shoal_error *error)
{
    const struct pass *pass = s->setup.pass;

    if (pass->globals >= 0) TRY(place_resident(s, pass->globals, &s->globals, error));
    for (int32_t i = 0; i < pass->count; i++) {
        if (!s->setup.resident[i]) continue;
        TRY(check_cancelled(s, error));
        TRY(place_resident(s, pass->first + i, &s->resident[i], error));
    }
    return SHOAL_OK;
}

static enum shoal_status load_streamed(struct streamer *s, struct shoal_error *error)
{
    uint64_t start = clock_ns(), bytes = 0;

    for (int32_t i = 0; i < s->setup.pass->count; i++) {
        if (s->setup.resident[i]) continue;
        s->streamed[s->streamed_count++] = i;
        bytes += size_align(block_at(s, i)->bytes, HOST_PAGE_BYTES);
    }
    TRY(store_reserve(s->store, bytes, error));
    for (int32_t i = 0; i < s->streamed_count; i++) {
        TRY(check_cancelled(s, error));
        TRY(store_load(s->store, s->setup.pass->first + s->streamed[i], error));
    }
    s->stats.load_ns += clock_ns() - start;
    s->visits = (uint64_t)s->streamed_count * (uint64_t)s->setup.walks;
    return SHOAL_OK;
}

enum shoal_status streamer_create(
    struct streamer **streamer, const struct streamer_setup *setup, struct shoal_error *error)
{
    struct device *device = setup->arena->device;
    size_t count = (size_t)setup->pass->count;
    struct streamer *s = mem_calloc(1, sizeof *s);
    enum shoal_status status;

    if (!s) FAIL_MEMORY(error);
    s->setup = *setup;
    s->resident = mem_calloc(count, sizeof *s->resident);
    s->streamed = mem_calloc(count, sizeof *s->streamed);
    if (!s->resident || !s->streamed) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    TRY_OR_FAIL(store_create(&s->store, setup->model, error));
    TRY_OR_FAIL(device->ops->stream_create(device, true, &s->copy, error));
    for (int i = 0; i < RING_MAX_SPANS; i++) {
        TRY_OR_FAIL(device->ops->event_create(device, &s->ready[i], error));
        TRY_OR_FAIL(device->ops->event_create(device, &s->freed[i], error));
    }
    TRY_OR_FAIL(place_residents(s, error));
    TRY_OR_FAIL(load_streamed(s, error));
    TRY_OR_FAIL(arena_take(setup->arena, setup->ring_bytes, &s->ring_addr, error));
    ring_init(&s->ring, setup->ring_bytes);
    fetch_ahead(s);
    *streamer = s;
    return SHOAL_OK;
fail:
    streamer_destroy(&s);
    return status;
}

void streamer_destroy(struct streamer **streamer)
{
    struct streamer *s = *streamer;
    const struct device_ops *ops;

    if (!s) return;
    ops = s->setup.arena->device->ops;
    /* The copies read the slabs and await the events: they end first. */
    if (s->copy) ops->stream_destroy(&s->copy);
    for (int i = 0; i < RING_MAX_SPANS; i++) {
        if (s->ready[i]) ops->event_destroy(&s->ready[i]);
        if (s->freed[i]) ops->event_destroy(&s->freed[i]);
    }
    store_destroy(&s->store);
    mem_free(s->resident);
    mem_free(s->streamed);
    mem_free(s);
    *streamer = NULL;
}

device_addr streamer_globals(const struct streamer *s)
{
    return s->globals;
}

device_addr streamer_acquire(struct streamer *s, int32_t index)
{
    int32_t position = index - s->setup.pass->first;
    uint64_t visit = s->acquired;

    if (s->resident[position]) return s->resident[position];
    assert(s->streamed[visit % (uint64_t)s->streamed_count] == position && visit < s->given);
    s->acquired++;
    s->setup.arena->device->ops->event_wait(s->setup.compute, s->ready[visit % RING_MAX_SPANS]);
    return s->ring_addr + ring_offset(&s->ring, visit);
}

void streamer_release(struct streamer *s, int32_t index)
{
    if (s->resident[index - s->setup.pass->first]) return;
    s->setup.arena->device->ops->event_record(
        s->setup.compute, s->freed[s->released % RING_MAX_SPANS]);
    s->released++;
    fetch_ahead(s);
}

enum shoal_status streamer_check(struct streamer *s, struct shoal_error *error)
{
    return s->setup.arena->device->ops->stream_synchronize(s->copy, error);
}

struct streamer_stats streamer_stats(const struct streamer *s)
{
    struct streamer_stats stats = s->stats;

    stats.ram_bytes = store_peak_bytes(s->store);
    return stats;
}
