/* Checksums over libxxhash. */
#include "base/checksum.h"

/* The state's size is wanted, so that it needs no memory of its own. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= CHECKSUM_STATE_BYTES, "room for the state");

void checksum_begin(struct checksum *checksum)
{
    XXH3_64bits_reset((XXH3_state_t *)(void *)checksum->state);
}

void checksum_add(struct checksum *checksum, const void *data, size_t bytes)
{
    XXH3_64bits_update((XXH3_state_t *)(void *)checksum->state, data, bytes);
}

uint64_t checksum_value(const struct checksum *checksum)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)checksum->state);
}

uint64_t checksum_of(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
