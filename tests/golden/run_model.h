/*
 * Runs a model's passes with every block on the device: the simplest runner there can be, against
 * which goldens are checked, and helpers for golden files. Not the streamer.
 */
#ifndef TESTS_GOLDEN_RUN_MODEL_H
#define TESTS_GOLDEN_RUN_MODEL_H

#include "models/model.h"

struct run {
    const struct model *model;
    struct device *device;
    struct stream *stream;
    struct region *region;
    struct exec exec;
    device_addr *block_addr;      /* of each block */
    struct matrix *block_weights; /* room for the largest block's */
    /* Called after each block if not NULL. */
    void (*after)(void *user, struct run *run, const struct block *block, void *lane);
    void *user;
};

enum run_device { RUN_REFERENCE, RUN_FAST, RUN_CARD, RUN_COUNT };
const char *run_device_name(enum run_device device);

extern const struct device_traits *run_count_traits; /* of RUN_COUNT; NULL: the CPU's */

/* Takes an arena for all weights and `scratch_bytes`, and copies the weights in. */
enum shoal_status run_open(struct run *run, const struct model *model, enum run_device device,
    uint64_t scratch_bytes, struct shoal_error *error) SHOAL_CHECKED;
void run_close(struct run *run);

/* One walk over the pass's blocks for all lanes; then waits for the device. */
enum shoal_status run_pass(struct run *run, int32_t pass, void **lanes, int32_t lane_count,
    struct shoal_error *error) SHOAL_CHECKED;

/* The values of a dense matrix of any activation type, when what was given before is done;
 * mem_free'd by the caller. */
float *run_values(struct run *run, struct matrix m);

/* tests/golden/NAME.safetensors; its configuration is written to a temporary file. */
struct golden {
    struct checkpoint *checkpoint;
    char *config_path;
};

enum shoal_status golden_open(
    const char *name, struct golden *golden, struct shoal_error *error) SHOAL_CHECKED;
void golden_close(struct golden *golden);
bool golden_has(const struct golden *golden, const char *tensor);
int64_t golden_dim(const struct golden *golden, const char *tensor, int32_t axis);
/* An F32 tensor's values, mem_free'd by the caller; fails the test when it is missing. */
float *golden_values(const struct golden *golden, const char *tensor, int64_t *count);

/* How far `a` is from `b`: NaN or infinite if a value of `a` is. */
struct golden_gap {
    double max; /* |a - b|, against the largest |b| */
    double rms; /* of a - b, against b's */
};
struct golden_gap golden_gap(const float *a, const float *b, int64_t count);

/* Prints how far `a` is from the tensor; fails the test if that is above one of the limits. */
void golden_compare(const char *what, const float *a, const struct golden *golden,
    const char *tensor, struct golden_gap limit);

#endif
