/* Hashing results with libxxhash. Against accidents, not against attackers. */
#include "hash.h"

#include <xxhash.h>

static struct hash to_text(XXH128_hash_t value)
{
    struct hash hash;

    snprintf(hash.text, sizeof hash.text, "%016llx%016llx", (unsigned long long)value.high64,
        (unsigned long long)value.low64);
    return hash;
}

static size_t latent_bytes(const struct shoal_image *image)
{
    return image->latent_count * sizeof *image->latents;
}

static size_t picture_bytes(const struct shoal_image *image)
{
    return (size_t)image->width * (size_t)image->height * 3;
}

struct hash hash_latents(const struct shoal_image *image)
{
    return to_text(XXH3_128bits(image->latents, latent_bytes(image)));
}

struct hash hash_picture(const struct shoal_image *image)
{
    return to_text(XXH3_128bits(image->rgb, picture_bytes(image)));
}

void hash_result(const struct shoal_result *result, struct hash *latents, struct hash *pictures)
{
    /* Each picture's hash follows from the one before it: no streaming state to allocate. */
    XXH128_hash_t latent_hash = {0, 0};
    XXH128_hash_t picture_hash = {0, 0};

    for (int32_t i = 0; i < shoal_result_count(result); i++) {
        struct shoal_image image;

        shoal_result_image(result, i, &image);
        latent_hash = XXH3_128bits_withSeed(image.latents, latent_bytes(&image), latent_hash.low64);
        picture_hash = XXH3_128bits_withSeed(image.rgb, picture_bytes(&image), picture_hash.low64);
    }
    *latents = to_text(latent_hash);
    *pictures = to_text(picture_hash);
}
