/*
 * A model is data: an ordered array of blocks, each with weights and a forward function, and the
 * passes that walk them. Text encoders, DiTs and VAEs all have this one shape. A forward never
 * knows whether its block was resident, came from RAM or from disk.
 */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include "checkpoint/checkpoint.h"
#include "layers/exec.h"
#include "models/scales.h"

#define WEIGHT_MAX_PIECES 4
#define BLOCK_WEIGHT_ALIGNMENT 256
#define MODEL_ALIAS_LESS "transformer_" /* "transformer_blocks.0." is "blocks.0." in aliases */

/* One weight: where its bytes lie in the checkpoint and in the block. All of one type and, of F8
 * types, with one scale. */
struct weight {
    char *name; /* in the block, as the family calls it, e.g. "feed_forward.w1.weight"; owned */
    enum dtype dtype;
    float scale;        /* as struct matrix's */
    int64_t rows, cols; /* no rows and no pieces: an empty part, see builder_stack */
    uint64_t offset;    /* in the block's bytes */
    uint64_t bytes;
    /* Concatenated in order: one for a weight stored whole, three for q, k, v stored apart. */
    const struct checkpoint_tensor *pieces[WEIGHT_MAX_PIECES];
    int32_t piece_count;
    /* Every name that it may have, as builder_weight's but with the key prefixes and less the
     * checkpoint's and less MODEL_ALIAS_LESS, as one layout has it and another has not, and how
     * many rows each of a stack's parts has: whoever writes for the model knows some of them.
     * Owned; NULL: of an empty part. */
    char *aliases;
    int64_t part_rows[WEIGHT_MAX_PIECES];
    int32_t parts, part; /* part: which it is of a stack that is stored apart; -1: the whole */
    bool on_host;        /* used as the file has it, not as it is on the device */
};

struct block;

/* Runs a block for one lane. `weights[i]` is weight i on the device. `lane` is the family's own. */
typedef void block_forward(
    struct exec *x, const struct block *block, const struct matrix *weights, void *lane);

struct block {
    char name[64];
    block_forward *forward;
    const void *config; /* the family's, owned by the model */
    int32_t index;      /* the family's use: which layer */
    struct weight *weights;
    int32_t weight_count;
    uint64_t bytes; /* of all weights, each at its aligned offset; a multiple of the alignment */
};

/* Of all its weights. */
int32_t block_piece_count(const struct block *block);

/* Fills weights[i] for a block whose bytes lie at `base` on the device. */
void block_bind(const struct block *block, device_addr base, struct matrix *weights);

/*
 * A pass walks blocks [first, first + count) in order, for every lane, between begin and end. The
 * weights that begin and end need (embedders, final layers) are the `globals` block: always on the
 * device while the pass runs.
 */
struct pass {
    const char *name;
    int32_t first, count;
    int32_t globals;      /* index of the globals block, or -1 */
    block_forward *begin; /* allocates what the lane holds between blocks; may be NULL */
    block_forward *end;   /* frees it and leaves the result; may be NULL */
};

#define MODEL_MAX_PASSES 2

struct model {
    const char *family; /* "z-image", "qwen3", "kl-vae"; static */
    struct block *blocks;
    int32_t block_count;
    struct pass passes[MODEL_MAX_PASSES];
    int32_t pass_count;
    void *config;        /* the family's; mem_alloc'd, owned */
    size_t input_scales; /* that the files have and nothing uses: see scales.h */
};

void model_destroy(struct model **model);

/* ---- building: used by the families' open functions ---- */

#define MODEL_NAME_BYTES 512 /* of a tensor's name, prefixes included */

struct model_builder {
    struct model *model;
    const struct checkpoint *checkpoint;
    struct scales scales;
    const char *prefix;   /* put before every name, e.g. "model.diffusion_model." */
    char key_prefix[128]; /* the current block's, put after it */
    char **key_prefixes;  /* every one that was used, but "" */
    const struct checkpoint_tensor **ignored; /* see builder_ignore */
    int32_t block_room, weight_room, key_prefix_count, key_prefix_room, ignored_count, ignored_room;
    struct shoal_error *error;
    enum shoal_status status; /* the first failure; later calls do nothing */
    int32_t missing;          /* weights not found */
    char first_missing[MODEL_NAME_BYTES];
};

/*
 * Begins a new empty model. `config` (may be NULL) is owned by it from here on, even if this fails;
 * builder_finish hands the model out or destroys it. `prefix` must live until then.
 */
void builder_begin(struct model_builder *b, const char *family, void *config,
    const struct checkpoint *checkpoint, const char *prefix, struct shoal_error *error);

/* Begins a block and returns its index. `key_prefix`, e.g. "layers.3.", goes before its weights'
 * names. */
int32_t builder_block(struct model_builder *b, block_forward *forward, int32_t index,
    const char *name, const char *key_prefix);

/* Changes the key prefix for the current block's weights from here on. */
void builder_key_prefix(struct model_builder *b, const char *key_prefix);

/*
 * Adds a weight of [rows, cols] to the current block; weights are numbered from 0 in the order
 * added. `names` lists where it may lie, most canonical first: alternatives apart by '|', pieces to
 * be concatenated along rows by '+', e.g.
 *     "attention.to_q.weight+attention.to_k.weight+attention.to_v.weight|attention.qkv.weight".
 * A name that begins with '/' is not prefixed with the block's key prefix. The tensors must have
 * rows x cols elements together, of one computable dtype; those of more than one row must have
 * `cols` elements for each index of their first dimension (so [rows, in, 3, 3] is [rows, 9 in]).
 */
void builder_weight(struct model_builder *b, const char *names, int64_t rows, int64_t cols);

/*
 * The same for a weight that is `parts` matrices of rows[i] rows, one on top of the other, as q, k
 * and v are, which GGUF files hold in types of their own. It adds `parts` weights, which are to be
 * used in turn: the first is the whole matrix and the others are empty, unless the pieces are
 * stored apart and in several types, or with several scales; then each part is one of the weights.
 */
void builder_stack(
    struct model_builder *b, const char *names, const int64_t *rows, int32_t parts, int64_t cols);

/* Says that the forward uses the last weight's columns so many at a time, which must be whole
 * blocks of its type. */
void builder_pieces(struct model_builder *b, int64_t cols);

/* Says that the family reads the last weight from its file: nothing can be added to it. */
void builder_on_host(struct model_builder *b);

/* Says that tensors under the current key prefix, of names apart by '|' that may be there, have no
 * part in what the model computes here: they are not read, and no error. */
void builder_ignore(struct model_builder *b, const char *names);

/* Adds a pass over blocks [first, first + count). */
void builder_pass(struct model_builder *b, struct pass pass);

/*
 * SHOAL_E_MISSING names the first weight that is missing and says how many are. A .weight or .bias
 * under one of the key prefixes that no block uses and that is not ignored is an error too: it
 * belongs to a variant whose results would be different.
 */
enum shoal_status builder_finish(struct model_builder *b, struct model **model) SHOAL_CHECKED;

#endif
