/* The device that tests of operations run on, and its memory. */
#ifndef TESTS_CUDA_GPU_DEVICE_H
#define TESTS_CUDA_GPU_DEVICE_H

#include "device/device.h"

/* A card, or an emulated one; false, with a line that says why, where there is no card. */
bool gpu_device_open(struct device **device, struct stream **stream, bool real);
void gpu_device_close(struct device **device, struct stream **stream);

/* Memory with these bytes in it: on a card, of the arena, of which `used` are taken; under
 * emulation malloc'ed, for the caller to free. */
device_addr gpu_device_place(
    struct device *device, struct stream *stream, const void *bytes, size_t count, uint64_t *used);
void gpu_device_collect(
    struct device *device, struct stream *stream, void *to, device_addr from, size_t count);

#endif
