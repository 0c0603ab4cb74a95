/* XXH3-128 of a run's latents and pictures: equal bytes have equal hashes. */
#ifndef HASH_H
#define HASH_H

#include "cli.h"

struct hash {
    char text[33]; /* 32 hexadecimal digits */
};

struct hash hash_latents(const struct shoal_image *image);
struct hash hash_picture(const struct shoal_image *image);

/* Of all pictures of a result, in order. */
void hash_result(const struct shoal_result *result, struct hash *latents, struct hash *pictures);

#endif
