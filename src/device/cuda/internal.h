/* What the CUDA device's files share: the device and launching. Private to this folder. */
#ifndef DEVICE_CUDA_INTERNAL_H
#define DEVICE_CUDA_INTERNAL_H

#include "base/size.h"
#include "base/thread.h"
#include "device/check.h"
#include "device/cuda/cuda.h"
#include "device/cuda/driver.h"
#include "device/cuda/kernels/list.h"

enum cuda_kernel {
#define CUDA_KERNEL_ID(module, name) KERNEL_##name,
    CUDA_KERNELS(CUDA_KERNEL_ID)
#undef CUDA_KERNEL_ID
        KERNEL_COUNT
};

struct cuda_blas;  /* cuBLASLt, opened; blas.h */
struct cuda_cudnn; /* cuDNN, opened; cudnn.h */

#define CUDA_MAX_MODULES 16

struct cuda_device {
    struct device base;
    const struct cuda_driver *driver; /* calls */
    struct cuda_driver calls;
    CUdevice handle;
    int32_t ordinal;
    CUcontext context; /* the card's primary one, which libraries find too */
    CUmodule modules[CUDA_MAX_MODULES];
    int modules_loaded;
    CUfunction functions[KERNEL_COUNT];
    struct cuda_blas *blas;   /* NULL: our own kernels multiply */
    struct cuda_cudnn *cudnn; /* NULL: they attend */
    struct cuda_nvml *nvml;   /* NULL: not there */
    char name[96];            /* "NVIDIA GeForce RTX 4060" */
    int32_t sm;               /* 75, 80, 86, 89, 90, 100, 103, 120 */
    int32_t processors;       /* multiprocessors */
    int32_t shared_bytes;     /* most that a block may have, when asked for */
    uint64_t card_bytes;
    uint64_t free_bytes;     /* before anything was taken */
    uint64_t host_bytes;     /* that the driver and libraries took of the process's memory */
    uint64_t overhead_bytes; /* that context, modules, libraries and workspace take on the card */
    /* Of the overhead: room for operations that need more than registers. Operations of the
     * compute stream use it one after another. */
    device_addr workspace;
    uint64_t workspace_bytes;
    CUdeviceptr arena_memory; /* what was allocated: the arena may begin a little later */

    struct mutex mutex;       /* guards what follows */
    struct shoal_error error; /* status: the first failure; sticky, the device is lost after it */
    CUstream clock_stream;    /* an event that happened at clock_ns, to measure others by */
    CUevent clock_event;
    uint64_t clock_ns;
};

static inline struct cuda_device *cuda_device(struct device *device)
{
    return (struct cuda_device *)device;
}

struct cuda_stream {
    struct stream base;
    CUstream handle, own; /* handle: the caller's, while it follows that */
    bool copy;
    const char *kernel; /* the last one given; NULL: none. Static storage. */
};

/* ---- cards.c ---- */

/* The driver of this machine, if this build has something to run on it. */
enum shoal_status cuda_open_driver(
    struct cuda_driver *driver, struct shoal_error *error) SHOAL_CHECKED;
/* Initialises the driver and checks that it is new enough for the build's kernels. */
enum shoal_status cuda_start(
    const struct cuda_driver *driver, struct shoal_error *error) SHOAL_CHECKED;
/* After cuda_start. Fills what is known of the card even when it is not usable. */
enum shoal_status cuda_card_find(const struct cuda_driver *driver, int32_t ordinal,
    CUdevice *handle, struct cuda_card *card, struct shoal_error *error) SHOAL_CHECKED;

/* ---- device.c ---- */

/* What cuda_create does, through the calls of this driver, which the device copies. */
enum shoal_status cuda_create_with(struct device **device, const struct cuda_driver *driver,
    int32_t ordinal, struct shoal_error *error) SHOAL_CHECKED;

/* Before calls to the driver or its libraries: makes the context this thread's. False if something
 * has failed: then only what waits and releases may be called, since what was given before may
 * still be under way. */
bool cuda_enter(struct cuda_device *cuda);
/* Keeps the first failure: `what` failed with `result`. */
void cuda_fail(struct cuda_device *cuda, CUresult result, const char *what);
/* Whether something has failed; then nothing is given any more. */
bool cuda_lost(struct cuda_device *cuda);
/* The failure, if there is one. */
enum shoal_status cuda_failure(struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;

/* ---- streams.c ---- */

enum shoal_status cuda_clock_open(
    struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;
void cuda_clock_close(struct cuda_device *cuda);
enum shoal_status cuda_stream_create(
    struct device *device, bool copy, struct stream **stream, struct shoal_error *error);
void cuda_stream_destroy(struct stream **stream);
enum shoal_status cuda_stream_synchronize(struct stream *stream, struct shoal_error *error);
enum shoal_status cuda_event_create(
    struct device *device, struct event **event, struct shoal_error *error);
void cuda_event_destroy(struct event **event);
void cuda_event_record(struct stream *stream, struct event *event);
void cuda_event_wait(struct stream *stream, struct event *event);
void cuda_event_synchronize(struct event *event);
bool cuda_event_happened(struct event *event);
uint64_t cuda_event_time_ns(struct event *event);
void cuda_copy_in(struct stream *stream, device_addr to, const void *from, uint64_t bytes);
void cuda_copy_out(struct stream *stream, void *to, device_addr from, uint64_t bytes);
void cuda_copy_within(struct stream *stream, device_addr to, device_addr from, uint64_t bytes);

/* ---- launch.c ---- */

/* The version of CUDA that the kernels were compiled with: 13000 is 13.0; 0: there are none. */
int cuda_kernels_version(void);
enum shoal_status cuda_kernels_load(
    struct cuda_device *cuda, struct shoal_error *error) SHOAL_CHECKED;
void cuda_kernels_unload(struct cuda_device *cuda);

struct cuda_grid {
    uint32_t x, y, z;      /* blocks */
    uint32_t threads;      /* of a block */
    uint32_t shared_bytes; /* of a block, dynamic */
};

/* Gives a kernel to the stream. `args` points to the kernel's one struct of arguments. */
void cuda_launch(
    struct stream *stream, enum cuda_kernel kernel, struct cuda_grid grid, const void *args);

static inline struct gpu_matrix gpu_matrix(struct matrix m)
{
    return (struct gpu_matrix){
        (void *)(uintptr_t)m.addr, m.rows, m.cols, m.stride, (int32_t)m.dtype, m.scale};
}

/* ---- operations: see compute_ops ---- */

extern const struct compute_ops cuda_compute_ops; /* ops.c: the table */

void cuda_linear(
    struct stream *, struct matrix y, struct matrix x, struct matrix w, struct matrix bias);
void cuda_attention(struct stream *, struct matrix out, struct matrix q, struct matrix k,
    struct matrix v, const struct attention *attention);
void cuda_conv2d(struct stream *, struct matrix y, struct matrix x, struct matrix w,
    struct matrix bias, const struct conv *conv);
void cuda_unpack(struct stream *, const struct crossed *tensors, int32_t count);
void cuda_patch(struct stream *, struct matrix y, struct matrix x, const struct patch *patch);

/* convert.c */

/* What an operation has not used of the workspace yet; all of it at first. */
struct cuda_room {
    device_addr at; /* aligned to 256 bytes */
    uint64_t bytes;
};
struct cuda_room cuda_room(struct stream *stream);
/* Whoever takes says before that there is so much. */
device_addr cuda_room_take(struct cuda_room *room, uint64_t bytes);

/* m as F32, F16 or BF16 at `at`, which is aligned to 16 bytes; its columns are padded with zeros.
 */
struct matrix cuda_convert(
    struct stream *stream, device_addr at, enum dtype dtype, struct matrix m);
/* To so many. */
int64_t cuda_converted_cols(int64_t cols);
/* m, or as F32 if it is quantised, in the room. Most kernels take plain types only. */
struct matrix cuda_plain(struct stream *stream, struct matrix m, struct cuda_room *room);

/* norms.c */
void cuda_rms_norm(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, float eps);
/* gated_add with gamma; what it is given was checked. */
void cuda_rms_norm_add(struct stream *, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps);
void cuda_layer_norm(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
    struct matrix scale, struct matrix shift, float eps);
void cuda_match_norms(struct stream *, struct matrix y, struct matrix x);
void cuda_channel_norm(struct stream *, struct matrix y, struct matrix x, struct matrix gamma,
    enum activation activation);
void cuda_rms_norm_rope(struct stream *, struct matrix x, struct matrix gamma, float eps,
    struct matrix table, enum rope_layout layout);
void cuda_group_moments(struct stream *, struct matrix moments, struct matrix x, int64_t run);
void cuda_group_fold(struct stream *, struct matrix affine, struct matrix moments,
    struct matrix gamma, struct matrix beta, const struct group_norm *norm);

/* rows.c */

/* Elements that a thread of such kernels moves at once: see kernels/vectors.cuh. */
int32_t cuda_run_width(int count, const struct matrix *operands);
/* Blocks of kernels whose threads go on until all is done: those wanted, or what fills the card. */
uint32_t cuda_blocks(struct stream *stream, int64_t wanted);

void cuda_affine(struct stream *, struct matrix y, struct matrix x, struct matrix affine,
    enum activation activation);
void cuda_activate(struct stream *, struct matrix y, struct matrix x, enum activation activation);
void cuda_gated(
    struct stream *, struct matrix y, struct matrix a, struct matrix b, enum activation activation);
void cuda_gated_add(struct stream *, struct matrix y, struct matrix gate, struct matrix x,
    struct matrix gamma, float eps);
void cuda_blend(struct stream *, struct matrix y, float a, struct matrix x, float b);
void cuda_guide(
    struct stream *, struct matrix y, struct matrix cond, struct matrix uncond, float scale);
void cuda_copy(struct stream *, struct matrix y, struct matrix x);
void cuda_transpose(struct stream *, struct matrix y, struct matrix x);
void cuda_patchify(struct stream *, struct matrix y, struct matrix x, int64_t height, int64_t width,
    int32_t patch, enum patch_order order);
void cuda_unpatchify(struct stream *, struct matrix y, struct matrix x, int64_t height,
    int64_t width, int32_t patch, enum patch_order order);

#endif
