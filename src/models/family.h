/*
 * The registry of model families: what a checkpoint is, and opening it. Families that this build
 * cannot run are known by name, so that the error says what the file is.
 */
#ifndef MODELS_FAMILY_H
#define MODELS_FAMILY_H

#include "models/model.h"

enum family_kind { FAMILY_DIT, FAMILY_TEXT, FAMILY_VAE, FAMILY_KINDS };

/* "diffusion transformer", "text encoder", "VAE". Static storage. */
const char *family_kind_name(enum family_kind kind);

struct family {
    const char *name;  /* as in struct model, e.g. "z-image" */
    const char *title; /* for people, e.g. "Z-Image" */
    enum family_kind kind;
    /* NULL: known, but not run by this build. */
    enum shoal_status (*open)(
        const struct checkpoint *, const char *config_path, struct model **, struct shoal_error *);
};

/* The family of that kind that the checkpoint holds, or NULL. A file may hold one of each kind. */
const struct family *family_detect(const struct checkpoint *checkpoint, enum family_kind kind);

/*
 * Opens the model of that kind. `config_path` may be NULL. Errors say what the checkpoint is when
 * it is something else. The checkpoint must outlive the model.
 */
enum shoal_status family_open(const struct checkpoint *checkpoint, enum family_kind kind,
    const char *config_path, struct model **model, struct shoal_error *error) SHOAL_CHECKED;

/*
 * The config.json that describes the checkpoint at `checkpoint_path`: beside the file, or in the
 * folder. *config_path is NULL when there is none, else mem_free'd by the caller.
 */
enum shoal_status family_config_beside(
    const char *checkpoint_path, char **config_path, struct shoal_error *error) SHOAL_CHECKED;

#endif
