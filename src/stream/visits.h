/*
 * The order in which blocks are needed: visit by visit, over all walks of a pass. In the first walk
 * every block is a visit, the globals before all; in later ones only the streamed blocks are.
 */
#ifndef STREAM_VISITS_H
#define STREAM_VISITS_H

#include <stdint.h>

struct visits {
    int32_t block_count;     /* positions 0 .. block_count - 1; the globals are block_count */
    int32_t first;           /* visits of the first walk */
    const int32_t *streamed; /* positions */
    int32_t streamed_count;
    uint64_t total;
};

static inline int32_t visits_position(const struct visits *v, uint64_t visit)
{
    uint64_t globals = (uint64_t)(v->first - v->block_count);

    if (visit < globals) return v->block_count;
    if (visit < (uint64_t)v->first) return (int32_t)(visit - globals);
    return v->streamed[(visit - (uint64_t)v->first) % (uint64_t)v->streamed_count];
}

#endif
