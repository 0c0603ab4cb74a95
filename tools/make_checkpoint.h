/*
 * Makes checkpoints of real shapes with random weights, for benchmarks and tests: nobody needs a
 * 12 GB download to measure streaming. The weights paint noise; they only keep activations finite.
 */
#ifndef TOOLS_MAKE_CHECKPOINT_H
#define TOOLS_MAKE_CHECKPOINT_H

#include "base/error.h"
#include "tensor/shape.h"

enum make_layout { MAKE_DIFFUSERS, MAKE_COMFYUI };
enum make_part { MAKE_DIT = 1, MAKE_TEXT = 2, MAKE_VAE = 4 };

struct make_options {
    enum make_layout layout;
    unsigned parts;        /* of enum make_part */
    bool small;            /* a few MB of the same structure, for tests */
    enum dtype dtype;      /* BF16, F32 holding the same values, or F8_E4M3: they rounded */
    uint64_t seed;         /* the same seed gives the same weights in every layout and dtype */
    uint64_t shard_bytes;  /* of the diffusers layout's files, at most, if tensors allow it */
    const char *tokenizer; /* file or folder to copy the tokenizer from, or NULL */
    const char *out;       /* must not exist. ComfyUI layout: *.safetensors makes one file of all */
};

/* `*bytes`, if not NULL: all tensors' bytes. Appears whole or not at all. */
enum shoal_status make_checkpoint(
    const struct make_options *options, uint64_t *bytes, struct shoal_error *error) SHOAL_CHECKED;

/* ---- between the files of this tool ---- */

/* Sizes of the models: [0] the real one, [1] the small one. */
struct make_dit_size {
    int64_t dim, layers, refiners, heads, caption, ffn, middle;
};

struct make_text_size {
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocabulary;
};

#define MAKE_VAE_LEVELS 4
#define MAKE_VAE_LATENT 16
#define MAKE_VAE_LAYERS 2 /* resnets a level; one more on the way up */

struct make_vae_size {
    int64_t channels[MAKE_VAE_LEVELS];
};

extern const struct make_dit_size make_dit_sizes[2];
extern const struct make_text_size make_text_sizes[2];
extern const struct make_vae_size make_vae_sizes[2];

/* Random numbers: normal around `mean`, a stream of their own for each name. */
struct make_source {
    char name[96]; /* the diffusers name, in every layout */
    uint64_t count;
    float mean, deviation;
};

#define MAKE_MAX_SOURCES 3

struct make_tensor {
    char name[128];
    struct shape shape;
    struct make_source sources[MAKE_MAX_SOURCES]; /* one after the other: q, k, v fused */
    int source_count;
};

struct make_list {
    struct make_tensor *tensors;
    size_t count, room;
    enum make_layout layout;
    const char *prefix;    /* of the stored names, e.g. "vae." */
    const char *component; /* keeps equal names of several components apart */
    char scope[64];        /* where in the model we are, in diffusers' words */
    char stored_scope[64]; /* the same in this layout's */
    bool failed;           /* out of memory */
};

/* What a tensor is stored in: in FP8 only matrices are, as in the files that people have. */
enum dtype make_dtype(const struct make_tensor *tensor, enum dtype asked);

/* The tensors of one part, appended to the list. */
void make_z_image_dit(struct make_list *list, bool small);
void make_qwen3(struct make_list *list, bool small);
void make_flux_vae(struct make_list *list, bool small);

/* The configurations of the diffusers layout, as JSON. */
struct text;
void make_dit_config(struct text *json, bool small);
void make_text_config(struct text *json, bool small);
void make_vae_config(struct text *json, bool small);
void make_scheduler_config(struct text *json, bool small);
void make_model_index(struct text *json, bool small);

/* Writes tensors as one safetensors file; sorts them by name first. */
enum shoal_status make_write(const char *path, struct make_tensor *tensors, size_t count,
    const struct make_options *options, struct shoal_error *error) SHOAL_CHECKED;

#endif
