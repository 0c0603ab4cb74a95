/* The picture that a job begins with: reading it, and how strongly noise covers it. */
#ifndef PIPELINE_INIT_H
#define PIPELINE_INIT_H

#include "pipeline/job.h"

/* Sets the request's sizes to the picture's, if they are 0, before they are checked; but those of a
 * picture are multiples of `multiple`. */
enum shoal_status init_size(
    struct shoal_request *request, int32_t multiple, struct shoal_error *error) SHOAL_CHECKED;

/* Reads job->request.init, which must have the request's size, and opens the encoder. Both are the
 * job's. */
enum shoal_status init_open(struct job *job, struct shoal_error *error) SHOAL_CHECKED;

/* How many steps the schedule has of which the last request->steps are run. */
enum shoal_status init_schedule_steps(
    const struct shoal_request *request, int32_t *steps, struct shoal_error *error) SHOAL_CHECKED;

/* The pixels as the encoder takes them: [3, height * width], -1..1. */
void init_planes(const struct job *job, float *planes);

#endif
