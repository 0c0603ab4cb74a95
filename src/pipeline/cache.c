/*
 * The cache on disk. A copy is one file, whatever the original was. Its name carries the identity
 * of the original, by which it is found, and its header too, so that a copy of something else that
 * was given that name is not taken for it; the header also says where the original is, so that one
 * can see which copies are stale.
 */
#include "pipeline/cache.h"

#include "base/checksum.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "base/tree.h"
#include "checkpoint/container.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"
#include "pipeline/convert.h"
#include "pipeline/parts.h"
#include "wire/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MILLISECONDS 100

/* ---- what an original is ---- */

static enum shoal_status header_checksum(
    const struct file *file, uint64_t *checksum, struct shoal_error *error)
{
    char start[SAFETENSORS_LENGTH_BYTES], *header;
    enum shoal_status status;
    size_t bytes = 0;

    TRY(file_read_at(file, 0, start, sizeof start, error));
    TRY(safetensors_header_bytes(file->path, start, sizeof start, file->bytes, &bytes, error));
    header = mem_alloc(bytes);
    if (!header) FAIL_MEMORY(error);
    status = file_read_at(file, sizeof start, header, bytes, error);
    if (!status) *checksum = checksum_of(header, bytes);
    mem_free(header);
    return status;
}

static enum shoal_status add_file(
    struct text *text, const struct file *file, struct shoal_error *error)
{
    uint64_t checksum = 0;
    char *real;

    TRY(header_checksum(file, &checksum, error));
    TRY(tree_real(file->path, &real, error));
    text_append(text, "%s\n%" PRIu64 " %" PRId64 " %016" PRIx64 "\n", real, file->bytes,
        file->modified_ns, checksum);
    mem_free(real);
    return SHOAL_OK;
}

/* Paths, sizes, times and headers of all files; and what the copy will be written as. */
enum shoal_status cache_identify(const struct checkpoint *checkpoint,
    char identity[CACHE_IDENTITY_BYTES], struct shoal_error *error)
{
    struct text text = {0};
    enum shoal_status status = SHOAL_OK;

    text_append(&text, "container %s, wire %d\n", CONTAINER_VERSION, WIRE_VERSION);
    for (size_t i = 0; i < checkpoint_file_count(checkpoint) && !status; i++)
        status = add_file(&text, checkpoint_file(checkpoint, i), error);
    if (!status && text.failed)
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    if (!status)
        snprintf(
            identity, CACHE_IDENTITY_BYTES, "%016" PRIx64, checksum_of(text.data, text.length));
    mem_free(text.data);
    return status;
}

/* Of a file, with the last '/'; mem_free'd by the caller. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? mem_format("%.*s", (int)(slash - path) + 1, path) : mem_strdup(".");
}

/* The checkpoint's path from the root, mem_free'd by the caller. Links in its last name stay: what
 * they point to may be called anything. */
static enum shoal_status absolute_path(const char *path, char **whole, struct shoal_error *error)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *folder = folder_of(path);
    enum shoal_status status;
    char *real = NULL;

    *whole = NULL;
    if (!folder) FAIL_MEMORY(error);
    status = tree_real(folder, &real, error);
    if (!status) *whole = mem_format("%s/%s", real, name);
    mem_free(real);
    mem_free(folder);
    TRY(status);
    if (!*whole) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* *path: of the copy; mem_free'd by the caller. */
static enum shoal_status copy_path(const char *dir, const struct checkpoint *original, char **path,
    char identity[CACHE_IDENTITY_BYTES], struct shoal_error *error)
{
    *path = NULL;
    TRY(cache_identify(original, identity, error));
    *path = mem_format("%s/" CACHE_NAME_PREFIX "%s" CACHE_NAME_SUFFIX, dir, identity);
    if (!*path) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* Whether it can have a copy: safetensors files with nothing packed. */
static enum shoal_status is_plain(
    const struct checkpoint *checkpoint, bool *plain, struct shoal_error *error)
{
    bool gguf;

    *plain = true;
    for (size_t i = 0; i < checkpoint_file_count(checkpoint); i++) {
        TRY(convert_is_gguf(checkpoint_file(checkpoint, i), &gguf, error));
        *plain = *plain && !gguf;
    }
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++)
        *plain = *plain && !checkpoint_at(checkpoint, i)->packed;
    return SHOAL_OK;
}

/* ---- using it ---- */

/* Opens what is in a copy's place, if it says that it is a copy of what it should be. *copy is NULL
 * if nothing is there. */
static enum shoal_status open_own(const char *path, const char *identity,
    struct allowance *allowance, struct checkpoint **copy, struct shoal_error *error)
{
    const enum file_kind kind = file_kind(path);
    char shown[JSON_SHOWN_BYTES];
    const char *own, *source;

    if (kind == FILE_NONE && !file_is_link(path)) return SHOAL_OK;
    if (kind == FILE_NONE) FAIL(error, SHOAL_E_IO, "%s is a link to nothing", path);
    TRY(checkpoint_open_within(path, allowance, copy, error));
    own = checkpoint_metadata(*copy, CACHE_KEY_IDENTITY);
    source = checkpoint_metadata(*copy, CACHE_KEY_SOURCE);
    if (own && !strcmp(own, identity)) return SHOAL_OK;
    if (own && source)
        error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s says that it is a copy of other files, or of these before they changed: %s", path,
            json_show(shown, source));
    else
        error_set(error, SHOAL_E_FORMAT, __FILE__, __LINE__,
            "%s does not say that it is a copy, and of what", path);
    checkpoint_close(copy);
    return SHOAL_E_FORMAT;
}

/* Puts what helps in place of what readers of files advise: a copy was not downloaded. */
static void advise(struct shoal_error *error, const char *dir, const char *path)
{
    static const char *const others[] = {
        "download it again", "convert it again", "convert the original again"};

    for (size_t i = 0; error && i < sizeof others / sizeof *others; i++) {
        size_t length = strlen(error->text), tail = strlen(others[i]) + 2;

        if (length > tail && !strcmp(error->text + length - tail + 2, others[i]))
            error->text[length - tail] = '\0'; /* with "; " or ": " */
    }
    error_prefix(error,
        "the packed copy in the cache cannot be used; remove it (shoal cache %s --remove %s), and "
        "it is written anew: ",
        dir, strrchr(path, '/') + 1);
}

static enum shoal_status open_copy(const char *dir, const char *path, const char *identity,
    struct allowance *allowance, struct checkpoint **copy, struct shoal_error *error)
{
    enum shoal_status status;

    *copy = NULL;
    if (file_kind(path) == FILE_FOLDER)
        FAIL(error, SHOAL_E_IO, "%s is a folder, where a packed copy belongs; move it away", path);
    status = open_own(path, identity, allowance, copy, error);
    if (status && status != SHOAL_E_BUDGET && status != SHOAL_E_MEMORY) advise(error, dir, path);
    return status;
}

enum shoal_status cache_open(const char *dir, const struct checkpoint *original,
    struct allowance *allowance, struct checkpoint **copy, struct shoal_error *error)
{
    char identity[CACHE_IDENTITY_BYTES], *path;
    enum shoal_status status;
    bool plain;

    *copy = NULL;
    TRY(is_plain(original, &plain, error));
    if (!plain) return SHOAL_OK;
    TRY(copy_path(dir, original, &path, identity, error));
    status = open_copy(dir, path, identity, allowance, copy, error);
    mem_free(path);
    return status;
}

/* ---- filling it ---- */

/* One part of a model, and its copy. */
struct candidate {
    struct checkpoint *checkpoint;
    struct pack_list list;
    char identity[CACHE_IDENTITY_BYTES];
    char *path, *source;
    char *beside; /* as source, of what was opened with it; NULL: nothing was */
    bool packs, present;
};

/* The kinds that stream: a VAE is small beside them. */
static const enum family_kind cached_kinds[] = {FAMILY_DIT, FAMILY_TEXT};
#define CANDIDATES (sizeof cached_kinds / sizeof *cached_kinds)

/* What is wrong with the copy, or in its place, is found before anything is packed: that takes
 * minutes. */
static enum shoal_status check_place(
    struct candidate *c, const char *dir, struct allowance *reading, struct shoal_error *error)
{
    struct checkpoint *copy;
    char *unfinished;
    bool good;

    TRY(open_copy(dir, c->path, c->identity, reading, &copy, error));
    c->present = copy != NULL;
    checkpoint_close(&copy);
    if (c->present) return SHOAL_OK;
    unfinished = mem_format("%s/" CACHE_NAME_PREFIX "%s" CACHE_UNFINISHED_SUFFIX, dir, c->identity);
    if (!unfinished) FAIL_MEMORY(error);
    good = !file_is_link(unfinished) && file_kind(unfinished) != FILE_FOLDER &&
           file_kind(unfinished) != FILE_OTHER;
    if (!good)
        error_set(error, SHOAL_E_IO, __FILE__, __LINE__,
            "cannot write %s: %s is no regular file; move it away", c->path, unfinished);
    mem_free(unfinished);
    return good ? SHOAL_OK : SHOAL_E_IO;
}

static enum shoal_status open_candidate(struct candidate *c, const struct shoal_model_paths *paths,
    enum family_kind kind, const char *dir, struct allowance *reading, struct shoal_error *error)
{
    char *part = NULL, *config = NULL;
    const char *beside;
    enum shoal_status status;
    bool plain;

    TRY_OR_FAIL(part_find(paths, kind, &part, error));
    TRY_OR_FAIL(part_open_files(part, reading, &c->checkpoint, error));
    TRY_OR_FAIL(is_plain(c->checkpoint, &plain, error));
    if (!plain) goto fail;
    TRY_OR_FAIL(family_config_beside(part, &config, error));
    TRY_OR_FAIL(pack_list_init(&c->list, c->checkpoint, config, error));
    for (size_t i = 0; i < c->list.count; i++)
        c->packs = c->packs || c->list.items[i].packs;
    TRY_OR_FAIL(copy_path(dir, c->checkpoint, &c->path, c->identity, error));
    TRY_OR_FAIL(absolute_path(checkpoint_path(c->checkpoint), &c->source, error));
    beside = checkpoint_beside_path(c->checkpoint);
    if (beside) TRY_OR_FAIL(absolute_path(beside, &c->beside, error));
    TRY_OR_FAIL(check_place(c, dir, reading, error));
fail:
    mem_free(config);
    mem_free(part);
    return status;
}

static void close_candidates(struct candidate candidates[CANDIDATES])
{
    for (size_t i = 0; i < CANDIDATES; i++) {
        pack_list_fini(&candidates[i].list);
        checkpoint_close(&candidates[i].checkpoint);
        mem_free(candidates[i].path);
        mem_free(candidates[i].source);
        mem_free(candidates[i].beside);
    }
}

static enum shoal_status refuse_folder_of(
    const char *dir, const char *path, struct shoal_error *error)
{
    char *folder = file_kind(path) == FILE_FOLDER ? mem_strdup(path) : folder_of(path);
    bool same;

    if (!folder) FAIL_MEMORY(error);
    same = tree_same(dir, folder);
    mem_free(folder);
    if (!same) return SHOAL_OK;
    FAIL(error, SHOAL_E_INVALID,
        "%s: files of the model are there (%s), and packed copies beside them would be taken for "
        "more of them: name another folder for the cache",
        dir, path);
}

/* Where a file lies by its name, and where it lies if that is a link. */
static enum shoal_status refuse_folders_of(
    const char *dir, const struct checkpoint *checkpoint, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    for (size_t i = 0; i < checkpoint_file_count(checkpoint) && !status; i++) {
        const char *path = checkpoint_file(checkpoint, i)->path;
        char *real = NULL;

        status = refuse_folder_of(dir, path, error);
        if (!status) status = tree_real(path, &real, error);
        if (!status) status = refuse_folder_of(dir, real, error);
        mem_free(real);
    }
    return status;
}

/* A part that was found in a folder is found by being the only one there. */
static enum shoal_status check_folder(const struct candidate candidates[CANDIDATES],
    const struct shoal_model_paths *paths, const char *dir, struct shoal_error *error)
{
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        struct shoal_error other = {0};
        enum shoal_status status;
        char *part = NULL;

        status = part_find(paths, (enum family_kind)kind, &part, &other);
        /* One that has no copy may be missing here: opening the model will say so. */
        if (status == SHOAL_E_MISSING) continue;
        if (!status) status = refuse_folder_of(dir, part, &other);
        mem_free(part);
        if (status && error) *error = other;
        TRY(status);
    }
    for (size_t i = 0; i < CANDIDATES; i++)
        if (candidates[i].checkpoint) TRY(refuse_folders_of(dir, candidates[i].checkpoint, error));
    return SHOAL_OK;
}

/* Of two parts that lie in one file the second is not counted: they have one copy. */
static enum shoal_status open_candidates(struct candidate candidates[CANDIDATES],
    const struct shoal_model_paths *paths, const char *dir, struct shoal_error *error)
{
    struct allowance reading = part_allowance(paths);
    bool packs = false;

    for (size_t i = 0; i < CANDIDATES; i++) {
        struct candidate *c = &candidates[i];

        TRY(open_candidate(c, paths, cached_kinds[i], dir, &reading, error));
        for (size_t k = 0; k < i; k++)
            if (c->path && candidates[k].path && !strcmp(c->path, candidates[k].path))
                c->packs = false;
        packs = packs || c->packs;
    }
    return packs ? check_folder(candidates, paths, dir, error) : SHOAL_OK;
}

enum shoal_status shoal_cache_look(const struct shoal_model_paths *paths, const char *dir,
    struct shoal_cache_state *state, struct shoal_error *error)
{
    struct candidate candidates[CANDIDATES] = {0};
    enum shoal_status status = open_candidates(candidates, paths, dir, error);

    *state = (struct shoal_cache_state){0};
    for (size_t i = 0; i < CANDIDATES && !status; i++) {
        if (!candidates[i].packs) continue;
        state->parts++;
        state->present += candidates[i].present;
        if (!candidates[i].present) state->missing_bytes += candidates[i].list.bytes;
    }
    close_candidates(candidates);
    return status;
}

static void wait_a_little(void)
{
    struct mutex mutex;
    struct cond cond;

    mutex_init(&mutex);
    cond_init(&cond);
    mutex_lock(&mutex);
    cond_wait_for(&cond, &mutex, WAIT_MILLISECONDS);
    mutex_unlock(&mutex);
    cond_fini(&cond);
    mutex_fini(&mutex);
}

/* Opens the writer of a copy, or finds it there: then *there is true. Waits while another process
 * writes it. */
static enum shoal_status open_writer(struct packer *packer, const char *path, struct writer *writer,
    bool *there, struct shoal_error *error)
{
    bool busy = true, said = false;

    for (;;) {
        *there = file_kind(path) == FILE_REGULAR;
        if (*there) return SHOAL_OK;
        TRY(writer_open_locked(path, writer, &busy, error));
        if (!busy) break;
        if (!said) packer_wait(packer, path);
        said = true;
        if (!packer_go_on(packer, 0, 0)) FAIL(error, SHOAL_E_CANCELLED, "cancelled");
        wait_a_little();
    }
    /* Whoever had the lock may have finished just before we got it. */
    *there = file_kind(path) == FILE_REGULAR;
    if (*there) writer_close(writer);
    return SHOAL_OK;
}

static enum shoal_status write_copy(
    struct packer *packer, const struct candidate *c, struct shoal_error *error)
{
    struct pack_work work = {.pool = packer->pool,
        .packed = true,
        .metadata = json_object(),
        .go_on = packer_go_on,
        .user = packer};
    struct writer writer = {0};
    struct pack_result result;
    enum shoal_status status = SHOAL_OK;
    bool there, failed = false;

    json_put(work.metadata, CACHE_KEY_IDENTITY, json_string(c->identity), &failed);
    json_put(work.metadata, CACHE_KEY_SOURCE, json_text(c->source), &failed);
    if (c->beside) json_put(work.metadata, CACHE_KEY_BESIDE, json_text(c->beside), &failed);
    if (failed) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    packer_begin(packer, c->source);
    TRY_OR_FAIL(open_writer(packer, c->path, &writer, &there, error));
    if (there) goto fail;
    TRY_OR_FAIL(pack_write(&c->list, NULL, &work, &writer, &result, error));
    TRY_OR_FAIL(writer_commit(&writer, true, error));
    packer_add(packer, &result);
    packer_end(packer);
fail:
    writer_close(&writer);
    json_decref(work.metadata);
    return status;
}

enum shoal_status shoal_cache_prepare(const struct shoal_model_paths *paths, const char *dir,
    const struct shoal_pack_callbacks *callbacks, struct shoal_error *error)
{
    struct candidate candidates[CANDIDATES] = {0};
    struct packer packer = {0};
    enum shoal_status status = open_candidates(candidates, paths, dir, error);
    bool missing = false, made = false;

    for (size_t i = 0; i < CANDIDATES; i++)
        missing = missing || (candidates[i].packs && !candidates[i].present);
    if (!status && missing) {
        TRY_OR_FAIL(tree_make(dir, &made, error));
        TRY_OR_FAIL(packer_init(&packer, callbacks, error));
        for (size_t i = 0; i < CANDIDATES; i++)
            if (candidates[i].packs && !candidates[i].present)
                packer.progress.bytes += candidates[i].list.bytes;
    }
    for (size_t i = 0; i < CANDIDATES && !status; i++)
        if (candidates[i].packs && !candidates[i].present)
            status = write_copy(&packer, &candidates[i], error);
fail:
    if (status && made) tree_remove_empty(dir);
    packer_fini(&packer);
    close_candidates(candidates);
    return status;
}
