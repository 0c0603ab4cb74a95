/* Opening a counting device and what forwards run on. */
#include "pipeline/counting.h"

#include "device/count/count.h"

#define ARENA_BYTES (1u << 20)     /* nothing lies in it, but everything has an address */
#define SCRATCH_BYTES (1ull << 60) /* more than any job takes */
#define SCRATCH_TOP (2 * SCRATCH_BYTES)

enum shoal_status counting_open(
    struct counting *counting, struct device_traits traits, struct shoal_error *error)
{
    struct counting *c = counting;

    *c = (struct counting){0};
    TRY(count_create(&c->device, traits, error));
    TRY(c->device->ops->arena_reserve(c->device, ARENA_BYTES, error));
    TRY(c->device->ops->stream_create(c->device, false, &c->stream, error));
    TRY(region_create(&c->scratch, SCRATCH_BYTES, error));
    exec_init(&c->exec, c->device, c->stream, c->scratch, SCRATCH_TOP);
    return SHOAL_OK;
}

void counting_close(struct counting *counting)
{
    region_destroy(&counting->scratch);
    if (counting->stream) counting->device->ops->stream_destroy(&counting->stream);
    device_destroy(&counting->device);
}
