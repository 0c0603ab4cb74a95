/*
 * The intake: from files to host memory, ahead of the copies.
 *
 * A thread of its own reads chunks in visit order. Those of the RAM tier's blocks go to their image
 * and stay; all others go to the staging ring, until they have been copied to the device. So the
 * drive is busy as long as there is room, and what is in host memory is never read again.
 *
 * Chunks of a cargo that packs go through the staging ring too, from where the thread packs them
 * into the block's image: of the RAM tier, or of a resident, whose image there is one of at a time,
 * until it has been copied. Packing shares the thread with reading ahead, so that reads are under
 * way while it packs.
 *
 * Where a device copies from pinned memory only at full rate, the staging ring is pinned, and the
 * images too, ahead of the reads into them (pins.h). An image that could not be pinned bounces: it
 * goes through the ring, in every walk but the first. Several threads copy it there, or the link
 * would wait for one core.
 *
 * One mutex guards the intake and the streamer that takes from it. Functions that say `held` expect
 * it held.
 */
#ifndef STREAM_INTAKE_H
#define STREAM_INTAKE_H

#include "base/reader.h"
#include "base/thread.h"
#include "base/trace.h"
#include "device/device.h"
#include "memory/cargo.h"
#include "stream/visits.h"

struct intake_setup {
    struct device *device;
    const struct cargo *cargos; /* by position */
    const bool *kept;           /* by position: in the RAM tier */
    struct visits visits;
    uint64_t staging_bytes; /* >= the largest chunk, if any block is not kept */
    enum reader_backend backend;
    enum shoal_pin pin;
    int threads;                 /* of which a part may pack or bounce */
    struct trace *trace;         /* may be NULL */
    void (*arrived)(void *user); /* held: more chunks are there, or reading failed */
    void *user;
};

struct intake {
    struct mutex mutex;
    struct cond changed;                      /* woken after whatever somebody may wait for */
    struct shoal_error failed;                /* status: the first failure */
    const struct checkpoint_tensor *outgrown; /* of it: see cargo_pack; NULL */
    struct intake_state *state;
};

enum shoal_status intake_open(struct intake *intake, const struct intake_setup *setup,
    struct shoal_error *error) SHOAL_CHECKED;
/* Ends the thread; no chunk is touched after it. */
void intake_stop(struct intake *intake);
/* After the copies have ended. Accepts a zeroed one. */
void intake_close(struct intake *intake);

/* held: the bytes of a chunk of a visit's block; NULL: not there yet. Ask for chunks in order. */
const char *intake_chunk(struct intake *intake, uint64_t visit, int32_t chunk);
/* held: whether a visit's next chunk lies in the staging ring. */
bool intake_is_staged(const struct intake *intake, uint64_t visit);
/* held: all copies from that chunk have been given to `stream`. */
void intake_taken(struct intake *intake, uint64_t visit, struct stream *stream);

/* held: whether a visit's block comes from its image through the staging ring. If its cargo packs,
 * its chunks are then its image's, cut into pieces of CARGO_CHUNK_BYTES. */
bool intake_bounces(const struct intake *intake, uint64_t visit);

/* held: the whole image of a visit's block whose cargo packs; NULL: not there yet. Of such blocks
 * ask for no chunks, unless they bounce. */
const char *intake_image(struct intake *intake, uint64_t visit);
/* held: its copy has been given to `stream`. */
void intake_image_taken(struct intake *intake, uint64_t visit, struct stream *stream);

/* How many of so many threads pack, and copy what bounces: too few to be missed by the arithmetic,
 * unless a card does that. */
int intake_workers(int threads, bool card);

/* held: visits before this one are nobody's to take any more. In the first walk they are read all
 * the same, for the images of the RAM tier. */
void intake_drop(struct intake *intake, uint64_t visit);

/* held: whether all of the first walk has been read. */
bool intake_loaded(const struct intake *intake);

/* held: the thread looks again whether there is room. After copies have been given. */
void intake_kick(struct intake *intake);

struct intake_stats {
    uint64_t read_bytes;         /* in all */
    uint64_t host_bytes;         /* of the RAM tier, the staging ring and residents' image */
    uint64_t pinned_bytes;       /* of these */
    struct shoal_error unpinned; /* status: why not all that was to be */
};
struct intake_stats intake_stats(struct intake *intake);
void intake_describe(struct intake *intake, char *text, size_t bytes);

#endif
