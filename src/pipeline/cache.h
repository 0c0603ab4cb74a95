/* The cache on disk: packed copies of checkpoints, found by what the originals are. */
#ifndef PIPELINE_CACHE_H
#define PIPELINE_CACHE_H

#include "checkpoint/checkpoint.h"

/* A copy's name holds the identity of its original; its __metadata__ holds that, and where the
 * original is. */
#define CACHE_NAME_PREFIX "shoal-"
#define CACHE_NAME_SUFFIX ".safetensors"
#define CACHE_UNFINISHED_SUFFIX CACHE_NAME_SUFFIX ".part" /* base/writer.h */
#define CACHE_IDENTITY_DIGITS 16
#define CACHE_IDENTITY_BYTES (CACHE_IDENTITY_DIGITS + 1)
#define CACHE_KEY_IDENTITY "shoal.cache.identity"
#define CACHE_KEY_SOURCE "shoal.cache.source"
#define CACHE_KEY_BESIDE "shoal.cache.beside" /* if it is of two checkpoints */

/* Hexadecimal digits made from the paths, sizes, times and headers of all its files, and from how a
 * copy would be written. */
enum shoal_status cache_identify(const struct checkpoint *checkpoint,
    char identity[CACHE_IDENTITY_BYTES], struct shoal_error *error) SHOAL_CHECKED;

/* Opens the copy that the folder has of this checkpoint; *copy is NULL if it has none. What is in
 * its place and is no copy of this checkpoint is an error. The allowance may be NULL. */
enum shoal_status cache_open(const char *dir, const struct checkpoint *original,
    struct allowance *allowance, struct checkpoint **copy, struct shoal_error *error) SHOAL_CHECKED;

#endif
