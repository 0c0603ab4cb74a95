/*
 * A made-up model to measure streaming with: blocks of linear products over random weights, of any
 * size and number, and as much arithmetic as there are rows to compute with. Its weights lie in a
 * file that no name leads to, written when it is opened; blocks share those of a few.
 */
#ifndef PIPELINE_BENCH_MODEL_H
#define PIPELINE_BENCH_MODEL_H

#include "models/model.h"

#define BENCH_MODEL_DISTINCT 4 /* blocks whose weights differ, at most: then they come again */
#define BENCH_MODEL_LEAST_BYTES ((uint64_t)1 << 20) /* of a block */
#define BENCH_MODEL_MOST_BYTES ((uint64_t)1 << 40)

/* The passes: a step's walk over all blocks; and those alone whose weights differ, block i of a
 * step having the weights of block i % count. */
enum { BENCH_MODEL_STEP, BENCH_MODEL_RESIDENT };

struct bench_model_spec {
    int32_t blocks;
    uint64_t block_bytes; /* of BF16 weights; rounded down to what the products' shapes allow */
    int64_t tokens;
    const char *folder; /* for the file */
    bool (*cancelled)(void *user);
    void *user;
};

struct bench_model {
    struct model model;
    struct file file;
    int64_t tokens, hidden;
    struct checkpoint_tensor *tensors; /* of the blocks whose weights differ */
    struct weight *weights;            /* the same */
    struct block *blocks;              /* the model's */
};

/* A lane of its forwards. */
struct bench_lane {
    struct matrix hidden; /* [tokens, hidden], F32: noise, to which every block adds */
};

/* Lays the blocks out; the file comes later. */
enum shoal_status bench_model_open(struct bench_model *model, const struct bench_model_spec *spec,
    struct shoal_error *error) SHOAL_CHECKED;
/* Whether the file has room in a folder, as far as that can be told before. */
enum shoal_status bench_model_check_room(
    const struct bench_model *model, const char *folder, struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status bench_model_write(struct bench_model *model, const struct bench_model_spec *spec,
    struct shoal_error *error) SHOAL_CHECKED;
void bench_model_close(struct bench_model *model); /* accepts a zeroed one */

/* What the file takes. */
uint64_t bench_model_file_bytes(const struct bench_model *model);

#endif
