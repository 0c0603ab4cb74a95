/* What the CPU device's files share: the device, its streams and its tables. Private to this
 * folder. */
#ifndef DEVICE_CPU_INTERNAL_H
#define DEVICE_CPU_INTERNAL_H

#include "base/size.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"
#include "tensor/quant.h"

#include <stdatomic.h>

struct cpu_stream;

struct cpu_device {
    struct device base;
    const struct kernels *kernels; /* NULL: the reference */
    struct pool *pool;             /* NULL: the reference */
    char *scratch;                 /* SCRATCH_BYTES for each worker of the pool */
    size_t scratch_bytes;          /* of all */
    size_t arena_pages_bytes;      /* the arena's whole mapping, its guard page included */

    /* One lock for all streams: a command is given or finished a few thousand times a second. */
    struct mutex mutex;
    struct cond changed;
    struct cpu_stream *streams; /* every one ever created; guarded by mutex */
};

/* Each worker's buffer: widened weights, gathered pictures, scores. */
#define SCRATCH_BYTES ((size_t)1 << 20)

static inline struct cpu_device *cpu_device(struct device *device)
{
    return (struct cpu_device *)device;
}

static inline float *worker_scratch(const struct cpu_device *cpu, int worker)
{
    return (float *)(void *)(cpu->scratch + (size_t)worker * SCRATCH_BYTES);
}

/* ---- device.c ---- */

#define CPU_MAX_THREADS 1024

/* The sets of kernels that this CPU has, slowest first; NULL after the last. */
const struct kernels *cpu_kernels_at(int index);

/* What cpu_create does, with these kernels, which the CPU must have; NULL: the reference. */
enum shoal_status cpu_create_with(struct device **device, const struct kernels *kernels,
    int threads, struct shoal_error *error) SHOAL_CHECKED;

/* ---- streams.c ---- */

enum shoal_status cpu_stream_create(
    struct device *device, bool copy, struct stream **stream, struct shoal_error *error);
void cpu_stream_destroy(struct stream **stream);
enum shoal_status cpu_stream_synchronize(struct stream *stream, struct shoal_error *error);
enum shoal_status cpu_event_create(
    struct device *device, struct event **event, struct shoal_error *error);
void cpu_event_destroy(struct event **event);
void cpu_event_record(struct stream *stream, struct event *event);
void cpu_event_wait(struct stream *stream, struct event *event);
void cpu_event_synchronize(struct event *event);
bool cpu_event_happened(struct event *event);
uint64_t cpu_event_time_ns(struct event *event);
void cpu_copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes);
void cpu_copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes);
void cpu_copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes);
/* Frees what is left of the streams; all have been destroyed. */
void cpu_streams_free(struct cpu_device *cpu);

/* ---- operations ---- */

extern const struct compute_ops cpu_reference_ops; /* ops_reference.c */
extern const struct compute_ops cpu_fast_ops;      /* rows.c, and: */

void cpu_linear(
    struct stream *, struct matrix y, struct matrix x, struct matrix w, struct matrix bias);
void cpu_attention(struct stream *, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention);
void cpu_conv2d(struct stream *, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv);
void cpu_unpack(struct stream *, const struct crossed *tensors, int32_t count);
void cpu_patch(struct stream *, struct matrix y, struct matrix x, const struct patch *patch);

/* ---- what they have in common ---- */

static inline float *row_of(struct matrix m, int64_t row)
{
    return (float *)(uintptr_t)m.addr + row * m.stride;
}

/* An element of any type; of quantised ones, the first of a block. */
static inline const void *element_of(struct matrix m, int64_t row, int64_t col)
{
    return (const char *)(uintptr_t)m.addr + dtype_bytes(m.dtype, row * m.stride + col);
}

/* Elements [first, first + n) of a row, widened. Quantised ones may begin and end within blocks:
 * that is slow, and rare, since vectors are hardly ever quantised. */
static inline void widen_row(const struct kernels *kernels, struct matrix m, int64_t row,
    int64_t first, int64_t n, float *to)
{
    int64_t block = dtype_block_elements(m.dtype);

    if (first % block || n % block)
        quant_widen(to, element_of(m, row, 0), m.dtype, m.scale, first, n);
    else
        kernels->widen(to, element_of(m, row, first), m.dtype, m.scale, n);
}

/* Elements [first, first + n) of a vector: in `buffer` if they must be widened; NULL if left out.
 */
static inline const float *vector_piece(
    const struct kernels *kernels, struct matrix vector, int64_t first, int64_t n, float *buffer)
{
    if (!vector.addr) return NULL;
    if (vector.dtype == DTYPE_F32) return (const float *)element_of(vector, 0, first);
    widen_row(kernels, vector, 0, first, n, buffer);
    return buffer;
}

#endif
