/* Key prefixes of components. */
#include "checkpoint/keys.h"

#include <string.h>

const char *const keys_dit_prefixes[] = {
    "model.diffusion_model.", "model.model.", "net.", "model.", "", NULL};
const char *const keys_vae_prefixes[] = {"first_stage_model.", "vae.", "", NULL};
/* Saved with a language model's head the names begin with "model.", without it they don't. */
const char *const keys_text_prefixes[] = {"text_encoders.qwen3_4b.transformer.model.",
    "text_encoders.qwen3_4b.transformer.", "text_encoder.model.", "text_encoder.", "model.", "",
    NULL};

/* strcmp(prefix + name, full), without joining them. */
static int compare(const char *prefix, size_t length, const char *name, const char *full)
{
    int order = strncmp(prefix, full, length);

    return order ? order : strcmp(name, full + length);
}

const struct checkpoint_tensor *keys_find(
    const struct checkpoint *checkpoint, const char *prefix, const char *name)
{
    size_t low = 0, high = checkpoint_count(checkpoint), length = strlen(prefix);

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, middle);
        int order = compare(prefix, length, name, tensor->name);

        if (!order) return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *keys_prefix(
    const struct checkpoint *checkpoint, const char *const *candidates, const char *probe)
{
    for (; *candidates; candidates++)
        if (keys_find(checkpoint, *candidates, probe)) return *candidates;
    return NULL;
}
