/* A model's defaults: its family's, its scheduler's and its folder's. */
#include "pipeline/settings.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/json.h"
#include "pipeline/parts.h"

#include <jansson.h>
#include <string.h>

/* A number of the settings object, kept within [low, high]; left alone when it is not there. */
static enum shoal_status read_number(const json_t *object, const char *path, const char *key,
    double low, double high, double *value, struct shoal_error *error)
{
    const json_t *item = json_object_get(object, key);

    if (!item) return SHOAL_OK;
    if (!json_is_number(item) || !(json_number_value(item) >= low) ||
        !(json_number_value(item) <= high))
        FAIL(error, SHOAL_E_FORMAT, "%s: %s must be a number from %g to %g", path, key, low, high);
    *value = json_number_value(item);
    return SHOAL_OK;
}

static enum shoal_status read_settings(
    const char *folder, const char *name, json_t **object, char **path, struct shoal_error *error)
{
    *object = NULL;
    *path = mem_format("%s/%s", folder, name);
    if (!*path) FAIL_MEMORY(error);
    return file_kind(*path) == FILE_NONE ? SHOAL_OK : json_read_settings(*path, object, error);
}

/* Whether a switch is set. */
static bool is_on(const json_t *object, const char *key)
{
    const json_t *item = json_object_get(object, key);

    return item && !json_is_false(item) && !json_is_null(item);
}

/* What the scheduler's configuration may ask for that would change the picture, and is not done.
 * Of Cosmos-Predict2's, Karras's levels are what its schedule is anyway. */
static enum shoal_status check_scheduler(const json_t *object, const char *path,
    const struct dit_sampling *sampling, struct shoal_error *error)
{
    static const char *const switches[] = {"use_exponential_sigmas", "use_beta_sigmas",
        "invert_sigmas", "stochastic_sampling", "use_karras_sigmas", NULL};
    const json_t *timesteps = json_object_get(object, "num_train_timesteps");
    const char *type = json_string_value(json_object_get(object, "time_shift_type"));
    const char *class = json_string_value(json_object_get(object, "_class_name"));
    char shown[JSON_SHOWN_BYTES];

    if (class && strcmp(class, "FlowMatchEulerDiscreteScheduler"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: is for a %s, and this build goes by those for a FlowMatchEulerDiscreteScheduler "
            "alone; without the file the family's own shift is taken, and --sampler and "
            "--schedule choose the rest",
            path, json_show(shown, class));
    for (int i = 0; switches[i]; i++)
        if (is_on(object, switches[i]) && !(sampling->edm && !switches[i + 1]))
            FAIL(error, SHOAL_E_UNSUPPORTED,
                "%s: \"%s\" is set, and this build samples only without it", path, switches[i]);
    if (timesteps && (!json_is_number(timesteps) || json_number_value(timesteps) != 1000))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: \"num_train_timesteps\" is not 1000, and this build samples no other", path);
    if (is_on(object, "use_dynamic_shifting") && type && strcmp(type, "exponential"))
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: \"time_shift_type\" is not \"exponential\", and this build shifts no other way",
            path);
    return SHOAL_OK;
}

/* The line that dynamic shifts lie on, and the last level. Without a scheduler's file they are the
 * family's; with one, what it leaves out is what diffusers takes then. */
static enum shoal_status read_shift(const json_t *object, const char *path,
    struct dit_sampling *sampling, struct shoal_error *error)
{
    double shift = (double)sampling->shift, terminal = 0, base = 0.5, most = 1.15;
    double base_tokens = 256, max_tokens = 4096;

    if (!object || sampling->edm) return SHOAL_OK;
    TRY(read_number(object, path, "shift", 0.01, 100, &shift, error));
    if (is_on(object, "shift_terminal"))
        TRY(read_number(object, path, "shift_terminal", 0, 0.5, &terminal, error));
    TRY(read_number(object, path, "base_shift", 0.001, 7, &base, error));
    TRY(read_number(object, path, "max_shift", 0.001, 7, &most, error));
    TRY(read_number(object, path, "base_image_seq_len", 1, 1e6, &base_tokens, error));
    TRY(read_number(object, path, "max_image_seq_len", 1, 1e6, &max_tokens, error));
    if (is_on(object, "use_dynamic_shifting")) {
        if (!(base_tokens < max_tokens))
            FAIL(error, SHOAL_E_FORMAT,
                "%s: \"base_image_seq_len\" must be below \"max_image_seq_len\"", path);
        sampling->base_tokens = (int32_t)base_tokens;
        sampling->max_tokens = (int32_t)max_tokens;
        sampling->base_shift = (float)base;
        sampling->max_shift = (float)most;
    } else {
        sampling->shift = (float)shift;
        sampling->max_shift = 0;
    }
    sampling->terminal = (float)terminal;
    return SHOAL_OK;
}

/* A setting that nobody reads is a mistake: say so rather than ignore it. */
static enum shoal_status refuse_others(
    json_t *object, const char *path, const char *const *known, struct shoal_error *error)
{
    char shown[JSON_SHOWN_BYTES];
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        size_t i = 0;

        while (known[i] && strcmp(known[i], key))
            i++;
        if (!known[i])
            FAIL(error, SHOAL_E_FORMAT,
                "%s: '%s' is not a setting; width, height, steps, cfg and max_tokens are", path,
                json_show(shown, key));
    }
    return SHOAL_OK;
}

/* shoal.json. */
static enum shoal_status read_own(
    json_t *object, const char *path, struct model_defaults *defaults, struct shoal_error *error)
{
    static const char *const known[] = {"width", "height", "steps", "cfg", "max_tokens", NULL};
    struct dit_sampling *s = &defaults->sampling;
    double width = s->width, height = s->height, steps = s->steps, cfg = (double)s->cfg;
    double max_tokens = defaults->max_tokens;

    TRY(refuse_others(object, path, known, error));
    TRY(read_number(object, path, "width", 16, 16384, &width, error));
    TRY(read_number(object, path, "height", 16, 16384, &height, error));
    TRY(read_number(object, path, "steps", 1, 1000, &steps, error));
    TRY(read_number(object, path, "cfg", 0, 100, &cfg, error));
    TRY(read_number(object, path, "max_tokens", 1, 65536, &max_tokens, error));
    s->width = (int32_t)width;
    s->height = (int32_t)height;
    s->steps = (int32_t)steps;
    s->cfg = (float)cfg;
    defaults->max_tokens = (int32_t)max_tokens;
    return SHOAL_OK;
}

enum shoal_status settings_read(const char *folder, const struct dit_family *family,
    struct model_defaults *defaults, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    char *path = NULL;
    json_t *object = NULL;

    *defaults =
        (struct model_defaults){.sampling = family->sampling, .max_tokens = family->text.most};
    if (!folder || file_kind(folder) != FILE_FOLDER) return SHOAL_OK;
    TRY_OR_FAIL(read_settings(folder, "scheduler/scheduler_config.json", &object, &path, error));
    TRY_OR_FAIL(check_scheduler(object, path, &defaults->sampling, error));
    TRY_OR_FAIL(read_shift(object, path, &defaults->sampling, error));
    json_decref(object);
    mem_free(path);
    path = NULL;
    TRY_OR_FAIL(read_settings(folder, "shoal.json", &object, &path, error));
    TRY_OR_FAIL(read_own(object, path, defaults, error));
fail:
    json_decref(object);
    mem_free(path);
    return status;
}

void shoal_request_init(struct shoal_request *request, const struct shoal_model *model)
{
    const struct dit_sampling *d = &model->defaults.sampling;

    *request = (struct shoal_request){
        .width = d->width,
        .height = d->height,
        .steps = d->steps,
        .count = 1,
        .cfg = d->cfg,
        .shift = d->edm || d->max_shift > 0 ? 0 : d->shift, /* 0: the model's own way */
        .vram_bytes = SHOAL_UNLIMITED,
        .ram_bytes = SHOAL_UNLIMITED,
        .resident_blocks = SHOAL_AUTO,
        .prefetch_slots = SHOAL_AUTO,
        .lanes = SHOAL_AUTO,
        .strength = SHOAL_DEFAULT_STRENGTH,
    };
}
