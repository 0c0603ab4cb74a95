/* Running a plan: the job on a real device, weights through the streamer. */
#include "pipeline/run.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/profile.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "media/pixels.h"
#include "models/vae/klvae.h"
#include "pipeline/steps.h"
#include "stream/streamer.h"

#include <stdio.h>
#include <string.h>

struct real_stage {
    struct stage stage; /* first */
    const struct shoal_plan *plan;
    const struct shoal_callbacks *callbacks;
    struct trace *trace; /* the result's; NULL: none */
    struct arena arena;
    struct streamer *streamer;                /* of the phase that runs */
    const struct checkpoint_tensor *outgrown; /* by which a phase has failed; NULL */
    struct shoal_report report;
    struct shoal_progress progress;
    struct steps steps;         /* of their phase, while it runs */
    uint64_t begun_ns, unit_ns; /* when the phase and its last unit began, as the host sees it */
    uint64_t unit_bytes;        /* copied by then */
    bool in_unit;               /* its range is open */
};

static bool cancelled(void *user)
{
    const struct real_stage *r = user;

    return r->callbacks->cancelled && r->callbacks->cancelled(r->callbacks->user);
}

static void report_progress(struct real_stage *r)
{
    r->progress.seconds = (double)(clock_ns() - r->begun_ns) * 1e-9;
    if (r->callbacks->progress) r->callbacks->progress(r->callbacks->user, &r->progress);
}

/* What a phase's progress counts. */
static int32_t units(const struct job *job, enum shoal_phase phase)
{
    switch (phase) {
    case SHOAL_PHASE_STEPS:
        return job->calls;
    case SHOAL_PHASE_DECODE:
        return job_pictures(job);
    case SHOAL_PHASE_ENCODE:
        return 1;
    default:
        return job->prompt_count;
    }
}

/* The same, for people. */
static const char *unit_name(enum shoal_phase phase)
{
    switch (phase) {
    case SHOAL_PHASE_STEPS:
        return "step";
    case SHOAL_PHASE_DECODE:
    case SHOAL_PHASE_ENCODE:
        return "picture";
    default:
        return "prompt";
    }
}

/* The phase's unit `done` + 1, or the walk that it shares with others, begins for profilers. */
static void begin_unit(struct real_stage *r, int32_t done)
{
    char name[TRACE_NAME_BYTES];

    snprintf(name, sizeof name, "%s %d", unit_name(r->progress.phase), (int)done + 1);
    profile_begin(PROFILE_UNIT, name);
    r->in_unit = true;
}

static void end_unit(struct real_stage *r)
{
    if (r->in_unit) profile_end();
    r->in_unit = false;
}

static enum shoal_status begin_phase(
    struct real_stage *r, const struct job *job, enum shoal_phase phase, struct shoal_error *error)
{
    struct stage *stage = &r->stage;
    const struct plan_phase *planned = &r->plan->solution.phases[phase];
    struct phase_pass p = job_phase(job, phase);
    struct streamer_place *places = mem_calloc((size_t)p.pass->count, sizeof *places);
    const struct streamer_setup setup = {
        .arena = &r->arena,
        .compute = stage->exec.stream,
        .model = p.model,
        .pass = p.pass,
        .places = places,
        .packing = planned->packs ? &r->plan->packings[phase] : NULL,
        .patches = &r->plan->adapters.patches,
        .threads = job_threads(job),
        .ring_bytes = planned->ring_bytes,
        .unpack_bytes = planned->unpack_bytes,
        .staging_bytes = planned->staging_bytes,
        .walks = job_walks(job, phase, stage->lanes),
        .pin = job->request.pin,
        .trace = r->trace,
        .cancelled = cancelled,
        .user = r,
    };

    r->begun_ns = clock_ns();
    r->progress = (struct shoal_progress){
        .phase = phase, .steps = units(job, phase), .blocks = p.pass->count};
    if (!places) FAIL_MEMORY(error);
    plan_places(planned, places);
    enum shoal_status status = streamer_create(&r->streamer, &setup, error);
    mem_free(places);
    if (status) return status;
    if (phase == SHOAL_PHASE_STEPS)
        TRY(steps_open(&r->steps, stage->exec.device, stage->calls, error));
    r->unit_ns = clock_ns();
    r->unit_bytes = 0;
    report_progress(r);
    return SHOAL_OK;
}

static enum shoal_status real_begin(
    struct stage *stage, const struct job *job, enum shoal_phase phase, struct shoal_error *error)
{
    struct real_stage *r = (struct real_stage *)stage;
    enum shoal_status status;

    profile_begin(PROFILE_PHASE, shoal_phase_name(phase));
    status = begin_phase(r, job, phase, error);
    if (status)
        profile_end(); /* it has no end of its own */
    else
        begin_unit(r, 0);
    return status;
}

static double seconds_between(uint64_t begin_ns, uint64_t end_ns)
{
    return (double)(end_ns - begin_ns) * 1e-9;
}

/* The first step brings in what stays; the others say what a step costs. */
static void report_steps(struct real_stage *r)
{
    struct shoal_report *report = &r->report;
    uint64_t begin_ns, end_ns;

    for (int32_t i = 0; steps_span(&r->steps, i, &begin_ns, &end_ns); i++) {
        double seconds = seconds_between(begin_ns, end_ns);
        char name[TRACE_NAME_BYTES];

        snprintf(name, sizeof name, "step %d", (int)i + 1);
        trace_add(r->trace, TRACE_PHASE, name, begin_ns, end_ns, report->step_bytes);
        if (i == 0) report->first_step_seconds = seconds;
        if (i <= 1 || seconds < report->step_seconds) report->step_seconds = seconds;
        if (i > 0) report->mean_step_seconds += seconds / (r->steps.given - 1);
    }
    if (r->steps.given == 1) report->mean_step_seconds = report->step_seconds;
    steps_close(&r->steps);
}

/* Means, because copies and reads run ahead into the next step. The first step loads, and counts
 * only if it is alone. */
static void report_step_bytes(struct real_stage *r, const struct streamer_stats *stats)
{
    const struct job *job = &r->plan->job;
    uint64_t walks = (uint64_t)job_walks(job, SHOAL_PHASE_STEPS, r->stage.lanes);
    uint64_t steps = (uint64_t)job->calls;

    r->report.step_bytes = (stats->copied_bytes - stats->settled_bytes) / steps;
    if (steps == 1)
        r->report.step_read_bytes = stats->read_bytes;
    else
        r->report.step_read_bytes =
            (stats->read_bytes - stats->first_read_bytes) / (walks - 1) * (walks / steps);
}

static enum shoal_status real_end(
    struct stage *stage, enum shoal_phase phase, struct shoal_error *error)
{
    struct real_stage *r = (struct real_stage *)stage;
    /* A copy that failed on its own stream is known here at the latest. */
    enum shoal_status status = streamer_check(r->streamer, error);
    struct streamer_stats stats = streamer_stats(r->streamer);
    uint64_t now;

    end_unit(r); /* one that failed */

    if (stats.pinned_bytes > r->report.pinned_bytes) r->report.pinned_bytes = stats.pinned_bytes;
    if (stats.unpinned.status)
        snprintf(r->report.note, sizeof r->report.note,
            "not all of host memory could be pinned, so copies are slower: %.300s",
            stats.unpinned.text);
    r->report.copied_bytes += stats.copied_bytes;
    r->report.read_bytes += stats.read_bytes;
    r->report.wait_seconds += (double)stats.waited_ns * 1e-9;
    if (phase == SHOAL_PHASE_STEPS && !status) report_step_bytes(r, &stats);
    r->outgrown = streamer_outgrown(r->streamer);
    streamer_describe(r->streamer, r->report.reader, sizeof r->report.reader);
    streamer_destroy(&r->streamer); /* waits for the compute stream too */
    if (phase == SHOAL_PHASE_STEPS) report_steps(r);
    arena_clear_bottom(&r->arena);
    now = clock_ns();
    r->report.phase_seconds[phase] = (double)(now - r->begun_ns) * 1e-9;
    trace_add(r->trace, TRACE_PHASE, shoal_phase_name(phase), r->begun_ns, now, 0);
    profile_end();
    return status;
}

static enum shoal_status real_globals(
    struct stage *stage, struct matrix *weights, struct shoal_error *error)
{
    return streamer_globals(((struct real_stage *)stage)->streamer, weights, error);
}

static enum shoal_status real_acquire(
    struct stage *stage, int32_t block, struct matrix *weights, struct shoal_error *error)
{
    return streamer_acquire(((struct real_stage *)stage)->streamer, block, weights, error);
}

static void real_release(struct stage *stage, int32_t block)
{
    streamer_release(((struct real_stage *)stage)->streamer, block);
}

static enum shoal_status real_block_done(
    struct stage *stage, int32_t done, int32_t of, struct shoal_error *error)
{
    struct real_stage *r = (struct real_stage *)stage;

    if (cancelled(r)) FAIL(error, SHOAL_E_CANCELLED, "cancelled");
    r->progress.block = done;
    r->progress.blocks = of;
    report_progress(r);
    return SHOAL_OK;
}

/* A unit of the phase's work, or several that shared a walk, has been given to the device. */
static void real_unit_done(struct stage *stage, int32_t done, int32_t of)
{
    struct real_stage *r = (struct real_stage *)stage;
    uint64_t now = clock_ns(), copied = streamer_stats(r->streamer).copied_bytes;
    uint64_t begin_ns = r->unit_ns, end_ns = now;
    const char *unit = unit_name(r->progress.phase);
    int32_t first = r->progress.step + 1;
    char name[TRACE_NAME_BYTES];

    end_unit(r);
    r->progress.step = done;
    r->progress.steps = of;
    r->progress.block = 0;
    r->progress.step_bytes = copied - r->unit_bytes;
    r->unit_ns = now;
    r->unit_bytes = copied;
    if (r->progress.phase == SHOAL_PHASE_STEPS) {
        steps_given(&r->steps, stage->exec.stream);
        /* Of the last that the device has finished. */
        for (int32_t i = done - 1; i >= 0; i--)
            if (steps_span(&r->steps, i, &begin_ns, &end_ns)) break;
    } else {
        if (first < done)
            snprintf(name, sizeof name, "%ss %d-%d", unit, first, done);
        else
            snprintf(name, sizeof name, "%s %d", unit, done);
        trace_add(r->trace, TRACE_PHASE, name, begin_ns, end_ns, r->progress.step_bytes);
    }
    r->progress.step_seconds = seconds_between(begin_ns, end_ns);
    report_progress(r);
    if (done < of) begin_unit(r, done);
}

/* ---- the result ---- */

struct run_output {
    struct job_output output; /* first */
    struct shoal_result *result;
    struct real_stage *stage;
};

/* A decoded picture: checked, then rounded to bytes. */
static enum shoal_status take_picture(
    struct job_output *output, int32_t index, struct shoal_error *error)
{
    struct run_output *run = (struct run_output *)output;
    struct shoal_result *r = run->result;
    enum shoal_status status;
    char what[32];

    snprintf(what, sizeof what, "picture %d", index);
    status = pixels_check(output->image, 3, r->height, r->width, what, error);
    /* Weights whose copy failed make such numbers too; then that is what to tell. */
    if (status) TRY(streamer_check(run->stage->streamer, error));
    if (status) return status;
    pixels_from_planes(
        r->pixels + (size_t)index * r->pixel_bytes, output->image, r->height, r->width);
    return SHOAL_OK;
}

/* "watercolour.safetensors:0.8, grain.safetensors:-0.3"; NULL: none, or out of memory. */
static char *name_loras(const struct request_adapters *adapters)
{
    struct text text = {0};

    for (int32_t i = 0; i < adapters->count; i++) {
        const char *path = adapters->uses[i].adapter->path, *slash = strrchr(path, '/');

        text_append(&text, "%s%s:%g", i ? ", " : "", slash ? slash + 1 : path,
            (double)adapters->uses[i].strength);
    }
    if (!text.failed) return text.data;
    mem_free(text.data);
    return NULL;
}

/* False: out of memory. */
static bool copy_prompts(struct shoal_result *result, const struct job *job)
{
    result->prompts = mem_calloc((size_t)job_prompts(job), sizeof *result->prompts);
    if (!result->prompts) return false;
    result->prompt_count = job_prompts(job);
    for (int32_t i = 0; i < result->prompt_count; i++) {
        result->prompts[i] = mem_strdup(job_prompt(job, i));
        if (!result->prompts[i]) return false;
    }
    return true;
}

static enum shoal_status result_create(
    const struct shoal_plan *plan, struct shoal_result **result, struct shoal_error *error)
{
    const struct job *job = &plan->job;
    const struct shoal_request *r = &job->request;
    struct shoal_result *new = mem_calloc(1, sizeof *new);
    enum shoal_status status = SHOAL_OK;

    if (!new) FAIL_MEMORY(error);
    new->width = r->width;
    new->height = r->height;
    new->count = job_pictures(job);
    new->seed = r->seed;
    new->latent_count = (size_t)(job->latent_channels * job->latent_height * job->latent_width);
    new->pixel_bytes = (size_t)r->width *(size_t)r->height * 3;
    new->latents = mem_calloc((size_t) new->count *new->latent_count, sizeof *new->latents);
    new->pixels = mem_calloc((size_t) new->count, new->pixel_bytes);
    new->negative_prompt = mem_strdup(r->negative_prompt);
    new->model = mem_strdup(job->model->name);
    new->loras = name_loras(&plan->adapters);
    new->settings = (struct png_settings){.negative_prompt = new->negative_prompt,
        .sampler = job->sampler->name,
        .schedule = strcmp(r->schedule, schedules[0]->name) ? r->schedule : NULL,
        .model = new->model,
        .loras = new->loras,
        .steps = r->steps,
        .width = r->width,
        .height = r->height,
        .cfg = r->cfg,
        .shift = r->shift,
        .strength = r->init ? r->strength : 0};
    if (!new->latents || !new->pixels || !copy_prompts(new, job) || !new->negative_prompt ||
        !new->model || (plan->adapters.count && !new->loras)) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        shoal_result_destroy(&new);
    }
    *result = new;
    return status;
}

static enum shoal_status run_on(struct real_stage *r, struct device *device,
    struct shoal_result *result, struct shoal_error *error)
{
    const struct job *job = &r->plan->job;
    struct run_output output = {
        .output = {.latents = result->latents, .take = take_picture}, .result = result, .stage = r};
    struct stream *compute = NULL;
    enum shoal_status status;

    TRY(arena_open(&r->arena, device, r->plan->solution.arena_bytes, error));
    TRY_OR_FAIL(device->ops->stream_create(device, false, &compute, error));
    exec_init(&r->stage.exec, device, compute, r->arena.scratch, arena_top(&r->arena));
    output.output.image = mem_calloc(result->pixel_bytes, sizeof *output.output.image);
    if (!output.output.image) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    status = job_run(job, &r->stage, &output.output, error);
    r->report.peak_vram_bytes = arena_peak(&r->arena) + r->plan->target.context_bytes;
    if (r->plan->target.device) r->report.driver_vram_bytes = cuda_process_bytes(device);
fail:
    streamer_destroy(&r->streamer);
    steps_close(&r->steps);
    if (compute) device->ops->stream_destroy(&compute);
    arena_close(&r->arena);
    mem_free(output.output.image);
    return status;
}

/* *outgrown: if it failed because a tensor took more than the room that was kept for it. */
static enum shoal_status run_once(const struct shoal_plan *plan, struct device *device,
    const struct shoal_callbacks *callbacks, struct shoal_result **result,
    const struct checkpoint_tensor **outgrown, struct shoal_error *error)
{
    static const struct shoal_callbacks none;
    struct real_stage r = {.stage = {.lanes = plan->lanes,
                               .calls = plan->job.calls,
                               .whole_bytes = plan->whole_bytes,
                               .begin = real_begin,
                               .end = real_end,
                               .globals = real_globals,
                               .acquire = real_acquire,
                               .release = real_release,
                               .block_done = real_block_done,
                               .unit_done = real_unit_done},
        .plan = plan,
        .callbacks = callbacks ? callbacks : &none};
    struct shoal_result *new = NULL;
    uint64_t start = clock_ns();
    enum shoal_status status;

    *result = NULL;
    TRY(result_create(plan, &new, error));
    if (plan->job.request.trace) TRY_OR_FAIL(trace_create(&new->trace, TRACE_MOST_SPANS, error));
    r.trace = new->trace;
    TRY_OR_FAIL(run_on(&r, device, new, error));
    r.report.seconds = (double)(clock_ns() - start) * 1e-9;
    new->report = r.report;
    *result = new;
    return SHOAL_OK;
fail:
    *outgrown = r.outgrown;
    shoal_result_destroy(&new);
    return status;
}

enum shoal_status run_on_device(const struct shoal_plan *plan, struct device *device,
    const struct shoal_callbacks *callbacks, struct shoal_result **result,
    struct shoal_error *error)
{
    const struct checkpoint_tensor *outgrown = NULL, *none;
    enum shoal_status status = run_once(plan, device, callbacks, result, &outgrown, error);
    struct shoal_plan *raw = NULL;

    if (!outgrown || status != SHOAL_E_UNSUPPORTED) return status;
    /* Samples were wrong, which nothing but the run can tell: it begins again with raw weights. */
    TRY(plan_again_raw(plan, &raw, error));
    if (raw->refusal)
        status = error_set(error, SHOAL_E_BUDGET, __FILE__, __LINE__,
            "%s: tensor %s packs worse than its sample, and with raw weights %s",
            outgrown->file->path, outgrown->name, raw->refusal);
    else
        status = run_once(raw, device, callbacks, result, &none, error);
    if (!status) (*result)->report.replanned = true;
    if (!status)
        snprintf((*result)->report.note, sizeof(*result)->report.note,
            "weights were not packed after all, and the run began again: tensor %.120s of %.160s "
            "packs worse than its sample",
            outgrown->name, outgrown->file->path);
    shoal_plan_destroy(&raw);
    return status;
}

enum shoal_status shoal_run(const struct shoal_plan *plan, const struct shoal_callbacks *callbacks,
    struct shoal_result **result, struct shoal_error *error)
{
    struct device *device = NULL;
    enum shoal_status status;

    *result = NULL;
    if (plan->target.elsewhere)
        FAIL(error, SHOAL_E_INVALID, "the plan is for another machine (%s): it cannot run here",
            plan->rates.name);
    if (plan->expects_copies)
        FAIL(error, SHOAL_E_INVALID,
            "the plan is for packed copies that are not there: it cannot run; make them with "
            "shoal_cache_prepare");
    if (plan->refusal) FAIL(error, SHOAL_E_BUDGET, "%s", plan->refusal);
    if (plan->target.device)
        return run_on_device(plan, plan->target.device, callbacks, result, error);
    TRY(cpu_create(&device, CPU_KERNELS_FAST, plan->job.request.threads, error));
    status = run_on_device(plan, device, callbacks, result, error);
    device_destroy(&device);
    return status;
}
