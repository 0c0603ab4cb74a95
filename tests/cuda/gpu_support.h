/*
 * Tests of the CUDA device's operations: the same operation by the CPU's reference and by the
 * device, several times, with operands that lie differently. The device is emulated (an sm_80, or
 * what the program's argument says, 75) or a card (argument `gpu`).
 *
 *     struct operand *x = gpu_input(DTYPE_BF16, 5, 70), *y = gpu_output(DTYPE_BF16, 5, 70);
 *     GPU_CHECK(1e-6, rms_norm, on(y), on(x), MATRIX_NONE, MATRIX_NONE, 1e-6f);
 *
 * On the CPU operands are F32, quantised ones excepted; on the device they are of their types, with
 * and without gaps between rows, aligned as malloc does and only as their elements need. Outputs
 * must be close to the reference's and the same bytes each time; nothing else may change. Under
 * emulation operands end where their memory ends, and threads take turns forwards and backwards.
 */
#ifndef TESTS_CUDA_GPU_SUPPORT_H
#define TESTS_CUDA_GPU_SUPPORT_H

#include "../support.h"

#include "device/device.h"

struct operand;

/* Who does the operation now. `real`: on a card. */
struct gpu {
    const struct compute_ops *ops;
    struct stream *stream;
    bool real;
};
extern struct gpu gpu;

/* The CUDA device itself, for tests that change what it takes itself for. */
struct device *gpu_device(void);

/* ---- operands: made before each check, which drops them ---- */

/* Of any type that is computed with: random values in (-1, 1), a few larger, a few tiny; quantised
 * ones are random blocks. */
struct operand *gpu_input(enum dtype dtype, int64_t rows, int64_t cols);
/* [rows, cols] that the operation writes; must not be read. */
struct operand *gpu_output(enum dtype dtype, int64_t rows, int64_t cols);
/* Both: random before. Given twice for an operation in place. */
struct operand *gpu_inout(enum dtype dtype, int64_t rows, int64_t cols);
/* Bytes as they are (payloads), at addresses that are multiples of `alignment`. */
struct operand *gpu_bytes(const void *bytes, uint64_t count, uint64_t alignment);

/* Always dense: outputs of unpack. */
struct operand *gpu_dense(struct operand *o);
/* The values that an operand of one has instead: F32, [rows, cols], as the type rounds them. */
void gpu_set(struct operand *o, const float *values);

/* Where an operand is now; on(NULL): left out. */
struct matrix on(const struct operand *o);
struct matrix on_rows(const struct operand *o, int64_t first, int64_t count);
struct matrix on_cols(const struct operand *o, int64_t first, int64_t count);

/* ---- checks ---- */

/*
 * Does `op` for each side and compares: |got - want| <= tolerance * the largest |want|, plus half a
 * step of the output's type.
 */
#define GPU_CHECK(tolerance, op, ...)                                                              \
    for (gpu_begin(#op, tolerance); gpu_next();)                                                   \
    gpu.ops->op(gpu.stream, __VA_ARGS__)

/* The same, and on a card its time: `flops` and `bytes` are what it does and moves at least. The
 * reference is the fast CPU's. For large shapes: does nothing under emulation, nor on a card if the
 * program's second argument is `untimed`. */
#define GPU_TIME(flops, bytes, tolerance, op, ...)                                                 \
    for (gpu_begin_timed(#op, tolerance, (double)(flops), (double)(bytes)); gpu_next();)           \
    gpu.ops->op(gpu.stream, __VA_ARGS__)

void gpu_begin(const char *what, double tolerance);
void gpu_begin_timed(const char *what, double tolerance, double flops, double bytes);
bool gpu_next(void);

/* The activation types, for loops. */
extern const enum dtype gpu_activations[3];

/* ---- programs ---- */

/* Runs the tests; 77 where there is no card to run them on. */
#define GPU_MAIN(tests)                                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        int skipped = gpu_open(argc, argv), failed;                                                \
                                                                                                   \
        if (skipped) return skipped;                                                               \
        failed = cmocka_run_group_tests(tests, NULL, NULL);                                        \
        gpu_close();                                                                               \
        return failed;                                                                             \
    }

int gpu_open(int argc, char **argv);
void gpu_close(void);

#endif
