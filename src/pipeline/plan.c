/* Making a plan: the job run on the counting device, then the planner's arithmetic. */
#include "pipeline/plan.h"

#include "base/memory.h"
#include "base/size.h"
#include "device/count/count.h"
#include "pipeline/counting.h"
#include "stream/intake.h"

#include <math.h>
#include <string.h>

/* ---- the counting stage ---- */

struct count_stage {
    struct stage stage; /* first */
    const struct job *job;
    const struct patches *patches;
    struct phase_count *counts;
    enum shoal_phase phase;
    struct count_totals begin; /* of the phase */
    struct count_totals last;  /* when the last block was released */
    int64_t releases;
};

static enum shoal_status count_begin(
    struct stage *stage, const struct job *job, enum shoal_phase phase, struct shoal_error *error)
{
    struct count_stage *c = (struct count_stage *)stage;

    c->counts[phase].blocks =
        mem_calloc((size_t)job_phase(job, phase).pass->count, sizeof *c->counts[phase].blocks);
    if (!c->counts[phase].blocks) FAIL_MEMORY(error);
    region_reset_high_water(stage->exec.scratch);
    c->phase = phase;
    c->begin = c->last = count_read(stage->exec.device);
    c->releases = 0;
    return SHOAL_OK;
}

/* What was counted since the last call is a block's. */
static void count_work(struct count_stage *c, int32_t position)
{
    static const enum count_kind kinds[WORK_KINDS] = {
        [WORK_LINEAR] = COUNT_LINEAR, [WORK_ATTENTION] = COUNT_ATTENTION, [WORK_CONV] = COUNT_CONV};
    struct work *work = &c->counts[c->phase].blocks[position];
    struct count_totals now = count_read(c->stage.exec.device);

    for (int kind = 0; kind < WORK_KINDS; kind++)
        work->operations[kind] += now.by_kind[kinds[kind]] - c->last.by_kind[kinds[kind]];
    work->weights += now.weight_traffic - c->last.weight_traffic;
    work->traffic += now.other_traffic - c->last.other_traffic;
    work->calls += now.calls - c->last.calls;
    c->last = now;
}

static enum shoal_status count_end(
    struct stage *stage, enum shoal_phase phase, struct shoal_error *error)
{
    struct count_stage *c = (struct count_stage *)stage;
    int32_t count = job_phase(c->job, phase).pass->count;
    double walks = (double)c->releases / count;
    struct count_totals now = count_read(stage->exec.device);

    (void)error;
    count_work(c, count - 1);
    for (int32_t i = 0; i < count; i++) {
        for (int kind = 0; kind < WORK_KINDS; kind++)
            c->counts[phase].blocks[i].operations[kind] /= walks;
        c->counts[phase].blocks[i].weights /= walks;
        c->counts[phase].blocks[i].traffic /= walks;
        c->counts[phase].blocks[i].calls /= walks;
    }
    c->counts[phase].scratch_bytes = region_high_water(stage->exec.scratch);
    c->counts[phase].strip_blocks = stage->strip_blocks;
    c->counts[phase].largest_bytes = stage->largest_bytes;
    c->counts[phase].operations = now.operations - c->begin.operations;
    c->counts[phase].traffic = now.traffic - c->begin.traffic;
    return SHOAL_OK;
}

/* Weights have no place when counting, but every matrix has an address; and the type with which it
 * is used. */
static void count_bind(struct count_stage *c, int32_t block, struct matrix *weights)
{
    const struct model *model = job_phase(c->job, c->phase).model;
    const struct block_patch *patch = patches_of(c->patches, model, block);

    block_bind(&model->blocks[block], c->stage.exec.device->arena, weights);
    if (patch) block_patch_types(patch, &model->blocks[block], weights);
}

static enum shoal_status count_globals(
    struct stage *stage, struct matrix *weights, struct shoal_error *error)
{
    struct count_stage *c = (struct count_stage *)stage;

    (void)error;
    count_bind(c, job_phase(c->job, c->phase).pass->globals, weights);
    return SHOAL_OK;
}

static enum shoal_status count_acquire(
    struct stage *stage, int32_t block, struct matrix *weights, struct shoal_error *error)
{
    (void)error;
    count_bind((struct count_stage *)stage, block, weights);
    return SHOAL_OK;
}

static void count_release(struct stage *stage, int32_t block)
{
    struct count_stage *c = (struct count_stage *)stage;

    count_work(c, block - job_phase(c->job, c->phase).pass->first);
    c->releases++;
}

static void counts_fini(struct phase_count counts[SHOAL_PHASES])
{
    for (int i = 0; i < SHOAL_PHASES; i++) {
        mem_free(counts[i].blocks);
        counts[i].blocks = NULL;
    }
}

/* Runs the job on the counting device, with so many lanes to a walk and so much for the VAE's
 * pictures; with no lanes, decoding alone, of one picture. */
static enum shoal_status count_job(const struct shoal_plan *plan, int32_t lanes,
    uint64_t whole_bytes, struct phase_count counts[SHOAL_PHASES], struct shoal_error *error)
{
    struct count_stage c = {.stage = {.lanes = lanes,
                                .calls = 1,
                                .whole_bytes = whole_bytes,
                                .begin = count_begin,
                                .end = count_end,
                                .globals = count_globals,
                                .acquire = count_acquire,
                                .release = count_release},
        .job = &plan->job,
        .patches = &plan->adapters.patches,
        .counts = counts};
    struct job_output output = {0};
    struct counting counting;
    enum shoal_status status;

    TRY_OR_FAIL(counting_open(&counting, plan->target.traits, error));
    c.stage.exec = counting.exec;
    status = lanes ? job_run(&plan->job, &c.stage, &output, error)
                   : job_decode_one(&plan->job, &c.stage, error);
fail:
    counting_close(&counting);
    return status;
}

/* ---- the solution ---- */

static uint64_t weight_bytes(const struct model *model)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < model->block_count; i++)
        bytes += model->blocks[i].bytes;
    return bytes;
}

void plan_places(const struct plan_phase *phase, struct streamer_place *places)
{
    for (int32_t i = 0; i < phase->block_count; i++) {
        const struct plan_placement at = phase->blocks[i];

        places[i] =
            (struct streamer_place){.resident = at.resident, .packed = at.packed, .disk = at.disk};
    }
}

struct rates plan_running_rates(
    const struct rates *rates, const struct target *target, enum shoal_pin pin, int threads)
{
    struct rates running = *rates;

    /* Of published ones it is that part's already. */
    if (rates->origin != RATES_PUBLISHED)
        running.pack_bytes *= (double)intake_workers(threads, target->card) / threads;
    if (target->card && pin == SHOAL_PIN_OFF) running.link_bytes = rates->unpinned_bytes;
    if (target->card && pin == SHOAL_PIN_STAGING)
        running.link_bytes = fmin(rates->link_bytes, rates->bounce_bytes);
    return running;
}

/* The planner's answer for the phases as counted. */
static enum shoal_status solve(struct shoal_plan *plan, int32_t lanes,
    const struct phase_count *counts, struct plan_solution *solution, struct shoal_error *error)
{
    const struct job *job = &plan->job;
    struct plan_input inputs[SHOAL_PHASES];
    const struct rates rates =
        plan_running_rates(&plan->rates, &plan->target, job->request.pin, job_threads(job));
    const struct plan_limits limits = {
        .vram_bytes = job->request.vram_bytes,
        .ram_bytes = job->request.ram_bytes,
        .process_bytes = plan->process.bytes,
        .context_bytes = plan->target.context_bytes,
        .resident_blocks = job->request.resident_blocks,
        .prefetch_slots = job->request.prefetch_slots,
        .buffer = job->request.buffer,
        .wire = job->request.wire,
        .widened = plan_widens(plan),
        .all_staged = plan->target.card && job->request.pin != SHOAL_PIN_OFF,
        .rates = &rates,
    };
    struct plan_block_input *blocks, *next;
    enum shoal_status status = SHOAL_OK;
    size_t total = 0;

    for (int i = 0; i < job_phases(job); i++)
        total += (size_t)job_phase(job, (enum shoal_phase)i).pass->count;
    blocks = next = mem_calloc(total, sizeof *blocks);
    if (!blocks) FAIL_MEMORY(error);
    for (int i = 0; i < job_phases(job) && !status; i++) {
        status =
            plan_phase_input(plan, (enum shoal_phase)i, lanes, &counts[i], next, &inputs[i], error);
        next += inputs[i].block_count;
    }
    if (!status) status = planner_solve(inputs, job_phases(job), &limits, solution, error);
    mem_free(blocks);
    return status;
}

static uint64_t step_walks(const struct job *job, int32_t lanes)
{
    return (uint64_t)(job_walks(job, SHOAL_PHASE_STEPS, lanes) / job->calls);
}

/* Predicted, of all steps: what the choice of lanes is judged by. */
static double steps_seconds(const struct plan_solution *s)
{
    return s->phases[SHOAL_PHASE_STEPS].seconds;
}

/* What 1 GiB more would make of the steps. */
static enum shoal_status ask_for_more(struct shoal_plan *plan, struct shoal_error *error)
{
    struct shoal_request *r = &plan->job.request;
    const struct shoal_request as_asked = *r;
    struct plan_solution s;
    const uint64_t gib = 1u << 30;
    enum shoal_status status = SHOAL_OK;

    /* A whole card has no more to give. */
    if (plan->solution.fits && r->vram_bytes < plan->full_bytes && !plan->capped &&
        !(plan->whole_card && plan->target.device)) {
        r->vram_bytes += gib;
        status = solve(plan, plan->lanes, plan->counts, &s, error);
        if (!status) plan->more_vram_seconds = s.fits ? steps_seconds(&s) : 0;
        if (!status) planner_release(&s);
        *r = as_asked;
    }
    if (!status && plan->solution.fits && plan->solution.phases[SHOAL_PHASE_STEPS].disk_bytes &&
        r->ram_bytes != SHOAL_UNLIMITED) {
        r->ram_bytes += gib;
        status = solve(plan, plan->lanes, plan->counts, &s, error);
        if (!status) plan->more_ram_seconds = s.fits ? steps_seconds(&s) : 0;
        if (!status) planner_release(&s);
        *r = as_asked;
    }
    return status;
}

/* Makes these the plan's. */
static void take(
    struct shoal_plan *plan, struct plan_solution *s, struct phase_count counts[SHOAL_PHASES])
{
    planner_release(&plan->solution);
    counts_fini(plan->counts);
    plan->solution = *s;
    memcpy(plan->counts, counts, sizeof plan->counts);
}

/*
 * Tries all lanes together, then halves of that down to one: fewer lanes to a walk need less
 * scratch, which leaves more for residents, but walk the streamed blocks more often.
 */
static enum shoal_status choose_lanes(struct shoal_plan *plan, struct shoal_error *error)
{
    int32_t all = job_lane_count(&plan->job), fixed = plan->job.request.lanes;
    int32_t lanes = fixed != SHOAL_AUTO && fixed < all ? fixed : all;
    const struct plan_solution *best = &plan->solution;
    bool have = false;

    plan->least_bytes = plan->least_ram_bytes = SHOAL_UNLIMITED;
    for (;; lanes = (lanes + 1) / 2) {
        struct phase_count counts[SHOAL_PHASES] = {0};
        struct plan_solution s = {0};
        enum shoal_status status = count_job(plan, lanes, plan->whole_bytes, counts, error);

        if (!status) status = solve(plan, lanes, counts, &s, error);
        if (status) {
            counts_fini(counts);
            return status;
        }
        if (s.least_bytes < plan->least_bytes) plan->least_bytes = s.least_bytes;
        /* With this much, the first choice has everything resident, and none is faster. */
        if (!have) plan->full_bytes = s.full_bytes;
        if (s.least_ram_bytes < plan->least_ram_bytes) plan->least_ram_bytes = s.least_ram_bytes;
        /* Of two that do not fit, the smaller one explains the refusal. */
        if (!have || !best->fits || (s.fits && steps_seconds(&s) < 0.99 * steps_seconds(best))) {
            take(plan, &s, counts);
            plan->lanes = lanes;
            have = true;
        } else {
            planner_release(&s);
            counts_fini(counts);
        }
        if (lanes == 1 || fixed != SHOAL_AUTO) return SHOAL_OK;
    }
}

/* ---- strips ---- */

/* Lowers the limit on what the VAE's blocks take as far as that makes a difference. */
static enum shoal_status find_rungs(struct shoal_plan *plan, struct shoal_error *error)
{
    const bool may = plan->job.request.vae_strips != SHOAL_STRIPS_OFF;
    struct rungs *rungs = &plan->rungs;
    uint64_t whole_bytes = 0, scratch_bytes = UINT64_MAX;

    do {
        struct phase_count counts[SHOAL_PHASES] = {0}, *decode = &counts[SHOAL_PHASE_DECODE];
        enum shoal_status status = count_job(plan, 0, whole_bytes, counts, error);

        counts_fini(counts);
        if (status) return status;
        if (decode->scratch_bytes < scratch_bytes) {
            rungs->whole_bytes[rungs->count++] = whole_bytes;
            scratch_bytes = decode->scratch_bytes;
        }
        whole_bytes = decode->largest_bytes ? decode->largest_bytes - 1 : 0;
    } while (may && whole_bytes && rungs->count < PLAN_MAX_RUNGS);
    plan->whole_bytes = rungs->whole_bytes[rungs->count - 1];
    return SHOAL_OK;
}

/* Tries one, with the plan's lanes, and takes it if it fits and may be taken. */
static enum shoal_status try_rung(
    struct shoal_plan *plan, int32_t index, bool may, bool *taken, struct shoal_error *error)
{
    struct phase_count counts[SHOAL_PHASES] = {0};
    const struct phase_count *decode = &counts[SHOAL_PHASE_DECODE];
    struct plan_solution s = {0};
    uint64_t whole_bytes = plan->rungs.whole_bytes[index];
    enum shoal_status status = count_job(plan, plan->lanes, whole_bytes, counts, error);

    /* Beside what earlier phases left, strips of a tiny picture may save nothing. */
    may = may || decode->scratch_bytes <= plan->counts[SHOAL_PHASE_DECODE].scratch_bytes;
    if (!status && may) status = solve(plan, plan->lanes, counts, &s, error);
    if (!status && !index) {
        plan->rungs.scratch_bytes = decode->scratch_bytes;
        plan->rungs.operations = decode->operations;
        if (s.full_bytes > plan->full_bytes) plan->full_bytes = s.full_bytes;
    }
    *taken = !status && may && s.fits;
    if (*taken) {
        take(plan, &s, counts);
        plan->whole_bytes = whole_bytes;
        return SHOAL_OK;
    }
    planner_release(&s);
    counts_fini(counts);
    return status;
}

/* With lanes chosen for the least decoding: takes the first rung that fits, or the last. Steps and
 * decoding do not share memory, so neither choice depends on the other. */
static enum shoal_status choose_rung(struct shoal_plan *plan, struct shoal_error *error)
{
    const bool may = plan->job.request.vae_strips == SHOAL_STRIPS_AUTO;
    bool taken = false;

    for (int32_t i = 0; i < plan->rungs.count - 1 && !taken && (may || !i); i++)
        TRY(try_rung(plan, i, may, &taken, error));
    return SHOAL_OK;
}

/* Whether anything crosses more than once. */
static bool streams(const struct shoal_plan *plan)
{
    for (int i = 0; i < job_phases(&plan->job); i++)
        if (plan->solution.phases[i].slots &&
            job_walks(&plan->job, (enum shoal_phase)i, plan->lanes) > 1)
            return plan->solution.fits;
    return false;
}

/* Which packing is worth is looked up only where it is asked for or may be worth something. */
static enum shoal_status choose(struct shoal_plan *plan, struct shoal_error *error)
{
    plan->may_pack = plan->job.request.wire == SHOAL_WIRE_PACKED;
    TRY(find_rungs(plan, error));
    TRY(choose_lanes(plan, error));
    if (plan->job.request.wire == SHOAL_WIRE_AUTO && !plan_widens(plan) && streams(plan)) {
        plan->may_pack = true;
        TRY(choose_lanes(plan, error));
    }
    TRY(choose_rung(plan, error));
    return ask_for_more(plan, error);
}

void plan_cap_vram(
    const struct target *target, uint64_t *vram_bytes, bool *whole_card, bool *capped)
{
    *whole_card = *vram_bytes == SHOAL_UNLIMITED && target->vram_bytes != SHOAL_UNLIMITED;
    *capped = !*whole_card && target->device && *vram_bytes > target->vram_bytes;
    if (*whole_card || *capped) *vram_bytes = target->vram_bytes;
}

/* Finds the target, and what it has. */
static enum shoal_status find_target(
    struct shoal_plan *p, const struct shoal_request *request, struct shoal_error *error)
{
    TRY(plan_target(request, &p->target, &p->rates, error));
    p->names_rates = request->on && request->rates_path;
    p->names_device = request->on && request->device;
    plan_cap_vram(&p->target, &p->job.request.vram_bytes, &p->whole_card, &p->capped);
    return SHOAL_OK;
}

/* The same target, borrowed; the request is the other plan's. */
static void take_target(struct shoal_plan *p, const struct shoal_plan *like)
{
    p->target = like->target;
    p->target.borrowed = true;
    p->rates = like->rates;
    p->whole_card = like->whole_card;
    p->capped = like->capped;
}

/* Host memory that opening the model took. */
static uint64_t model_reading_bytes(const struct shoal_model *model)
{
    uint64_t bytes = PROGRAM_BYTES;

    for (int i = 0; i < MODEL_TOKENIZERS; i++)
        bytes += model->tokenizers[i].bytes;
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        bytes += model->reading_bytes[kind];
    return bytes;
}

/* Those that they change: not the VAE, whose encoder and decoder are models apart. */
static enum shoal_status open_adapters(
    struct shoal_plan *p, const struct shoal_request *request, struct shoal_error *error)
{
    const struct shoal_model *model = p->job.model;
    const struct model *const models[FAMILY_KINDS] = {
        [FAMILY_DIT] = model->parts[FAMILY_DIT], [FAMILY_TEXT] = model->parts[FAMILY_TEXT]};

    TRY(request_adapters_open(
        &p->adapters, model->adapters, models, request, model_reading_bytes(model), error));
    p->job.request.loras = p->adapters.loras;
    return SHOAL_OK;
}

/* `like`: a plan whose target and rates to go by, which must outlive this one; may be NULL. */
static enum shoal_status create(const struct shoal_model *model,
    const struct shoal_request *request, const struct shoal_plan *like, struct shoal_plan **plan,
    struct shoal_error *error)
{
    struct shoal_plan *p = mem_calloc(1, sizeof *p);
    enum shoal_status status = SHOAL_OK;

    *plan = NULL;
    if (!p) FAIL_MEMORY(error);
    TRY_OR_FAIL(job_init(&p->job, model, request, error));
    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        p->expects_copies = p->expects_copies || model->copy_expected[kind];
    if (like)
        take_target(p, like);
    else
        TRY_OR_FAIL(find_target(p, request, error));
    TRY_OR_FAIL(open_adapters(p, request, error));
    plan_process(&p->job, &p->target, p->adapters.host_bytes, &p->process);
    TRY_OR_FAIL(choose(p, error));
    TRY_OR_FAIL(plan_explain(p, error));
    *plan = p;
    return SHOAL_OK;
fail:
    shoal_plan_destroy(&p);
    return status;
}

enum shoal_status shoal_plan_create(const struct shoal_model *model,
    const struct shoal_request *request, struct shoal_plan **plan, struct shoal_error *error)
{
    return create(model, request, NULL, plan, error);
}

enum shoal_status plan_again_raw(
    const struct shoal_plan *plan, struct shoal_plan **again, struct shoal_error *error)
{
    struct shoal_request request = plan->job.request;

    request.wire = SHOAL_WIRE_RAW;
    return create(plan->job.model, &request, plan, again, error);
}

void shoal_plan_destroy(struct shoal_plan **plan)
{
    struct shoal_plan *p = plan ? *plan : NULL;

    if (!p) return;
    planner_release(&p->solution);
    counts_fini(p->counts);
    for (int i = 0; i < SHOAL_PHASES; i++)
        packing_fini(&p->packings[i]);
    request_adapters_close(&p->adapters);
    job_fini(&p->job);
    target_close(&p->target);
    mem_free(p->text);
    mem_free(p->refusal);
    mem_free(p->json);
    mem_free(p);
    *plan = NULL;
}

/* Of the steps. */
static int32_t patched_blocks(const struct shoal_plan *plan)
{
    struct phase_pass p = job_phase(&plan->job, SHOAL_PHASE_STEPS);
    int32_t count = 0;

    for (int32_t i = 0; i < p.pass->count; i++)
        count += patches_of(&plan->adapters.patches, p.model, p.pass->first + i) != NULL;
    return count;
}

void shoal_plan_summarise(const struct shoal_plan *plan, struct shoal_plan_summary *summary)
{
    const struct plan_phase *steps = &plan->solution.phases[SHOAL_PHASE_STEPS];
    struct phase_pass p = job_phase(&plan->job, SHOAL_PHASE_STEPS);
    uint64_t walks = step_walks(&plan->job, plan->lanes);
    const bool widened = plan_widens(plan) && steps->packs;

    *summary = (struct shoal_plan_summary){
        .fits = plan->solution.fits,
        .packs = steps->packs && !plan_widens(plan),
        .vram_bytes = plan->job.request.vram_bytes,
        .peak_vram_bytes = plan->solution.fits ? plan->solution.peak_bytes : 0,
        .least_vram_bytes = plan->least_bytes,
        .full_vram_bytes = plan->full_bytes,
        .ram_bytes = plan->solution.ram_bytes,
        .least_ram_bytes = plan->least_ram_bytes,
        .dit_weight_bytes = weight_bytes(p.model),
        .step_copy_bytes = steps->stream_bytes * walks,
        .step_disk_bytes = steps->disk_bytes * walks,
        .step_operations = plan->counts[SHOAL_PHASE_STEPS].operations,
        .blocks = steps->block_count,
        .resident_blocks = steps->resident_count,
        .packed_blocks = widened || steps->patched ? 0 : steps->packed_count,
        .widened_blocks = widened ? steps->packed_count : 0,
        .patched_blocks = patched_blocks(plan),
        .lora_bytes = plan->adapters.host_bytes,
        .lora_read_bytes = plan->adapters.read_bytes,
        .disk_blocks = steps->disk_count,
        .prefetch_slots = steps->slots,
        .lanes = plan->lanes,
        .strip_blocks = plan->counts[SHOAL_PHASE_DECODE].strip_blocks,
        .rates_threads = (int32_t)min_u64(plan->rates.threads, INT32_MAX),
        .step_seconds = steps->walk_seconds * (double)walks,
        .first_step_seconds = steps->first_walk_seconds + steps->walk_seconds * (double)(walks - 1),
        .seconds = plan->solution.seconds,
        .width = plan->job.request.width,
        .height = plan->job.request.height,
        .calls = plan->job.calls,
    };
    if (plan->job.calls > 1) return;
    /* The only step is the first. */
    summary->step_disk_bytes = steps->first_disk_bytes + steps->disk_bytes * (walks - 1);
    summary->step_seconds = summary->first_step_seconds;
}

enum shoal_status shoal_plan_lora(const struct shoal_plan *plan, size_t index,
    struct shoal_lora_info *info, struct shoal_error *error)
{
    const struct adapter *a;

    if (index >= (size_t)plan->adapters.count)
        FAIL(error, SHOAL_E_INVALID, "the plan has no adapter %zu: it has %d", index,
            (int)plan->adapters.count);
    a = plan->adapters.uses[index].adapter;
    *info = (struct shoal_lora_info){.path = a->path,
        .strength = plan->adapters.uses[index].strength,
        .modules = a->modules,
        .unmatched = a->unmatched,
        .bytes = a->factor_bytes};
    for (int32_t i = 0; i < ADAPTER_SHOWN && i < a->unmatched; i++)
        info->unmatched_names[i] = a->unmatched_names[i];
    return SHOAL_OK;
}

const char *shoal_plan_text(const struct shoal_plan *plan)
{
    return plan->text;
}
const char *shoal_plan_json(const struct shoal_plan *plan)
{
    return plan->json;
}
const char *shoal_plan_refusal(const struct shoal_plan *plan)
{
    return plan->refusal;
}
