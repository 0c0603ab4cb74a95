/* When each sampling step ended. */
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/memory.h"

enum shoal_status steps_open(
    struct steps *steps, struct device *device, int32_t count, struct shoal_error *error)
{
    *steps = (struct steps){.device = device, .count = count};
    steps->ends = mem_calloc((size_t)count, sizeof *steps->ends);
    if (!steps->ends) FAIL_MEMORY(error);
    for (int32_t i = 0; i < count; i++)
        TRY(device->ops->event_create(device, &steps->ends[i], error));
    steps->begun_ns = clock_ns();
    return SHOAL_OK;
}

void steps_close(struct steps *steps)
{
    for (int32_t i = 0; steps->ends && i < steps->count; i++)
        if (steps->ends[i]) steps->device->ops->event_destroy(&steps->ends[i]);
    mem_free(steps->ends);
    *steps = (struct steps){0};
}

void steps_given(struct steps *steps, struct stream *stream)
{
    steps->device->ops->event_record(stream, steps->ends[steps->given++]);
}

bool steps_span(const struct steps *steps, int32_t index, uint64_t *begin_ns, uint64_t *end_ns)
{
    const struct device_ops *ops = steps->device->ops;

    if (index >= steps->given || !ops->event_happened(steps->ends[index])) return false;
    *begin_ns = index ? ops->event_time_ns(steps->ends[index - 1]) : steps->begun_ns;
    *end_ns = ops->event_time_ns(steps->ends[index]);
    return *end_ns >= *begin_ns;
}
