/* A made-up adapter of shoal-mini, for tests of whole pictures. */
#ifndef TESTS_UNIT_MINI_ADAPTER_H
#define TESTS_UNIT_MINI_ADAPTER_H

#include "base/error.h"

/* How many of the blocks of the DiT's steps it changes. */
#define MINI_ADAPTER_BLOCKS 5

/* Writes it to a new file in /tmp, whose name goes to `path`; the caller removes it. */
#define MINI_ADAPTER_PATH 48
enum shoal_status mini_adapter_write(
    char path[MINI_ADAPTER_PATH], struct shoal_error *error) SHOAL_CHECKED;

#endif
