/*
 * What a model is opened from: the tensors of a checkpoint under a prefix, and perhaps a
 * config.json or a GGUF file's metadata. Shapes say most of a configuration; these say the rest and
 * must agree.
 */
#ifndef MODELS_SOURCE_H
#define MODELS_SOURCE_H

#include "models/model.h"

#include <jansson.h>

struct source {
    const struct checkpoint *checkpoint;
    char *prefix;            /* owned */
    const char *config_path; /* NULL: none; for metadata, the checkpoint's */
    json_t *config;
    struct scales scales;
    struct shoal_error *error;
    enum shoal_status status; /* the first failure of the calls that return none */
};

/* The tensor called `key`, with or without a prefix that ends in '.'; of several, the one with the
 * shortest prefix. NULL: none. */
const struct checkpoint_tensor *source_probe(const struct checkpoint *checkpoint, const char *key);

/* A member of the config, and what a GGUF file's metadata call it after "ARCHITECTURE.". */
struct source_key {
    const char *config, *gguf;
};

/* How a family's models are opened. */
struct source_family {
    const char *name; /* of the family */
    const char *key;  /* a tensor that the model has: what stands before it is the prefix */
    /* What the config's "_class_name", say, must be if it is there: alternatives apart by '|'. */
    const char *type_key, *type;
    const char *nested; /* an object in the config whose members go over the others; or NULL */
    /* What general.architecture must be in a GGUF file (alternatives), and what then is the config;
     * or NULL. */
    const char *gguf_type;
    const struct source_key *gguf_keys; /* up to one whose members are NULL */
    size_t config_bytes;                /* of the family's own struct, zeroed before read_config */
    void (*read_config)(struct source *source, void *config);
    void (*build)(struct model_builder *builder, const void *config);
};

/* Reads the configuration, then builds the model. Fails if weights are quantised in a way
 * that nothing here computes with. */
enum shoal_status source_open(const struct source_family *family,
    const struct checkpoint *checkpoint, const char *config_path, struct model **model,
    struct shoal_error *error) SHOAL_CHECKED;

/* ---- from the tensors ---- */

/* prefix + name, or NULL. */
const struct checkpoint_tensor *source_tensor(const struct source *source, const char *name);

/* Dimension `axis` of the tensor, in 1..2^24; it must exist. `names`: alternatives apart by '|'. */
int64_t source_dim(struct source *source, const char *names, int32_t axis);

/* How many numbered groups there are, e.g. "layers." for layers.0. to layers.29.: the highest
 * number + 1, so that gaps show as missing tensors. */
int32_t source_count(struct source *source, const char *group);

/* ---- from the config ---- */

/* The number under `key`, or `fallback` when there is none; must lie in [low, high]. */
double source_number(
    struct source *source, const char *key, double fallback, double low, double high);

/* An array of `count` numbers in [low, high]; false, and `values` are as they were, if there is
 * none.
 */
bool source_numbers(
    struct source *source, const char *key, float *values, int32_t count, double low, double high);

/* If the config has `key` it must be `value`, which `tensor` shows; the message names both. */
void source_agrees(struct source *source, const char *key, int64_t value, const char *tensor);

/* If the config has `key` it must be that; what else it may be this build does not run. */
void source_requires_bool(struct source *source, const char *key, bool value);
/* The key must be absent or null. */
void source_requires_null(struct source *source, const char *key);
void source_requires_text(struct source *source, const char *key, const char *value);

/* An array of up to `room` integers in [low, high]; its length, 0 when there is none. */
int32_t source_integers(struct source *source, const char *key, int64_t *values, int32_t room,
    int64_t low, int64_t high);

/* How `width` dimensions of a head are split between three axes: three even numbers, in `axes` the
 * ones that hold where the config has none under `key`. */
void source_axes(struct source *source, const char *key, int32_t width, int32_t axes[3]);

#endif
