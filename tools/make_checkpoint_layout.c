/* The folders and files of a made checkpoint: which tensors go where, shards, configurations. */
#include "make_checkpoint.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENIZER_MAX_BYTES (256u << 20)

struct maker {
    const struct make_options *options;
    const struct make_family *family;
    const char *root; /* where it is written before it gets its name */
    uint64_t bytes;   /* so far */
    struct shoal_error *error;
};

/* ---- files ---- */

static enum shoal_status make_folder(struct maker *m, const char *name)
{
    char *path = mem_format("%s/%s", m->root, name);
    int code;

    if (!path) FAIL_MEMORY(m->error);
    code = mkdir(path, 0777) ? errno : 0;
    mem_free(path);
    if (code) FAIL(m->error, SHOAL_E_IO, "cannot make %s/%s: %s", m->root, name, strerror(code));
    return SHOAL_OK;
}

static enum shoal_status write_text(struct maker *m, const char *name, const struct text *text)
{
    char *path = mem_format("%s/%s", m->root, name);
    enum shoal_status status = SHOAL_E_MEMORY;

    if (path && !text->failed)
        status = file_write_whole(path, text->data, text->length, m->error);
    else
        error_set(m->error, status, __FILE__, __LINE__, "out of memory for %s", name);
    mem_free(path);
    return status;
}

static enum shoal_status tensor_bytes(
    const struct maker *m, const struct make_tensor *tensor, uint64_t *bytes)
{
    if (!shape_bytes(&tensor->shape, make_dtype(tensor, m->options->dtype), bytes))
        FAIL(m->error, SHOAL_E_INVALID, "%s is too big", tensor->name);
    return SHOAL_OK;
}

static enum shoal_status write_file(
    struct maker *m, const char *name, struct make_tensor *tensors, size_t count)
{
    char *path = mem_format("%s/%s", m->root, name);
    enum shoal_status status;

    if (!path) FAIL_MEMORY(m->error);
    status = make_write(path, tensors, count, m->options, m->error);
    mem_free(path);
    return status;
}

/* ---- the diffusers layout ---- */

/* The end of the shard that begins at `first`: as many as fit, one at least. */
static enum shoal_status shard_end(
    const struct maker *m, const struct make_list *list, size_t first, size_t *last)
{
    uint64_t total = 0, bytes;
    size_t i = first;

    for (; i < list->count; i++) {
        TRY(tensor_bytes(m, &list->tensors[i], &bytes));
        if (i > first && bytes > m->options->shard_bytes - total) break;
        total = bytes > m->options->shard_bytes ? m->options->shard_bytes : total + bytes;
    }
    *last = i;
    return SHOAL_OK;
}

static enum shoal_status write_shards(
    struct maker *m, const char *folder, const char *stem, struct make_list *list)
{
    struct text index = {0};
    enum shoal_status status = SHOAL_OK;
    size_t shards = 0, last, first = 0;
    uint64_t total = 0;
    char name[160];

    for (size_t at = 0; at < list->count; at = last, shards++)
        TRY(shard_end(m, list, at, &last));
    for (size_t i = 0; i < list->count; i++) {
        uint64_t bytes;

        TRY(tensor_bytes(m, &list->tensors[i], &bytes));
        total += bytes;
    }
    m->bytes += total;
    if (shards == 1) {
        snprintf(name, sizeof name, "%s/%s.safetensors", folder, stem);
        return write_file(m, name, list->tensors, list->count);
    }
    text_append(&index, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
        (unsigned long long)total);
    for (size_t shard = 0; shard < shards; shard++, first = last) {
        TRY_OR_FAIL(shard_end(m, list, first, &last));
        snprintf(
            name, sizeof name, "%s/%s-%05zu-of-%05zu.safetensors", folder, stem, shard + 1, shards);
        for (size_t i = first; i < last; i++)
            text_append(&index, "%s\n    \"%s\": \"%s\"", i ? "," : "", list->tensors[i].name,
                name + strlen(folder) + 1);
        TRY_OR_FAIL(write_file(m, name, list->tensors + first, last - first));
    }
    text_append(&index, "\n  }\n}\n");
    snprintf(name, sizeof name, "%s/%s.safetensors.index.json", folder, stem);
    TRY_OR_FAIL(write_text(m, name, &index));
fail:
    mem_free(index.data);
    return status;
}

static enum shoal_status write_part(struct maker *m, const char *folder, const char *stem,
    void (*fill)(struct make_list *list, bool small))
{
    struct make_list list = {.layout = MAKE_DIFFUSERS, .prefix = ""};
    enum shoal_status status;

    fill(&list, m->options->small);
    status = list.failed ? error_set(m->error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory")
                         : make_folder(m, folder);
    if (!status) status = write_shards(m, folder, stem, &list);
    mem_free(list.tensors);
    return status;
}

static enum shoal_status write_config(
    struct maker *m, const char *name, void (*fill)(struct text *json, bool small))
{
    struct text json = {0};
    enum shoal_status status;

    fill(&json, m->options->small);
    status = write_text(m, name, &json);
    mem_free(json.data);
    return status;
}

static enum shoal_status write_component(struct maker *m, const char *folder, const char *stem,
    void (*fill)(struct make_list *list, bool small), void (*config)(struct text *json, bool small))
{
    char name[64];

    TRY(write_part(m, folder, stem, fill));
    snprintf(name, sizeof name, "%s/config.json", folder);
    return write_config(m, name, config);
}

static enum shoal_status write_diffusers(struct maker *m)
{
    static const struct {
        const char *folder, *stem;
    } places[MAKE_PARTS] = {{"transformer", "diffusion_pytorch_model"}, {"text_encoder", "model"},
        {"vae", "diffusion_pytorch_model"}};

    for (int i = 0; i < MAKE_PARTS; i++) {
        const struct make_component *part = &m->family->parts[i];

        if (!(m->options->parts & 1u << i)) continue;
        TRY(write_component(m, places[i].folder, places[i].stem, part->fill, part->config));
        if (part->more)
            TRY(write_component(
                m, part->more_folder, places[i].stem, part->more, part->more_config));
    }
    if (!m->family->scheduler) return SHOAL_OK;
    TRY(make_folder(m, "scheduler"));
    TRY(write_config(m, "scheduler/scheduler_config.json", m->family->scheduler));
    return write_config(m, "model_index.json", m->family->index);
}

/* ---- the ComfyUI layout ---- */

/* Which block of its stack a tensor is of, by its stored name; -1: of none. */
static long block_of(const char *name)
{
    static const char *const stacks[] = {"blocks.", "block.", "layers."};

    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        const char *at = strstr(name, stacks[i]), *number = at ? at + strlen(stacks[i]) : "";

        if (*number >= '0' && *number <= '9') return strtol(number, NULL, 10);
    }
    return -1;
}

static void fill_whole(struct maker *m, const struct make_component *part, struct make_list *list)
{
    const long depth = (long)m->options->depth;
    size_t kept = list->count;

    part->fill(list, m->options->small);
    if (part->more) part->more(list, m->options->small);
    if (depth == 0 || part == &m->family->parts[MAKE_PARTS - 1]) return; /* the VAE is no stack */
    for (size_t i = kept; i < list->count; i++)
        if (block_of(list->tensors[i].name) < depth) list->tensors[kept++] = list->tensors[i];
    list->count = kept;
}

static enum shoal_status list_bytes(struct maker *m, const struct make_list *list)
{
    if (list->failed) FAIL_MEMORY(m->error);
    for (size_t i = 0; i < list->count; i++) {
        uint64_t bytes;

        TRY(tensor_bytes(m, &list->tensors[i], &bytes));
        m->bytes += bytes;
    }
    return SHOAL_OK;
}

static enum shoal_status write_single(
    struct maker *m, const char *folder, const struct make_component *part)
{
    struct make_list list = {.layout = MAKE_COMFYUI, .prefix = part->prefix};
    enum shoal_status status;
    char name[160];

    fill_whole(m, part, &list);
    snprintf(name, sizeof name, "%s/%s", folder, part->file);
    status = list_bytes(m, &list);
    if (!status) status = make_folder(m, folder);
    if (!status) status = write_file(m, name, list.tensors, list.count);
    mem_free(list.tensors);
    return status;
}

static enum shoal_status write_comfyui(struct maker *m)
{
    static const char *const folders[MAKE_PARTS] = {"diffusion_models", "text_encoders", "vae"};

    for (int i = 0; i < MAKE_PARTS; i++)
        if (m->options->parts & 1u << i) TRY(write_single(m, folders[i], &m->family->parts[i]));
    return SHOAL_OK;
}

/* One file of everything, `root` itself. */
static enum shoal_status write_all_in_one(struct maker *m)
{
    struct make_list list = {.layout = MAKE_COMFYUI};
    enum shoal_status status;

    for (int i = 0; i < MAKE_PARTS; i++) {
        list.prefix = m->family->parts[i].whole_prefix;
        if (m->options->parts & 1u << i) fill_whole(m, &m->family->parts[i], &list);
    }
    status = list_bytes(m, &list);
    if (!status) status = make_write(m->root, list.tensors, list.count, m->options, m->error);
    mem_free(list.tensors);
    return status;
}

/* ---- the tokenizer ---- */

static enum shoal_status copy_file(struct maker *m, const char *from, const char *name)
{
    struct text text = {0};
    enum shoal_status status;

    TRY(file_read_all(from, TOKENIZER_MAX_BYTES, &text.data, &text.length, m->error));
    status = write_text(m, name, &text);
    mem_free(text.data);
    return status;
}

static enum shoal_status copy_tokenizer(struct maker *m)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"};
    const char *from = m->options->tokenizer;
    enum shoal_status status = SHOAL_OK;

    TRY(make_folder(m, "tokenizer"));
    if (file_kind(from) != FILE_FOLDER) return copy_file(m, from, "tokenizer/tokenizer.json");
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        char *path = mem_format("%s/%s", from, names[i]), target[64];

        if (!path) FAIL_MEMORY(m->error);
        snprintf(target, sizeof target, "tokenizer/%s", names[i]);
        /* The first is the one that is needed. */
        if (!i || file_kind(path) != FILE_NONE) status = copy_file(m, path, target);
        mem_free(path);
    }
    return status;
}

/* ---- all ---- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static bool names_file(const struct make_options *options)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(options->out), tail = sizeof suffix - 1;

    return options->layout == MAKE_COMFYUI && length > tail &&
           !strcmp(options->out + length - tail, suffix);
}

static enum shoal_status check_options(
    const struct make_options *o, const struct make_family *family, struct shoal_error *error)
{
    static const char *const names[MAKE_PARTS] = {"dit", "text", "vae"};

    if (!(o->parts & (MAKE_DIT | MAKE_TEXT | MAKE_VAE)))
        FAIL(error, SHOAL_E_INVALID, "no parts: give some of dit, text, vae");
    for (int i = 0; i < MAKE_PARTS; i++)
        if ((o->parts & 1u << i) && !family->parts[i].fill)
            FAIL(error, SHOAL_E_UNSUPPORTED, "the %s of %s is not made: leave it out of the parts",
                names[i], family->name);
    if (o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F32 && o->dtype != DTYPE_F8_E4M3)
        FAIL(error, SHOAL_E_UNSUPPORTED, "dtype %s is not made; bf16, f32 and fp8 are",
            dtype_name(o->dtype));
    if (!o->shard_bytes) FAIL(error, SHOAL_E_INVALID, "shards of 0 bytes cannot hold tensors");
    if (file_kind(o->out) != FILE_NONE)
        FAIL(error, SHOAL_E_INVALID, "%s exists already: remove it or give another name", o->out);
    if (o->depth && o->layout != MAKE_COMFYUI)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "a depth is for the comfyui layout: configurations say how many blocks there are");
    if (names_file(o) && o->tokenizer)
        FAIL(error, SHOAL_E_INVALID,
            "a tokenizer cannot be put into the file %s: leave it out, or "
            "name a folder",
            o->out);
    return SHOAL_OK;
}

enum shoal_status make_checkpoint(
    const struct make_options *options, uint64_t *bytes, struct shoal_error *error)
{
    struct maker m = {.options = options,
        .family = options->family ? options->family : make_family_find(NULL),
        .error = error};
    enum shoal_status status;
    char *part;

    TRY(check_options(options, m.family, error));
    part = mem_format("%s.part", options->out);
    if (!part) FAIL_MEMORY(error);
    m.root = part;
    if (file_kind(part) != FILE_NONE) {
        status = error_set(error, SHOAL_E_INVALID, __FILE__, __LINE__,
            "%s is left from a run that was stopped, or one is running: remove it", part);
        mem_free(part);
        return status;
    }
    if (names_file(options)) {
        TRY_OR_FAIL(write_all_in_one(&m));
    } else {
        if (mkdir(part, 0777)) {
            status = error_set(
                error, SHOAL_E_IO, __FILE__, __LINE__, "cannot make %s: %s", part, strerror(errno));
            goto fail;
        }
        TRY_OR_FAIL(options->layout == MAKE_DIFFUSERS ? write_diffusers(&m) : write_comfyui(&m));
        if (options->tokenizer) TRY_OR_FAIL(copy_tokenizer(&m));
    }
    if (rename(part, options->out)) {
        status = error_set(error, SHOAL_E_IO, __FILE__, __LINE__, "cannot rename %s to %s: %s",
            part, options->out, strerror(errno));
        goto fail;
    }
    if (bytes) *bytes = m.bytes;
fail:
    if (status) nftw(part, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    mem_free(part);
    return status;
}
