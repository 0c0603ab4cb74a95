/* Running a job: its phases, on a stage. */
#include "pipeline/job.h"

#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "models/dit/dit.h"
#include "models/vae/vae.h"
#include "pipeline/init.h"

#include <string.h>

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
        return job_pictures(job); /* pictures are large: one at a time */
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
    struct text_lane **text;     /* [prompt_count] */
    struct dit_prompt **prompts; /* [prompt_count] */
    struct dit_lane *lanes;      /* [pictures * branches]: picture by picture */
    struct matrix *latents;      /* [pictures] */
    struct matrix *slots;        /* [pictures][SAMPLER_SLOTS]: the sampler's own; of the latent and
                                    of the answer none */
    float *noise;                /* [pictures][latent] */
    struct matrix *inputs; /* [pictures]: what the model is shown, where that is not the latent */
    struct matrix init;    /* the latent to begin with, if there is one */
    struct rng *rngs;      /* [pictures]: each one's, if the sampler draws too */
    void **pointers;       /* to the lanes that walk */
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

/* As it is counted: without features and ids. */
static struct dit_prompt_spec prompt_spec(const struct job *job, int32_t index)
{
    return (struct dit_prompt_spec){
        .tokens = (int64_t)job->prompts[index][0].count - job_text(job)->skip,
        .id_count = (int64_t)job->prompts[index][1].count,
        .height = job->latent_height,
        .width = job->latent_width,
        .sigmas = job->schedule.blends,
        .steps = job->schedule.steps,
    };
}

uint64_t job_prompt_bytes(const struct job *job)
{
    uint64_t bytes = 0;

    for (int32_t i = 1; i < job->prompt_count - (job->branches - 1); i++) {
        const struct dit_prompt_spec spec = prompt_spec(job, i);

        bytes += text_lane_bytes(job->model->parts[FAMILY_TEXT], (int64_t)job->prompts[i][0].count);
        bytes += dit_prompt_bytes(job->model->parts[FAMILY_DIT], &spec);
    }
    return bytes;
}

static enum shoal_status run_context(struct run *r, struct shoal_error *error)
{
    struct phase_pass p = job_phase(r->job, SHOAL_PHASE_CONTEXT);
    const int64_t skip = job_text(r->job)->skip, width = dit_config(p.model)->width;

    for (int32_t i = 0; i < r->job->prompt_count; i++) {
        struct dit_prompt_spec spec = prompt_spec(r->job, i);

        spec.features = r->output->latents ? r->text[i]->features + skip * width : NULL;
        spec.ids = r->output->latents ? r->job->prompts[i][1].ids : NULL;
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

/* The noise of a prompt's picture i, the first and what samplers add, is that of seed + i, so that
 * any of them can be had alone again. */
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

    rng_init(kept, job->request.seed + (uint64_t)(picture % job->request.count));
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
    for (int32_t k = 0; k < job->branches; k++) {
        struct dit_lane *lane = &r->lanes[picture * job->branches + k];

        lane->prompt =
            r->prompts[k ? job->prompt_count - 1 : job->encoded[picture / job->request.count]];
        lane->latent = job->schedule.edm ? r->inputs[picture] : r->latents[picture];
        lane->velocity = exec_alloc_float(x, job->latent_channels, pixels);
        r->pointers[picture * job->branches + k] = lane;
    }
}

static enum shoal_status start_pictures(struct run *r, struct shoal_error *error)
{
    for (int32_t i = 0; i < job_pictures(r->job); i++)
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
    slots[SAMPLER_ANSWER] = r->lanes[picture * r->job->branches].velocity;
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

    for (int32_t i = 0; r->job->schedule.edm && i < job_pictures(r->job); i++) {
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

    for (int32_t i = 0; i < job_pictures(job); i++) {
        const struct dit_lane *lane = &r->lanes[i * job->branches];

        if (call->draws)
            draw_noise(
                r, i, r->rngs ? &r->rngs[i] : NULL, 1, r->slots[i * SAMPLER_SLOTS + SAMPLER_NOISE]);
        if (job->branches == 2) guide(r, lane);
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
    for (int32_t i = 0; r->slots && i < job_pictures(r->job) * SAMPLER_SLOTS; i++)
        exec_free(&r->stage->exec, &r->slots[i]);
}

static void free_inputs(struct run *r)
{
    for (int32_t i = 0; r->inputs && i < job_pictures(r->job); i++)
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
    for (int32_t i = 0; i < job_pictures(r->job); i++) {
        if (r->output->latents)
            exec_download(&r->stage->exec, r->output->latents + (uint64_t)i * latent_size(r->job),
                r->latents[i]);
        TRY(decode_picture(r, i, error));
        report_unit(r->stage, i + 1, job_pictures(r->job));
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
    for (int32_t i = 0; r->text && i < r->job->prompt_count; i++)
        text_lane_destroy(x, &r->text[i]);
    for (int32_t i = 0; r->prompts && i < r->job->prompt_count; i++)
        dit_prompt_destroy(x, &r->prompts[i]);
    for (int32_t i = 0; r->latents && i < job_pictures(r->job); i++)
        exec_free(x, &r->latents[i]);
    free_slots(r);
    free_inputs(r);
    exec_free(x, &r->init);
    mem_free(r->text);
    mem_free(r->prompts);
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
    const size_t count = (size_t)job_pictures(r->job), prompts = (size_t)r->job->prompt_count;
    const size_t lanes = (size_t)job_lane_count(r->job);
    const bool draws = r->job->sampler->noisy, real = r->output->latents != NULL;

    r->text = mem_calloc(prompts, sizeof *r->text);
    r->prompts = mem_calloc(prompts, sizeof *r->prompts);
    r->lanes = mem_calloc(lanes, sizeof *r->lanes);
    r->latents = mem_calloc(count, sizeof *r->latents);
    r->slots = mem_calloc(count * SAMPLER_SLOTS, sizeof *r->slots);
    r->inputs = mem_calloc(count, sizeof *r->inputs);
    if (real) r->noise = mem_calloc(count * latent_size(r->job), sizeof *r->noise);
    if (real && draws) r->rngs = mem_calloc(count, sizeof *r->rngs);
    /* Every prompt that was encoded has a lane. */
    r->pointers = mem_calloc(lanes, sizeof *r->pointers);
    if (!r->text || !r->prompts || !r->lanes || !r->latents || !r->slots || !r->inputs ||
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
