/* A counting device that is ready to run forwards: no memory, no numbers, scratch without end. */
#ifndef PIPELINE_COUNTING_H
#define PIPELINE_COUNTING_H

#include "layers/exec.h"

struct counting {
    struct device *device; /* weights may be bound anywhere in its arena */
    struct stream *stream;
    struct region *scratch; /* its high-water mark is what was needed */
    struct exec exec;       /* on all of these; may be copied */
};

/* counting_close is due, whatever comes of it. */
enum shoal_status counting_open(struct counting *counting, struct device_traits traits,
    struct shoal_error *error) SHOAL_CHECKED;
void counting_close(struct counting *counting);

#endif
