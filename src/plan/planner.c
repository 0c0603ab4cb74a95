/* The planner. */
#include "plan/planner.h"

#include "base/memory.h"
#include "base/size.h"

#include <string.h>

/*
 * Marks `count` of the blocks resident, spread evenly: the j-th goes to the block nearest
 * (j + 1/2) N / count, so that every gap between streamed blocks has compute to hide copies under.
 */
static void spread(bool *resident, int32_t blocks, int32_t count)
{
    memset(resident, 0, (size_t)blocks * sizeof *resident);
    for (int64_t j = 0; j < count; j++)
        resident[(2 * j + 1) * blocks / (2 * count)] = true;
}

/* Fills the phase for a choice of residents and slots. */
static void lay_out(
    const struct plan_input *in, int32_t residents, int32_t slots, struct plan_phase *out)
{
    uint64_t largest = 0, waiting = 0, passing = in->globals_bytes;

    spread(out->resident, in->block_count, residents);
    out->resident_count = residents;
    out->resident_bytes = out->stream_bytes = 0;
    for (int32_t i = 0; i < in->block_count; i++) {
        uint64_t bytes = in->block_bytes[i];

        if (out->resident[i]) {
            out->resident_bytes += bytes;
            if (bytes > passing) passing = bytes;
        } else {
            out->stream_bytes += bytes;
            waiting += size_align(bytes, HOST_PAGE_BYTES);
            if (bytes > largest) largest = bytes;
        }
    }
    out->slots = out->stream_bytes ? slots : 0;
    out->ring_bytes = largest * (uint64_t)slots;
    if (out->ring_bytes > out->stream_bytes) out->ring_bytes = out->stream_bytes;
    out->globals_bytes = in->globals_bytes;
    out->scratch_bytes = in->scratch_bytes;
    out->peak_bytes =
        out->globals_bytes + out->resident_bytes + out->ring_bytes + out->scratch_bytes;
    /* Residents pass through one by one, before the streamed ones come to stay. */
    passing = size_align(passing, HOST_PAGE_BYTES);
    out->ram_bytes = waiting > passing ? waiting : passing;
}

/* The slots that the limits allow: [least, most], and the first to try when automatic. */
struct slot_range {
    int32_t least, first, most;
};

static struct slot_range slot_range(const struct plan_input *in, const struct plan_limits *limits)
{
    if (!in->main) return (struct slot_range){1, 2, 2};
    if (limits->buffer == SHOAL_BUFFER_SINGLE) return (struct slot_range){1, 1, 1};
    if (limits->prefetch_slots != SHOAL_AUTO)
        return (struct slot_range){
            limits->prefetch_slots, limits->prefetch_slots, limits->prefetch_slots};
    if (limits->buffer == SHOAL_BUFFER_DOUBLE) return (struct slot_range){2, 2, PLAN_MAX_SLOTS};
    return (struct slot_range){1, 2, PLAN_MAX_SLOTS};
}

static bool fits(const struct plan_phase *phase, const struct plan_limits *limits)
{
    return phase->peak_bytes <= limits->vram_bytes && phase->ram_bytes <= limits->ram_bytes;
}

static void solve_phase(
    const struct plan_input *in, const struct plan_limits *limits, struct plan_phase *out)
{
    struct slot_range slots = slot_range(in, limits);
    bool fixed = in->main && limits->resident_blocks != SHOAL_AUTO;
    int32_t most = fixed ? limits->resident_blocks : in->block_count;
    int32_t least = fixed ? limits->resident_blocks : 0;

    lay_out(in, in->block_count, 0, out);
    out->full_bytes = out->peak_bytes;
    lay_out(in, least, slots.least, out);
    out->least_bytes =
        out->peak_bytes < out->full_bytes || fixed ? out->peak_bytes : out->full_bytes;
    /* The shallowest ring leaves most for residents, and what is resident does not wait in RAM. */
    out->least_ram_bytes = SHOAL_UNLIMITED;
    for (int32_t residents = most; residents >= least; residents--) {
        lay_out(in, residents, slots.least, out);
        if (out->peak_bytes <= limits->vram_bytes && out->ram_bytes < out->least_ram_bytes)
            out->least_ram_bytes = out->ram_bytes;
    }
    /* Residency beats prefetch depth: as many residents as fit beside a double buffer... */
    for (int32_t residents = most; residents >= least; residents--) {
        lay_out(in, residents, slots.first, out);
        if (!fits(out, limits)) continue;
        /* ...and what is left of the budget deepens the ring. */
        for (int32_t s = slots.first + 1; s <= slots.most && out->slots; s++) {
            lay_out(in, residents, s, out);
            if (fits(out, limits)) continue;
            lay_out(in, residents, s - 1, out);
            break;
        }
        return;
    }
    for (int32_t residents = most; residents >= least; residents--) {
        lay_out(in, residents, slots.least, out);
        if (fits(out, limits)) return;
    }
    /* Nothing fits: show the least. */
}

static enum shoal_status check_limits(
    const struct plan_input *main, const struct plan_limits *limits, struct shoal_error *error)
{
    if (limits->resident_blocks != SHOAL_AUTO &&
        (limits->resident_blocks < 0 || (main && limits->resident_blocks > main->block_count)))
        FAIL(error, SHOAL_E_INVALID,
            "resident blocks: %d is not between 0 and %d, the number of blocks that run in a step",
            limits->resident_blocks, main ? main->block_count : 0);
    if (limits->prefetch_slots == SHOAL_AUTO) return SHOAL_OK;
    if (limits->prefetch_slots < 2 || limits->prefetch_slots > PLAN_MAX_SLOTS)
        FAIL(error, SHOAL_E_INVALID,
            "prefetch slots: %d is not between 2 and %d; for a single slot use the single buffer",
            limits->prefetch_slots, PLAN_MAX_SLOTS);
    if (limits->buffer == SHOAL_BUFFER_SINGLE)
        FAIL(error, SHOAL_E_INVALID,
            "prefetch slots and the single buffer exclude each other: a single buffer is one slot");
    return SHOAL_OK;
}

enum shoal_status planner_solve(const struct plan_input *inputs, int32_t count,
    const struct plan_limits *limits, struct plan_solution *solution, struct shoal_error *error)
{
    const struct plan_input *main = NULL;

    *solution = (struct plan_solution){.phase_count = count, .fits = true, .fits_ram = true};
    for (int32_t i = 0; i < count; i++)
        if (inputs[i].main) main = &inputs[i];
    TRY(check_limits(main, limits, error));
    for (int32_t i = 0; i < count; i++) {
        struct plan_phase *phase = &solution->phases[i];

        phase->name = inputs[i].name;
        phase->block_count = inputs[i].block_count;
        phase->resident = mem_calloc((size_t)inputs[i].block_count, sizeof *phase->resident);
        if (!phase->resident) {
            planner_release(solution);
            FAIL_MEMORY(error);
        }
        solve_phase(&inputs[i], limits, phase);
        if (phase->peak_bytes > limits->vram_bytes) solution->fits = false;
        if (phase->ram_bytes > limits->ram_bytes) solution->fits = solution->fits_ram = false;
        if (phase->peak_bytes > solution->peak_bytes) solution->peak_bytes = phase->peak_bytes;
        if (phase->ram_bytes > solution->ram_bytes) solution->ram_bytes = phase->ram_bytes;
        if (phase->least_ram_bytes > solution->least_ram_bytes)
            solution->least_ram_bytes = phase->least_ram_bytes;
        if (phase->least_bytes > solution->least_bytes) solution->least_bytes = phase->least_bytes;
        if (phase->full_bytes > solution->full_bytes) solution->full_bytes = phase->full_bytes;
    }
    return SHOAL_OK;
}

void planner_release(struct plan_solution *solution)
{
    for (int32_t i = 0; i < solution->phase_count; i++)
        mem_free(solution->phases[i].resident);
    *solution = (struct plan_solution){0};
}
