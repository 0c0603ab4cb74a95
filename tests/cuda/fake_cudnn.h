/* What the fake cuDNN, a library of its own that is opened like the real one, tells tests. */
#ifndef TESTS_CUDA_FAKE_CUDNN_H
#define TESTS_CUDA_FAKE_CUDNN_H

#include "cuda/fake_streams.h"

/* An engine that it suggests. */
struct fake_engine {
    bool varies; /* it notes that it is not deterministic */
    int64_t workspace_bytes;
    int status; /* what finalising a plan of it comes to */
};

/* The library's one variable, `fake_cudnn`. */
struct fake_cudnn {
    void (*give)(CUstream stream, struct fake_command command); /* the fake driver's */
    size_t version;
    struct fake_engine engines[6];
    int engine_count;
    bool idle; /* runs compute nothing */
    /* What handles, operations, heuristics and runs on a stream come to instead; 0: themselves. */
    int handle_status, operation_status, heuristic_status, run_status;
    int64_t operations, plans, runs; /* finalised, finalised, given to a stream; in all */
    int engine;                      /* of the last run */
    int64_t things;                  /* handles and descriptors: open now */
    const char *violation;           /* the first thing that the real one would not like, or NULL */
};

#endif
