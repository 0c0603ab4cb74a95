/* The picture that a job begins with. */
#include "pipeline/init.h"

#include "base/allowance.h"
#include "base/file.h"
#include "base/memory.h"
#include "media/png.h"
#include "models/vae/vae.h"

#include <math.h>

#define MOST_FILE_BYTES (1ull << 30)

/* Before there is a plan that could say how much host memory that takes: never more than there may
 * be. */
static enum shoal_status read_file(
    const struct shoal_request *r, char **data, size_t *bytes, struct shoal_error *error)
{
    uint64_t limit = r->ram_bytes < MOST_FILE_BYTES ? r->ram_bytes : MOST_FILE_BYTES;
    enum shoal_status status = file_read_all(r->init, limit, data, bytes, error);

    if (status) error_prefix(error, "--init: ");
    return status;
}

enum shoal_status init_size(
    struct shoal_request *request, int32_t multiple, struct shoal_error *error)
{
    char *data = NULL;
    size_t bytes;
    enum shoal_status status;

    if (!request->init || request->width || request->height) return SHOAL_OK;
    TRY(read_file(request, &data, &bytes, error));
    status = png_decode(request->init, (const uint8_t *)data, bytes, NULL, &request->width,
        &request->height, error);
    if (status) error_prefix(error, "--init: ");
    mem_free(data);
    if (!status && (request->width % multiple || request->height % multiple))
        FAIL(error, SHOAL_E_INVALID,
            "--init: %s is %d x %d pixels, and a picture has multiples of %d: cut or scale the "
            "file",
            request->init, request->width, request->height, multiple);
    return status;
}

static enum shoal_status read_picture(
    struct job *job, const uint8_t *data, size_t bytes, struct shoal_error *error)
{
    const struct shoal_request *r = &job->request;
    struct allowance allowance = {.most_bytes = r->ram_bytes};
    int32_t width, height;

    TRY(png_decode(r->init, data, bytes, NULL, &width, &height, error));
    if (width != r->width || height != r->height)
        FAIL(error, SHOAL_E_INVALID,
            "%s is %d x %d pixels and the picture to paint %d x %d: leave out --width and "
            "--height, "
            "or scale the file",
            r->init, width, height, r->width, r->height);
    /* A few bytes of a file may be many pixels: before there is a plan that counts them. */
    TRY(allowance_take(&allowance, r->init, bytes + 3 * (uint64_t)width * (uint64_t)height, error));
    job->init = mem_calloc((size_t)width * (size_t)height, 3);
    if (!job->init) FAIL_MEMORY(error);
    return png_decode(r->init, data, bytes, job->init, &width, &height, error);
}

enum shoal_status init_open(struct job *job, struct shoal_error *error)
{
    const struct shoal_model *model = job->model;
    char *data = NULL;
    size_t bytes;
    enum shoal_status status;

    TRY(read_file(&job->request, &data, &bytes, error));
    job->init_file_bytes = bytes;
    status = read_picture(job, (const uint8_t *)data, bytes, error);
    mem_free(data);
    if (!status)
        status = vae_config(model->parts[FAMILY_VAE])
                     ->family->encoder_open(model->checkpoints[FAMILY_VAE],
                         model->parts[FAMILY_VAE], &job->encoder, error);
    if (status) error_prefix(error, "--init: ");
    return status;
}

enum shoal_status init_schedule_steps(
    const struct shoal_request *request, int32_t *steps, struct shoal_error *error)
{
    double strength = (double)request->strength, all;

    *steps = request->steps;
    if (!request->init) return SHOAL_OK;
    if (!(strength > 0 && strength <= 1))
        FAIL(error, SHOAL_E_INVALID, "--strength: %g is not above 0 and up to 1", strength);
    /* 12 / 0.6 is 20, which single precision must not make 19. From 0.9999 on it is 1, as there. */
    all = strength > 0.9999 ? request->steps : floor(request->steps / strength + 1e-4);
    if (all > SCHEDULE_MAX_STEPS)
        FAIL(error, SHOAL_E_INVALID,
            "--strength: %d steps at %g are the end of a schedule of %.0f steps, and the most are "
            "%d: take fewer steps or more strength",
            request->steps, strength, all, SCHEDULE_MAX_STEPS);
    *steps = (int32_t)all;
    return SHOAL_OK;
}

void init_planes(const struct job *job, float *planes)
{
    size_t pixels = (size_t)job->request.width * (size_t)job->request.height;

    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < 3; c++)
            planes[c * pixels + i] = (float)job->init[3 * i + c] / 255.0f * 2.0f - 1.0f;
}
