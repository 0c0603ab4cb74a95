/* What the planner is told of a phase: the forms that its blocks can have. */
#include "pipeline/plan.h"

enum shoal_status plan_block_forms(const struct block *block, const struct cargo_room *rooms,
    struct plan_block_input *input, struct shoal_error *error)
{
    struct cargo_size size;

    TRY(cargo_measure(block, NULL, NULL, &size, error));
    input->raw = (struct plan_form){.bytes = block->bytes};
    if (size.packed) {
        input->packed = (struct plan_form){size.bytes, size.image_bytes};
        input->unpacked_bytes = block->bytes;
    } else {
        input->raw.host_bytes = size.image_bytes;
        if (!rooms) return SHOAL_OK;
        TRY(cargo_measure(block, rooms, NULL, &size, error));
        input->packed = (struct plan_form){size.bytes, size.image_bytes};
        if (size.packed) input->unpacked_bytes = block->bytes; /* else it is widened */
    }
    return SHOAL_OK;
}

/* Whether the files will be packed when the plan is run. */
static bool copy_expected(const struct shoal_plan *plan, const struct model *model)
{
    const struct shoal_model *parts = plan->job.model;

    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        if (parts->parts[kind] == model) return parts->copy_expected[kind];
    return false;
}

bool plan_widens(const struct shoal_plan *plan)
{
    return plan->job.request.host_format == SHOAL_HOST_FORMAT_COMPUTE;
}

/* Whether adapters change any of a phase's blocks, the globals apart. Then none of it is packed
 * while it is read. */
static bool phase_is_patched(const struct shoal_plan *plan, enum shoal_phase phase)
{
    struct phase_pass p = job_phase(&plan->job, phase);

    for (int32_t i = 0; i < p.pass->count; i++)
        if (patches_of(&plan->adapters.patches, p.model, p.pass->first + i)) return true;
    return false;
}

/* Looks what of a phase's blocks packs or widens, once, where that can matter. */
static enum shoal_status sample(
    struct shoal_plan *plan, enum shoal_phase phase, int64_t walks, struct shoal_error *error)
{
    struct phase_pass p = job_phase(&plan->job, phase);

    if (plan->sampled[phase]) return SHOAL_OK;
    if (plan_widens(plan)) {
        TRY(packing_init_widening(
            &plan->packings[phase], p.model, p.pass, &plan->adapters.patches, error));
        plan->sampled[phase] = true;
        return SHOAL_OK;
    }
    if (!copy_expected(plan, p.model) &&
        (!plan->may_pack || walks == 1 || phase_is_patched(plan, phase)))
        return SHOAL_OK;
    TRY(packing_init(&plan->packings[phase], p.model, p.pass, error));
    plan->sampled[phase] = true;
    return SHOAL_OK;
}

static enum shoal_status globals_input(const struct shoal_plan *plan, struct phase_pass p,
    struct plan_input *input, struct shoal_error *error)
{
    const struct block *globals = &p.model->blocks[p.pass->globals];
    struct cargo_size size;

    TRY(cargo_measure(globals, NULL, patches_of(&plan->adapters.patches, p.model, p.pass->globals),
        &size, error));
    if (size.packed)
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: weights that stay on the device all the time are packed, which shoal convert "
            "never does: convert the original again",
            globals->weights[0].pieces[0]->file->path);
    input->globals = (struct plan_form){size.open_bytes, size.image_bytes};
    if (size.opens) input->globals_crossing_bytes = size.bytes;
    return SHOAL_OK;
}

/* A block that adapters change: as its files have it with the factors, to be patched on the device,
 * or baked where that is asked for. What is resident is patched once. */
static enum shoal_status patched_forms(const struct shoal_plan *plan, const struct block *block,
    const struct block_patch *patch, const struct cargo_room *rooms, bool bakes,
    struct plan_block_input *input, struct shoal_error *error)
{
    struct cargo_size stored, baked;
    struct work work = {.operations = {[WORK_LINEAR] = 2 * block_patch_operations(patch, block)}};

    TRY(cargo_measure(block, bakes ? NULL : rooms, patch, &stored, error));
    input->raw.bytes = stored.open_bytes;
    input->crossing_bytes = stored.bytes;
    work.traffic = (double)stored.bytes + (double)stored.open_bytes;
    input->patch_seconds = rates_seconds(&plan->rates, &work);
    if (!bakes) {
        input->packed = (struct plan_form){stored.bytes, stored.image_bytes};
        input->unpacked_bytes = stored.open_bytes;
        return SHOAL_OK;
    }
    TRY(cargo_measure(block, rooms, patch, &baked, error));
    input->raw.host_bytes = stored.image_bytes;
    input->packed = (struct plan_form){baked.bytes, baked.image_bytes};
    input->patch_seconds = 0; /* the host's */
    return SHOAL_OK;
}

/* One block of a phase. */
static enum shoal_status block_input(const struct shoal_plan *plan, enum shoal_phase phase,
    int32_t position, struct plan_block_input *block, struct plan_input *input,
    struct shoal_error *error)
{
    struct phase_pass p = job_phase(&plan->job, phase);
    const int32_t index = p.pass->first + position;
    const struct block_patch *patch = patches_of(&plan->adapters.patches, p.model, index);
    const struct cargo_room *rooms = packing_rooms(&plan->packings[phase], position);
    const bool made = rooms && !copy_expected(plan, p.model); /* while it is read */
    const bool bakes = patch && made && input->walks > 1;

    if (patch)
        TRY(patched_forms(plan, &p.model->blocks[index], patch, made && !bakes ? NULL : rooms,
            bakes, block, error));
    else
        TRY(plan_block_forms(&p.model->blocks[index],
            input->patched && input->source == PLAN_SOURCE_PACKED && made ? NULL : rooms, block,
            error));
    if (!block->packed.bytes || bakes || (!patch && made)) return SHOAL_OK;
    input->source = PLAN_SOURCE_PACKED;
    block->raw.host_bytes = 0; /* the files hold the other form only */
    return SHOAL_OK;
}

/* Whether a phase's files hold payloads, or are planned with as if they did. */
static enum shoal_status holds_payloads(
    const struct shoal_plan *plan, enum shoal_phase phase, bool *holds, struct shoal_error *error)
{
    struct phase_pass p = job_phase(&plan->job, phase);
    struct cargo_size size;

    *holds = copy_expected(plan, p.model);
    for (int32_t i = 0; i < p.pass->count && !*holds; i++) {
        TRY(cargo_measure(&p.model->blocks[p.pass->first + i], NULL, NULL, &size, error));
        *holds = size.packed;
    }
    return SHOAL_OK;
}

enum shoal_status plan_phase_input(struct shoal_plan *plan, enum shoal_phase phase, int32_t lanes,
    const struct phase_count *count, struct plan_block_input *blocks, struct plan_input *input,
    struct shoal_error *error)
{
    const struct job *job = &plan->job;
    struct phase_pass p = job_phase(job, phase);

    *input = (struct plan_input){
        .name = shoal_phase_name(phase),
        .block_count = p.pass->count,
        .blocks = blocks,
        .scratch_bytes = count->scratch_bytes,
        .walks = job_walks(job, phase, lanes),
        .main = phase == SHOAL_PHASE_STEPS,
    };
    if (p.pass->globals >= 0) TRY(globals_input(plan, p, input, error));
    TRY(sample(plan, phase, input->walks, error));
    if (phase_is_patched(plan, phase)) {
        bool payloads;

        TRY(holds_payloads(plan, phase, &payloads, error));
        /* Else the patched blocks are baked. */
        input->patched = !payloads && !(plan_widens(plan) && input->walks > 1);
        if (input->patched) input->source = PLAN_SOURCE_PACKED;
    }
    for (int32_t i = 0; i < p.pass->count; i++) {
        TRY(block_input(plan, phase, i, &blocks[i], input, error));
        blocks[i].compute_seconds = rates_seconds(&plan->rates, &count->blocks[i]);
    }
    return SHOAL_OK;
}
