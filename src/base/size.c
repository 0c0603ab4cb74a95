/* Sizes as people write them. */
#include "base/size.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <strings.h>

static char *format(char text[SIZE_TEXT_BYTES], uint64_t bytes, bool up)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    if (bytes == SHOAL_UNLIMITED) {
        snprintf(text, SIZE_TEXT_BYTES, "unlimited");
        return text;
    }
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    if (up && unit) value = value < 100 ? ceil(value * 100) / 100 : ceil(value);
    snprintf(
        text, SIZE_TEXT_BYTES, unit && value < 100 ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

char *size_format(char text[SIZE_TEXT_BYTES], uint64_t bytes)
{
    return format(text, bytes, false);
}

char *size_format_up(char text[SIZE_TEXT_BYTES], uint64_t bytes)
{
    return format(text, bytes, true);
}

enum shoal_status shoal_parse_size(const char *text, uint64_t *bytes, struct shoal_error *error)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1}, {"b", 1}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
        {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"k", 0x1p10},
        {"m", 0x1p20}, {"g", 0x1p30}, {"t", 0x1p40}};
    const char *end = text;
    double value = 0, place = 1;

    if (!strcasecmp(text, "max") || !strcasecmp(text, "unlimited")) {
        *bytes = SHOAL_UNLIMITED;
        return SHOAL_OK;
    }
    /* By hand: strtod takes signs, exponents and "inf", and asks the locale for the point. */
    if (!isdigit((unsigned char)*end)) goto bad;
    for (; isdigit((unsigned char)*end); end++)
        value = value * 10 + (*end - '0');
    if (*end == '.')
        for (end++; isdigit((unsigned char)*end); end++, place *= 10)
            value = value * 10 + (*end - '0');
    value /= place;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name)) continue;
        value = floor(value * units[i].factor);
        if (!(value < 0x1p63)) break;
        *bytes = (uint64_t)value;
        return SHOAL_OK;
    }
bad:
    FAIL(error, SHOAL_E_INVALID, "'%s' is not a size: write e.g. 3GiB, 512MiB, 2.5GB or max", text);
}
