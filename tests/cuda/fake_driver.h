/*
 * A CUDA driver without a card: device memory is malloc'ed, kernels are emulated, and streams are
 * queues that go forward at a pace of their own, so that an order which nothing asked for does not
 * come about by luck. It looks at what it is given as the driver would, and at some more: what it
 * finds wrong that the driver would not say is kept as a violation.
 *
 * Calls have nobody to belong to, so there is one of it; it may be opened again and again.
 */
#ifndef TESTS_CUDA_FAKE_DRIVER_H
#define TESTS_CUDA_FAKE_DRIVER_H

#include "device/cuda/driver.h"

enum fake_pace {
    PACE_EAGER, /* work is done in the call that gives it, unless it waits for an event */
    PACE_LATE,  /* ... when somebody waits for it */
    PACE_RANDOM /* ... some time in between */
};

struct fake_driver_options {
    enum fake_pace pace;
    uint64_t seed;       /* of PACE_RANDOM */
    int cards;           /* 0: one; -1: none */
    int driver_version;  /* 0: 13000 */
    int sm;              /* 0: 80 */
    int shared_bytes;    /* that a block may have; 0: what such a card has */
    uint64_t card_bytes; /* 0: 8 GiB */
    uint64_t context_bytes;
    const char *name; /* NULL: "Emulated" */
};

/* Fills `driver`. What an earlier one had is forgotten. */
void fake_driver_open(struct cuda_driver *driver, const struct fake_driver_options *options);

struct fake_driver_counts {
    int64_t launches; /* of kernels, done */
    int64_t things;   /* contexts, modules, streams, events, memory, registrations: open now */
    uint64_t memory_bytes, most_memory_bytes;
    const char *violation;    /* the first one; NULL: none */
    const char *kernel_error; /* what a kernel did wrong; NULL: none */
};
struct fake_driver_counts fake_driver_counts(void);

#endif
