/*
 * A device whose work is late: what the contract of device.h allows, and no CPU does by itself.
 *
 * Nothing that is given to a stream is done inside the call, compute included. Work waits until
 * somebody forces it (synchronising, awaiting an event, destroying a stream) or until the pace lets
 * it run. A copy to the device spoils its destination with NaN patterns as soon as it might begin,
 * and reads its source only when it lands; a copy to the host spoils its destination when it is
 * given. So whoever reads too early, frees or overwrites a source too early, or takes ring space
 * that is still being read, paints another picture or trips ASan.
 *
 * The maths is the CPU device's, so the bits are. Calls may come from several threads. Same calls,
 * same order, same seed: same lateness.
 */
#ifndef TESTS_FAULT_FAKE_DEVICE_H
#define TESTS_FAULT_FAKE_DEVICE_H

#include "device/device.h"

enum fake_pace {
    FAKE_LAZY,   /* everything as late as possible */
    FAKE_EAGER,  /* copies as early, and compute as late as possible */
    FAKE_RANDOM, /* streams go forward by chance */
};

struct fake_options {
    enum fake_pace pace;
    uint64_t seed;
    /* The one that fails, counted from 1; 0: none does. A failure stays in its stream: later work
     * there is dropped, its events happen all the same. */
    int64_t failing_copy, failing_operation;
    int64_t failing_creation; /* of arena, streams and events: an error at once */
    /* From this one on, counted from 1, no memory can be pinned; 0: all can. */
    int64_t failing_pin;
};

enum shoal_status fake_create(struct device **device, const struct fake_options *options,
    struct shoal_error *error) SHOAL_CHECKED;

struct fake_counts {
    int64_t copies, operations, creations, pins; /* so far */
    int64_t things;        /* arena, streams, events and pinned spans that exist now */
    const char *violation; /* the first breach of the contract that was seen; NULL: none */
};
struct fake_counts fake_counts(struct device *device);

/* ---- between fake_device.c and fake_compute.c ---- */

/* An operation that waits: `run` calls the CPU's with what was kept. */
struct fake_operation {
    void (*run)(const struct compute_ops *, struct stream *, const struct fake_operation *);
    struct matrix m[5];
    float f[2];
    int64_t size[2];
    int32_t patch;
    int choice; /* an enum, or a bool */
    struct conv conv;
    struct attention attention;
    struct group_norm norm;
    struct crossed crossed[UNPACK_TENSORS];
    struct patch terms;
};

void fake_give(struct stream *stream, const struct fake_operation *operation);

extern const struct compute_ops fake_compute_ops;

#endif
