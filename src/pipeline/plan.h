/* A plan: a job, what the counting device found, and the planner's answer. */
#ifndef PIPELINE_PLAN_H
#define PIPELINE_PLAN_H

#include "pipeline/job.h"
#include "plan/planner.h"

/* One phase as counted, for all its walks of one step or picture. */
struct phase_count {
    uint64_t scratch_bytes;
    uint64_t operations,
        traffic; /* all lanes; of one step for the steps, of all pictures for decode */
};

struct shoal_plan {
    struct job job;
    int32_t lanes; /* that share a walk */
    struct phase_count counts[SHOAL_PHASES];
    struct plan_solution solution;
    /* Over all choices of lanes that the request allows: */
    uint64_t least_bytes, full_bytes, least_ram_bytes;
    char *text, *json;
    char *refusal; /* why it must not run, in a sentence; NULL: it may */
};

/* Fills the plan's texts. */
enum shoal_status plan_explain(struct shoal_plan *plan, struct shoal_error *error) SHOAL_CHECKED;

#endif
