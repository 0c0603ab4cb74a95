/* Patching weights on the host: the CPU device's operation, and what the host's own passes use. */
#ifndef DEVICE_CPU_PATCH_H
#define DEVICE_CPU_PATCH_H

#include "base/thread.h"
#include "device/patch.h"

/* device/patch.h's y = x + differences, element by element: the definition. Addresses are
 * pointers. */
void patch_reference(struct matrix y, struct matrix x, const struct patch *patch);

/* The same bits, by the fastest instructions that this CPU has, and shared among the pool's workers
 * (NULL: the caller alone). Quantised rows begin and end at whole blocks. */
void patch_on_host(struct pool *pool, struct matrix y, struct matrix x, const struct patch *patch);

#endif
