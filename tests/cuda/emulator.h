/*
 * What runs emulated kernels: a block's threads as fibres, and what they exchange. Plain C to those
 * who launch (fake_driver.c); emulate.h is what kernels see.
 */
#ifndef TESTS_CUDA_EMULATOR_H
#define TESTS_CUDA_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- to launch ---- */

struct emulate_size {
    uint32_t x, y, z;
};

/* Calls a kernel as one thread; `args` points to its struct. */
typedef void emulate_kernel(const void *args);

/* The kernel of that name of CUDA_KERNELS, or NULL; `args_bytes` gets the size of its struct. */
emulate_kernel *emulate_find(const char *name, size_t *args_bytes);

/*
 * Runs all blocks. NULL, or what the kernel did wrong (valid until the next launch): a barrier that
 * not all threads reach, lanes of a warp that exchange different things, an address that an
 * instruction does not take. One launch at a time.
 */
const char *emulate_launch(const char *name, emulate_kernel *kernel, const void *args,
    struct emulate_size grid, struct emulate_size threads, size_t shared_bytes);

/* Backwards, blocks and threads take their turns from the last to the first. What differs then
 * lacked a barrier. */
void emulate_set_order(int backwards);

/* ---- for emulate.h ---- */

struct emulate_block {
    struct emulate_size grid, block, threads, thread;
    unsigned char *shared; /* dynamic */
};
extern struct emulate_block emulate_block;

/* Room for what a lane gives to its warp. */
struct emulate_given {
#ifdef __cplusplus
    alignas(16)
#else
    _Alignas(16)
#endif
        unsigned char bytes[48];
};

void emulate_sync_threads(void);
void emulate_sync_warp(void);

/*
 * What the lanes of a warp give in one exchange, which they all name alike: each fills its part,
 * meets the others, and reads. Valid until the lane's next exchange.
 */
struct emulate_given *emulate_table(const char *what);
void emulate_meet(void);

void emulate_check_aligned(const char *what, const void *at, size_t bytes);
void emulate_check_shared(const char *what, const void *at, size_t bytes);

/* 16 bytes that land in shared memory when the thread waits for their group. */
void emulate_copy_later(void *shared, const void *value);
void emulate_commit_copies(void);
void emulate_land_copies(int groups_left);

#ifdef __cplusplus
}
#endif

#endif
