/* The blocks that a store was described by, as a model: tensors in files or in memory, one weight
 * each, and nothing that computes. */
#ifndef PIPELINE_STORE_MODEL_H
#define PIPELINE_STORE_MODEL_H

#include "models/model.h"

struct store_model {
    struct model model; /* one pass over all blocks */
    struct block *blocks;
    struct weight *weights;
    struct checkpoint_tensor *tensors;
    char **names;
    struct file *files;  /* of tensors in memory, one each */
    struct file *opened; /* by path */
    int32_t block_count, tensor_count, opened_count;
    uint64_t bytes; /* of all tensors */
};

enum shoal_status store_model_open(struct store_model *model,
    const struct shoal_store_block *blocks, int32_t count, struct shoal_error *error) SHOAL_CHECKED;
void store_model_close(struct store_model *model); /* accepts a zeroed one */

#endif
