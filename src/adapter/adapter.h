/*
 * An adapter: one file of LoRA or its kin, matched against a model's weights and read. It knows no
 * strength: so it is read once, whatever strengths it is used with. What is made of it is defined
 * in docs/formats.md, "Patched weights".
 */
#ifndef ADAPTER_ADAPTER_H
#define ADAPTER_ADAPTER_H

#include "adapter/targets.h"

/* A tensor among the adapter's factors; no rows: there is none. */
struct adapter_matrix {
    uint64_t offset;
    enum dtype dtype;
    int64_t rows, cols;
};

/* As struct patch_factor. */
struct adapter_factor {
    struct adapter_matrix b, a;
};

/* A difference of a weight's rows [first, first + count), or of a vector's columns. */
struct adapter_item {
    enum family_kind kind;
    int32_t block, weight;
    int64_t first, count, from; /* from: the difference's row, or column, for the first one */
    struct adapter_factor factors[2];
    bool kron;
    double scale; /* alpha / rank */
    /* While the file is being opened: of one of its tensors, and which they are. */
    const char *name;
    int32_t tensors;
};

/* A block's factors, one after another. */
struct adapter_span {
    enum family_kind kind;
    int32_t block;
    uint64_t offset, bytes; /* multiples of BLOCK_WEIGHT_ALIGNMENT */
};

#define ADAPTER_SHOWN 4 /* names of modules that nothing matches */
#define ADAPTER_NAME_BYTES 96

struct adapter {
    char *path;
    struct adapter_item *items; /* by kind, block, weight and first */
    struct adapter_span *spans; /* by kind and block */
    int32_t item_count, span_count;
    char *factors; /* whole pages */
    uint64_t factor_bytes;
    int32_t modules, unmatched; /* in the file; of them, that are none of the model's */
    char unmatched_names[ADAPTER_SHOWN][ADAPTER_NAME_BYTES];
    uint64_t read_bytes;    /* headers and values */
    uint64_t reading_bytes; /* of host memory, that its headers took at the most */
    struct file file;       /* as it was, closed: whether it is still the same */
};

/*
 * `targets`: those of the models, needed while this runs only. Host memory is taken within the
 * allowance. SHOAL_E_MISSING if nothing in the file is a parameter of the models, SHOAL_E_FORMAT
 * for shapes that are not theirs, SHOAL_E_UNSUPPORTED for what is no such difference.
 */
enum shoal_status adapter_open(struct adapter **adapter, const char *path,
    const struct adapter_targets *targets, struct allowance *allowance,
    struct shoal_error *error) SHOAL_CHECKED;
void adapter_close(struct adapter **adapter);

/* Whether the file at its path is still the one that was read. */
bool adapter_is_current(const struct adapter *adapter);

/* The factors of a block; NULL: it has none. */
const struct adapter_span *adapter_span_of(
    const struct adapter *adapter, enum family_kind kind, int32_t block);

#endif
