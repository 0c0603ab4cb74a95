/* Berths in the weight ring. */
#include "stream/berths.h"

#include "base/size.h"

#include <assert.h>

#define BERTHS (2 * RING_MAX_SPANS)

enum shoal_status berths_open(struct berths *b, struct device *device, device_addr ring_addr,
    uint64_t ring_bytes, struct shoal_error *error)
{
    *b = (struct berths){.device = device, .ring_addr = ring_addr};
    ring_init(&b->ring, ring_bytes);
    for (int i = 0; i < BERTHS; i++)
        for (int part = 0; part < RING_PARTS; part++)
            TRY(device->ops->event_create(device, &b->list[i].freed[part], error));
    return SHOAL_OK;
}

void berths_close(struct berths *b)
{
    for (int i = 0; i < BERTHS; i++)
        for (int part = 0; part < RING_PARTS; part++)
            if (b->list[i].freed[part]) b->device->ops->event_destroy(&b->list[i].freed[part]);
    *b = (struct berths){0};
}

static struct berth *berth_at(struct berths *b, uint64_t number)
{
    return &b->list[number % BERTHS];
}

/* Where the ring ended in between, older berths lie behind younger ones: who has waited for these
 * has waited for those. */
static void set_hurdles(struct berths *b, const uint64_t *retired, int32_t count)
{
    b->hurdle_count = b->hurdle = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct berth *berth = berth_at(b, retired[i]);
        device_addr from = berth->span;

        for (int32_t part = 0; part < berth->parts; from = berth->ends[part++])
            b->hurdles[b->hurdle_count++] = (struct hurdle){from, berth->freed[part]};
    }
    for (int32_t i = b->hurdle_count - 1; i > 0; i--)
        b->hurdles[i - 1].at = min_u64(b->hurdles[i - 1].at, b->hurdles[i].at);
}

struct berth *berths_place(struct berths *b, uint64_t bytes)
{
    uint64_t offset, retired[RING_MAX_SPANS];
    struct berth *berth;
    int32_t count;

    assert(b->hurdle == b->hurdle_count);
    if (!ring_place(&b->ring, bytes, b->placed, b->released, &offset, retired, &count)) return NULL;
    set_hurdles(b, retired, count);
    berth = berth_at(b, b->placed++);
    berth->span = b->ring_addr + offset;
    berth->parts = 0;
    return berth;
}

void berths_await(struct berths *b, struct stream *copy, device_addr to)
{
    while (b->hurdle < b->hurdle_count && b->hurdles[b->hurdle].at < to)
        b->device->ops->event_wait(copy, b->hurdles[b->hurdle++].freed);
}

void berth_give_up(struct berth *berth, struct stream *compute, device_addr to)
{
    assert(berth->parts < RING_PARTS);
    berth->ends[berth->parts] = to;
    compute->device->ops->event_record(compute, berth->freed[berth->parts++]);
}

void berths_release(struct berths *b)
{
    assert(b->released < b->placed && berth_at(b, b->released)->parts);
    b->released++;
}
