/* The weight ring's placement. */
#include "base/ring.h"

#include <assert.h>

void ring_init(struct ring *ring, uint64_t bytes)
{
    *ring = (struct ring){.bytes = bytes};
}

static const struct ring_span *span_at(const struct ring *ring, int32_t index)
{
    return &ring->spans[(ring->first + index) % RING_MAX_SPANS];
}

bool ring_place(struct ring *ring, uint64_t bytes, uint64_t visit, uint64_t released,
    uint64_t *offset, uint64_t *retired, int32_t *retired_count)
{
    uint64_t begin = ring->head + bytes <= ring->bytes ? ring->head : 0;
    int32_t retire = ring->count == RING_MAX_SPANS ? 1 : 0;

    assert(bytes <= ring->bytes);
    /* Everything up to the newest block that overlaps goes: ages are in ring order. */
    for (int32_t i = 0; i < ring->count; i++) {
        const struct ring_span *span = span_at(ring, i);

        if (span->begin < begin + bytes && begin < span->end) retire = i + 1;
    }
    for (int32_t i = 0; i < retire; i++)
        if (span_at(ring, i)->visit >= released) return false;
    for (int32_t i = 0; i < retire; i++)
        retired[i] = span_at(ring, i)->visit;
    *retired_count = retire;
    ring->first = (ring->first + retire) % RING_MAX_SPANS;
    ring->count -= retire;
    ring->spans[(ring->first + ring->count) % RING_MAX_SPANS] =
        (struct ring_span){begin, begin + bytes, visit};
    ring->count++;
    ring->head = begin + bytes;
    *offset = begin;
    return true;
}

uint64_t ring_offset(const struct ring *ring, uint64_t visit)
{
    for (int32_t i = 0; i < ring->count; i++)
        if (span_at(ring, i)->visit == visit) return span_at(ring, i)->begin;
    assert(false && "the visit is not in the ring");
    return 0;
}
