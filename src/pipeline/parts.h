/* An open model: the three networks, the tokenizer and the defaults, found among files. */
#ifndef PIPELINE_PARTS_H
#define PIPELINE_PARTS_H

#include "models/family.h"
#include "tokenizer/tokenizer.h"

struct model_defaults {
    int32_t width, height, steps;
    float cfg, shift;
    int32_t max_tokens; /* a prompt's, the template's included; longer ones are cut */
};

struct shoal_model {
    char *name; /* for people and PNG chunks: the folder's or file's own name */
    struct checkpoint *checkpoints[FAMILY_KINDS];
    struct model *parts[FAMILY_KINDS];
    struct tokenizer *tokenizer;
    struct model_defaults defaults;
};

#endif
