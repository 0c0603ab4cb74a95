/* Resolving a request against a model. */
#include "base/memory.h"
#include "models/dit/dit.h"
#include "models/vae/vae.h"
#include "pipeline/init.h"

#include <stdio.h>
#include <string.h>

#define MAX_SIZE 16384

/* ---- checks ---- */

enum shoal_status request_check_range(
    const char *name, int64_t value, int64_t low, int64_t high, struct shoal_error *error)
{
    if (value < low || value > high)
        FAIL(error, SHOAL_E_INVALID, "%s: %lld is not between %lld and %lld", name,
            (long long)value, (long long)low, (long long)high);
    return SHOAL_OK;
}

enum shoal_status request_check_choices(
    enum shoal_buffer buffer, enum shoal_wire wire, enum shoal_pin pin, struct shoal_error *error)
{
    if ((unsigned)buffer > SHOAL_BUFFER_DOUBLE)
        FAIL(error, SHOAL_E_INVALID, "buffer: %d is not auto, single or double", (int)buffer);
    if ((unsigned)wire > SHOAL_WIRE_PACKED)
        FAIL(error, SHOAL_E_INVALID, "wire: %d is not auto, raw or packed", (int)wire);
    if ((unsigned)pin > SHOAL_PIN_OFF)
        FAIL(error, SHOAL_E_INVALID, "pin: %d is not on, staging or off", (int)pin);
    return SHOAL_OK;
}

/* Latents are patches of 2 pixels of 8 (the VAE's factor): sizes are multiples of 16. */
static enum shoal_status check_size(
    const char *name, int32_t value, int32_t multiple, struct shoal_error *error)
{
    TRY(request_check_range(name, value, multiple, MAX_SIZE, error));
    if (value % multiple)
        FAIL(error, SHOAL_E_INVALID, "%s: %d is not a multiple of %d; %d is", name, value, multiple,
            (value + multiple / 2) / multiple * multiple);
    return SHOAL_OK;
}

static enum shoal_status check_prompts(const struct shoal_request *r, struct shoal_error *error)
{
    const int32_t more = r->more_prompt_count;

    if (!r->prompt) FAIL(error, SHOAL_E_INVALID, "prompt: there is none");
    TRY(request_check_range("count", r->count, 1, SHOAL_MAX_PICTURES, error));
    TRY(request_check_range("more_prompt_count", more, 0, SHOAL_MAX_PICTURES - 1, error));
    for (int32_t i = 0; i < more; i++)
        if (!r->more_prompts || !r->more_prompts[i])
            FAIL(error, SHOAL_E_INVALID, "prompt %d: there is none", (int)i + 2);
    if (r->count * (1 + more) > SHOAL_MAX_PICTURES)
        FAIL(error, SHOAL_E_INVALID, "count: %d pictures of each of %d prompts are more than %d",
            (int)r->count, (int)more + 1, SHOAL_MAX_PICTURES);
    return SHOAL_OK;
}

static enum shoal_status check_request(
    const struct shoal_request *r, int32_t multiple, struct shoal_error *error)
{
    TRY(check_prompts(r, error));
    TRY(check_size("width", r->width, multiple, error));
    TRY(check_size("height", r->height, multiple, error));
    TRY(request_check_range("steps", r->steps, 1, SCHEDULE_MAX_STEPS, error));
    TRY(request_check_range("threads", r->threads, 0, 1024, error));
    if (r->lanes != SHOAL_AUTO)
        TRY(request_check_range("lanes", r->lanes, 1, 2 * SHOAL_MAX_PICTURES, error));
    if (!(r->cfg >= 0 && r->cfg <= 100))
        FAIL(error, SHOAL_E_INVALID, "cfg: %g is not between 0 and 100", (double)r->cfg);
    TRY(request_check_choices(r->buffer, r->wire, r->pin, error));
    if ((unsigned)r->host_format > SHOAL_HOST_FORMAT_COMPUTE)
        FAIL(error, SHOAL_E_INVALID, "host_format: %d is not storage or compute",
            (int)r->host_format);
    if (r->host_format == SHOAL_HOST_FORMAT_COMPUTE && r->wire == SHOAL_WIRE_PACKED)
        FAIL(error, SHOAL_E_INVALID,
            "--host-format compute and --wire packed: what is widened is not packed: leave one of "
            "them out");
    if ((unsigned)r->vae_strips > SHOAL_STRIPS_ON)
        FAIL(error, SHOAL_E_INVALID, "--vae-strips: %d is not auto, off or on", (int)r->vae_strips);
    return SHOAL_OK;
}

/* ---- prompts ---- */

const char *job_prompt_name(const struct job *job, int32_t index, char name[JOB_PROMPT_NAME_BYTES])
{
    snprintf(
        name, JOB_PROMPT_NAME_BYTES, job_prompts(job) > 1 ? "prompt %d" : "prompt", (int)index + 1);
    return name;
}

static enum shoal_status encode_prompt(
    struct job *job, const char *prompt, const char *name, struct shoal_error *error)
{
    int32_t index = job->prompt_count++;
    enum shoal_status status = tokens_encode(job->model, prompt, job->prompts[index], error);

    if (status) error_prefix(error, "%s: ", name);
    return status;
}

/* Those that differ. */
static enum shoal_status encode_prompts(struct job *job, struct shoal_error *error)
{
    for (int32_t i = 0; i < job_prompts(job); i++) {
        char name[JOB_PROMPT_NAME_BYTES];
        int32_t same = 0;

        while (same < i && strcmp(job_prompt(job, same), job_prompt(job, i)) != 0)
            same++;
        job->encoded[i] = same < i ? job->encoded[same] : job->prompt_count;
        if (same < i) continue;
        TRY(encode_prompt(job, job_prompt(job, i), job_prompt_name(job, i, name), error));
    }
    return SHOAL_OK;
}

static enum shoal_status copy_string(const char **to, const char *from, struct shoal_error *error)
{
    if (!from) return SHOAL_OK;
    *to = mem_strdup(from);
    if (!*to) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status copy_prompts(
    struct job *job, const struct shoal_request *request, struct shoal_error *error)
{
    const size_t more = (size_t)request->more_prompt_count;
    const char **copies = mem_calloc(more + 1, sizeof *copies); /* never of nothing */

    if (!copies) FAIL_MEMORY(error);
    job->request.more_prompts = copies;
    job->request.more_prompt_count = request->more_prompt_count;
    job->prompts = mem_calloc(more + 2, sizeof *job->prompts);
    job->encoded = mem_calloc(more + 1, sizeof *job->encoded);
    if (!job->prompts || !job->encoded) FAIL_MEMORY(error);
    TRY(copy_string(&job->request.prompt, request->prompt, error));
    for (size_t i = 0; i < more; i++)
        TRY(copy_string(&copies[i], request->more_prompts[i], error));
    return copy_string(&job->request.negative_prompt,
        request->negative_prompt ? request->negative_prompt : "", error);
}

/* What the model's noise levels are, at the shift that is asked for. */
static enum shoal_status resolve_levels(
    struct job *job, const struct shoal_request *request, struct shoal_error *error)
{
    struct noise_levels *levels = &job->levels;
    const struct dit_sampling *s = &job->model->defaults.sampling;
    const int64_t patch = dit_config(job->model->parts[FAMILY_DIT])->family->patch;
    const int64_t side = vae_config(job->model->parts[FAMILY_VAE])->factor * patch;
    const bool own = request->shift == 0 && (s->edm || s->max_shift > 0);

    *levels = (struct noise_levels){.edm = s->edm,
        .shift = own ? (double)s->shift : (double)request->shift,
        .table = s->table,
        .dynamic = own && !s->edm,
        .terminal = (double)s->terminal};
    if (s->edm && !own)
        FAIL(error, SHOAL_E_INVALID,
            "--shift: the noise levels of this model (EDM's, 80 to 0.002) have none; leave it out");
    if (!own && !(request->shift >= 0.01f && request->shift <= 100))
        FAIL(error, SHOAL_E_INVALID, "shift: %g is not between 0.01 and 100",
            (double)request->shift);
    if (levels->dynamic)
        levels->mu = schedule_mu(request->height / side * (request->width / side), s->base_tokens,
            s->max_tokens, (double)s->base_shift, (double)s->max_shift);
    if (levels->dynamic && !(levels->mu <= SCHEDULE_MAX_MU))
        FAIL(error, SHOAL_E_INVALID,
            "--width and --height: at %d x %d the shift that follows the size would be e^%.3g, and "
            "e^%g is the most: take a smaller picture, or name --shift",
            (int)request->width, (int)request->height, levels->mu, SCHEDULE_MAX_MU);
    return SHOAL_OK;
}

/* What it says of sampling, by name and number. */
static enum shoal_status resolve_sampling(
    struct job *job, const struct shoal_request *request, struct shoal_error *error)
{
    const struct schedule_kind *schedule = NULL;
    enum shoal_status status = sampler_find(request->sampler, &job->sampler, error);
    int32_t steps; /* of the schedule */

    if (status) error_prefix(error, "--sampler: ");
    TRY(status);
    status = schedule_find(request->schedule, &schedule, error);
    if (status) error_prefix(error, "--schedule: ");
    TRY(status);
    TRY(init_schedule_steps(request, &steps, error));
    TRY(resolve_levels(job, request, error));
    TRY(schedule_make(schedule, steps, &job->levels, job->sampler->skips, &job->schedule, error));
    schedule_keep_last(&job->schedule, request->steps);
    job->calls = sampler_calls(job->sampler, request->steps);
    job->request = *request;
    job->request.sampler = job->sampler->name; /* static, both */
    job->request.schedule = schedule->name;
    return SHOAL_OK;
}

enum shoal_status job_init(struct job *job, const struct shoal_model *model,
    const struct shoal_request *asked, struct shoal_error *error)
{
    struct shoal_request sized = *asked;
    const struct shoal_request *request = &sized;
    const struct vae_config *vae = vae_config(model->parts[FAMILY_VAE]);
    const int32_t multiple = vae->factor * dit_config(model->parts[FAMILY_DIT])->family->patch;
    enum shoal_status status;

    *job = (struct job){.model = model};
    TRY(init_size(&sized, multiple, error));
    TRY(check_request(request, multiple, error));
    TRY(resolve_sampling(job, request, error));
    job->request.prompt = job->request.negative_prompt = job->request.init = NULL;
    job->request.device = job->request.rates_path = job->request.on = NULL; /* the plan's affair */
    job->request.more_prompts = NULL;
    job->request.more_prompt_count = 0;
    job->branches = request->cfg != 1.0f ? 2 : 1;
    job->latent_channels = vae->latent_channels;
    job->latent_height = request->height / vae->factor;
    job->latent_width = request->width / vae->factor;
    TRY_OR_FAIL(copy_prompts(job, request, error));
    TRY_OR_FAIL(copy_string(&job->request.init, request->init, error));
    if (request->init) TRY_OR_FAIL(init_open(job, error));
    TRY_OR_FAIL(encode_prompts(job, error));
    if (job->branches == 2)
        TRY_OR_FAIL(encode_prompt(job, job->request.negative_prompt, "negative prompt", error));
    else if ((status = tokenizer_check_text(job->request.negative_prompt, error))) {
        error_prefix(error, "negative prompt: ");
        goto fail;
    }
    return SHOAL_OK;
fail:
    job_fini(job);
    return status;
}

void job_fini(struct job *job)
{
    mem_free((void *)(uintptr_t)job->request.prompt);
    for (int32_t i = 0; i < job->request.more_prompt_count; i++)
        mem_free((void *)(uintptr_t)job->request.more_prompts[i]);
    mem_free((void *)(uintptr_t)job->request.more_prompts);
    mem_free((void *)(uintptr_t)job->request.negative_prompt);
    mem_free((void *)(uintptr_t)job->request.init);
    mem_free(job->init);
    model_destroy(&job->encoder);
    for (int32_t i = 0; i < job->prompt_count; i++)
        for (int k = 0; k < MODEL_TOKENIZERS; k++)
            mem_free(job->prompts[i][k].ids);
    mem_free(job->prompts);
    mem_free(job->encoded);
    *job = (struct job){0};
}
