/* A model of blocks of noise with no forwards, over a file of its own, and what streams it. */
#ifndef TESTS_NOISE_MODEL_H
#define TESTS_NOISE_MODEL_H

#include "support.h"

#include "device/cpu/cpu.h"
#include "memory/cargo.h"
#include "stream/streamer.h"

#define BLOCKS 12
#define WALKS 4

struct noise_model {
    struct file file;
    struct checkpoint_tensor tensors[2 * (BLOCKS + 1)];
    struct weight weights[2 * (BLOCKS + 1)];
    struct block blocks[BLOCKS + 1]; /* the last one: globals */
    struct model model;
    char *data[2 * (BLOCKS + 1)]; /* each tensor's values */
    struct packing packing;       /* empty, unless noise_pack has been called */
    uint64_t largest;             /* span of a streamed block, as it crosses */
    uint64_t largest_block;       /* as it is unpacked */
};

/* Two weights a block, one of them small; one block is larger than a chunk. `packed`: the larger
 * weights lie packed in the file. */
void noise_open(struct noise_model *m, uint64_t seed, bool packed);
void noise_close(struct noise_model *m);

/* From here on, places that are packed pack on the way: of a model that does not lie packed. */
void noise_pack(struct noise_model *m);

/* Of a block in a place. */
struct cargo_size noise_measure(
    const struct noise_model *m, int index, struct streamer_place place);

/* A device, its arena and a streamer over the model. */
struct rig {
    struct noise_model *model;
    struct device *device;
    struct stream *compute;
    struct arena arena;
    struct streamer *streamer;
    struct streamer_place places[BLOCKS];
    struct streamer_setup setup;
};

/* Fills setup from places, ring, staging; the arena is exactly as large as it takes. */
void rig_open(struct rig *rig, struct noise_model *model, struct device *device,
    const struct streamer_place *places, uint64_t ring_bytes, uint64_t staging_bytes);
enum shoal_status rig_start(struct rig *rig, struct shoal_error *error);
void rig_close(struct rig *rig);

/* Acquires block `index` (BLOCKS: the globals), compares every byte, and releases it. */
void rig_expect(struct rig *rig, int index);
void rig_walk(struct rig *rig); /* every block in order */

#endif
