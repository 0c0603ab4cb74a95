/*
 * Host memory for headers, tokenizers and what else is read whole: what it may be, and what it was.
 *
 * Files are parsed before anything is planned, and malloc mostly keeps what it once took. So a file
 * says how much it will take at the most before it takes it, and the plan charges that to --ram.
 */
#ifndef BASE_ALLOWANCE_H
#define BASE_ALLOWANCE_H

#include "base/error.h"

/* A file, by the end of its path, and what it took. */
#define ALLOWANCE_NAME_BYTES 160
struct allowance_taker {
    char name[ALLOWANCE_NAME_BYTES];
    uint64_t bytes;
};

#define ALLOWANCE_TAKERS 8 /* of more files the largest are remembered */
struct allowance {
    uint64_t most_bytes; /* --ram */
    uint64_t bytes;      /* taken so far */
    struct allowance_taker takers[ALLOWANCE_TAKERS];
};

/*
 * SHOAL_E_BUDGET: there is not as much left; the message names the file, --ram, the file that has
 * taken the most, and the least --ram that would do for this step. NULL allows everything. A few
 * megabytes always may be taken: then a plan can say what the least is.
 */
enum shoal_status allowance_take(struct allowance *allowance, const char *path, uint64_t bytes,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
