/*
 * XXH3-64 of bytes that come in order, in pieces of any size. Against accidents: whoever wants a
 * file to pass can make it pass.
 */
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_STATE_BYTES 640

struct checksum {
    _Alignas(64) unsigned char state[CHECKSUM_STATE_BYTES];
};

void checksum_begin(struct checksum *checksum);
void checksum_add(struct checksum *checksum, const void *data, size_t bytes);
uint64_t checksum_value(const struct checksum *checksum); /* of what was added so far */

uint64_t checksum_of(const void *data, size_t bytes);

#endif
