/* Precompiled charsmaps: checking and looking up. */
#include "tokenizer/charsmap.h"

#include "base/memory.h"

#include <string.h>
#include <utf8proc.h>

#define UNIT_BYTES 4
#define MAX_BYTES (16u << 20) /* those in use have some hundred thousand */

static bool ends_rule(uint32_t unit)
{
    return unit >> 8 & 1;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << (unit >> 9 & 1 ? 8 : 0);
}

static bool is_value(uint32_t unit)
{
    return unit >> 31;
}

static uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static enum shoal_status check_replacements(const struct charsmap *map, struct shoal_error *error)
{
    const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)map->replacements;

    if (map->replacements[map->replacement_bytes - 1])
        FAIL(error, SHOAL_E_FORMAT, "the charsmap's last replacement has no end");
    for (size_t at = 0; at < map->replacement_bytes;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length =
            utf8proc_iterate(text + at, (utf8proc_ssize_t)(map->replacement_bytes - at), &point);

        if (length <= 0)
            FAIL(error, SHOAL_E_FORMAT,
                "the charsmap's replacements are not valid UTF-8 at byte %zu", at);
        at += (size_t)length;
    }
    return SHOAL_OK;
}

/*
 * Labels change the last eight bits of an index only, so all children of a unit lie in one block of
 * 256. If that is inside for every unit, no text leads outside; and as each step takes a byte of
 * the text, none goes round for ever.
 */
static enum shoal_status check_units(const struct charsmap *map, struct shoal_error *error)
{
    for (size_t i = 0; i < map->unit_count; i++) {
        uint32_t unit = map->units[i], value;
        size_t child = i ^ offset_of(unit);

        if (is_value(unit) && i) continue;
        if ((child | 255) >= map->unit_count)
            FAIL(error, SHOAL_E_FORMAT,
                "the charsmap's unit %zu of %zu points outside, to unit %zu", i, map->unit_count,
                child | 255);
        if (!ends_rule(unit)) continue;
        value = map->units[child] & 0x7fffffff;
        if (value >= map->replacement_bytes ||
            ((unsigned char)map->replacements[value] & 0xc0) == 0x80)
            FAIL(error, SHOAL_E_FORMAT,
                "the charsmap's unit %zu names byte %u of %zu of the replacements, where none "
                "begins",
                i, value, map->replacement_bytes);
    }
    return SHOAL_OK;
}

static enum shoal_status load(
    struct charsmap *map, const uint8_t *bytes, size_t count, struct shoal_error *error)
{
    uint32_t trie_bytes = count > UNIT_BYTES ? read_u32(bytes) : 0;

    if (count > MAX_BYTES)
        FAIL(error, SHOAL_E_UNSUPPORTED, "the charsmap has %zu bytes; %u are supported", count,
            MAX_BYTES);
    if (!trie_bytes || trie_bytes % UNIT_BYTES || trie_bytes >= count - UNIT_BYTES)
        FAIL(error, SHOAL_E_FORMAT,
            "the charsmap has %zu bytes, which do not hold a trie of %u and replacements", count,
            trie_bytes);
    map->unit_count = trie_bytes / UNIT_BYTES;
    map->replacement_bytes = count - UNIT_BYTES - trie_bytes;
    map->units = mem_calloc(map->unit_count, sizeof *map->units);
    map->replacements = mem_alloc(map->replacement_bytes);
    if (!map->units || !map->replacements) FAIL_MEMORY(error);
    for (size_t i = 0; i < map->unit_count; i++)
        map->units[i] = read_u32(bytes + UNIT_BYTES * (i + 1));
    memcpy(map->replacements, bytes + UNIT_BYTES + trie_bytes, map->replacement_bytes);
    TRY(check_replacements(map, error));
    return check_units(map, error);
}

enum shoal_status charsmap_init(
    struct charsmap *map, const void *bytes, size_t count, struct shoal_error *error)
{
    enum shoal_status status;

    *map = (struct charsmap){0};
    status = load(map, bytes, count, error);
    if (status) charsmap_fini(map);
    return status;
}

/* -1: not a digit of base64. */
static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;

    return found ? (int)(found - digits) : -1;
}

enum shoal_status charsmap_from_base64(
    struct charsmap *map, const char *text, struct shoal_error *error)
{
    size_t length = strlen(text), digits = length, count = 0;
    uint8_t *bytes = mem_alloc(length / 4 * 3);
    enum shoal_status status = SHOAL_OK;
    uint32_t held = 0;

    *map = (struct charsmap){0};
    if (!bytes) FAIL_MEMORY(error);
    while (digits && length - digits < 2 && text[digits - 1] == '=')
        digits--;
    for (size_t i = 0; i < digits && length % 4 == 0; i++) {
        int digit = digit_of(text[i]);

        if (digit < 0) {
            length = 1; /* refused below */
            break;
        }
        held = held << 6 | (uint32_t)digit;
        if (i % 4) bytes[count++] = (uint8_t)(held >> (6 - 2 * (i % 4)));
    }
    if (length % 4)
        status = error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "\"precompiled_charsmap\" is not valid base64");
    else
        status = charsmap_init(map, bytes, count, error);
    mem_free(bytes);
    return status;
}

void charsmap_fini(struct charsmap *map)
{
    mem_free(map->units);
    mem_free(map->replacements);
    *map = (struct charsmap){0};
}

size_t charsmap_match(const struct charsmap *map, const char *text, size_t bytes, bool longest,
    const char **replacement)
{
    size_t at, matched = 0;

    if (!map->units) return 0;
    at = offset_of(map->units[0]);
    for (size_t i = 0; i < bytes && (longest || !matched); i++) {
        unsigned char label = (unsigned char)text[i];
        uint32_t unit;

        at ^= label;
        unit = map->units[at];
        if ((unit & 0x800000ff) != label) break;
        at ^= offset_of(unit);
        if (!ends_rule(unit)) continue;
        matched = i + 1;
        *replacement = map->replacements + (map->units[at] & 0x7fffffff);
    }
    return matched;
}
