/* Making a plan: the job run on the counting device, then the planner's arithmetic. */
#include "pipeline/plan.h"

#include "base/memory.h"
#include "base/size.h"
#include "device/count/count.h"

/* ---- the counting stage ---- */

struct count_stage {
    struct stage stage; /* first */
    struct phase_count *counts;
    struct count_totals before;
};

static enum shoal_status count_begin(
    struct stage *stage, const struct job *job, enum shoal_phase phase, struct shoal_error *error)
{
    struct count_stage *c = (struct count_stage *)stage;

    (void)job, (void)phase, (void)error;
    region_reset_high_water(stage->exec.scratch);
    c->before = count_read(stage->exec.device);
    return SHOAL_OK;
}

static enum shoal_status count_end(
    struct stage *stage, enum shoal_phase phase, struct shoal_error *error)
{
    struct count_stage *c = (struct count_stage *)stage;
    struct count_totals now = count_read(stage->exec.device);

    (void)error;
    c->counts[phase] = (struct phase_count){
        .scratch_bytes = region_high_water(stage->exec.scratch),
        .operations = now.operations - c->before.operations,
        .traffic = now.traffic - c->before.traffic,
    };
    return SHOAL_OK;
}

/* Weights have no place when counting, but every matrix has an address. */
static device_addr count_globals(struct stage *stage)
{
    return stage->exec.device->arena;
}

static device_addr count_acquire(struct stage *stage, int32_t block)
{
    (void)block;
    return stage->exec.device->arena;
}

static void count_release(struct stage *stage, int32_t block)
{
    (void)stage, (void)block;
}

/* Runs the job on the counting device with so many lanes to a walk. */
static enum shoal_status count_job(const struct job *job, int32_t lanes,
    struct phase_count counts[SHOAL_PHASES], struct shoal_error *error)
{
    struct count_stage c = {.stage = {.lanes = lanes,
                                .steps = 1,
                                .begin = count_begin,
                                .end = count_end,
                                .globals = count_globals,
                                .acquire = count_acquire,
                                .release = count_release},
        .counts = counts};
    struct job_output output = {0};
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct region *scratch = NULL;
    enum shoal_status status;

    TRY(count_create(&device, error));
    TRY_OR_FAIL(device->ops->arena_reserve(device, 1u << 20, error));
    TRY_OR_FAIL(device->ops->stream_create(device, false, &stream, error));
    TRY_OR_FAIL(region_create(&scratch, 1ull << 60, error));
    exec_init(&c.stage.exec, device, stream, scratch, 1ull << 61);
    status = job_run(job, &c.stage, &output, error);
fail:
    region_destroy(&scratch);
    if (stream) device->ops->stream_destroy(&stream);
    device_destroy(&device);
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

/* The phase's blocks as the planner wants them: raw, and arithmetic shared out by weight. */
static void fill_blocks(const struct phase_pass *p, const struct rates *rates, uint64_t operations,
    struct plan_block_input *blocks)
{
    uint64_t bytes = 0;

    for (int32_t k = 0; k < p->pass->count; k++)
        bytes += p->model->blocks[p->pass->first + k].bytes;
    for (int32_t k = 0; k < p->pass->count; k++) {
        uint64_t own = p->model->blocks[p->pass->first + k].bytes;

        blocks[k].raw = (struct plan_form){own, size_align(own, HOST_PAGE_BYTES)};
        blocks[k].compute_seconds =
            bytes ? (double)operations / rates->flops[WORK_LINEAR] * (double)own / (double)bytes
                  : 0;
    }
}

/* The planner's answer for the phases as counted. */
static enum shoal_status solve(const struct job *job, const struct phase_count *counts,
    int32_t lanes, struct plan_solution *solution, struct shoal_error *error)
{
    struct plan_input inputs[SHOAL_PHASES];
    struct rates rates;
    const struct plan_limits limits = {
        .vram_bytes = job->request.vram_bytes,
        .ram_bytes = job->request.ram_bytes,
        .resident_blocks = job->request.resident_blocks,
        .prefetch_slots = job->request.prefetch_slots,
        .buffer = job->request.buffer,
        .wire = job->request.wire,
        .rates = &rates,
    };
    struct plan_block_input *blocks, *next;
    size_t total = 0;

    rates_guess(&rates, job->request.threads);
    for (int i = 0; i < SHOAL_PHASES; i++)
        total += (size_t)job_phase(job, (enum shoal_phase)i).pass->count;
    blocks = next = mem_calloc(total, sizeof *blocks);
    if (!blocks) FAIL_MEMORY(error);
    for (int i = 0; i < SHOAL_PHASES; i++) {
        struct phase_pass p = job_phase(job, (enum shoal_phase)i);
        int64_t walks = job_walks(job, (enum shoal_phase)i, lanes);
        /* One step is counted. */
        int64_t counted = i == SHOAL_PHASE_STEPS ? walks / job->request.steps : walks;
        uint64_t globals = p.pass->globals >= 0 ? p.model->blocks[p.pass->globals].bytes : 0;

        inputs[i] = (struct plan_input){
            .name = shoal_phase_name((enum shoal_phase)i),
            .block_count = p.pass->count,
            .blocks = next,
            .globals = {globals, size_align(globals, HOST_PAGE_BYTES)},
            .scratch_bytes = counts[i].scratch_bytes,
            .walks = walks,
            .main = i == SHOAL_PHASE_STEPS,
        };
        fill_blocks(&p, &rates, counts[i].operations / (uint64_t)counted, next);
        next += p.pass->count;
    }
    enum shoal_status status = planner_solve(inputs, SHOAL_PHASES, &limits, solution, error);

    mem_free(blocks);
    return status;
}

/* Bytes that a step copies, over all its walks: what the choice of lanes is judged by. */
static uint64_t step_bytes(const struct job *job, const struct plan_solution *s, int32_t lanes)
{
    uint64_t walks = (uint64_t)job_walks(job, SHOAL_PHASE_STEPS, lanes);

    return s->phases[SHOAL_PHASE_STEPS].stream_bytes * walks / (uint64_t)job->request.steps;
}

/*
 * Tries all lanes together, then halves of that down to one: fewer lanes to a walk need less
 * scratch, which leaves more for residents, but walk the streamed blocks more often.
 */
static enum shoal_status choose_lanes(struct shoal_plan *plan, struct shoal_error *error)
{
    int32_t all = job_lane_count(&plan->job), fixed = plan->job.request.lanes;
    int32_t lanes = fixed != SHOAL_AUTO && fixed < all ? fixed : all;
    bool have = false;

    plan->least_bytes = plan->full_bytes = plan->least_ram_bytes = SHOAL_UNLIMITED;
    for (;; lanes = (lanes + 1) / 2) {
        struct phase_count counts[SHOAL_PHASES];
        struct plan_solution s;
        bool better;

        TRY(count_job(&plan->job, lanes, counts, error));
        TRY(solve(&plan->job, counts, lanes, &s, error));
        if (s.least_bytes < plan->least_bytes) plan->least_bytes = s.least_bytes;
        if (s.full_bytes < plan->full_bytes) plan->full_bytes = s.full_bytes;
        if (s.least_ram_bytes < plan->least_ram_bytes) plan->least_ram_bytes = s.least_ram_bytes;
        better = !have || (s.fits && !plan->solution.fits) ||
                 (s.fits == plan->solution.fits && s.fits &&
                     step_bytes(&plan->job, &s, lanes) <
                         step_bytes(&plan->job, &plan->solution, plan->lanes)) ||
                 (!s.fits && !plan->solution.fits); /* the smaller one explains the refusal */
        if (better) {
            planner_release(&plan->solution);
            plan->solution = s;
            plan->lanes = lanes;
            for (int i = 0; i < SHOAL_PHASES; i++)
                plan->counts[i] = counts[i];
            have = true;
        } else {
            planner_release(&s);
        }
        if (lanes == 1 || fixed != SHOAL_AUTO) return SHOAL_OK;
    }
}

enum shoal_status shoal_plan_create(const struct shoal_model *model,
    const struct shoal_request *request, struct shoal_plan **plan, struct shoal_error *error)
{
    struct shoal_plan *p = mem_calloc(1, sizeof *p);
    enum shoal_status status;

    *plan = NULL;
    if (!p) FAIL_MEMORY(error);
    TRY_OR_FAIL(job_init(&p->job, model, request, error));
    TRY_OR_FAIL(choose_lanes(p, error));
    TRY_OR_FAIL(plan_explain(p, error));
    *plan = p;
    return SHOAL_OK;
fail:
    shoal_plan_destroy(&p);
    return status;
}

void shoal_plan_destroy(struct shoal_plan **plan)
{
    struct shoal_plan *p = plan ? *plan : NULL;

    if (!p) return;
    planner_release(&p->solution);
    job_fini(&p->job);
    mem_free(p->text);
    mem_free(p->refusal);
    mem_free(p->json);
    mem_free(p);
    *plan = NULL;
}

void shoal_plan_summarise(const struct shoal_plan *plan, struct shoal_plan_summary *summary)
{
    const struct plan_phase *steps = &plan->solution.phases[SHOAL_PHASE_STEPS];
    struct phase_pass p = job_phase(&plan->job, SHOAL_PHASE_STEPS);

    *summary = (struct shoal_plan_summary){
        .fits = plan->solution.fits,
        .vram_bytes = plan->job.request.vram_bytes,
        .peak_vram_bytes = plan->solution.fits ? plan->solution.peak_bytes : 0,
        .least_vram_bytes = plan->least_bytes,
        .full_vram_bytes = plan->full_bytes,
        .ram_bytes = plan->solution.ram_bytes,
        .least_ram_bytes = plan->least_ram_bytes,
        .dit_weight_bytes = weight_bytes(p.model),
        .step_copy_bytes = step_bytes(&plan->job, &plan->solution, plan->lanes),
        .step_operations = plan->counts[SHOAL_PHASE_STEPS].operations,
        .blocks = steps->block_count,
        .resident_blocks = steps->resident_count,
        .prefetch_slots = steps->slots,
        .lanes = plan->lanes,
    };
}

const char *shoal_plan_text(const struct shoal_plan *plan)
{
    return plan->text;
}
const char *shoal_plan_json(const struct shoal_plan *plan)
{
    return plan->json;
}
