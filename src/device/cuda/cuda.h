/*
 * The CUDA device: the driver's library is opened when it is asked for, so one binary runs with
 * and without it.
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include "device/cuda/kernels/few.h"
#include "device/device.h"

/* What a plan for a card counts with. Cards before sm_80 have no BF16: F16 there. */
#define CUDA_TRAITS                                                                                \
    ((struct device_traits){.activation = DTYPE_BF16,                                              \
        .chunk_rows = 4096,                                                                        \
        .product_rows = 4096,                                                                      \
        .convert_rows = FEW_ROWS + 1})

#define CUDA_MAX_CARDS 64 /* ordinals are less */

/*
 * Opens card `ordinal`: context, kernels, libraries. SHOAL_E_DEVICE says what is missing: no
 * driver, one that is too old, no card, or a build without kernels.
 */
enum shoal_status cuda_create(
    struct device **device, int32_t ordinal, struct shoal_error *error) SHOAL_CHECKED;

/* Gives back what only computing needs, the workspace first of all: from then on the device copies
 * and unpacks. Others' devices of the card keep theirs. */
void cuda_stop_computing(struct device *device);

struct cuda_info {
    const char *name;        /* of the card; lives as long as the device */
    int32_t sm;              /* 89: compute capability 8.9 */
    uint64_t card_bytes;     /* the card's memory, in all */
    uint64_t free_bytes;     /* when the device was opened, before it took any */
    uint64_t overhead_bytes; /* that the process takes on the card beside the arena */
    uint64_t host_bytes;     /* that the driver and libraries take of the process's memory */
    const char *multiplies;  /* "cuBLASLt 13.0" or "own kernels" */
    const char *attends;     /* "cuDNN 9.15" or "own kernels" */
};
struct cuda_info cuda_info(const struct device *device);

/* What the process takes on the card now, by the driver; 0 if it does not say. */
uint64_t cuda_process_bytes(const struct device *device);

/*
 * From follow to return, work that is given to the stream goes to another's: a CUstream of the
 * card's primary context, NULL being the default one. In what order they do their work is the
 * caller's to say, with events.
 */
void cuda_stream_follow(struct stream *stream, void *handle);
void cuda_stream_return(struct stream *stream);

/* ---- the machine's cards, without opening one ---- */

struct cuda_card {
    char name[96]; /* "NVIDIA GeForce RTX 4060" */
    int32_t sm;
    uint64_t bytes; /* its memory */
};

/* How many there are, at least one; or SHOAL_E_DEVICE, and the error says why none can be opened.
 */
enum shoal_status cuda_count(int32_t *count, struct shoal_error *error) SHOAL_CHECKED;

/* Card `ordinal`; or SHOAL_E_DEVICE, and the error says why it cannot be opened, while `card` is
 * what is known of it. */
enum shoal_status cuda_look(
    int32_t ordinal, struct cuda_card *card, struct shoal_error *error) SHOAL_CHECKED;

#endif
