/* Resolving a request, and running its four phases on a stage. */
#include "pipeline/job.h"

#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "models/dit/dit.h"
#include "models/vae/vae.h"
#include "pipeline/init.h"

#include <math.h>
#include <string.h>

#define MAX_SIZE 16384
#define MOST_MU 7.0
#define MAX_COUNT 64

const char *shoal_phase_name(enum shoal_phase phase)
{
    static const char *const names[SHOAL_PHASES] = {"text", "context", "steps", "decode", "encode"};

    return (unsigned)phase < SHOAL_PHASES ? names[phase] : "?";
}

/* How the DiT wants prompts. */
static const struct dit_text *job_text(const struct job *job)
{
    return &dit_config(job->model->parts[FAMILY_DIT])->family->text;
}

/* ---- the request ---- */

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

static enum shoal_status check_request(
    const struct shoal_request *r, int32_t multiple, struct shoal_error *error)
{
    if (!r->prompt) FAIL(error, SHOAL_E_INVALID, "prompt: there is none");
    TRY(check_size("width", r->width, multiple, error));
    TRY(check_size("height", r->height, multiple, error));
    TRY(request_check_range("steps", r->steps, 1, SCHEDULE_MAX_STEPS, error));
    TRY(request_check_range("count", r->count, 1, MAX_COUNT, error));
    TRY(request_check_range("threads", r->threads, 0, 1024, error));
    if (r->lanes != SHOAL_AUTO)
        TRY(request_check_range("lanes", r->lanes, 1, 2 * MAX_COUNT, error));
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

static enum shoal_status encode_prompt(
    struct job *job, const char *prompt, struct shoal_error *error)
{
    int32_t index = job->prompt_count++;
    enum shoal_status status = tokens_encode(job->model, prompt, job->prompts[index], error);

    if (status) error_prefix(error, index ? "negative prompt: " : "prompt: ");
    return status;
}

static enum shoal_status copy_string(const char **to, const char *from, struct shoal_error *error)
{
    if (!from) return SHOAL_OK;
    *to = mem_strdup(from);
    if (!*to) FAIL_MEMORY(error);
    return SHOAL_OK;
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
    if (levels->dynamic && !(levels->mu <= MOST_MU))
        FAIL(error, SHOAL_E_INVALID,
            "--width and --height: at %d x %d the shift that follows the size would be e^%.3g, and "
            "e^%g is the most: take a smaller picture, or name --shift",
            (int)request->width, (int)request->height, levels->mu, MOST_MU);
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
    enum shoal_status status;

    *job = (struct job){.model = model};
    TRY(init_size(&sized, error));
    TRY(check_request(
        request, vae->factor * dit_config(model->parts[FAMILY_DIT])->family->patch, error));
    TRY(resolve_sampling(job, request, error));
    job->request.prompt = job->request.negative_prompt = job->request.init = NULL;
    job->request.device = job->request.rates_path = job->request.on = NULL; /* the plan's affair */
    job->latent_channels = vae->latent_channels;
    job->latent_height = request->height / vae->factor;
    job->latent_width = request->width / vae->factor;
    TRY_OR_FAIL(copy_string(&job->request.prompt, request->prompt, error));
    TRY_OR_FAIL(copy_string(&job->request.negative_prompt,
        request->negative_prompt ? request->negative_prompt : "", error));
    TRY_OR_FAIL(copy_string(&job->request.init, request->init, error));
    if (request->init) TRY_OR_FAIL(init_open(job, error));
    TRY_OR_FAIL(encode_prompt(job, job->request.prompt, error));
    if (request->cfg != 1.0f)
        TRY_OR_FAIL(encode_prompt(job, job->request.negative_prompt, error));
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
    mem_free((void *)(uintptr_t)job->request.negative_prompt);
    mem_free((void *)(uintptr_t)job->request.init);
    mem_free(job->init);
    model_destroy(&job->encoder);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < MODEL_TOKENIZERS; k++)
            mem_free(job->prompts[i][k].ids);
    *job = (struct job){0};
}

int job_threads(const struct job *job)
{
    return job->request.threads ? job->request.threads : thread_cores();
}

struct phase_pass job_phase(const struct job *job, enum shoal_phase phase)
{
    const struct shoal_model *m = job->model;
    const struct model *model = m->parts[FAMILY_VAE];
    int pass = 0;

    switch (phase) {
    case SHOAL_PHASE_TEXT:
        model = m->parts[FAMILY_TEXT];
        pass = text_config(model)->pass[job_text(job)->state];
        break;
    case SHOAL_PHASE_CONTEXT:
    case SHOAL_PHASE_STEPS:
        model = m->parts[FAMILY_DIT];
        pass = phase == SHOAL_PHASE_STEPS ? DIT_PASS_STEP : DIT_PASS_CONTEXT;
        break;
    case SHOAL_PHASE_ENCODE:
        model = job->encoder;
        break;
    default:
        break;
    }
    return (struct phase_pass){model, &model->passes[pass]};
}

static int64_t groups(int64_t items, int32_t lanes)
{
    return (items + lanes - 1) / lanes;
}

int64_t job_walks(const struct job *job, enum shoal_phase phase, int32_t lanes)
{
    switch (phase) {
    case SHOAL_PHASE_STEPS:
        return job->calls * groups(job_lane_count(job), lanes);
    case SHOAL_PHASE_DECODE:
        return job->request.count; /* pictures are large: one at a time */
    case SHOAL_PHASE_ENCODE:
        return 1;
    default:
        return groups(job->prompt_count, lanes);
    }
}

/* ---- walking the blocks ---- */

static enum shoal_status walk_bound(struct stage *stage, struct phase_pass p, void **lanes,
    int32_t count, struct matrix *globals, struct matrix *bound, struct shoal_error *error)
{
    const struct pass *pass = p.pass;
    const struct block *global = pass->globals >= 0 ? &p.model->blocks[pass->globals] : NULL;

    if (global) TRY(stage->globals(stage, globals, error));
    for (int32_t lane = 0; pass->begin && lane < count; lane++)
        pass->begin(&stage->exec, global, globals, lanes[lane]);
    TRY(exec_check(&stage->exec, error));
    for (int32_t i = 0; i < pass->count; i++) {
        const struct block *block = &p.model->blocks[pass->first + i];

        TRY(stage->acquire(stage, pass->first + i, bound, error));
        for (int32_t lane = 0; lane < count; lane++)
            block->forward(&stage->exec, block, bound, lanes[lane]);
        stage->release(stage, pass->first + i);
        TRY(exec_check(&stage->exec, error));
        if (stage->block_done) TRY(stage->block_done(stage, i + 1, pass->count, error));
    }
    for (int32_t lane = 0; pass->end && lane < count; lane++)
        pass->end(&stage->exec, global, globals, lanes[lane]);
    return exec_check(&stage->exec, error);
}

/* One walk over the phase's blocks for `count` lanes. */
static enum shoal_status walk(struct stage *stage, struct phase_pass p, void **lanes, int32_t count,
    struct shoal_error *error)
{
    int32_t most = 1;
    struct matrix *bound;
    enum shoal_status status;

    for (int32_t i = 0; i < p.model->block_count; i++)
        if (p.model->blocks[i].weight_count > most) most = p.model->blocks[i].weight_count;
    bound = mem_calloc((size_t)most * 2, sizeof *bound);
    if (!bound) FAIL_MEMORY(error);
    status = walk_bound(stage, p, lanes, count, bound, bound + most, error);
    mem_free(bound);
    return status;
}

static void report_unit(struct stage *stage, int32_t done, int32_t of)
{
    if (stage->unit_done) stage->unit_done(stage, done, of);
}

/* Walks in groups of the stage's lanes; each lane is a unit of progress if `units`. */
static enum shoal_status walk_all(struct stage *stage, struct phase_pass p, void **lanes,
    int32_t count, bool units, struct shoal_error *error)
{
    for (int32_t first = 0; first < count; first += stage->lanes) {
        int32_t left = count - first, group = left < stage->lanes ? left : stage->lanes;

        TRY(walk(stage, p, lanes + first, group, error));
        if (units) report_unit(stage, first + group, count);
    }
    return SHOAL_OK;
}

static enum shoal_status synchronise(struct stage *stage, struct shoal_error *error)
{
    return stage->exec.device->ops->stream_synchronize(stage->exec.stream, error);
}

/* ---- the phases ---- */

struct run {
    const struct job *job;
    struct stage *stage;
    struct job_output *output;
    struct text_lane *text[2];
    struct dit_prompt *prompts[2];
    struct dit_lane *lanes; /* [count * prompt_count]: picture by picture */
    struct matrix *latents; /* [count] */
    struct matrix *slots;   /* [count][SAMPLER_SLOTS]: the sampler's own; of the latent and of
                               the answer none */
    float *noise;           /* [count][latent] */
    struct matrix *inputs;  /* [count]: what the model is shown, where that is not the latent */
    struct matrix init;     /* the latent to begin with, if there is one */
    struct rng *rngs;       /* [count]: each picture's, if the sampler draws too */
    void **pointers;        /* to the lanes that walk */
};

static uint64_t latent_size(const struct job *job)
{
    return (uint64_t)(job->latent_channels * job->latent_height * job->latent_width);
}

static enum shoal_status run_text(struct run *r, struct shoal_error *error)
{
    struct phase_pass p = job_phase(r->job, SHOAL_PHASE_TEXT);

    for (int32_t i = 0; i < r->job->prompt_count; i++) {
        TRY(text_lane_create(p.model, r->output->latents ? r->job->prompts[i][0].ids : NULL,
            (int64_t)r->job->prompts[i][0].count, &r->text[i], error));
        r->pointers[i] = r->text[i];
    }
    TRY(walk_all(r->stage, p, r->pointers, r->job->prompt_count, true, error));
    return synchronise(r->stage, error);
}

static enum shoal_status run_context(struct run *r, struct shoal_error *error)
{
    struct phase_pass p = job_phase(r->job, SHOAL_PHASE_CONTEXT);
    const int64_t skip = job_text(r->job)->skip, width = dit_config(p.model)->width;

    for (int32_t i = 0; i < r->job->prompt_count; i++) {
        const struct dit_prompt_spec spec = {
            .features = r->output->latents ? r->text[i]->features + skip * width : NULL,
            .tokens = (int64_t)r->job->prompts[i][0].count - skip,
            .ids = r->output->latents ? r->job->prompts[i][1].ids : NULL,
            .id_count = (int64_t)r->job->prompts[i][1].count,
            .height = r->job->latent_height,
            .width = r->job->latent_width,
            .sigmas = r->job->schedule.blends,
            .steps = r->job->schedule.steps,
        };

        TRY(dit_prompt_create(p.model, &spec, &r->prompts[i], error));
        r->pointers[i] = r->prompts[i];
    }
    TRY(walk_all(r->stage, p, r->pointers, r->job->prompt_count, true, error));
    TRY(synchronise(r->stage, error));
    for (int32_t i = 0; i < r->job->prompt_count; i++)
        text_lane_destroy(&r->stage->exec, &r->text[i]);
    return SHOAL_OK;
}

/* The latent of the picture to begin with. */
static enum shoal_status run_encode(struct run *r, struct shoal_error *error)
{
    const struct job *job = r->job;
    struct exec *x = &r->stage->exec;
    struct vae_lane lane = {.height = job->latent_height,
        .width = job->latent_width,
        .whole_bytes = r->stage->whole_bytes,
        .image = r->output->image};
    void *pointer = &lane;
    enum shoal_status status;

    if (lane.image) init_planes(job, lane.image);
    r->init = lane.latent =
        exec_alloc_float(x, job->latent_channels, job->latent_height * job->latent_width);
    status = walk(r->stage, job_phase(job, SHOAL_PHASE_ENCODE), &pointer, 1, error);
    if (!status) status = synchronise(r->stage, error);
    vae_lane_fini(x, &lane);
    if (!status) report_unit(r->stage, 1, 1);
    return status;
}

/* Picture i's noise, the first and what samplers add, is that of seed + i, so that any of them can
 * be had alone again. */
static void draw_noise(
    struct run *r, int32_t picture, struct rng *rng, float scale, struct matrix to)
{
    float *noise = NULL; /* when counting: nothing is copied */

    if (r->noise) {
        noise = r->noise + (uint64_t)picture * latent_size(r->job);
        rng_normal(rng, noise, latent_size(r->job));
        for (uint64_t i = 0; scale != 1 && i < latent_size(r->job); i++)
            noise[i] *= scale;
    }
    exec_upload(&r->stage->exec, to, noise);
}

static void start_picture(struct run *r, int32_t picture)
{
    const struct job *job = r->job;
    struct exec *x = &r->stage->exec;
    struct matrix *slots = &r->slots[picture * SAMPLER_SLOTS];
    int64_t pixels = job->latent_height * job->latent_width;
    struct rng rng, *kept = r->rngs ? &r->rngs[picture] : &rng;
    const float sigma = job->schedule.sigmas[0];

    rng_init(kept, job->request.seed + (uint64_t)picture);
    r->latents[picture] = exec_alloc_float(x, job->latent_channels, pixels);
    draw_noise(r, picture, kept, job->schedule.edm ? sigma : 1, r->latents[picture]);
    if (r->init.addr && job->schedule.edm)
        x->ops->blend(x->stream, r->latents[picture], 1, r->init, 1);
    else if (r->init.addr)
        x->ops->blend(x->stream, r->latents[picture], 1 - sigma, r->init, sigma);
    if (job->schedule.edm) r->inputs[picture] = exec_alloc_float(x, job->latent_channels, pixels);
    if (job->sampler->noisy)
        slots[SAMPLER_NOISE] = exec_alloc_float(x, job->latent_channels, pixels);
    for (int32_t i = 0; i < job->sampler->kept; i++)
        slots[SAMPLER_KEPT + i] = exec_alloc_float(x, job->latent_channels, pixels);
    for (int32_t k = 0; k < job->prompt_count; k++) {
        struct dit_lane *lane = &r->lanes[picture * job->prompt_count + k];

        lane->prompt = r->prompts[k];
        lane->latent = job->schedule.edm ? r->inputs[picture] : r->latents[picture];
        lane->velocity = exec_alloc_float(x, job->latent_channels, pixels);
        r->pointers[picture * job->prompt_count + k] = lane;
    }
}

static enum shoal_status start_pictures(struct run *r, struct shoal_error *error)
{
    for (int32_t i = 0; i < r->job->request.count; i++)
        start_picture(r, i);
    exec_free(&r->stage->exec, &r->init);
    /* More noise will be drawn where this lies. */
    if (r->job->sampler->noisy) TRY(synchronise(r->stage, error));
    return exec_check(&r->stage->exec, error);
}

/* One of a sampler's moves, of one picture. */
static void move(struct run *r, int32_t picture, const struct sampler_move *m)
{
    struct exec *x = &r->stage->exec;
    struct matrix slots[SAMPLER_SLOTS];

    memcpy(slots, &r->slots[picture * SAMPLER_SLOTS], sizeof slots);
    slots[SAMPLER_LATENT] = r->latents[picture];
    slots[SAMPLER_ANSWER] = r->lanes[picture * r->job->prompt_count].velocity;
    if (m->keep == 0 && m->add == 1)
        x->ops->copy(x->stream, slots[m->to], slots[m->from]);
    else
        x->ops->blend(x->stream, slots[m->to], m->add, slots[m->from], m->keep);
}

/*
 * A model of flow matching that is sampled as EDM is shown x / (1 + sigma) = (1 - s) x, at the
 * level s = sigma / (1 + sigma). It answers v = noise - picture; d x / d sigma is then (1 - s) (v +
 * x).
 */
static void show_latents(struct run *r, int32_t level)
{
    struct exec *x = &r->stage->exec;
    float shown = 1 - r->job->schedule.blends[level];

    for (int32_t i = 0; r->job->schedule.edm && i < r->job->request.count; i++) {
        x->ops->copy(x->stream, r->inputs[i], r->latents[i]);
        x->ops->blend(x->stream, r->inputs[i], shown, r->latents[i], 0);
    }
}

/* y = from, each patch as long as that of y was. */
static void keep_norms(struct run *r, int32_t patch, struct matrix y, struct matrix from)
{
    const struct job *job = r->job;
    struct exec *x = &r->stage->exec;
    int64_t height = job->latent_height, width = job->latent_width;
    int64_t rows = height / patch * (width / patch), cols = patch * patch * job->latent_channels;
    struct matrix a = exec_alloc_float(x, rows, cols), b = exec_alloc_float(x, rows, cols);

    x->ops->patchify(x->stream, a, from, height, width, patch, PATCH_CHANNELS_LAST);
    x->ops->patchify(x->stream, b, y, height, width, patch, PATCH_CHANNELS_LAST);
    x->ops->match_norms(x->stream, a, b);
    x->ops->unpatchify(x->stream, y, a, height, width, patch, PATCH_CHANNELS_LAST);
    exec_free(x, &b);
    exec_free(x, &a);
}

/* The conditional lane's velocity and the next one's become the guided one, in the first. Where
 * the family keeps norms, each patch of it is as long as the conditional one was. */
static void guide(struct run *r, const struct dit_lane *lane)
{
    const struct job *job = r->job;
    const struct dit_family *family = dit_config(job->model->parts[FAMILY_DIT])->family;
    struct exec *x = &r->stage->exec;
    struct matrix cond = lane[0].velocity, uncond = lane[1].velocity;

    if (!family->sampling.keeps_norm) {
        x->ops->guide(x->stream, cond, cond, uncond, job->request.cfg - 1);
        return;
    }
    x->ops->guide(x->stream, uncond, cond, uncond, job->request.cfg - 1);
    keep_norms(r, family->patch, cond, uncond);
}

/* What the sampler makes of the lanes' velocities. Noise is drawn while the device computes them,
 * and has been copied before more is drawn in its place. */
static enum shoal_status advance(
    struct run *r, const struct sampler_call *call, struct shoal_error *error)
{
    const struct job *job = r->job;
    struct exec *x = &r->stage->exec;

    for (int32_t i = 0; i < job->request.count; i++) {
        const struct dit_lane *lane = &r->lanes[i * job->prompt_count];

        if (call->draws)
            draw_noise(
                r, i, r->rngs ? &r->rngs[i] : NULL, 1, r->slots[i * SAMPLER_SLOTS + SAMPLER_NOISE]);
        if (job->prompt_count == 2) guide(r, lane);
        if (job->schedule.edm) {
            float shown = 1 - job->schedule.blends[call->level];

            x->ops->blend(x->stream, lane->velocity, shown, r->latents[i], shown);
        }
        for (int32_t k = 0; k < call->count; k++)
            move(r, i, &call->moves[k]);
    }
    if (call->draws) TRY(synchronise(r->stage, error));
    return exec_check(x, error);
}

static void free_slots(struct run *r)
{
    for (int32_t i = 0; r->slots && i < r->job->request.count * SAMPLER_SLOTS; i++)
        exec_free(&r->stage->exec, &r->slots[i]);
}

static void free_inputs(struct run *r)
{
    for (int32_t i = 0; r->inputs && i < r->job->request.count; i++)
        exec_free(&r->stage->exec, &r->inputs[i]);
}

static enum shoal_status run_steps(struct run *r, struct shoal_error *error)
{
    struct phase_pass p = job_phase(r->job, SHOAL_PHASE_STEPS);
    struct exec *x = &r->stage->exec;
    int32_t lanes = job_lane_count(r->job);

    TRY(start_pictures(r, error));
    for (int32_t index = 0; index < r->stage->calls; index++) {
        struct sampler_call call = sampler_call_at(r->job->sampler, &r->job->schedule, index);

        for (int32_t i = 0; i < lanes; i++)
            r->lanes[i].step = call.level;
        show_latents(r, call.level);
        TRY(walk_all(r->stage, p, r->pointers, lanes, false, error));
        TRY(advance(r, &call, error));
        report_unit(r->stage, index + 1, r->stage->calls);
    }
    TRY(synchronise(r->stage, error));
    for (int32_t i = 0; i < lanes; i++)
        exec_free(x, &r->lanes[i].velocity);
    free_slots(r);
    free_inputs(r);
    for (int32_t i = 0; i < r->job->prompt_count; i++)
        dit_prompt_destroy(x, &r->prompts[i]);
    return SHOAL_OK;
}

/* Takes the latent as it is; it is freed once it is a picture. */
static enum shoal_status decode_picture(struct run *r, int32_t index, struct shoal_error *error)
{
    struct exec *x = &r->stage->exec;
    struct vae_lane lane = {.latent = r->latents[index],
        .height = r->job->latent_height,
        .width = r->job->latent_width,
        .whole_bytes = r->stage->whole_bytes,
        .image = r->output->image};
    void *pointer = &lane;
    enum shoal_status status;

    status = walk(r->stage, job_phase(r->job, SHOAL_PHASE_DECODE), &pointer, 1, error);
    if (!status) status = synchronise(r->stage, error);
    vae_lane_fini(x, &lane);
    r->stage->strip_blocks = lane.strip_blocks;
    r->stage->largest_bytes = lane.largest_bytes;
    if (!status && r->output->take) status = r->output->take(r->output, index, error);
    if (!status) exec_free(x, &r->latents[index]);
    return status;
}

static enum shoal_status run_decode(struct run *r, struct shoal_error *error)
{
    for (int32_t i = 0; i < r->job->request.count; i++) {
        if (r->output->latents)
            exec_download(&r->stage->exec, r->output->latents + (uint64_t)i * latent_size(r->job),
                r->latents[i]);
        TRY(decode_picture(r, i, error));
        report_unit(r->stage, i + 1, r->job->request.count);
    }
    return SHOAL_OK;
}

static void run_fini(struct run *r)
{
    struct exec *x = &r->stage->exec;

    for (int32_t i = 0; r->lanes && i < job_lane_count(r->job); i++) {
        dit_lane_fini(x, &r->lanes[i]);
        exec_free(x, &r->lanes[i].velocity);
    }
    for (int i = 0; i < 2; i++) {
        text_lane_destroy(x, &r->text[i]);
        dit_prompt_destroy(x, &r->prompts[i]);
    }
    for (int32_t i = 0; r->latents && i < r->job->request.count; i++)
        exec_free(x, &r->latents[i]);
    free_slots(r);
    free_inputs(r);
    exec_free(x, &r->init);
    mem_free(r->lanes);
    mem_free(r->latents);
    mem_free(r->slots);
    mem_free(r->inputs);
    mem_free(r->noise);
    mem_free(r->rngs);
    mem_free(r->pointers);
}

static enum shoal_status run_init(struct run *r, struct shoal_error *error)
{
    size_t count = (size_t)r->job->request.count;
    const bool draws = r->job->sampler->noisy, real = r->output->latents != NULL;

    r->lanes = mem_calloc(count * 2, sizeof *r->lanes);
    r->latents = mem_calloc(count, sizeof *r->latents);
    r->slots = mem_calloc(count * SAMPLER_SLOTS, sizeof *r->slots);
    r->inputs = mem_calloc(count, sizeof *r->inputs);
    if (real) r->noise = mem_calloc(count * latent_size(r->job), sizeof *r->noise);
    if (real && draws) r->rngs = mem_calloc(count, sizeof *r->rngs);
    r->pointers = mem_calloc(count * 2, sizeof *r->pointers);
    if (!r->lanes || !r->latents || !r->slots || !r->inputs ||
        (real && (!r->noise || (draws && !r->rngs))) || !r->pointers)
        FAIL_MEMORY(error);
    return SHOAL_OK;
}

enum shoal_status job_run(const struct job *job, struct stage *stage, struct job_output *output,
    struct shoal_error *error)
{
    static const struct {
        enum shoal_phase phase;
        enum shoal_status (*run)(struct run *, struct shoal_error *);
    } phases[] = {{SHOAL_PHASE_TEXT, run_text}, {SHOAL_PHASE_CONTEXT, run_context},
        {SHOAL_PHASE_ENCODE, run_encode}, {SHOAL_PHASE_STEPS, run_steps},
        {SHOAL_PHASE_DECODE, run_decode}};
    struct run run = {.job = job, .stage = stage, .output = output};
    enum shoal_status status = run_init(&run, error);

    for (size_t i = 0; i < sizeof phases / sizeof *phases && !status; i++) {
        enum shoal_phase phase = phases[i].phase;
        enum shoal_status end;

        if ((int)phase >= job_phases(job)) continue;
        status = stage->begin(stage, job, phase, error);
        if (status) break;
        status = phases[i].run(&run, error);
        /* The first failure is the one to tell. */
        end = stage->end(stage, phase, status ? NULL : error);
        if (!status) status = end;
    }
    if (status) {
        /* What was given may still read host memory; what it says now is of no interest. */
        enum shoal_status ignored = synchronise(stage, NULL);
        (void)ignored;
    }
    run_fini(&run);
    return status;
}

enum shoal_status job_decode_one(
    const struct job *job, struct stage *stage, struct shoal_error *error)
{
    struct matrix latent = MATRIX_NONE;
    struct job_output output = {0};
    struct run run = {.job = job, .stage = stage, .output = &output, .latents = &latent};
    enum shoal_status status, end;

    TRY(stage->begin(stage, job, SHOAL_PHASE_DECODE, error));
    latent = exec_alloc_float(
        &stage->exec, job->latent_channels, job->latent_height * job->latent_width);
    status = decode_picture(&run, 0, error);
    exec_free(&stage->exec, &latent);
    end = stage->end(stage, SHOAL_PHASE_DECODE, status ? NULL : error);
    return status ? status : end;
}
