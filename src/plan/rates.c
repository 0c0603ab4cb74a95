/* Rates: guessed, and as a JSON file. */
#include "plan/rates.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define VERSION 4
#define MOST_FILE_BYTES (1u << 20)
#define LEAST_RATE 1.0 /* or quotients overflow */
#define MOST_RATE 1e18
#define MOST_TAX 100.0
#define MOST_CALL 1.0

/* Every number of the file, by the struct's order. */
static const struct member {
    const char *name;
    size_t offset;
    bool integer;       /* a uint64_t; else a double */
    double above, most; /* a double must be in (above, most] */
} members[] = {
    {"linear_flops", offsetof(struct rates, flops[WORK_LINEAR]), false, LEAST_RATE, MOST_RATE},
    {"attention_flops", offsetof(struct rates, flops[WORK_ATTENTION]), false, LEAST_RATE,
        MOST_RATE},
    {"conv_flops", offsetof(struct rates, flops[WORK_CONV]), false, LEAST_RATE, MOST_RATE},
    {"weight_bytes", offsetof(struct rates, weight_bytes), false, LEAST_RATE, MOST_RATE},
    {"memory_bytes", offsetof(struct rates, memory_bytes), false, LEAST_RATE, MOST_RATE},
    {"call_seconds", offsetof(struct rates, call_seconds), false, -1, MOST_CALL},
    {"link_bytes", offsetof(struct rates, link_bytes), false, LEAST_RATE, MOST_RATE},
    {"unpinned_bytes", offsetof(struct rates, unpinned_bytes), false, LEAST_RATE, MOST_RATE},
    {"bounce_bytes", offsetof(struct rates, bounce_bytes), false, LEAST_RATE, MOST_RATE},
    {"disk_bytes", offsetof(struct rates, disk_bytes), false, LEAST_RATE, MOST_RATE},
    {"disk_sequential_bytes", offsetof(struct rates, disk_sequential_bytes), false, LEAST_RATE,
        MOST_RATE},
    {"unpack_bytes", offsetof(struct rates, unpack_bytes), false, LEAST_RATE, MOST_RATE},
    {"pack_bytes", offsetof(struct rates, pack_bytes), false, LEAST_RATE, MOST_RATE},
    {"copy_tax", offsetof(struct rates, copy_tax), false, -1, MOST_TAX},
    {"read_tax", offsetof(struct rates, read_tax), false, -1, MOST_TAX},
    {"threads", offsetof(struct rates, threads), true, 0, 0},
    {"vram_bytes", offsetof(struct rates, vram_bytes), true, 0, 0},
    {"context_bytes", offsetof(struct rates, context_bytes), true, 0, 0},
};
#define MEMBERS (sizeof members / sizeof *members)

static const char *const origins[] = {
    [RATES_GUESSED] = "guessed", [RATES_MEASURED] = "measured", [RATES_PUBLISHED] = "published"};
#define ORIGINS (sizeof origins / sizeof *origins)

double rates_seconds(const struct rates *rates, const struct work *work)
{
    double seconds = work->traffic / rates->memory_bytes + work->weights / rates->weight_bytes +
                     work->calls * rates->call_seconds;

    for (int i = 0; i < WORK_KINDS; i++)
        seconds += work->operations[i] / rates->flops[i];
    return seconds;
}

void rates_guess(struct rates *rates, int cores)
{
    double n = cores > 0 ? cores : 1;

    /* About half of what an AVX-512 server core was measured to do (BENCH.md). */
    *rates = (struct rates){.name = "this machine",
        .origin = RATES_GUESSED,
        .flops = {[WORK_LINEAR] = 60e9 * n, [WORK_ATTENTION] = 50e9 * n, [WORK_CONV] = 50e9 * n},
        .weight_bytes = 2e9 * n,
        .memory_bytes = 5e9 * fmin(n, 8), /* more cores than that share the same memory */
        .call_seconds = 1e-6,
        .link_bytes = 5e9, /* one thread that copies */
        .unpinned_bytes = 5e9,
        .bounce_bytes = 5e9,
        .disk_bytes = 1e9,
        .disk_sequential_bytes = 1e9,
        .unpack_bytes = 2e9 * n,
        .pack_bytes = 1e9 * n,
        .copy_tax = 0.1,
        .read_tax = 0.1};
}

/* ---- files ---- */

/* `name` cut to fit and without what would reach a terminal as more than text. */
static const char *show(char shown[64], const char *name)
{
    size_t i = 0;

    for (; name[i] && i < 63; i++)
        shown[i] = (unsigned char)name[i] < 0x20 || (unsigned char)name[i] >= 0x7f ? '?' : name[i];
    shown[i] = 0;
    return shown;
}

static enum shoal_status read_number(
    const json_t *value, const struct member *m, struct rates *rates, struct shoal_error *error)
{
    void *to = (char *)rates + m->offset;
    double number = json_number_value(value);

    if (m->integer) {
        json_int_t whole = json_integer_value(value);

        if (!json_is_integer(value) || whole < 0)
            FAIL(error, SHOAL_E_FORMAT, "\"%s\" must be a whole number", m->name);
        *(uint64_t *)to = (uint64_t)whole;
        return SHOAL_OK;
    }
    if (!json_is_number(value) || !isfinite(number) || number <= m->above || number > m->most ||
        (m->above < 0 && number < 0))
        FAIL(error, SHOAL_E_FORMAT, "\"%s\" must be a number %s, at most %g", m->name,
            m->above < 0 ? "that is not negative" : "above 1", m->most);
    *(double *)to = number;
    return SHOAL_OK;
}

static enum shoal_status read_texts(
    const json_t *object, struct rates *rates, struct shoal_error *error)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    const char *origin = json_string_value(json_object_get(object, "origin"));
    char shown[64];
    size_t i = 0;

    if (!name || !name[0] || strlen(name) >= sizeof rates->name || strcmp(show(shown, name), name))
        FAIL(error, SHOAL_E_FORMAT, "\"name\" must be a text of 1 to %d plain characters",
            (int)sizeof rates->name - 1);
    strcpy(rates->name, name);
    while (i < ORIGINS && (!origin || strcmp(origin, origins[i]) != 0))
        i++;
    if (i == ORIGINS)
        FAIL(
            error, SHOAL_E_FORMAT, "\"origin\" must be \"guessed\", \"measured\" or \"published\"");
    rates->origin = (enum rates_origin)i;
    return SHOAL_OK;
}

/* A member that would be ignored is a mistake, perhaps in the name of one that is missing. */
static enum shoal_status check_names(json_t *object, struct shoal_error *error)
{
    const char *key;
    json_t *value;
    char shown[64];

    json_object_foreach(object, key, value)
    {
        size_t i = 0;

        while (i < MEMBERS && strcmp(key, members[i].name) != 0)
            i++;
        if (i == MEMBERS && strcmp(key, "version") != 0 && strcmp(key, "name") != 0 &&
            strcmp(key, "origin") != 0)
            FAIL(error, SHOAL_E_FORMAT, "there is no member \"%s\"", show(shown, key));
    }
    return SHOAL_OK;
}

static enum shoal_status read_object(json_t *object, struct rates *rates, struct shoal_error *error)
{
    const json_t *version = json_object_get(object, "version");

    if (!json_is_object(object)) FAIL(error, SHOAL_E_FORMAT, "not a JSON object");
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        FAIL(error, json_is_integer(version) ? SHOAL_E_MISSING : SHOAL_E_FORMAT,
            "\"version\" must be %d: `shoal bench links` writes it again", VERSION);
    TRY(check_names(object, error));
    TRY(read_texts(object, rates, error));
    for (size_t i = 0; i < MEMBERS; i++) {
        const json_t *value = json_object_get(object, members[i].name);

        if (!value) FAIL(error, SHOAL_E_FORMAT, "the member \"%s\" is missing", members[i].name);
        TRY(read_number(value, &members[i], rates, error));
    }
    if (rates->vram_bytes && rates->context_bytes >= rates->vram_bytes)
        FAIL(error, SHOAL_E_FORMAT, "\"context_bytes\" must be less than \"vram_bytes\"");
    return SHOAL_OK;
}

enum shoal_status rates_read(const char *path, struct rates *rates, struct shoal_error *error)
{
    struct rates found = {0};
    enum shoal_status status;
    json_error_t cause;
    json_t *object;
    size_t bytes;
    char *text;
    bool large;

    TRY(file_read_all(path, MOST_FILE_BYTES, &text, &bytes, error));
    large = json_load_bytes(text, bytes) > MOST_FILE_BYTES;
    object = large ? NULL : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &cause);
    mem_free(text);
    if (large)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: more JSON than rates are: reading it would take over %u bytes of memory", path,
            MOST_FILE_BYTES);
    if (!object) {
        if (!cause.text[0] || json_error_code(&cause) == json_error_out_of_memory)
            FAIL_MEMORY(error);
        FAIL(error, SHOAL_E_FORMAT, "%s: not valid JSON, at line %d", path, cause.line);
    }
    status = read_object(object, &found, error);
    json_decref(object);
    if (status) {
        error_prefix(error, "%s: ", path);
        return status;
    }
    *rates = found;
    return SHOAL_OK;
}

enum shoal_status rates_write(
    const char *path, const struct rates *rates, struct shoal_error *error)
{
    json_t *object = json_pack("{s:i, s:s, s:s}", "version", VERSION, "name", rates->name, "origin",
        origins[rates->origin]);
    enum shoal_status status;
    bool failed = !object;
    char *text;

    for (size_t i = 0; i < MEMBERS && !failed; i++) {
        const void *from = (const char *)rates + members[i].offset;

        failed = json_object_set_new(object, members[i].name,
            members[i].integer ? json_integer((json_int_t) * (const uint64_t *)from)
                               : json_real(*(const double *)from));
    }
    text = failed ? NULL : json_print(object);
    json_decref(object);
    if (!text) FAIL_MEMORY(error);
    status = file_write_whole(path, text, strlen(text), error);
    mem_free(text);
    return status;
}
