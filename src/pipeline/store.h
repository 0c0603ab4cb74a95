/* A store: what it was asked for, how it is planned, and what it is doing. */
#ifndef PIPELINE_STORE_H
#define PIPELINE_STORE_H

#include "pipeline/plan.h"
#include "pipeline/store_model.h"

struct shoal_store {
    struct shoal_store_request request; /* its strings are not kept */
    struct store_model model;
    struct target target;
    struct device *cpu, *device; /* the target's or the CPU's */
    struct rates rates;
    struct packing packing;
    struct plan_solution solution;
    struct streamer_place *places;
    int threads;
    bool whole_card, capped; /* as plan_cap_vram has them */

    /* While it is resumed; the streamer, without its ring, also while it is suspended. */
    bool resumed;
    struct arena arena;
    struct stream *compute;
    struct event *handover; /* from one of the caller's streams to another */
    void *stream;           /* that `compute` follows, if it follows any */
    bool following;
    struct streamer *streamer;
    struct matrix *bound; /* the acquired block's weights */
    int32_t held, next;   /* held: the acquired block, or -1 */

    struct streamer_stats done; /* by streamers that are gone */
    struct trace *trace;        /* NULL: none is wanted */
    char *text, *json;
};

/* Of the store's only phase. */
static inline const struct plan_phase *store_phase(const struct shoal_store *store)
{
    return &store->solution.phases[0];
}

struct streamer_stats store_done(const struct shoal_store *store);

#endif
