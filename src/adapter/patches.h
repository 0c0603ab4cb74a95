/*
 * What several adapters, each with a strength, make of models: for each block which rows of which
 * weights get which terms (device/patch.h), and where the factors lie. For plans and streams; the
 * adapters must outlive it.
 */
#ifndef ADAPTER_PATCHES_H
#define ADAPTER_PATCHES_H

#include "adapter/adapter.h"
#include "device/patch.h"

struct adapter_use {
    const struct adapter *adapter;
    float strength;
};

/* A term of a block; its factors' offsets are among the block's factors. */
struct patch_recipe {
    struct adapter_factor factors[2];
    bool kron;
    float scale;
    int64_t from; /* the difference's row, or a vector's column, that the run begins with */
};

/* Rows of a weight, or a vector's columns, that get the same terms. */
struct patch_run {
    int32_t weight;
    int64_t first, count;
    int32_t first_term, term_count;
};

/* The factors that one adapter has of a block. */
struct patch_source {
    const char *data;
    uint64_t bytes, at; /* at: among the block's factors */
};

struct block_patch {
    struct patch_run *runs; /* by weight and row; they cover every weight of which there is one */
    struct patch_recipe *terms;
    int32_t run_count, term_count;
    struct patch_source sources[PATCH_TERMS];
    int32_t source_count;
    uint64_t factor_bytes; /* a multiple of BLOCK_WEIGHT_ALIGNMENT */
};

struct model_patches {
    const struct model *model;
    struct block_patch *blocks; /* [model's]; those without runs are not patched */
};

/* Whole pages of factors, of one adapter. */
struct patch_pages {
    char *data;
    uint64_t bytes;
};

struct patches {
    struct model_patches models[FAMILY_KINDS];
    struct patch_pages pages[PATCH_TERMS]; /* in which all sources lie */
    int32_t page_count;
};

/* Uses of strength 0 change nothing, and are left out. At most PATCH_TERMS others. */
enum shoal_status patches_open(struct patches *patches, const struct adapter_use *uses,
    int32_t count, const struct model *const models[FAMILY_KINDS],
    struct shoal_error *error) SHOAL_CHECKED;
void patches_close(struct patches *patches); /* accepts a zeroed one */

/* NULL: it is not patched. `patches` may be NULL. */
const struct block_patch *patches_of(
    const struct patches *patches, const struct model *model, int32_t block);

/* The runs of a weight: count of them; 0: it is not patched. `patch` may be NULL. */
const struct patch_run *block_patch_runs(
    const struct block_patch *patch, int32_t weight, int32_t *count);
static inline bool block_patch_has(const struct block_patch *patch, int32_t weight)
{
    int32_t count;

    block_patch_runs(patch, weight, &count);
    return count > 0;
}

/* The weights' types as they are when they have been patched. */
void block_patch_types(
    const struct block_patch *patch, const struct block *block, struct matrix *weights);

/*
 * The terms of `count` rows (a vector's columns) of a run from its row `first` on, as an operation
 * takes them. The factors lie at `factors`; if that is 0, in the host memory of the sources.
 */
void block_patch_terms(const struct block_patch *patch, const struct patch_run *run, bool vector,
    int64_t first, device_addr factors, struct patch *terms);

/* Multiply-adds of patching the whole block: for predictions. */
double block_patch_operations(const struct block_patch *patch, const struct block *block);

#endif
