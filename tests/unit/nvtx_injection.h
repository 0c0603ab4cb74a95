/* What a profiler's library of our own was told; it is loaded as a profiler's would be. */
#ifndef TESTS_UNIT_NVTX_INJECTION_H
#define TESTS_UNIT_NVTX_INJECTION_H

#define NVTX_MOST_RANGES 16384
#define NVTX_MOST_CATEGORIES 16

/* The library's one variable, `nvtx_seen`. */
struct nvtx_seen {
    char domain[16], categories[NVTX_MOST_CATEGORIES][16];
    int count, open; /* ranges: ever, and now */
    int wrong;       /* things that no profiler would take */
    struct nvtx_range {
        int thread, depth, category;
        char name[64];
    } ranges[NVTX_MOST_RANGES]; /* as they began */
};

#endif
