/*
 * Sweeps: a stage of the library's work is run once to count its calls to the system, then again
 * and again, each time with another call failing. Every run must end in success with the same
 * result, or in a clean failure; nothing may be lost, hang, or be left in the scratch folder.
 */
#ifndef TESTS_FAULT_SWEEP_H
#define TESTS_FAULT_SWEEP_H

#include "fault/inject.h"
#include "fault/scenario.h"

enum stage {
    STAGE_OPEN,    /* a model */
    STAGE_INSPECT, /* the same files, as JSON */
    STAGE_PLAN,    /* the scenario's request in the least memory */
    STAGE_RUN,     /* that plan */
    STAGE_PACK,    /* another plan and its run, which packs weights while it reads them */
    STAGE_ADAPT,   /* another plan and its run, with an adapter, in the least memory */
    STAGE_BAKE,    /* the same, with the adapter added while weights are read */
    STAGE_WRITE,   /* the picture, to a new file */
    STAGE_REPLACE, /* the picture, over a file that is there */
    STAGE_DEVICES, /* what the machine computes on, as JSON */
    STAGE_TRACE,   /* what happened when, to a new file */
    STAGE_CONVERT, /* a folder with a checkpoint, packed */
    STAGE_CACHE,   /* packed copies of a model's files, in a new folder */
    STAGE_STREAM,  /* a bench's loop, over a file without a name */
    STAGE_STORE,   /* a store, from memory and from a file, suspended in between */
    STAGES
};

/* For cmocka's group: make what the stages need, and a scratch folder. */
int sweep_set_up(void **state);
int sweep_tear_down(void **state);

struct sweep {
    enum stage stage;
    struct inject_fault fault; /* `at` is the sweep's */
    bool jansson;              /* what jansson asks for is counted too */
    bool uring, cached;        /* how weights are read: see inject_reading */
    bool harmless;             /* every run must succeed */
    enum shoal_status failure; /* else it succeeds or fails with this; SHOAL_OK: with anything */
    bool may_change;           /* what comes of a success need not be what it else is */
    /* Each of the first `dense` calls fails, then every `stride`-th, and the last. */
    int64_t dense, stride;
};

/* Prints how many points it covered. */
void sweep_run(const struct sweep *sweep);

#endif
