/* What a cache holds, and removing what is not wanted. Other files in its folder are not seen. */
#include "base/json.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "base/writer.h"
#include "checkpoint/json.h"
#include "pipeline/cache.h"
#include "pipeline/parts.h"

#include <string.h>

enum entry_state {
    ENTRY_CURRENT,
    ENTRY_CHANGED,
    ENTRY_GONE,
    ENTRY_UNUSABLE,
    ENTRY_UNFINISHED,
};

static const char *const state_names[] = {
    "current", "original changed", "original gone", "unusable", "unfinished"};

struct entry {
    char *path;
    char *source;     /* NULL: not known */
    const char *name; /* in the path */
    uint64_t bytes;
    enum entry_state state;
};

/* Zero-initialise it. */
struct listing {
    struct entry *entries;
    size_t count;
};

static void listing_fini(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        mem_free(listing->entries[i].path);
        mem_free(listing->entries[i].source);
    }
    mem_free(listing->entries);
    *listing = (struct listing){0};
}

/* Whether a file's name is one that the cache gives. */
static bool is_own_name(const char *name, bool *unfinished)
{
    size_t prefix = strlen(CACHE_NAME_PREFIX);

    *unfinished = false;
    if (strncmp(name, CACHE_NAME_PREFIX, prefix) != 0 ||
        strspn(name + prefix, "0123456789abcdef") != CACHE_IDENTITY_DIGITS)
        return false;
    name += prefix + CACHE_IDENTITY_DIGITS;
    *unfinished = !strcmp(name, CACHE_UNFINISHED_SUFFIX);
    return *unfinished || !strcmp(name, CACHE_NAME_SUFFIX);
}

/* Whether the original is still what the copy was made from. `beside` may be NULL. */
static enum entry_state compare(const char *source, const char *beside, const char *identity)
{
    const struct checkpoint_beside other = {.path = beside, .prefix = PART_CONDITIONER_PREFIX};
    char now[CACHE_IDENTITY_BYTES] = "";
    struct checkpoint *original = NULL;
    enum entry_state state = ENTRY_CHANGED;

    if (file_kind(source) == FILE_NONE) return ENTRY_GONE;
    if (beside && file_kind(beside) == FILE_NONE) return ENTRY_GONE;
    if (!checkpoint_open_with(source, beside ? &other : NULL, NULL, &original, NULL) &&
        !cache_identify(original, now, NULL) && !strcmp(now, identity))
        state = ENTRY_CURRENT;
    checkpoint_close(&original);
    return state;
}

/* Fills what the file says. What cannot be read is unusable, and no error. */
static enum shoal_status read_entry(struct entry *e, struct shoal_error *error)
{
    struct checkpoint *copy = NULL;
    const char *identity, *source;
    struct file file;

    if (file_open(e->path, &file, NULL)) return SHOAL_OK;
    e->bytes = file.bytes;
    file_close(&file);
    if (e->state == ENTRY_UNFINISHED || checkpoint_open(e->path, &copy, NULL)) return SHOAL_OK;
    identity = checkpoint_metadata(copy, CACHE_KEY_IDENTITY);
    source = checkpoint_metadata(copy, CACHE_KEY_SOURCE);
    if (identity && source && strlen(identity) == CACHE_IDENTITY_DIGITS &&
        strstr(e->name, identity)) {
        e->state = compare(source, checkpoint_metadata(copy, CACHE_KEY_BESIDE), identity);
        e->source = mem_strdup(source);
        source = e->source;
    } else {
        source = "";
    }
    checkpoint_close(&copy);
    if (!source) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status add_entry(struct listing *listing, const char *dir, const char *name,
    bool unfinished, struct shoal_error *error)
{
    struct entry *e = &listing->entries[listing->count];

    e->path = mem_format("%s/%s", dir, name);
    if (!e->path) FAIL_MEMORY(error);
    listing->count++;
    e->name = e->path + strlen(e->path) - strlen(name);
    e->state = unfinished ? ENTRY_UNFINISHED : ENTRY_UNUSABLE;
    return read_entry(e, error);
}

/* listing_fini is due, whatever comes of it. */
static enum shoal_status list_entries(
    const char *dir, struct listing *listing, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    char **names = NULL;
    size_t count = 0;
    bool unfinished;

    if (file_kind(dir) == FILE_NONE) FAIL(error, SHOAL_E_MISSING, "%s: no such folder", dir);
    TRY(file_list(dir, &names, &count, error));
    listing->entries = mem_calloc(count, sizeof *listing->entries);
    if (!listing->entries)
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    for (size_t i = 0; i < count && !status; i++)
        if (is_own_name(names[i], &unfinished))
            status = add_entry(listing, dir, names[i], unfinished, error);
    mem_free(names);
    return status;
}

/* ---- listing ---- */

static char *listing_json(const struct listing *listing)
{
    json_t *entries = json_array(), *object = json_object();
    bool failed = false;
    char *text = NULL;

    for (size_t i = 0; i < listing->count; i++) {
        const struct entry *e = &listing->entries[i];
        json_t *entry = json_pack("{s:s, s:I, s:s}", "name", e->name, "bytes", (json_int_t)e->bytes,
            "state", state_names[e->state]);

        if (e->source) json_put(entry, "source", json_text(e->source), &failed);
        json_append(entries, entry, &failed);
    }
    json_put(object, "entries", entries, &failed);
    if (!failed) text = json_print(object);
    json_decref(object);
    return text;
}

static char *listing_text(const struct listing *listing, const char *dir)
{
    char size[SIZE_TEXT_BYTES];
    struct text text = {0};
    uint64_t total = 0;

    for (size_t i = 0; i < listing->count; i++) {
        const struct entry *e = &listing->entries[i];

        total += e->bytes;
        text_append(&text, "%s  %10s  %-16s  %s\n", e->name, size_format(size, e->bytes),
            state_names[e->state], e->source ? e->source : "");
    }
    text_append(&text, "%s: %zu %s, %s\n", dir, listing->count,
        listing->count == 1 ? "file" : "files", size_format(size, total));
    if (!text.failed) return text.data;
    mem_free(text.data);
    return NULL;
}

enum shoal_status shoal_cache_list(
    const char *dir, bool json, char **text, struct shoal_error *error)
{
    struct listing listing = {0};
    enum shoal_status status = list_entries(dir, &listing, error);

    *text = NULL;
    if (!status) {
        *text = json ? listing_json(&listing) : listing_text(&listing, dir);
        if (!*text) status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    }
    listing_fini(&listing);
    return status;
}

/* ---- removing ---- */

/* What another process writes at this moment is left alone. */
static enum shoal_status remove_entry(
    const struct entry *e, uint64_t *removed_bytes, struct shoal_error *error)
{
    struct writer writer;
    bool busy = false;
    char *copy;

    /* What is no file has no writer. */
    if (e->state == ENTRY_UNFINISHED && file_kind(e->path) == FILE_REGULAR &&
        !file_is_link(e->path)) {
        const size_t more = strlen(CACHE_UNFINISHED_SUFFIX) - strlen(CACHE_NAME_SUFFIX);
        enum shoal_status status;

        copy = mem_format("%.*s", (int)(strlen(e->path) - more), e->path);
        if (!copy) FAIL_MEMORY(error);
        /* Whoever gets the lock may remove the file, and does so by writing nothing. */
        status = writer_open_locked(copy, &writer, &busy, error);
        mem_free(copy);
        TRY(status);
        writer_close(&writer);
    } else {
        TRY(file_remove(e->path, error));
    }
    if (!busy) *removed_bytes += e->bytes;
    return SHOAL_OK;
}

/* What has come of the entries so far. */
struct removal {
    const struct shoal_cache_callbacks *callbacks; /* may be NULL */
    uint64_t *removed_bytes;
    enum shoal_status status; /* of the first that could not be removed */
    struct shoal_error *error;
};

static void try_entry(struct removal *r, const struct entry *e)
{
    struct shoal_error error = {0};
    enum shoal_status status = remove_entry(e, r->removed_bytes, &error);

    if (!status) return;
    if (!r->status && r->error) *r->error = error;
    if (!r->status) r->status = status;
    if (r->callbacks && r->callbacks->failed) r->callbacks->failed(r->callbacks->user, &error);
}

static const struct entry *find_entry(const struct listing *listing, const char *name)
{
    for (size_t i = 0; i < listing->count; i++)
        if (!strcmp(listing->entries[i].name, name)) return &listing->entries[i];
    return NULL;
}

enum shoal_status shoal_cache_remove(const char *dir, const char *const *names, size_t count,
    const struct shoal_cache_callbacks *callbacks, uint64_t *removed_bytes,
    struct shoal_error *error)
{
    struct removal removal = {
        .callbacks = callbacks, .removed_bytes = removed_bytes, .error = error};
    struct listing listing = {0};
    enum shoal_status status;

    *removed_bytes = 0;
    TRY_OR_FAIL(list_entries(dir, &listing, error));
    /* Nothing is removed if any name is wrong. */
    for (size_t i = 0; i < count && !status; i++)
        if (!find_entry(&listing, names[i]))
            status = error_set(error, SHOAL_E_MISSING, __FILE__, __LINE__,
                "%s: the cache has no '%s'; shoal cache %s lists what it has", dir, names[i], dir);
    if (status) goto fail;
    for (size_t i = 0; i < (count ? count : listing.count); i++)
        try_entry(&removal, count ? find_entry(&listing, names[i]) : &listing.entries[i]);
    status = removal.status;
fail:
    listing_fini(&listing);
    return status;
}

enum shoal_status shoal_cache_remove_stale(const char *dir,
    const struct shoal_cache_callbacks *callbacks, uint64_t *removed_bytes,
    struct shoal_error *error)
{
    struct removal removal = {
        .callbacks = callbacks, .removed_bytes = removed_bytes, .error = error};
    struct listing listing = {0};
    enum shoal_status status = list_entries(dir, &listing, error);

    *removed_bytes = 0;
    for (size_t i = 0; i < listing.count && !status; i++)
        if (listing.entries[i].state != ENTRY_CURRENT) try_entry(&removal, &listing.entries[i]);
    listing_fini(&listing);
    return status ? status : removal.status;
}
