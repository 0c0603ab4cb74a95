/*
 * The adapters of a request: opened for its plan, and shared by the plans of one open model. A file
 * that a plan uses, or the last one did, is not read again, whatever strength it is used with.
 */
#ifndef PIPELINE_ADAPTERS_H
#define PIPELINE_ADAPTERS_H

#include "adapter/patches.h"

/* What an open model keeps of them. */
struct adapter_cache;
enum shoal_status adapter_cache_create(
    struct adapter_cache **cache, struct shoal_error *error) SHOAL_CHECKED;
void adapter_cache_destroy(struct adapter_cache **cache); /* when no plan is left */

struct request_adapters {
    struct adapter_cache *cache;
    struct shoal_lora *loras; /* the request's, copied; their paths are the adapters' */
    struct adapter_use *uses;
    int32_t count;
    struct patches patches;
    uint64_t read_bytes; /* of files, for this request: 0 if all were there */
    uint64_t host_bytes; /* that they take, charged to --ram */
};

/* `models`: those of the model that the cache is of. `taken_bytes`: of the host memory budget, by
 * what was read before. */
enum shoal_status request_adapters_open(struct request_adapters *adapters,
    struct adapter_cache *cache, const struct model *const models[FAMILY_KINDS],
    const struct shoal_request *request, uint64_t taken_bytes,
    struct shoal_error *error) SHOAL_CHECKED;
void request_adapters_close(struct request_adapters *adapters); /* accepts a zeroed one */

#endif
