/*
 * What writers of adapters say beside the tensors: peft's adapter_config.json, and what diffusers
 * keeps of it in the file's metadata. An alpha there holds for LoRA that has none of its own.
 */
#ifndef ADAPTER_SETTINGS_H
#define ADAPTER_SETTINGS_H

#include "checkpoint/checkpoint.h"

struct adapter_settings {
    json_t *config;     /* NULL: there are none */
    bool sectioned;     /* its keys begin with "transformer.", "text_encoder." */
    const char *source; /* for messages: the file */
    char *path;         /* of adapter_config.json, if that is it; owned */
};

/* SHOAL_E_UNSUPPORTED names a setting by which weights would be changed in another way. */
enum shoal_status settings_open(struct adapter_settings *settings,
    const struct checkpoint *checkpoint, struct shoal_error *error) SHOAL_CHECKED;
void settings_close(struct adapter_settings *settings); /* accepts a zeroed one */

/* The alpha of a module that is called so in the file; *said: there is one. */
enum shoal_status settings_alpha(const struct adapter_settings *settings, const char *key,
    bool *said, double *alpha, struct shoal_error *error) SHOAL_CHECKED;

#endif
