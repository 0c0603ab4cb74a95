/*
 * Host memory for headers, tokenizers and what else is read whole: what it may be, and what it was.
 *
 * Files are parsed before anything is planned, and malloc mostly keeps what it once took. So a file
 * says how much it will take at the most before it takes it, and the plan charges that to --ram.
 */
#ifndef BASE_ALLOWANCE_H
#define BASE_ALLOWANCE_H

#include "base/error.h"

struct allowance {
    uint64_t most_bytes; /* --ram */
    uint64_t bytes;      /* taken so far */
};

/* SHOAL_E_BUDGET: there is not as much left; the message names the file and --ram. NULL allows
 * everything. A few megabytes always may be taken: then a plan can say what the least is. */
enum shoal_status allowance_take(struct allowance *allowance, const char *path, uint64_t bytes,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
