/*
 * The weight ring: where the next streamed block goes, in a ring of bytes.
 *
 * Blocks differ in size, so the ring is of bytes and not of equal slots. A block lies in one piece;
 * where the end is too short for it, it goes to the front. Placing a block retires the oldest
 * blocks whose bytes it takes; the caller orders the copy after their last use. Pure arithmetic.
 */
#ifndef BASE_RING_H
#define BASE_RING_H

#include <stdbool.h>
#include <stdint.h>

#define RING_MAX_SPANS 16

/* What is unpacked gives up its bytes in so many parts: so the next block's copy need not wait, in
 * a ring that has room for one, until all of this one has been unpacked. */
#define RING_PARTS 4

struct ring_span {
    uint64_t begin, end;
    uint64_t visit; /* the caller's number for what lies here */
};

struct ring {
    uint64_t bytes, head;
    struct ring_span spans[RING_MAX_SPANS]; /* a queue, oldest at `first` */
    int32_t first, count;
};

void ring_init(struct ring *ring, uint64_t bytes);

/*
 * Places `bytes` (at most the ring's) for `visit`, if every block that must be retired for it has a
 * visit number below `released`. On success fills *offset and retired[0..*retired_count), oldest
 * first (room for RING_MAX_SPANS). False changes nothing.
 */
bool ring_place(struct ring *ring, uint64_t bytes, uint64_t visit, uint64_t released,
    uint64_t *offset, uint64_t *retired, int32_t *retired_count);

/* Offset of a visit that lies in the ring; it must. */
uint64_t ring_offset(const struct ring *ring, uint64_t visit);

#endif
