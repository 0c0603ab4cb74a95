/*
 * What a model's forward runs on: a device, its compute stream, and scratch from the arena.
 *
 * Failures are sticky: after the first, allocations give matrices without an address, `ops` is a
 * table that does nothing, and the runner stops at the end of the block. So forwards read as plain
 * formulas. (They must take `ops` from here each time, not keep it.)
 */
#ifndef LAYERS_EXEC_H
#define LAYERS_EXEC_H

#include "base/region.h"
#include "device/device.h"

struct exec {
    struct device *device;
    struct stream *stream;         /* compute */
    const struct compute_ops *ops; /* device->ops->compute, until something fails */
    struct region *scratch;        /* offsets counted down from `scratch_top` */
    device_addr scratch_top;       /* a multiple of REGION_ALIGNMENT */
    struct shoal_error error;      /* error.status: the first failure */
};

void exec_init(struct exec *x, struct device *device, struct stream *stream, struct region *scratch,
    device_addr scratch_top);

/* The first failure, if anything has failed. */
enum shoal_status exec_check(const struct exec *x, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Scratch [rows, cols]; free every one, in any order. exec_alloc's is of the device's activation
 * type: what lives within a block. exec_alloc_float's is F32: what crosses blocks and adds up, what
 * is uploaded or downloaded, and single rows.
 */
struct matrix exec_alloc(struct exec *x, int64_t rows, int64_t cols);
struct matrix exec_alloc_float(struct exec *x, int64_t rows, int64_t cols);
/* The whole matrix as allocated; sets it to none. Accepts none. */
void exec_free(struct exec *x, struct matrix *m);

/* Moves a whole matrix to the lowest place that has room for it, so that what is larger need not
 * find its place above a hole. Where that is hardly lower, leaves it. */
void exec_settle(struct exec *x, struct matrix *m);

/* Host -> device. `from` must stay valid until the stream is synchronised. F32, dense. */
void exec_upload(struct exec *x, struct matrix to, const float *from);
void exec_download(struct exec *x, float *to, struct matrix from);

#endif
