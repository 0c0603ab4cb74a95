/*
 * A checkpoint: named byte ranges in one file or several (shards). Headers only are read; no weight
 * is touched until somebody asks for its bytes.
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include "base/file.h"
#include "tensor/shape.h"

#include <jansson.h>

struct checkpoint_tensor {
    const char *name; /* owned by the checkpoint */
    enum dtype dtype;
    struct shape shape;
    uint64_t bytes;                /* of its values, by dtype and shape */
    uint64_t offset, stored_bytes; /* in the file; checked against its length */
    bool packed; /* stored as a payload of the lossless wire; else stored_bytes is bytes */
    const struct file *file;
};

struct checkpoint;

/*
 * `path`: a .safetensors or GGUF file, an index (*.safetensors.index.json), or a folder that holds
 * exactly one checkpoint (an index, or one .safetensors or .gguf file). The checkpoint is the
 * caller's to close.
 */
enum shoal_status checkpoint_open(
    const char *path, struct checkpoint **checkpoint, struct shoal_error *error) SHOAL_CHECKED;
void checkpoint_close(struct checkpoint **checkpoint);

const char *checkpoint_path(const struct checkpoint *checkpoint);
size_t checkpoint_count(const struct checkpoint *checkpoint);
const struct checkpoint_tensor *checkpoint_at(
    const struct checkpoint *checkpoint, size_t index); /* sorted by name */
/* NULL when there is none of that name. */
const struct checkpoint_tensor *checkpoint_find(
    const struct checkpoint *checkpoint, const char *name);
/* A value of the header's __metadata__, or a string of a GGUF file's metadata; or NULL. */
const char *checkpoint_metadata(const struct checkpoint *checkpoint, const char *key);

/* A value of a GGUF file's metadata as JSON, the caller's to json_decref; NULL: there is none. */
enum shoal_status checkpoint_value(const struct checkpoint *checkpoint, const char *key,
    json_t **value, struct shoal_error *error) SHOAL_CHECKED;

/* The tensor's bytes as stored, `bytes` of them. */
enum shoal_status checkpoint_read(
    const struct checkpoint_tensor *tensor, void *data, struct shoal_error *error) SHOAL_CHECKED;

#endif
