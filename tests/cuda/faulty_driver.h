/* A CUDA driver whose calls can be made to fail, and which counts what is open in it. */
#ifndef TESTS_CUDA_FAULTY_DRIVER_H
#define TESTS_CUDA_FAULTY_DRIVER_H

#include "device/cuda/driver.h"

#include <stdatomic.h>
#include <stdbool.h>

enum faulty_call {
#define FAULTY_CALL(member, symbol, parameters, arguments) CALL_##member,
    CUDA_DRIVER_CALLS(FAULTY_CALL)
#undef FAULTY_CALL
        CALL_COUNT
};

struct faults {
    int at;          /* this call fails, from 1 on; 0: none */
    bool for_good;   /* and all after it */
    CUresult result; /* how */
    /* Every one of these calls fails; CALL_COUNT: none. */
    enum faulty_call always;

    atomic_int calls;   /* so far */
    atomic_int failed;  /* of those */
    const char *symbol; /* the first that failed */
    atomic_int open;    /* allocations, streams, events, modules, contexts, pinned pages */
    atomic_int resets;  /* of the context */
};
extern struct faults faults;

/* `driver` becomes one that calls `inner`, which is copied, unless faults say otherwise. Calls that
 * release do so even when they fail, as the real ones do. Clears the faults. */
void faulty_driver(struct cuda_driver *driver, const struct cuda_driver *inner);

/* For tests on a real card, which skip where there is none: then it says why. */
bool faulty_has_card(void);

/* Whether a call only releases: a device that is closed says nothing of its failing. */
bool faulty_releases(const char *symbol);

#endif
