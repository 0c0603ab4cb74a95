/* What converting files and filling a cache share: the pool, progress, and being cancelled. */
#ifndef PIPELINE_CONVERT_H
#define PIPELINE_CONVERT_H

#include "pipeline/pack.h"

struct packer {
    struct pool *pool; /* of all cores */
    const struct shoal_pack_callbacks *callbacks;
    struct shoal_pack_progress progress; /* the caller sets `bytes` before the first part */
    struct shoal_packed_part part;       /* that is being written */
    uint64_t start_ns, part_start_ns;
};

/* `callbacks` may be NULL. packer_fini accepts a zeroed one. */
enum shoal_status packer_init(struct packer *packer, const struct shoal_pack_callbacks *callbacks,
    struct shoal_error *error) SHOAL_CHECKED;
void packer_fini(struct packer *packer);

/* For pack_work. `packer` is a struct packer. */
bool packer_go_on(void *packer, uint64_t read_bytes, uint64_t written_bytes);

/* A part begins; a file of it was written; it is complete, which the caller of all is told. */
void packer_begin(struct packer *packer, const char *name);
void packer_add(struct packer *packer, const struct pack_result *result);
void packer_end(struct packer *packer);

/* It is not begun yet: another process writes `path`. */
void packer_wait(struct packer *packer, const char *path);

/* GGUF files are told by their first bytes: they are used as they are. */
enum shoal_status convert_is_gguf(
    const struct file *file, bool *gguf, struct shoal_error *error) SHOAL_CHECKED;

#endif
