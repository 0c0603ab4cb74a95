/*
 * A checkpoint: named byte ranges in one file or several (shards). Headers only are read; no weight
 * is touched until somebody asks for its bytes.
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include "base/allowance.h"
#include "base/file.h"
#include "tensor/shape.h"

#include <jansson.h>

struct checkpoint_tensor {
    const char *name;    /* owned by the checkpoint */
    size_t prefix_bytes; /* of the name, which the one in the file does not have */
    enum dtype dtype;
    struct shape shape;
    uint64_t bytes;                /* of its values, by dtype and shape */
    uint64_t offset, stored_bytes; /* in the file; checked against its length */
    bool packed; /* stored as a payload of the lossless wire; else stored_bytes is bytes */
    bool has_checksum;
    bool unchecked;    /* whose values may be anything: NaN too */
    uint64_t checksum; /* base/checksum.h, of the bytes as stored */
    const struct file *file;
};

/* Of a type that is not quantised. */
static inline uint64_t checkpoint_elements(const struct checkpoint_tensor *tensor)
{
    return tensor->bytes / (uint64_t)dtype_bytes(tensor->dtype, 1);
}

struct checkpoint;

/*
 * `path`: a .safetensors or GGUF file, an index (*.safetensors.index.json), or a folder that holds
 * exactly one checkpoint (an index, or one .safetensors or .gguf file). The checkpoint is the
 * caller's to close.
 */
enum shoal_status checkpoint_open(
    const char *path, struct checkpoint **checkpoint, struct shoal_error *error) SHOAL_CHECKED;
/* The same within an allowance, to which it adds what it takes at the most; NULL: without. */
enum shoal_status checkpoint_open_within(const char *path, struct allowance *allowance,
    struct checkpoint **checkpoint, struct shoal_error *error) SHOAL_CHECKED;

/* Another checkpoint whose tensors are a model's too. */
struct checkpoint_beside {
    const char *path;
    const char *prefix; /* goes before its tensors' names */
};

/* One checkpoint of both: `path`'s files are the first ones. A name that both have is
 * SHOAL_E_FORMAT. `beside` may be NULL. */
enum shoal_status checkpoint_open_with(const char *path, const struct checkpoint_beside *beside,
    struct allowance *allowance, struct checkpoint **checkpoint,
    struct shoal_error *error) SHOAL_CHECKED;
void checkpoint_close(struct checkpoint **checkpoint);

const char *checkpoint_path(const struct checkpoint *checkpoint);
/* Of what was opened beside it; NULL: nothing was. */
const char *checkpoint_beside_path(const struct checkpoint *checkpoint);
size_t checkpoint_count(const struct checkpoint *checkpoint);
const struct checkpoint_tensor *checkpoint_at(
    const struct checkpoint *checkpoint, size_t index); /* sorted by name */
/* NULL when there is none of that name. */
const struct checkpoint_tensor *checkpoint_find(
    const struct checkpoint *checkpoint, const char *name);
/* A value of a header's __metadata__, or a string of a GGUF file's metadata; or NULL. */
const char *checkpoint_metadata(const struct checkpoint *checkpoint, const char *key);

/* A value of a GGUF file's metadata as JSON, the caller's to json_decref; NULL: there is none. The
 * allowance may be NULL. */
enum shoal_status checkpoint_value(const struct checkpoint *checkpoint, const char *key,
    struct allowance *allowance, json_t **value, struct shoal_error *error) SHOAL_CHECKED;

/* Of all its headers. */
uint64_t checkpoint_header_bytes(const struct checkpoint *checkpoint);
/* The files it lies in: one, or all shards. */
size_t checkpoint_file_count(const struct checkpoint *checkpoint);
const struct file *checkpoint_file(const struct checkpoint *checkpoint, size_t index);
/* Pair `index` of that file's __metadata__, less what the packed container says of itself
 * (container.h). False: there is none. */
bool checkpoint_file_metadata(const struct checkpoint *checkpoint, size_t file, size_t index,
    const char **key, const char **value);

/* The tensor's values, `bytes` of them: checked against its checksum if it has one, unpacked if it
 * is packed. */
enum shoal_status checkpoint_read(
    const struct checkpoint_tensor *tensor, void *data, struct shoal_error *error) SHOAL_CHECKED;

/* The same from the bytes as stored, which somebody has read. Of a packed tensor they lie at a
 * multiple of WIRE_ALIGNMENT, and its values go to `data`; others are only looked at. */
enum shoal_status checkpoint_unpack(const struct checkpoint_tensor *tensor, const void *stored,
    void *data, struct shoal_error *error) SHOAL_CHECKED;

#endif
