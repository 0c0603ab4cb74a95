/* The CPU device: an arena in RAM, a compute stream that works in the call, copy streams on
 * threads. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"

enum cpu_kernels {
    CPU_KERNELS_REFERENCE, /* scalar loops, one thread: the oracle */
    CPU_KERNELS_FAST,      /* vectors and threads, by what the CPU has */
};

/* Host memory of each thread beside the arena: its buffer and its stack. */
#define CPU_WORKER_BYTES ((1u << 20) + (64u << 10))

/* What a plan for it counts with. */
#define CPU_TRAITS                                                                                 \
    ((struct device_traits){.activation = DTYPE_F32, .chunk_rows = 1024, .product_rows = 512})

/*
 * threads: 0 for one each core. The fast kernels give the same bits whatever their number, and the
 * same with AVX2 as with AVX-512.
 */
enum shoal_status cpu_create(struct device **device, enum cpu_kernels kernels, int threads,
    struct shoal_error *error) SHOAL_CHECKED;

/* What the fast kernels use here: "AVX-512", "AVX2", "128-bit vectors". Static storage. */
const char *cpu_describe(void);

#endif
