/* Allowances. */
#include "base/allowance.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

#define ALWAYS_BYTES (16u << 20)

/* The end of a path tells files apart better than its begin. */
static const char *end_of(const char *path)
{
    size_t length = strlen(path);

    return length < ALLOWANCE_NAME_BYTES ? path : path + length - (ALLOWANCE_NAME_BYTES - 1);
}

/* The file's own, or that of the file that took least, which is forgotten. */
static struct allowance_taker *taker_of(struct allowance *allowance, const char *path)
{
    struct allowance_taker *least = &allowance->takers[0];

    for (size_t i = 0; i < ALLOWANCE_TAKERS; i++) {
        struct allowance_taker *taker = &allowance->takers[i];

        if (!strcmp(taker->name, end_of(path))) return taker;
        if (taker->bytes < least->bytes) least = taker;
    }
    *least = (struct allowance_taker){.bytes = 0};
    snprintf(least->name, sizeof least->name, "%s", end_of(path));
    return least;
}

static const struct allowance_taker *largest(const struct allowance *allowance)
{
    const struct allowance_taker *most = &allowance->takers[0];

    for (size_t i = 1; i < ALLOWANCE_TAKERS; i++)
        if (allowance->takers[i].bytes > most->bytes) most = &allowance->takers[i];
    return most;
}

static enum shoal_status refuse(const struct allowance *allowance, const char *path, uint64_t bytes,
    uint64_t sum, struct shoal_error *error)
{
    const struct allowance_taker *most = largest(allowance);
    char more[SIZE_TEXT_BYTES], before[SIZE_TEXT_BYTES], part[SIZE_TEXT_BYTES],
        ram[SIZE_TEXT_BYTES], least[SIZE_TEXT_BYTES], whose[ALLOWANCE_NAME_BYTES + 64] = "";

    if (most->bytes)
        snprintf(whose, sizeof whose, " (%s of it by %s)", size_format(part, most->bytes),
            strcmp(most->name, end_of(path)) ? most->name : "this file");
    FAIL(error, SHOAL_E_BUDGET,
        "%s: reading it takes %s more of host memory, and %s are taken already%s: --ram %llu (%s) "
        "leaves too little. Give --ram %llu (%s) or more, which is the least for this step alone, "
        "or files with less beside their tensors or tokens",
        path, size_format_up(more, bytes), size_format(before, allowance->bytes), whose,
        (unsigned long long)allowance->most_bytes, size_format(ram, allowance->most_bytes),
        (unsigned long long)sum, size_format_up(least, sum));
}

enum shoal_status allowance_take(
    struct allowance *allowance, const char *path, uint64_t bytes, struct shoal_error *error)
{
    uint64_t sum;

    if (!allowance) return SHOAL_OK;
    if (!size_add(allowance->bytes, bytes, &sum)) sum = UINT64_MAX;
    if (sum > allowance->most_bytes && sum > ALWAYS_BYTES)
        return refuse(allowance, path, bytes, sum, error);
    allowance->bytes = sum;
    taker_of(allowance, path)->bytes += bytes;
    return SHOAL_OK;
}
