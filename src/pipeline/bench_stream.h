/* What shoal_bench_stream measures, and how it says so. */
#ifndef PIPELINE_BENCH_STREAM_H
#define PIPELINE_BENCH_STREAM_H

#include "pipeline/bench_loop.h"
#include "pipeline/links.h"
#include "pipeline/target.h"
#include "plan/planner.h"

struct bench_figures {
    const struct shoal_stream_request *request;
    const struct target *target;
    const char *device; /* its name */
    bool capped;        /* more of vram_bytes was given than the card has */
    int threads;
    uint64_t block_bytes;
    int32_t distinct;      /* blocks whose weights differ */
    double operations;     /* a step */
    uint64_t weight_bytes; /* unpacked, of what streams in a step */
    const struct plan_phase *plan;
    uint64_t peak_bytes, ram_bytes; /* planned, with what is beside the arena and the weights */
    struct bench_times resident, streamed;
    double link_bytes; /* a second, of copies alone */
    bool pinned;       /* from pinned memory */
    double disk_bytes; /* a second, as the loop reads; 0: nothing is read after the first step */
    double unpack_bytes, packed_part;  /* 0: nothing crosses packed */
    uint64_t copied_bytes, read_bytes; /* a step */
    struct bench_loop_result loop;     /* the streamed one */
};

enum shoal_status bench_report(const struct bench_figures *figures, bool json, char **text,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
