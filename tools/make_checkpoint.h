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

struct make_family;

struct make_options {
    const struct make_family *family; /* NULL: the first */
    enum make_layout layout;
    unsigned parts;        /* of enum make_part */
    bool small;            /* a few MB of the same structure, for tests */
    uint64_t depth;        /* of the DiT and the text encoder that many blocks alone; 0: all */
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

struct text;

/* One of a family's models. */
struct make_component {
    void (*fill)(struct make_list *list, bool small); /* appends its tensors; NULL: not made */
    void (*config)(struct text *json, bool small);    /* of the diffusers layout */
    const char *file, *prefix; /* its file in the ComfyUI layout, and its names' prefix there */
    const char *whole_prefix;  /* in one file of everything */
    /* As the first two, of what has a folder of its own in the diffusers layout, and is in the same
     * file in the others; or NULL. */
    void (*more)(struct make_list *list, bool small);
    void (*more_config)(struct text *json, bool small);
    const char *more_folder;
};

#define MAKE_PARTS 3

struct make_family {
    const char *name;
    struct make_component parts[MAKE_PARTS];          /* dit, text, vae */
    void (*scheduler)(struct text *json, bool small); /* NULL: its pipeline is not made */
    void (*index)(struct text *json, bool small);
};

/* The one called `name`, or NULL; the first if `name` is NULL. Static storage. */
const struct make_family *make_family_find(const char *name);
/* Its parts that are made, of enum make_part. */
unsigned make_family_parts(const struct make_family *family);
extern const char make_family_names[]; /* "z-image, ..." */

/* The tensors of one part, appended to the list. */
void make_z_image_dit(struct make_list *list, bool small);
void make_qwen3(struct make_list *list, bool small);
void make_flux_vae(struct make_list *list, bool small);
void make_qwen_image_dit(struct make_list *list, bool small);
void make_qwen_vl(struct make_list *list, bool small);
void make_cosmos_2b(struct make_list *list, bool small);
void make_cosmos_14b(struct make_list *list, bool small);
void make_anima_adapter(struct make_list *list, bool small);
void make_t5(struct make_list *list, bool small);          /* T5-11B's encoder */
void make_qwen3_small(struct make_list *list, bool small); /* Qwen3-0.6B */
void make_wan_vae(struct make_list *list, bool small);

/* A Qwen language model: with biases of q, k and v, or with norms of q and k. */
void make_language_model(struct make_list *list, const struct make_text_size *size, bool biased);

/* The configurations of the diffusers layout, as JSON. */
void make_dit_config(struct text *json, bool small);
void make_text_config(struct text *json, bool small);
void make_vae_config(struct text *json, bool small);
void make_scheduler_config(struct text *json, bool small);
void make_model_index(struct text *json, bool small);
void make_qwen_image_config(struct text *json, bool small);
void make_qwen_vl_config(struct text *json, bool small);
void make_t5_config(struct text *json, bool small);
void make_qwen3_small_config(struct text *json, bool small);
void make_qwen3_config(struct text *json, const struct make_text_size *size);
void make_cosmos_2b_config(struct text *json, bool small);
void make_cosmos_14b_config(struct text *json, bool small);
void make_anima_adapter_config(struct text *json, bool small);
void make_wan_vae_config(struct text *json, bool small);
void make_qwen_image_scheduler(struct text *json, bool small);
void make_qwen_image_index(struct text *json, bool small);

/* ---- lists: `name` is diffusers', `stored` ComfyUI's ---- */

/* Sets where in the model we are. */
void list_scope(struct make_list *list, const char *name, const char *stored);
void list_tensor(struct make_list *list, const char *name, const char *stored,
    const struct shape *shape, double mean, double deviation);
/* A matrix that keeps the variance of what it is applied to, a bias, and a norm's weights. */
void list_linear(
    struct make_list *list, const char *name, const char *stored, int64_t outputs, int64_t inputs);
void list_bias(struct make_list *list, const char *name, const char *stored, int64_t outputs);
void list_norm(struct make_list *list, const char *name, const char *stored, int64_t width);
struct shape make_plane(int64_t rows, int64_t cols);

/* Writes tensors as one safetensors file; sorts them by name first. */
enum shoal_status make_write(const char *path, struct make_tensor *tensors, size_t count,
    const struct make_options *options, struct shoal_error *error) SHOAL_CHECKED;

#endif
