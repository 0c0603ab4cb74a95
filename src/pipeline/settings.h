/* What a model is run with where nothing else is asked for. */
#ifndef PIPELINE_SETTINGS_H
#define PIPELINE_SETTINGS_H

#include "models/dit/dit.h"

struct model_defaults {
    struct dit_sampling sampling;
    int32_t max_tokens; /* a prompt's, the template's included; longer ones are cut */
};

/*
 * The family's published defaults, then what the model's folder says (NULL, or a file: nothing):
 * scheduler/scheduler_config.json, and shoal.json, which a model may carry for the settings that
 * diffusers keeps in code.
 */
enum shoal_status settings_read(const char *folder, const struct dit_family *family,
    struct model_defaults *defaults, struct shoal_error *error) SHOAL_CHECKED;

#endif
