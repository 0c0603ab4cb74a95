/*
 * The streamer: executes the weights part of a plan for one pass of one model.
 *
 * Resident blocks are copied once. Streamed blocks cross in visit order, walk after walk, through
 * the weight ring: a copy stream runs ahead of the compute stream as far as the ring's bytes allow,
 * and the two are ordered by events only; the host just gives work. A copy waits for the events of
 * the blocks whose bytes it takes, all of which come earlier in the order, so the ring cannot
 * deadlock.
 */
#ifndef STREAM_STREAMER_H
#define STREAM_STREAMER_H

#include "memory/arena.h"
#include "memory/store.h"

struct streamer_setup {
    struct arena *arena;
    struct stream *compute;
    const struct model *model;
    const struct pass *pass;
    const bool *resident;          /* [pass->count] */
    uint64_t ring_bytes;           /* >= the largest streamed block; 0 if none streams */
    int64_t walks;                 /* over the pass's blocks, in all */
    bool (*cancelled)(void *user); /* asked between blocks while loading; may be NULL */
    void *user;
};

struct streamer;

/*
 * Reads the weights from the checkpoint (streamed ones into the RAM tier, others through it), takes
 * globals, residents and ring from the arena's bottom and starts copying.
 * The setup's arena, streams and model must outlive the streamer.
 */
enum shoal_status streamer_create(struct streamer **streamer, const struct streamer_setup *setup,
    struct shoal_error *error) SHOAL_CHECKED;

/* Waits for copies under way, frees the RAM tier. The arena's bottom is the caller's to clear. */
void streamer_destroy(struct streamer **streamer);

/* The globals' address; 0 when the pass has none. */
device_addr streamer_globals(const struct streamer *streamer);

/*
 * The block's bytes on the device, usable by work given to the compute stream from now until
 * release. Blocks are acquired and released one at a time, in the pass's order, walk after walk.
 */
device_addr streamer_acquire(struct streamer *streamer, int32_t index);
void streamer_release(struct streamer *streamer, int32_t index);

/* Reports a copy that failed. */
enum shoal_status streamer_check(
    struct streamer *streamer, struct shoal_error *error) SHOAL_CHECKED;

struct streamer_stats {
    uint64_t copied_bytes;   /* given to the copy stream so far, residents included */
    uint64_t resident_bytes; /* of those, what stays: globals and residents */
    uint64_t ram_bytes;      /* peak of the RAM tier */
    uint64_t load_ns;        /* reading the checkpoint */
};
struct streamer_stats streamer_stats(const struct streamer *streamer);

#endif
