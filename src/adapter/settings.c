/* adapter_config.json, and lora_adapter_metadata. */
#include "adapter/settings.h"

#include "base/memory.h"
#include "checkpoint/json.h"

#include <math.h>
#include <string.h>

#define METADATA_KEY "lora_adapter_metadata" /* diffusers' */
#define CONFIG_NAME "adapter_config.json"    /* peft's */

/* Those that diffusers puts before the settings of a part. */
static const char *const sections[] = {"transformer.", "unet.", "text_encoder.", "text_encoder_2."};
#define SECTIONS (sizeof sections / sizeof *sections)

/* Switches by which a difference is not up x down x alpha / rank. */
static const char *const switches[] = {
    "use_dora", "use_rslora", "lora_bias", "fan_in_fan_out", "use_qalora", "megatron_config"};

static bool is_set(const json_t *value)
{
    if (!value || json_is_null(value) || json_is_false(value)) return false;
    return !json_is_object(value) || json_object_size(value) > 0;
}

static enum shoal_status check_section(
    const struct adapter_settings *s, const char *section, struct shoal_error *error)
{
    char name[64];

    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        snprintf(name, sizeof name, "%s%s", section, switches[i]);
        if (is_set(json_object_get(s->config, name)))
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%s: \"%s\" is set, and this build adds LoRA only without it: merge the adapter "
                "into the model's file",
                s->source, name);
    }
    snprintf(name, sizeof name, "%salpha_pattern", section);
    if (is_set(json_object_get(s->config, name)))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: \"%s\" gives modules alphas of their own, which this build reads as tensors "
            "X.alpha only: merge the adapter into the model's file",
            s->source, name);
    return SHOAL_OK;
}

static enum shoal_status check(const struct adapter_settings *s, struct shoal_error *error)
{
    if (!s->sectioned) return check_section(s, "", error);
    for (size_t i = 0; i < SECTIONS; i++)
        TRY(check_section(s, sections[i], error));
    return SHOAL_OK;
}

/* The adapter_config.json in the folder of the file. */
static enum shoal_status open_beside(
    struct adapter_settings *s, const char *file, struct shoal_error *error)
{
    const char *slash = strrchr(file, '/');

    s->path = mem_format("%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, CONFIG_NAME);
    if (!s->path) FAIL_MEMORY(error);
    if (file_kind(s->path) == FILE_NONE) return SHOAL_OK;
    s->source = s->path;
    return json_read_settings(s->path, &s->config, error);
}

/* Whether peft wrote it: others' files may lie in the same folder. */
static bool is_of_peft(const struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++)
        if (!strncmp(checkpoint_at(checkpoint, i)->name, "base_model.", 11)) return true;
    return false;
}

enum shoal_status settings_open(struct adapter_settings *settings,
    const struct checkpoint *checkpoint, struct shoal_error *error)
{
    const char *text = checkpoint_metadata(checkpoint, METADATA_KEY);
    const char *path = checkpoint_file(checkpoint, 0)->path;
    enum shoal_status status = SHOAL_OK;

    *settings = (struct adapter_settings){.source = path};
    if (text) {
        status =
            json_parse_object(path, METADATA_KEY, text, strlen(text), &settings->config, error);
        settings->sectioned = !status && !json_object_get(settings->config, "lora_alpha");
    } else if (is_of_peft(checkpoint)) {
        status = open_beside(settings, path, error);
    }
    if (!status && settings->config) status = check(settings, error);
    if (status) settings_close(settings);
    return status;
}

void settings_close(struct adapter_settings *settings)
{
    json_decref(settings->config);
    mem_free(settings->path);
    *settings = (struct adapter_settings){0};
}

enum shoal_status settings_alpha(const struct adapter_settings *s, const char *key, bool *said,
    double *alpha, struct shoal_error *error)
{
    char name[64] = "lora_alpha";
    const json_t *value;

    *said = false;
    for (size_t i = 0; s->sectioned && i < SECTIONS; i++)
        if (!strncmp(key, sections[i], strlen(sections[i])))
            snprintf(name, sizeof name, "%slora_alpha", sections[i]);
    value = s->config ? json_object_get(s->config, name) : NULL;
    if (!value || json_is_null(value)) return SHOAL_OK;
    *alpha = json_number_value(value);
    if (!json_is_number(value) || !isfinite(*alpha))
        FAIL(error, SHOAL_E_FORMAT, "%s: \"%s\" must be a number", s->source, name);
    *said = true;
    return SHOAL_OK;
}
