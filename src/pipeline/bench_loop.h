/* The streaming loop alone: steps of the bench's model under one plan, timed by the device. */
#ifndef PIPELINE_BENCH_LOOP_H
#define PIPELINE_BENCH_LOOP_H

#include "pipeline/bench_model.h"
#include "stream/streamer.h"

struct bench_loop {
    struct device *device; /* without an arena */
    const struct bench_model *model;
    int pass; /* BENCH_MODEL_STEP or BENCH_MODEL_RESIDENT: a step walks as many blocks either way */
    const struct streamer_place *places; /* of the pass's blocks */
    const struct packing *packing;
    uint64_t arena_bytes, ring_bytes, unpack_bytes, staging_bytes;
    int threads;
    int32_t steps; /* 2 or more */
    enum shoal_pin pin;
    bool (*cancelled)(void *user); /* may be NULL */
    void *user;
};

struct bench_times {
    double first_seconds;              /* the step that loads */
    double mean_seconds, best_seconds; /* of the others */
};

struct bench_loop_result {
    struct bench_times times;
    uint64_t checksum;   /* of the activations after the last step */
    uint64_t peak_bytes; /* of the arena */
    struct streamer_stats stats;
    char reader[64];
};

/* What comes out does not depend on the plan, so all checksums of a model and so many steps are
 * equal. */
enum shoal_status bench_loop_run(const struct bench_loop *loop, struct bench_loop_result *result,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
