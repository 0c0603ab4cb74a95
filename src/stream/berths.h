/*
 * Berths: where in the weight ring blocks lie, and when copies may take their bytes again.
 *
 * A block gives up its berth on the compute stream, in parts while it is unpacked or whole after
 * its use. The next block's copies wait, on the copy stream, for what they reach: so in a ring that
 * has room for one block only, copies follow closely behind what unpacks.
 *
 * Berths are placed, await and are released in one order. Who places and releases holds a lock;
 * giving up and waiting need none, as they are of berths that are not yet released, and that are.
 */
#ifndef STREAM_BERTHS_H
#define STREAM_BERTHS_H

#include "base/ring.h"
#include "device/device.h"

struct berth {
    device_addr span;
    device_addr ends[RING_PARTS]; /* bytes up to ends[i] are free once freed[i] has happened */
    struct event *freed[RING_PARTS];
    int32_t parts; /* that were given up */
};

/* What a copy must wait for if it goes beyond `at`. */
struct hurdle {
    device_addr at;
    struct event *freed;
};

struct berths {
    struct device *device;
    struct ring ring;
    device_addr ring_addr;
    /* Of number n at n % their count: those in the ring, and those that the newest one retired. */
    struct berth list[2 * RING_MAX_SPANS];
    uint64_t placed, released;
    struct hurdle hurdles[RING_MAX_SPANS * RING_PARTS]; /* of the newest berth, in order */
    int32_t hurdle_count, hurdle;                       /* hurdle: the next one */
};

enum shoal_status berths_open(struct berths *berths, struct device *device, device_addr ring_addr,
    uint64_t ring_bytes, struct shoal_error *error) SHOAL_CHECKED;
void berths_close(struct berths *berths); /* after the streams have ended; accepts a zeroed one */

/* NULL: what must be retired for it has not been released. */
struct berth *berths_place(struct berths *berths, uint64_t bytes);

/* What is given to the copy stream from now on waits until bytes of the newest berth are free, up
 * to `to`; UINT64_MAX: all, and what lay where the ring's end was too short for it. Before the next
 * one is placed. */
void berths_await(struct berths *berths, struct stream *copy, device_addr to);

/* From here on, in the compute stream's order, bytes up to `to` are free. UINT64_MAX: the last. */
void berth_give_up(struct berth *berth, struct stream *compute, device_addr to);

/* The oldest one that is not released has given up its last bytes. */
void berths_release(struct berths *berths);

#endif
