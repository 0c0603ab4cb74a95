/* Results: reading them, and writing pictures. */
#include "pipeline/run.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/size.h"

#include <stdio.h>

void shoal_result_destroy(struct shoal_result **result)
{
    struct shoal_result *r = result ? *result : NULL;

    if (!r) return;
    mem_free(r->latents);
    mem_free(r->pixels);
    for (int32_t i = 0; i < r->prompt_count; i++)
        mem_free(r->prompts[i]);
    mem_free(r->prompts);
    mem_free(r->negative_prompt);
    mem_free(r->model);
    mem_free(r->loras);
    trace_destroy(&r->trace);
    mem_free(r);
    *result = NULL;
}

void shoal_result_report(const struct shoal_result *result, struct shoal_report *report)
{
    *report = result->report;
}

int32_t shoal_result_count(const struct shoal_result *result)
{
    return result->count;
}

void shoal_result_image(const struct shoal_result *result, int32_t index, struct shoal_image *image)
{
    const int32_t each = result->count / result->prompt_count;

    *image = (struct shoal_image){
        .width = result->width,
        .height = result->height,
        .rgb = result->pixels + (size_t)index * result->pixel_bytes,
        .latents = result->latents + (size_t)index * result->latent_count,
        .latent_count = result->latent_count,
        .seed = result->seed + (uint64_t)(index % each),
        .prompt = result->prompts[index / each],
    };
}

enum shoal_status shoal_result_write_png(
    const struct shoal_result *result, int32_t index, const char *path, struct shoal_error *error)
{
    struct png_settings settings = result->settings;
    struct shoal_image image;
    uint8_t *data = NULL;
    char *parameters = NULL;
    size_t bytes;
    enum shoal_status status;

    if (index < 0 || index >= result->count)
        FAIL(
            error, SHOAL_E_INVALID, "picture %d is not between 0 and %d", index, result->count - 1);
    shoal_result_image(result, index, &image);
    settings.prompt = image.prompt;
    settings.seed = image.seed;
    TRY(png_parameters(&settings, &parameters, error));
    const struct png_entry entries[] = {
        {"parameters", parameters}, {"Software", "shoal " SHOAL_VERSION}};

    TRY_OR_FAIL(png_encode(image.rgb, image.width, image.height, entries,
        sizeof entries / sizeof *entries, &data, &bytes, error));
    status = file_write_whole(path, data, bytes, error);
fail:
    mem_free(data);
    mem_free(parameters);
    return status;
}

enum shoal_status shoal_result_write_trace(
    const struct shoal_result *result, const char *path, struct shoal_error *error)
{
    char title[256], peak[SIZE_TEXT_BYTES];

    if (!result->trace)
        FAIL(error, SHOAL_E_INVALID, "this run recorded no trace: set the request's `trace`");
    snprintf(title, sizeof title, "%.100s: %d x %d, %d step%s, %s of device memory", result->model,
        result->width, result->height, result->settings.steps,
        result->settings.steps == 1 ? "" : "s", size_format(peak, result->report.peak_vram_bytes));
    return trace_write(result->trace, title, path, error);
}
