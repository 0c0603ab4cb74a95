/*
 * What text encoders of all families have in common: a prompt's tokens in, a row of features for
 * each out. Their passes are walked over struct text_lane, one for each prompt.
 */
#ifndef MODELS_TEXT_TEXT_H
#define MODELS_TEXT_TEXT_H

#include "layers/table.h"
#include "models/model.h"

/* Which of its states an encoder is asked for; each is a pass. */
enum text_state {
    TEXT_BEFORE_LAST, /* hidden_states[-2] of transformers: what enters the last layer */
    TEXT_LAST,        /* what leaves the last layer, after the final norm */
    TEXT_STATES
};

#define TEXT_TABLES 2

struct text_lane;

struct text_family {
    /* Sets the tables' rows and cols. */
    void (*measure)(struct text_lane *lane);
    /* Fills them in host memory. Not called where the lane is only counted. */
    enum shoal_status (*fill)(struct text_lane *lane, struct shoal_error *error);
};

/* What every family's config begins with. */
struct text_config {
    const struct text_family *family;
    int64_t width;                             /* of the features */
    int64_t vocabulary;                        /* rows of the embedding */
    const struct checkpoint_tensor *embedding; /* [vocabulary, width], read row by row */
    float embedding_scale;
    int8_t pass[TEXT_STATES]; /* of the model, that gives this state; -1: none does */
};

static inline const struct text_config *text_config(const struct model *model)
{
    return model->config;
}

struct text_lane {
    const struct model *model;
    const struct text_config *config; /* the model's */
    int64_t tokens;
    float *host_embedded;             /* [tokens, width] */
    struct table tables[TEXT_TABLES]; /* the family's: rotary positions, biases */
    float *features; /* [tokens, width], host: the result, once the stream is synchronised after
                        the pass */

    /* Between begin and end: */
    struct matrix hidden;
};

/*
 * Gathers the tokens' embeddings from the checkpoint's file; no weight stays in host memory. ids
 * may be NULL for a lane that is only counted: nothing is read then.
 */
enum shoal_status text_lane_create(const struct model *model, const int32_t *ids, int64_t tokens,
    struct text_lane **lane, struct shoal_error *error) SHOAL_CHECKED;
/* Host memory that a lane of so many tokens takes. */
uint64_t text_lane_bytes(const struct model *model, int64_t tokens);
/* The stream must have been synchronised since the pass. */
void text_lane_destroy(struct exec *x, struct text_lane **lane);

/* ---- for families ---- */

/* A block_forward, for `begin`: uploads tables and embeddings. */
void text_begin(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane);
/* For `end`, after which `hidden` is the features. */
void text_finish(struct exec *x, struct text_lane *lane);
/* The same of what the final norm makes of it; gamma [1, width]. */
void text_finish_normed(struct exec *x, struct text_lane *lane, struct matrix gamma, float eps);

struct source;

/* Row ids[t] of the embedding, read from the file, for every token: embedded [tokens, width]. Also
 * for DiTs that have an embedding of their own. */
enum shoal_status text_embed(const struct text_config *config, const int32_t *ids, int64_t tokens,
    float *embedded, struct shoal_error *error) SHOAL_CHECKED;

/* Reads the embedding's members of the config, whose width is known, from the tensor called
 * `name`. */
void text_read_embedding(struct source *source, const char *name, struct text_config *config);

#endif
