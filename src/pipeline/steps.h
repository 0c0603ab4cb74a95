/* When each step, a call of the DiT, ended on the device, which works behind the host's back. */
#ifndef PIPELINE_STEPS_H
#define PIPELINE_STEPS_H

#include "device/device.h"

struct steps {
    struct device *device;
    struct event **ends; /* [count] */
    int32_t count, given;
    uint64_t begun_ns;
};

enum shoal_status steps_open(struct steps *steps, struct device *device, int32_t count,
    struct shoal_error *error) SHOAL_CHECKED;
void steps_close(struct steps *steps); /* after the stream's work has ended; accepts a zeroed one */

/* All of the next step's work has been given to the stream. */
void steps_given(struct steps *steps, struct stream *stream);

/* When step `index` (from 0) began and ended, on the clock of base/clock.h. False: not yet. */
bool steps_span(const struct steps *steps, int32_t index, uint64_t *begin_ns, uint64_t *end_ns);

#endif
