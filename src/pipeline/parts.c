/* Finding a model's parts: diffusers folders, ComfyUI folders, single files. */
#include "pipeline/parts.h"

#include "base/allowance.h"
#include "base/file.h"
#include "base/memory.h"
#include "models/dit/dit.h"
#include "models/vae/vae.h"
#include "pipeline/cache.h"
#include "pipeline/tokens.h"

#include <stdio.h>
#include <string.h>

/* Where each part lies in the two folder layouts; the first that exists is taken. */
static const char *const part_folders[FAMILY_KINDS][4] = {
    [FAMILY_DIT] = {"transformer", "diffusion_models", "unet"},
    [FAMILY_TEXT] = {"text_encoder", "text_encoders", "clip"},
    [FAMILY_VAE] = {"vae"},
};

const char *const part_folder_names[] = {"transformer", "text_encoder", "vae", "diffusion_models",
    "unet", "text_encoders", "clip", NULL};

enum family_kind part_folder_kind(const char *name)
{
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        for (int i = 0; part_folders[kind][i]; i++)
            if (!strcmp(name, part_folders[kind][i])) return (enum family_kind)kind;
    return FAMILY_KINDS;
}

static const char *const part_options[FAMILY_KINDS] = {"--dit", "--text-encoder", "--vae"};

/* Joins folder and name; *path is mem_free'd by the caller. */
static enum shoal_status join(
    const char *folder, const char *name, char **path, struct shoal_error *error)
{
    *path = mem_format("%s/%s", folder, name);
    if (!*path) FAIL_MEMORY(error);
    return SHOAL_OK;
}

enum shoal_status part_folders_in(const char *path, bool *found, struct shoal_error *error)
{
    *found = false;
    for (int i = 0; part_folder_names[i] && !*found && file_kind(path) == FILE_FOLDER; i++) {
        char *folder;

        TRY(join(path, part_folder_names[i], &folder, error));
        *found = file_kind(folder) == FILE_FOLDER;
        mem_free(folder);
    }
    return SHOAL_OK;
}

/* The part's folder inside the model's folder. */
static enum shoal_status find_in_folder(
    const char *folder, enum family_kind kind, char **path, struct shoal_error *error)
{
    for (int i = 0; part_folders[kind][i]; i++) {
        TRY(join(folder, part_folders[kind][i], path, error));
        if (file_kind(*path) != FILE_NONE) return SHOAL_OK;
        mem_free(*path);
        *path = NULL;
    }
    if (!part_folders[kind][1])
        FAIL(error, SHOAL_E_MISSING, "%s: no %s: there is no folder %s/; name it with %s", folder,
            family_kind_name(kind), part_folders[kind][0], part_options[kind]);
    FAIL(error, SHOAL_E_MISSING,
        "%s: no %s: neither %s/ (diffusers layout) nor %s/ (ComfyUI layout) is there; name it with "
        "%s",
        folder, family_kind_name(kind), part_folders[kind][0], part_folders[kind][1],
        part_options[kind]);
}

static const char *given_path(const struct shoal_model_paths *paths, enum family_kind kind)
{
    switch (kind) {
    case FAMILY_DIT:
        return paths->dit;
    case FAMILY_TEXT:
        return paths->text_encoder;
    default:
        return paths->vae;
    }
}

enum shoal_status part_find(const struct shoal_model_paths *paths, enum family_kind kind,
    char **path, struct shoal_error *error)
{
    const char *given = given_path(paths, kind);

    if (!given && !paths->model)
        FAIL(error, SHOAL_E_MISSING, "no %s: name a model, or the part with %s",
            family_kind_name(kind), part_options[kind]);
    if (!given && file_kind(paths->model) == FILE_NONE)
        FAIL(error, SHOAL_E_MISSING, "%s: no such file or folder", paths->model);
    if (!given && file_kind(paths->model) == FILE_FOLDER)
        return find_in_folder(paths->model, kind, path, error);
    *path = mem_strdup(given ? given : paths->model);
    if (!*path) FAIL_MEMORY(error);
    return SHOAL_OK;
}

#define TRANSFORMER "transformer"
#define CONDITIONER "text_conditioner"

/* *path: the conditioner's folder if `transformer` is such a folder and has one beside it, NULL if
 * not; mem_free'd by the caller. */
static enum shoal_status find_conditioner(
    const char *transformer, char **path, struct shoal_error *error)
{
    const size_t name_bytes = strlen(TRANSFORMER);
    size_t end = strlen(transformer);

    *path = NULL;
    while (end > 1 && transformer[end - 1] == '/')
        end--;
    if (end < name_bytes || file_kind(transformer) != FILE_FOLDER) return SHOAL_OK;
    end -= name_bytes;
    if (strncmp(transformer + end, TRANSFORMER, name_bytes) || (end && transformer[end - 1] != '/'))
        return SHOAL_OK;
    *path = mem_format("%.*s" CONDITIONER, (int)end, transformer);
    if (!*path) FAIL_MEMORY(error);
    if (file_kind(*path) != FILE_NONE) return SHOAL_OK;
    mem_free(*path);
    *path = NULL;
    return SHOAL_OK;
}

enum shoal_status part_open_files(const char *path, struct allowance *allowance,
    struct checkpoint **checkpoint, struct shoal_error *error)
{
    struct checkpoint_beside beside = {.prefix = PART_CONDITIONER_PREFIX};
    enum shoal_status status;
    char *conditioner;

    TRY(find_conditioner(path, &conditioner, error));
    beside.path = conditioner;
    status = checkpoint_open_with(path, conditioner ? &beside : NULL, allowance, checkpoint, error);
    mem_free(conditioner);
    return status;
}

struct allowance part_allowance(const struct shoal_model_paths *paths)
{
    return (struct allowance){
        .most_bytes = paths->ram_bytes ? paths->ram_bytes : UINT64_MAX, .bytes = PROGRAM_BYTES};
}

/* The checkpoint, or the packed copy of it that is in the cache. */
static enum shoal_status open_checkpoint(const struct shoal_model_paths *paths,
    enum family_kind kind, const char *path, struct allowance *reading, struct shoal_model *model,
    struct shoal_error *error)
{
    struct checkpoint **checkpoint = &model->checkpoints[kind], *copy = NULL;

    TRY(part_open_files(path, reading, checkpoint, error));
    if (!paths->disk_cache || kind == FAMILY_VAE) return SHOAL_OK;
    TRY(cache_open(paths->disk_cache, *checkpoint, reading, &copy, error));
    model->copy_expected[kind] = !copy && paths->expect_copies;
    model->copies |= copy || paths->expect_copies;
    if (!copy) return SHOAL_OK;
    checkpoint_close(checkpoint);
    *checkpoint = copy;
    return SHOAL_OK;
}

static enum shoal_status open_part(const struct shoal_model_paths *paths, enum family_kind kind,
    struct allowance *reading, struct shoal_model *model, struct shoal_error *error)
{
    const uint64_t before = reading->bytes;
    char *path = NULL, *config = NULL;
    enum shoal_status status;

    TRY(part_find(paths, kind, &path, error));
    TRY_OR_FAIL(open_checkpoint(paths, kind, path, reading, model, error));
    model->reading_bytes[kind] = reading->bytes - before;
    /* The copy's header will be read too; with its marks it is about twice as large. */
    if (model->copy_expected[kind]) model->reading_bytes[kind] *= 3;
    TRY_OR_FAIL(family_config_beside(path, &config, error));
    status = family_open(model->checkpoints[kind], kind, config, &model->parts[kind], error);
    if (status && error && !given_path(paths, kind) && paths->model &&
        file_kind(paths->model) == FILE_REGULAR && kind != FAMILY_DIT) {
        char text[64];

        snprintf(text, sizeof text, " (name the %s with %s)", family_kind_name(kind),
            part_options[kind]);
        strncat(error->text, text, sizeof error->text - strlen(error->text) - 1);
    }
fail:
    mem_free(config);
    mem_free(path);
    return status;
}

/* The text encoder must be of a family that the DiT takes, and give the state that it takes. */
static enum shoal_status check_text(const struct shoal_model *model, struct shoal_error *error)
{
    const struct dit_text *wanted = &dit_config(model->parts[FAMILY_DIT])->family->text;
    const struct model *text = model->parts[FAMILY_TEXT];
    const char *path = checkpoint_path(model->checkpoints[FAMILY_TEXT]);
    const size_t room = sizeof wanted->families / sizeof *wanted->families;
    size_t i = 0;

    while (i < room && wanted->families[i] && strcmp(wanted->families[i], text->family))
        i++;
    if (i == room || !wanted->families[i])
        FAIL(error, SHOAL_E_INVALID,
            "%s is a text encoder of the family %s, but the DiT %s was made for %s%s%s", path,
            text->family, checkpoint_path(model->checkpoints[FAMILY_DIT]), wanted->families[0],
            wanted->families[1] ? " or " : "", wanted->families[1] ? wanted->families[1] : "");
    if (text_config(text)->pass[wanted->state] < 0)
        FAIL(error, SHOAL_E_MISSING,
            "%s lacks its last layer or its final norm, whose result the DiT %s takes: use a whole "
            "file of it",
            path, checkpoint_path(model->checkpoints[FAMILY_DIT]));
    return SHOAL_OK;
}

/* The VAE must be of the family whose latents the DiT gives: those of others have as many channels,
 * and would be decoded to noise. */
static enum shoal_status check_vae(const struct shoal_model *model, struct shoal_error *error)
{
    const char *wanted = dit_config(model->parts[FAMILY_DIT])->family->vae;
    const char *family = model->parts[FAMILY_VAE]->family;

    if (!strcmp(wanted, family)) return SHOAL_OK;
    FAIL(error, SHOAL_E_INVALID, "%s is a VAE of the family %s, but the DiT %s was made for %s",
        checkpoint_path(model->checkpoints[FAMILY_VAE]), family,
        checkpoint_path(model->checkpoints[FAMILY_DIT]), wanted);
}

/* Every pass is walked and planned block by block. */
static enum shoal_status check_passes(
    const struct model *model, const struct checkpoint *checkpoint, struct shoal_error *error)
{
    for (int32_t i = 0; i < model->pass_count; i++)
        if (model->passes[i].count < 1)
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%s: it has no layer at all for \"%s\", of which this build needs one",
                checkpoint_path(checkpoint), model->passes[i].name);
    return SHOAL_OK;
}

/* What lies beside a transformer that takes nothing of the kind would be read over. */
static enum shoal_status check_conditioner(
    const struct shoal_model *model, struct shoal_error *error)
{
    const struct checkpoint *dit = model->checkpoints[FAMILY_DIT];

    if (!checkpoint_beside_path(dit) || !strcmp(model->parts[FAMILY_DIT]->family, "anima"))
        return SHOAL_OK;
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: with %s it is no Anima, whose adapter belongs into " CONDITIONER
        "/: take that folder away if the model needs none",
        checkpoint_path(dit), checkpoint_beside_path(dit));
}

/* The parts must speak of the same widths. */
static enum shoal_status check_parts(const struct shoal_model *model, struct shoal_error *error)
{
    const struct dit_config *dit = dit_config(model->parts[FAMILY_DIT]);
    const struct text_config *text = text_config(model->parts[FAMILY_TEXT]);
    const struct vae_config *vae = vae_config(model->parts[FAMILY_VAE]);

    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        TRY(check_passes(model->parts[kind], model->checkpoints[kind], error));
    TRY(check_conditioner(model, error));
    TRY(check_text(model, error));
    TRY(check_vae(model, error));
    if (dit->width != text->width)
        FAIL(error, SHOAL_E_INVALID,
            "the text encoder %s gives features of width %lld, but the DiT %s takes %lld: they are "
            "not of the same model",
            checkpoint_path(model->checkpoints[FAMILY_TEXT]), (long long)text->width,
            checkpoint_path(model->checkpoints[FAMILY_DIT]), (long long)dit->width);
    if (dit->channels != vae->latent_channels)
        FAIL(error, SHOAL_E_INVALID,
            "the VAE %s takes latents of %lld channels, but the DiT %s gives %lld: they are not of "
            "the same model",
            checkpoint_path(model->checkpoints[FAMILY_VAE]), (long long)vae->latent_channels,
            checkpoint_path(model->checkpoints[FAMILY_DIT]), (long long)dit->channels);
    return SHOAL_OK;
}

/* "/a/b/model/" -> "model". */
static char *own_name(const char *path)
{
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    return mem_format("%.*s", (int)(end - begin), path + begin);
}

enum shoal_status shoal_model_open(
    const struct shoal_model_paths *paths, struct shoal_model **model, struct shoal_error *error)
{
    struct allowance reading = part_allowance(paths);
    struct shoal_model *m = mem_calloc(1, sizeof *m);
    enum shoal_status status;

    *model = NULL;
    if (!m) FAIL_MEMORY(error);
    TRY_OR_FAIL(adapter_cache_create(&m->adapters, error));
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        TRY_OR_FAIL(open_part(paths, (enum family_kind)kind, &reading, m, error));
    /* Before the tokenizers, which do not fit a wrong text encoder either. */
    TRY_OR_FAIL(check_parts(m, error));
    TRY_OR_FAIL(tokens_open(paths, &reading, m, error));
    TRY_OR_FAIL(
        settings_read(paths->model, dit_config(m->parts[FAMILY_DIT])->family, &m->defaults, error));
    m->name = own_name(paths->model ? paths->model : paths->dit);
    if (!m->name) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    *model = m;
    return SHOAL_OK;
fail:
    shoal_model_close(&m);
    return status;
}

void shoal_model_close(struct shoal_model **model)
{
    struct shoal_model *m = model ? *model : NULL;

    if (!m) return;
    tokens_close(m);
    adapter_cache_destroy(&m->adapters);
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        model_destroy(&m->parts[kind]);
        checkpoint_close(&m->checkpoints[kind]);
    }
    mem_free(m->name);
    mem_free(m);
    *model = NULL;
}

const char *shoal_model_name(const struct shoal_model *model)
{
    return model->name;
}
