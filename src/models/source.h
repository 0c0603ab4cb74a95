/*
 * What a model is opened from: the tensors of a checkpoint under a prefix, and perhaps a
 * config.json. Shapes say most of a configuration; the file says the rest and must agree.
 */
#ifndef MODELS_SOURCE_H
#define MODELS_SOURCE_H

#include "checkpoint/checkpoint.h"

#include <jansson.h>

struct source {
    const struct checkpoint *checkpoint;
    char *prefix;            /* owned */
    const char *config_path; /* NULL: none */
    json_t *config;
    struct shoal_error *error;
    enum shoal_status status; /* the first failure of the calls that return none */
};

/* The tensor called `key`, with or without a prefix that ends in '.'; of several, the one with the
 * shortest prefix. NULL: none. */
const struct checkpoint_tensor *source_probe(const struct checkpoint *checkpoint, const char *key);

/*
 * `key` is a tensor that the model has: what stands before it is the prefix. The config's
 * `type_key` ("_class_name") must say `type`, if it says anything. Fails if the weights are
 * quantised. source_fini whatever it returned.
 */
enum shoal_status source_init(struct source *source, const struct checkpoint *checkpoint,
    const char *key, const char *config_path, const char *type_key, const char *type,
    struct shoal_error *error) SHOAL_CHECKED;
void source_fini(struct source *source);

/* A tensor under the prefix that shows that weights are quantised, or NULL. */
const struct checkpoint_tensor *source_quantised(
    const struct checkpoint *checkpoint, const char *prefix);

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

#endif
