/*
 * The streamer: executes the weights part of a plan for one pass of one model.
 *
 * Blocks are needed in visit order, walk after walk. The intake brings their bytes into host
 * memory; from there a copy stream takes them to the device, ahead of the compute stream as far as
 * the weight ring's bytes allow: residents to a place of their own, once, the others through the
 * ring. Copy and compute are ordered by events only; the host waits for nothing but the drive. A
 * copy waits until the blocks whose bytes it takes have been used, or if they are packed, unpacked:
 * all of them come earlier in the order, so the ring cannot deadlock.
 *
 * The first walk does not wait for the load: it is the load.
 */
#ifndef STREAM_STREAMER_H
#define STREAM_STREAMER_H

#include "base/reader.h"
#include "base/trace.h"
#include "memory/arena.h"
#include "memory/packing.h"
#include "models/model.h"

/* Where a block of the pass lives. */
struct streamer_place {
    bool resident; /* on the device, for the whole phase */
    bool packed;   /* and a packed resident stays packed there; a plain one is packed on the way */
    bool disk;     /* streamed ones: read again in every walk; else kept in host memory */
};

struct streamer_setup {
    struct arena *arena;
    struct stream *compute;
    const struct model *model;
    const struct pass *pass;
    const struct streamer_place *places; /* [pass->count] */
    const struct packing *packing;       /* of plain blocks that cross packed; may be NULL */
    const struct patches *patches;       /* of adapters; may be NULL */
    int threads;                         /* of the machine, a part of which may pack or copy */
    uint64_t ring_bytes;                 /* >= the largest block that crosses it; 0 if none does:
                                            also residents and globals that are opened once */
    uint64_t unpack_bytes;  /* >= the largest block that is opened at use; 0 if none is */
    uint64_t staging_bytes; /* of host memory; >= the largest chunk that is not kept */
    int64_t walks;          /* over the pass's blocks, in all */
    enum reader_backend backend;
    enum shoal_pin pin;
    struct trace *trace;           /* may be NULL */
    bool (*cancelled)(void *user); /* asked while the drive is waited for; may be NULL */
    void *user;
};

struct streamer;

/*
 * Takes globals, residents, ring and unpacking buffer from the arena's bottom and starts reading.
 * The setup's arena, streams and model must outlive the streamer.
 */
enum shoal_status streamer_create(struct streamer **streamer, const struct streamer_setup *setup,
    struct shoal_error *error) SHOAL_CHECKED;

/* Waits for reads and copies under way. The arena's bottom is the caller's to clear. */
void streamer_destroy(struct streamer **streamer);

/* The pass's globals on the device, weight by weight. Before the first block, and at will. */
enum shoal_status streamer_globals(
    struct streamer *streamer, struct matrix *weights, struct shoal_error *error) SHOAL_CHECKED;

/*
 * The block's weights on the device, usable by work given to the compute stream from now until
 * release. Blocks are acquired and released one at a time, in the pass's order, walk after walk.
 */
enum shoal_status streamer_acquire(struct streamer *streamer, int32_t index, struct matrix *weights,
    struct shoal_error *error) SHOAL_CHECKED;
void streamer_release(struct streamer *streamer, int32_t index);

/*
 * For who leaves the order, in a pass without residents and globals, between release and acquire.
 * seek: the next block to be acquired is this one, and what was fetched ahead before it is dropped.
 * detach waits for what is under way and forgets the ring and the unpacking buffer; host memory
 * keeps what it has. attach takes them from the bottom of the setup's arena again, and seeks.
 */
void streamer_seek(struct streamer *streamer, int32_t index);
enum shoal_status streamer_detach(
    struct streamer *streamer, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status streamer_attach(
    struct streamer *streamer, int32_t index, struct shoal_error *error) SHOAL_CHECKED;

/* Whether the first walk's reads are over. */
bool streamer_loaded(struct streamer *streamer);

/* Reports a read or a copy that failed. */
enum shoal_status streamer_check(
    struct streamer *streamer, struct shoal_error *error) SHOAL_CHECKED;

/* After a failure: the tensor that took more room than was kept for it, which is why; NULL: it is
 * not. */
const struct checkpoint_tensor *streamer_outgrown(struct streamer *streamer);

struct streamer_stats {
    uint64_t copied_bytes;       /* given to the copy stream so far, padding included */
    uint64_t settled_bytes;      /* of these, what stays: globals and residents */
    uint64_t read_bytes;         /* from files, so far */
    uint64_t first_read_bytes;   /* what the first walk reads */
    uint64_t host_bytes;         /* the RAM tier, the staging ring, an image of a resident */
    uint64_t waited_ns;          /* acquire, for the drive */
    uint64_t pinned_bytes;       /* of host_bytes, and of adapters' factors */
    struct shoal_error unpinned; /* status: why not all that was to be */
};
struct streamer_stats streamer_stats(struct streamer *streamer);
/* How files are read: "io_uring, direct". */
void streamer_describe(struct streamer *streamer, char *text, size_t bytes);

#endif
