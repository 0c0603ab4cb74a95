/* What a run leaves: pictures, latents, and how it went. */
#ifndef PIPELINE_RUN_H
#define PIPELINE_RUN_H

#include "base/trace.h"
#include "media/png.h"
#include "pipeline/plan.h"

struct shoal_result {
    int32_t width, height, count;
    uint64_t seed;  /* of each prompt's first picture */
    float *latents; /* [count][latent_count] */
    size_t latent_count;
    uint8_t *pixels; /* [count][pixel_bytes]: height x width x 3 */
    size_t pixel_bytes;
    char **prompts; /* each has as many pictures, one prompt's after the other's */
    int32_t prompt_count;
    char *negative_prompt, *model;
    char *loras; /* NULL: none */
    struct png_settings
        settings; /* borrows them; without what is a picture's own: prompt and seed */
    struct shoal_report report;
    struct trace *trace; /* NULL unless the request asked for one */
};

/* What shoal_run does, on a device of the caller's. */
enum shoal_status run_on_device(const struct shoal_plan *plan, struct device *device,
    const struct shoal_callbacks *callbacks, struct shoal_result **result,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
