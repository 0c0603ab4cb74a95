/* An open model: the three networks, the tokenizer and the defaults, found among files. */
#ifndef PIPELINE_PARTS_H
#define PIPELINE_PARTS_H

#include "models/family.h"
#include "pipeline/adapters.h"
#include "pipeline/settings.h"
#include "tokenizer/tokenizer.h"

/* The folders of a model's folder that hold parts, in either layout; the last is NULL. */
extern const char *const part_folder_names[];
/* What such a folder holds. */
enum family_kind part_folder_kind(const char *name);
/* Host memory that the program takes at the least: code, libraries, stacks, plan and PNG writer
 * were 6.4 MiB. */
#define PROGRAM_BYTES (8ull << 20)

/* Of host memory for headers and the tokenizer, beside the program's own. */
struct allowance part_allowance(const struct shoal_model_paths *paths);

/* Whether any is there. */
enum shoal_status part_folders_in(
    const char *path, bool *found, struct shoal_error *error) SHOAL_CHECKED;

/* *path: the file or folder that holds the part; mem_free'd by the caller. */
enum shoal_status part_find(const struct shoal_model_paths *paths, enum family_kind kind,
    char **path, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Opens what was found there. diffusers keeps Anima's adapter in a folder text_conditioner/ beside
 * transformer/: a folder of that name is opened with what is in the other, whose tensors get names
 * as in single files of Anima.
 */
enum shoal_status part_open_files(const char *path, struct allowance *allowance,
    struct checkpoint **checkpoint, struct shoal_error *error) SHOAL_CHECKED;
#define PART_CONDITIONER_PREFIX "llm_adapter."

#define MODEL_TOKENIZERS 2

struct shoal_model {
    char *name; /* for people and PNG chunks: the folder's or file's own name */
    struct checkpoint *checkpoints[FAMILY_KINDS];
    struct model *parts[FAMILY_KINDS];
    bool copy_expected[FAMILY_KINDS]; /* planned with as if the files were packed */
    bool copies;                      /* a part is read from its packed copy, or will be */
    struct adapter_cache *adapters;   /* of plans, which change it */
    /* The text encoder's, and the second one that some DiTs take the prompt in (NULL: not). */
    struct model_tokenizer {
        struct tokenizer *tokenizer;
        char *path;     /* the file it was read from; NULL: the text encoder's own */
        uint64_t bytes; /* as reading_bytes */
    } tokenizers[MODEL_TOKENIZERS];
    uint64_t reading_bytes[FAMILY_KINDS]; /* host memory that reading headers took at the most */
    struct model_defaults defaults;
};

#endif
