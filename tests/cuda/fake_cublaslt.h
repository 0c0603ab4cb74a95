/* What the fake cuBLASLt, a library of its own that is opened like the real one, tells tests. */
#ifndef TESTS_CUDA_FAKE_CUBLASLT_H
#define TESTS_CUDA_FAKE_CUBLASLT_H

#include "cuda/fake_streams.h"

/* Shapes that it treats specially, by n. */
#define FAKE_N_WITHOUT_ALGORITHM 72
#define FAKE_N_NOT_SUPPORTED 88
#define FAKE_N_NO_PANEL 56 /* that no algorithm of another n is for */
#define FAKE_N_SPLIT 500   /* algorithms of more add sums up in two halves: other bits */

/* The library's one variable, `fake_cublaslt`. */
struct fake_cublaslt {
    void (*give)(CUstream stream, struct fake_command command); /* the fake driver's */
    int64_t products, suggestions;                              /* asked for on a stream, in all */
    /* What all suggestions, descriptions of products and products come to instead; 0: themselves.
     */
    int suggestion_status, description_status, product_status;
    int64_t things;        /* handles and descriptions: open now */
    const char *violation; /* the first thing that the real one would not like, or NULL */
};

#endif
