/*
 * shoal_convert: which files become which. A folder is put together beside its place, or within it
 * if it is there already, and moved when it is complete.
 */
#include "pipeline/convert.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/tree.h"
#include "checkpoint/json.h"
#include "pipeline/parts.h"

#include <string.h>

#define PIECE_BYTES (1u << 20) /* of a file that is copied */
#define MOST_DEPTH 16          /* of folders: a link may lead in a circle */
#define MOST_PARTS 8           /* more than there are names of parts' folders */

/* ---- the packer ---- */

enum shoal_status packer_init(
    struct packer *packer, const struct shoal_pack_callbacks *callbacks, struct shoal_error *error)
{
    static const struct shoal_pack_callbacks none;

    *packer = (struct packer){.callbacks = callbacks ? callbacks : &none, .start_ns = clock_ns()};
    return pool_create(&packer->pool, thread_cores(), error);
}

void packer_fini(struct packer *packer)
{
    pool_destroy(&packer->pool);
}

bool packer_go_on(void *user, uint64_t read_bytes, uint64_t written_bytes)
{
    struct packer *p = user;

    p->progress.done_bytes += read_bytes;
    p->progress.written_bytes += written_bytes;
    p->progress.seconds = 1e-9 * (double)(clock_ns() - p->start_ns);
    if (p->callbacks->progress) p->callbacks->progress(p->callbacks->user, &p->progress);
    return !p->callbacks->cancelled || !p->callbacks->cancelled(p->callbacks->user);
}

void packer_begin(struct packer *p, const char *name)
{
    p->part = (struct shoal_packed_part){.name = name};
    p->progress.part = name;
    p->part_start_ns = clock_ns();
}

void packer_add(struct packer *p, const struct pack_result *result)
{
    p->part.tensors += result->tensors;
    p->part.packed_tensors += result->packed;
    p->part.bytes += result->bytes;
    p->part.written_bytes += result->file_bytes;
}

void packer_end(struct packer *p)
{
    p->part.seconds = 1e-9 * (double)(clock_ns() - p->part_start_ns);
    if (p->callbacks->written) p->callbacks->written(p->callbacks->user, &p->part);
}

void packer_wait(struct packer *p, const char *path)
{
    if (p->callbacks->waiting) p->callbacks->waiting(p->callbacks->user, path);
}

/* ---- what is to be done ---- */

struct part {
    char *name; /* for people */
    struct checkpoint *checkpoint;
    struct pack_list list;
};

struct conversion {
    const char *in, *out;
    bool packed, replace;
    char *base;    /* the folder of what is converted, without a last '/'; NULL: a single file */
    char *staging; /* where `out` is put together; NULL: a single file */
    struct part parts[MOST_PARTS];
    int part_count;
    struct packer packer;
};

enum shoal_status convert_is_gguf(const struct file *file, bool *gguf, struct shoal_error *error)
{
    char magic[4];

    *gguf = false;
    if (file->bytes < sizeof magic) return SHOAL_OK;
    TRY(file_read_at(file, 0, magic, sizeof magic, error));
    *gguf = !memcmp(magic, "GGUF", sizeof magic);
    return SHOAL_OK;
}

static enum shoal_status refuse_gguf(const struct file *file, struct shoal_error *error)
{
    bool gguf;

    TRY(convert_is_gguf(file, &gguf, error));
    if (!gguf) return SHOAL_OK;
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s is a GGUF file: its weights are packed already; it is used as it is", file->path);
}

/* Opens a checkpoint as a part of that name; `whole`: with what lies beside it in a model. */
static enum shoal_status add_part(
    struct conversion *c, const char *path, const char *name, bool whole, struct shoal_error *error)
{
    struct part *part = &c->parts[c->part_count++];
    char *config = NULL;
    enum shoal_status status;

    part->name = mem_strdup(name);
    if (!part->name) FAIL_MEMORY(error);
    if (whole)
        TRY(part_open_files(path, NULL, &part->checkpoint, error));
    else
        TRY(checkpoint_open(path, &part->checkpoint, error));
    for (size_t i = 0; i < checkpoint_file_count(part->checkpoint); i++)
        TRY(refuse_gguf(checkpoint_file(part->checkpoint, i), error));
    TRY(family_config_beside(path, &config, error));
    status = pack_list_init(&part->list, part->checkpoint, config, error);
    mem_free(config);
    TRY(status);
    c->packer.progress.bytes += part->list.bytes;
    return SHOAL_OK;
}

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Before anything else is said of it: a GGUF file is no safetensors file that is damaged. */
static enum shoal_status check_file(const char *path, struct shoal_error *error)
{
    enum shoal_status status;
    struct file file;

    TRY(file_open(path, &file, error));
    status = refuse_gguf(&file, error);
    file_close(&file);
    return status;
}

static enum shoal_status add_folder_parts(struct conversion *c, struct shoal_error *error)
{
    bool found;

    TRY(part_folders_in(c->base, &found, error));
    if (!found) return add_part(c, c->base, last_name(c->base), false, error);
    for (int i = 0; part_folder_names[i]; i++) {
        char *path = mem_format("%s/%s", c->base, part_folder_names[i]);
        enum shoal_status status = SHOAL_OK;

        if (!path) FAIL_MEMORY(error);
        if (file_kind(path) == FILE_FOLDER)
            status = add_part(c, path, part_folder_names[i], true, error);
        mem_free(path);
        TRY(status);
    }
    return SHOAL_OK;
}

static bool is_index(const char *path)
{
    size_t length = strlen(path);

    return length > 5 && !strcmp(path + length - 5, ".json");
}

/* The folder of a path, or the folder that it is, without a last '/'. */
static char *folder_of(const char *path, bool itself)
{
    size_t length = strlen(path);

    if (!itself) length -= strlen(last_name(path));
    if (!length && !itself) return mem_strdup(".");
    while (length > 1 && path[length - 1] == '/')
        length--;
    return mem_format("%.*s", (int)length, path);
}

static enum shoal_status find_parts(struct conversion *c, struct shoal_error *error)
{
    enum file_kind kind = file_kind(c->in);
    char *path;
    enum shoal_status status;

    if (kind == FILE_NONE) FAIL(error, SHOAL_E_MISSING, "%s: no such file or folder", c->in);
    if (kind != FILE_FOLDER) TRY(check_file(c->in, error));
    if (kind == FILE_FOLDER || is_index(c->in)) {
        c->base = folder_of(c->in, kind == FILE_FOLDER);
        if (!c->base) FAIL_MEMORY(error);
    }
    if (kind == FILE_FOLDER) return add_folder_parts(c, error);
    if (!c->base) return add_part(c, c->in, last_name(c->in), false, error);
    /* So that its shards' paths begin with the base, whatever way the index was given. */
    path = mem_format("%s/%s", c->base, last_name(c->in));
    if (!path) FAIL_MEMORY(error);
    status = add_part(c, path, last_name(c->in), false, error);
    mem_free(path);
    return status;
}

static enum shoal_status check_target(const struct conversion *c, struct shoal_error *error)
{
    enum file_kind kind = file_kind(c->out);

    if (tree_same(c->in, c->out))
        FAIL(
            error, SHOAL_E_INVALID, "%s and %s are the same: name another to write", c->in, c->out);
    if (c->base && tree_holds(c->base, c->out))
        FAIL(error, SHOAL_E_INVALID, "%s lies in %s, which is read: name a place outside of it",
            c->out, c->base);
    if (kind == FILE_NONE) return SHOAL_OK;
    if (c->base && kind != FILE_FOLDER)
        FAIL(
            error, SHOAL_E_INVALID, "%s is a file; a folder will be written: name another", c->out);
    if (!c->base && kind != FILE_REGULAR)
        FAIL(error, SHOAL_E_INVALID, "%s is %s; a file will be written: name one", c->out,
            kind == FILE_FOLDER ? "a folder" : "no regular file");
    if (!c->replace)
        FAIL(error, SHOAL_E_INVALID, "%s is there already: name another, or add --force", c->out);
    return SHOAL_OK;
}

/* ---- files that are copied ---- */

static enum shoal_status copy_file(
    struct conversion *c, const char *from, const char *to, struct shoal_error *error)
{
    char *piece = mem_alloc(PIECE_BYTES);
    struct writer writer = {0};
    struct file file = {0};
    enum shoal_status status = SHOAL_OK;

    if (!piece) FAIL_MEMORY(error);
    TRY_OR_FAIL(file_open(from, &file, error));
    TRY_OR_FAIL(writer_open(to, &writer, error));
    for (uint64_t at = 0; at < file.bytes; at += PIECE_BYTES) {
        uint64_t left = file.bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;

        TRY_OR_FAIL(file_read_at(&file, at, piece, bytes, error));
        TRY_OR_FAIL(writer_put(&writer, at, piece, bytes, error));
        if (packer_go_on(&c->packer, 0, 0)) continue;
        status = error_set(error, SHOAL_E_CANCELLED, __FILE__, __LINE__, "cancelled");
        goto fail;
    }
    TRY_OR_FAIL(file_check_unchanged(&file, error));
    status = writer_commit(&writer, false, error);
fail:
    writer_close(&writer);
    file_close(&file);
    mem_free(piece);
    return status;
}

/* Whether it is one of the files that are written anew. */
static bool is_converted(const struct conversion *c, const char *path)
{
    for (int i = 0; i < c->part_count; i++)
        for (size_t k = 0; k < checkpoint_file_count(c->parts[i].checkpoint); k++)
            if (!strcmp(path, checkpoint_file(c->parts[i].checkpoint, k)->path)) return true;
    return false;
}

static enum shoal_status copy_folder(
    struct conversion *c, const char *from, const char *to, int depth, struct shoal_error *error);

static enum shoal_status copy_entry(struct conversion *c, const char *from, const char *to,
    const char *name, int depth, struct shoal_error *error)
{
    char *source = mem_format("%s/%s", from, name), *target = mem_format("%s/%s", to, name);
    enum shoal_status status = SHOAL_OK;

    if (!source || !target)
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    else if (file_kind(source) == FILE_FOLDER)
        status = copy_folder(c, source, target, depth + 1, error);
    else if (!is_converted(c, source))
        status = copy_file(c, source, target, error);
    mem_free(source);
    mem_free(target);
    return status;
}

/* Everything but what is written anew, and hidden files, which are no part of a model. */
static enum shoal_status copy_folder(
    struct conversion *c, const char *from, const char *to, int depth, struct shoal_error *error)
{
    enum shoal_status status;
    char **names = NULL;
    size_t count = 0;

    if (depth > MOST_DEPTH)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: folders in folders, %d deep: is there a link that "
            "leads in a circle?",
            from, MOST_DEPTH);
    TRY(tree_make(to, NULL, error));
    TRY(file_list(from, &names, &count, error));
    status = SHOAL_OK;
    for (size_t i = 0; i < count && !status; i++)
        if (names[i][0] != '.') status = copy_entry(c, from, to, names[i], depth, error);
    mem_free(names);
    return status;
}

/* Beside an index: it, and the configuration. */
static enum shoal_status copy_index(struct conversion *c, struct shoal_error *error)
{
    const char *names[] = {last_name(c->in), "config.json"};

    for (int i = 0; i < 2; i++) {
        char *from = mem_format("%s/%s", c->base, names[i]);
        char *to = mem_format("%s/%s", c->staging, names[i]);
        enum shoal_status status = from && to ? SHOAL_OK : SHOAL_E_MEMORY;

        if (status)
            error_set(error, status, __FILE__, __LINE__, "out of memory");
        else if (file_kind(from) != FILE_NONE)
            status = copy_file(c, from, to, error);
        mem_free(from);
        mem_free(to);
        TRY(status);
    }
    return SHOAL_OK;
}

/* ---- files that are converted ---- */

/* The __metadata__ of file `index`, as it was. NULL when out of memory. */
static json_t *metadata_of(const struct checkpoint *checkpoint, size_t index)
{
    json_t *metadata = json_object();
    const char *key, *value;
    bool failed = false;

    for (size_t i = 0; checkpoint_file_metadata(checkpoint, index, i, &key, &value); i++)
        json_put(metadata, key, json_string(value), &failed);
    if (!failed) return metadata;
    json_decref(metadata);
    return NULL;
}

static enum shoal_status convert_file(struct conversion *c, const struct part *part, size_t index,
    const char *to, struct shoal_error *error)
{
    struct pack_work work = {.pool = c->packer.pool,
        .packed = c->packed,
        .metadata = metadata_of(part->checkpoint, index),
        .go_on = packer_go_on,
        .user = &c->packer};
    struct writer writer = {0};
    struct pack_result result;
    enum shoal_status status;

    if (!work.metadata) FAIL_MEMORY(error);
    TRY_OR_FAIL(writer_open(to, &writer, error));
    TRY_OR_FAIL(pack_write(
        &part->list, checkpoint_file(part->checkpoint, index), &work, &writer, &result, error));
    if (!c->base) TRY_OR_FAIL(check_target(c, error)); /* it may have come meanwhile */
    TRY_OR_FAIL(writer_commit(&writer, true, error));
    packer_add(&c->packer, &result);
fail:
    writer_close(&writer);
    json_decref(work.metadata);
    return status;
}

static enum shoal_status convert_part(
    struct conversion *c, const struct part *part, struct shoal_error *error)
{
    packer_begin(&c->packer, part->name);
    for (size_t i = 0; i < checkpoint_file_count(part->checkpoint); i++) {
        const char *path = checkpoint_file(part->checkpoint, i)->path;
        char *to = c->staging ? mem_format("%s/%s", c->staging, path + strlen(c->base) + 1)
                              : mem_strdup(c->out);
        enum shoal_status status;

        if (!to) FAIL_MEMORY(error);
        status = convert_file(c, part, i, to, error);
        mem_free(to);
        TRY(status);
    }
    packer_end(&c->packer);
    return SHOAL_OK;
}

/* ---- the whole ---- */

static enum shoal_status make_staging(struct conversion *c, struct shoal_error *error)
{
    bool there = file_kind(c->out) == FILE_FOLDER;
    char *out = folder_of(c->out, true), *prefix = NULL;
    enum shoal_status status;

    if (out) prefix = there ? mem_format("%s/.convert", out) : mem_strdup(out);
    if (prefix)
        status = tree_make_temporary(prefix, &c->staging, error);
    else
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    mem_free(prefix);
    mem_free(out);
    return status;
}

static enum shoal_status convert(struct conversion *c, struct shoal_error *error)
{
    TRY(find_parts(c, error));
    TRY(check_target(c, error));
    if (c->base) {
        TRY(make_staging(c, error));
        if (file_kind(c->in) == FILE_FOLDER)
            TRY(copy_folder(c, c->base, c->staging, 0, error));
        else
            TRY(copy_index(c, error));
    }
    for (int i = 0; i < c->part_count; i++)
        TRY(convert_part(c, &c->parts[i], error));
    if (!c->base) return SHOAL_OK;
    TRY(check_target(c, error)); /* it may have come meanwhile */
    return tree_move(c->staging, c->out, error);
}

enum shoal_status shoal_convert(const char *in, const char *out, enum shoal_wire wire, bool replace,
    const struct shoal_pack_callbacks *callbacks, struct shoal_error *error)
{
    struct conversion c = {
        .in = in, .out = out, .packed = wire == SHOAL_WIRE_PACKED, .replace = replace};
    enum shoal_status status;

    if (!*in || !*out) FAIL(error, SHOAL_E_INVALID, "an empty path: name what to convert to what");
    if (wire != SHOAL_WIRE_PACKED && wire != SHOAL_WIRE_RAW)
        FAIL(error, SHOAL_E_INVALID, "convert to what? Packed or raw");
    status = packer_init(&c.packer, callbacks, error);
    if (!status) status = convert(&c, error);
    /* After a success it has been moved away. */
    if (status && c.staging) tree_remove(c.staging);
    for (int i = 0; i < c.part_count; i++) {
        pack_list_fini(&c.parts[i].list);
        checkpoint_close(&c.parts[i].checkpoint);
        mem_free(c.parts[i].name);
    }
    packer_fini(&c.packer);
    mem_free(c.staging);
    mem_free(c.base);
    return status;
}
