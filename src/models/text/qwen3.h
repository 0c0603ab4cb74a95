/*
 * Qwen3 as a text encoder: the hidden states before the last layer, which is never run nor loaded.
 * One pass, "encode"; its lanes are struct qwen3_lane, one for each prompt.
 */
#ifndef MODELS_TEXT_QWEN3_H
#define MODELS_TEXT_QWEN3_H

#include "models/model.h"

struct qwen3_config {
    int64_t hidden, ffn_dim, vocabulary;
    int32_t heads, kv_heads, head_dim;
    int32_t layers; /* that are run: all but the model's last */
    double theta;
    float norm_eps;
    const struct checkpoint_tensor *embedding; /* [vocabulary, hidden], read row by row */
    float embedding_scale;
};

/* As zimage_open. */
enum shoal_status qwen3_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct qwen3_config *qwen3_config(const struct model *model);

struct qwen3_lane {
    const struct qwen3_config *config;
    int64_t tokens;
    float *host_embedded; /* [tokens, hidden] */
    float *host_rope;     /* [tokens, head_dim] */
    float *features; /* [tokens, hidden], host: the result, once the stream is synchronised after
                        the pass */

    /* Between begin and end: */
    struct matrix hidden, rope;
};

/*
 * Gathers the tokens' embeddings from the checkpoint's file; no weight stays in host memory. ids
 * may be NULL for a lane that is only counted: nothing is read then.
 */
enum shoal_status qwen3_lane_create(const struct model *model, const int32_t *ids, int64_t tokens,
    struct qwen3_lane **lane, struct shoal_error *error) SHOAL_CHECKED;
/* The stream must have been synchronised since the pass. */
void qwen3_lane_destroy(struct exec *x, struct qwen3_lane **lane);

#endif
