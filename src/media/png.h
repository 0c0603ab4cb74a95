/*
 * PNG files in memory, with text chunks. file_write_whole puts them on disk.
 */
#ifndef MEDIA_PNG_H
#define MEDIA_PNG_H

#include "base/error.h"

struct png_entry {
    const char *key;   /* 1 to 79 bytes of ASCII, e.g. "parameters" */
    const char *value; /* UTF-8; a tEXt chunk if it is ASCII, else iTXt */
};

/*
 * rgb [height, width, 3]. The bytes depend on the arguments (and the versions of libpng and zlib)
 * only: there is no date. *data is mem_free'd by the caller.
 */
enum shoal_status png_encode(const uint8_t *rgb, int32_t width, int32_t height,
    const struct png_entry *entries, size_t entry_count, uint8_t **data, size_t *bytes,
    struct shoal_error *error) SHOAL_CHECKED;

/*
 * The size of the PNG file in `data`, up to 16384 x 16384; and if rgb [height, width, 3] is given,
 * which must have room for that, its pixels: of any kind, in 8 bits, without transparency. `name`
 * is for messages.
 */
enum shoal_status png_decode(const char *name, const uint8_t *data, size_t bytes, uint8_t *rgb,
    int32_t *width, int32_t *height, struct shoal_error *error) SHOAL_CHECKED;

struct png_settings {
    const char *prompt;
    const char *negative_prompt; /* NULL or "": left out */
    const char *sampler, *model;
    const char *schedule; /* NULL, the model's own: left out */
    int32_t steps, width, height;
    float cfg, shift;
    float strength;    /* 0: it began with noise alone, and this is left out */
    const char *loras; /* adapters, each with its strength; NULL: none, and left out */
    uint64_t seed;
};

/*
 * The settings as the field's programs write them under the key "parameters":
 *     a red apple
 *     Negative prompt: green
 *     Steps: 8, Sampler: euler, CFG scale: 3, Seed: 7, Size: 128x128, Model: shoal-mini, Shift: 1
 * with "Schedule type: karras" after the sampler and "Denoising strength: 0.6" at the end, if that
 * is said.
 * *text is mem_free'd by the caller.
 */
enum shoal_status png_parameters(
    const struct png_settings *settings, char **text, struct shoal_error *error) SHOAL_CHECKED;

#endif
