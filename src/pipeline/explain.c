/* The explained plan: a table for a person, one JSON object for a program. */
#include "pipeline/plan.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *part_names[SHOAL_PHASES] = {
    "text encoder", "DiT context", "DiT steps", "VAE decode", "VAE encode"};

/* A file of the model that holds packed weights, best the DiT's; "a file" if there is none. */
static const char *packed_file(const struct job *job)
{
    for (int i = 0; i < job_phases(job); i++) {
        enum shoal_phase phase = (enum shoal_phase)((SHOAL_PHASE_STEPS + i) % job_phases(job));
        const struct model *model = job_phase(job, phase).model;

        for (int32_t k = 0; k < model->block_count; k++)
            for (int32_t w = 0; w < model->blocks[k].weight_count; w++) {
                const struct weight *weight = &model->blocks[k].weights[w];

                for (int32_t p = 0; p < weight->piece_count; p++)
                    if (weight->pieces[p]->packed) return weight->pieces[p]->file->path;
            }
    }
    return "a file";
}

static void refuse_raw(const struct shoal_plan *plan, struct text *t)
{
    char size[SIZE_TEXT_BYTES];

    text_append(t, "--wire raw: %s holds packed weights, which cannot stream raw: leave --wire out",
        packed_file(&plan->job));
    if (plan->least_bytes != SHOAL_UNLIMITED)
        text_append(t, ", or give --vram %llu (%s), with which none of them streams",
            (unsigned long long)plan->least_bytes, size_format_up(size, plan->least_bytes));
}

/* "--vram 8 (8 B)": whoever writes that means something else. */
static void refuse_size(struct text *text, const char *option, uint64_t bytes)
{
    char size[SIZE_TEXT_BYTES];

    text_append(text, "%s %llu (%s%s) is too small", option, (unsigned long long)bytes,
        size_format(size, bytes), bytes < (1 << 20) ? "; is a unit missing, as in 8GiB?" : "");
}

void plan_refuse_vram(struct text *text, const struct target *target, bool all, uint64_t vram_bytes,
    uint64_t least_bytes)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    size_format(a, vram_bytes);
    size_format_up(b, least_bytes);
    if (target->device && all) {
        text_append(text, "%s has %s free; the least that works with these options is %s",
            target->name, a, b);
        return;
    }
    if (all)
        text_append(text, "the memory of %s, %s, is too small", target->name, a);
    else
        refuse_size(text, "--vram", vram_bytes);
    text_append(text, ": the least that works with these options is --vram %llu (%s)",
        (unsigned long long)least_bytes, b);
}

void plan_refuse_ram(struct text *text, uint64_t ram_bytes, uint64_t least_bytes)
{
    char size[SIZE_TEXT_BYTES];

    refuse_size(text, "--ram", ram_bytes);
    text_append(text, ": the least that works beside this --vram is --ram %llu (%s)",
        (unsigned long long)least_bytes, size_format_up(size, least_bytes));
}

static void refuse_widening(struct text *text)
{
    text_append(text, "; what is widened while it is read waits there, codes may wait on disk: "
                      "leave --host-format out");
}

void plan_refuse_packs(struct text *text)
{
    text_append(text, "; what is packed while it is read waits there, plain weights may wait on "
                      "disk: leave --wire out");
}

enum shoal_status plan_check_fits(const struct plan_solution *s, const struct target *target,
    bool all, uint64_t vram_bytes, uint64_t ram_bytes, struct shoal_error *error)
{
    struct text t = {0};

    if (s->fits) return SHOAL_OK;
    if (vram_bytes < s->least_bytes) {
        plan_refuse_vram(&t, target, all, vram_bytes, s->least_bytes);
    } else {
        plan_refuse_ram(&t, ram_bytes, s->least_ram_bytes);
        if (s->phases[0].packs) plan_refuse_packs(&t);
    }
    if (t.failed)
        error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
    else
        error_set(error, SHOAL_E_BUDGET, __FILE__, __LINE__, "%s", t.data);
    mem_free(t.data);
    return t.failed ? SHOAL_E_MEMORY : SHOAL_E_BUDGET;
}

static void refuse_ram(const struct shoal_plan *plan, struct text *t)
{
    const struct process_memory *process = &plan->process;
    char size[SIZE_TEXT_BYTES];

    plan_refuse_ram(t, plan->job.request.ram_bytes, plan->least_ram_bytes);
    if (process->largest_bytes > process->bytes / 4)
        text_append(t, ", of which reading %s takes %s", process->largest_path,
            size_format(size, process->largest_bytes));
}

/* Why the plan cannot run, and what would. */
static void explain_refusal(const struct shoal_plan *plan, struct text *t)
{
    if (plan->solution.needs_packed)
        refuse_raw(plan, t);
    else if (plan->job.request.vram_bytes < plan->least_bytes)
        plan_refuse_vram(t, &plan->target, plan->whole_card || plan->capped,
            plan->job.request.vram_bytes, plan->least_bytes);
    else
        refuse_ram(plan, t);
    if (!plan->solution.phases[SHOAL_PHASE_STEPS].packs) return;
    if (plan_widens(plan))
        refuse_widening(t);
    else if (plan->job.request.wire == SHOAL_WIRE_PACKED)
        plan_refuse_packs(t);
}

#define HOUR 3600

/* "1.25 s", "14 ms", "3 min 20 s", "7 h 5 min", "3 d 1 h": into `text`, which is returned. */
static char *format_seconds(char text[SIZE_TEXT_BYTES], double seconds)
{
    if (seconds < 1)
        snprintf(text, SIZE_TEXT_BYTES, "%.3g ms", seconds * 1e3);
    else if (seconds < 120)
        snprintf(text, SIZE_TEXT_BYTES, "%.3g s", seconds);
    else if (seconds < HOUR)
        snprintf(text, SIZE_TEXT_BYTES, "%d min %d s", (int)(seconds / 60), (int)seconds % 60);
    else if (seconds < 48 * HOUR)
        snprintf(
            text, SIZE_TEXT_BYTES, "%d h %d min", (int)(seconds / HOUR), (int)(seconds / 60) % 60);
    else
        snprintf(text, SIZE_TEXT_BYTES, "%.0f d %d h", floor(seconds / (24 * HOUR)),
            (int)(fmod(seconds, 24 * HOUR) / HOUR));
    return text;
}

static const char *limit_name(enum plan_limit limit)
{
    static const char *const names[] = {[PLAN_LIMIT_COMPUTE] = "arithmetic",
        [PLAN_LIMIT_LINK] = "link",
        [PLAN_LIMIT_DISK] = "disk"};

    return names[limit];
}

#define PHASE_FORMAT "  %-12s  %8s  %9s  %5s  %9s  %9s  %9s  %9s  %9s  %10s\n"

static void explain_phase(const struct shoal_plan *plan, int index, struct text *t)
{
    const struct plan_phase *p = &plan->solution.phases[index];
    char blocks[32], size[5][SIZE_TEXT_BYTES], seconds[SIZE_TEXT_BYTES], slots[16] = "-";

    snprintf(blocks, sizeof blocks, "%d of %d", p->resident_count, p->block_count);
    if (p->slots) snprintf(slots, sizeof slots, "%d", p->slots);
    text_append(t, PHASE_FORMAT, part_names[index], blocks,
        size_format(size[0], p->globals_bytes + p->resident_bytes), slots,
        size_format(size[1], p->ring_bytes + p->unpack_bytes),
        size_format(size[2], p->scratch_bytes), size_format(size[3], p->peak_bytes),
        size_format(size[4], p->stream_bytes), format_seconds(seconds, p->seconds),
        limit_name(p->limit));
}

/* "1.91 GFLOP", "55.1 TFLOP": into `text`, which is returned. */
static char *format_operations(char text[SIZE_TEXT_BYTES], uint64_t operations)
{
    static const char units[] = "GTP";
    double count = (double)operations * 1e-9;
    int unit = 0;

    for (; count >= 1000 && unit < 2; unit++)
        count *= 1e-3;
    snprintf(text, SIZE_TEXT_BYTES, "%.3g %cFLOP", count, units[unit]);
    return text;
}

/* Whose rates the predictions go by. What is published of a card says nothing of the machine that
 * it is in: its link and its drive are assumed. */
static void explain_rates(const struct rates *rates, struct text *t)
{
    if (rates->origin == RATES_GUESSED)
        text_append(t, "rates guessed: shoal bench links measures this machine");
    else if (rates->origin == RATES_MEASURED)
        text_append(t, "rates measured: %s", rates->name);
    else
        text_append(t, "rates as published: %s; link %.3g GB/s, disk %.3g GB/s assumed",
            rates->name, rates->link_bytes * 1e-9, rates->disk_bytes * 1e-9);
}

static void explain_time(
    const struct shoal_plan *plan, const struct shoal_plan_summary *s, struct text *t)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    text_append(t, "predicted: %s a step, limited by %s; ", format_seconds(a, s->step_seconds),
        limit_name(plan->solution.phases[SHOAL_PHASE_STEPS].limit));
    if (plan->job.calls > 1)
        text_append(t, "%s the first, which loads; ", format_seconds(a, s->first_step_seconds));
    text_append(t, "%s in all (", format_seconds(b, s->seconds));
    explain_rates(&plan->rates, t);
    text_append(t, ")\n");
}

static void explain_steps(const struct shoal_plan *plan, struct text *t)
{
    struct shoal_plan_summary s;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    int32_t all = job_lane_count(&plan->job);
    const bool alone = plan->job.calls == 1;

    shoal_plan_summarise(plan, &s);
    text_append(t, "a step: %s", format_operations(b, s.step_operations));
    if (s.resident_blocks < s.blocks)
        text_append(t, ", %s copied to the device (%d of %d blocks stream)",
            size_format(a, s.step_copy_bytes), s.blocks - s.resident_blocks, s.blocks);
    else
        text_append(t,
            alone ? ", all %d blocks stay on the device"
                  : ", nothing copied after the first (all %d blocks stay on the device)",
            s.blocks);
    if (alone)
        text_append(t, ", %s read from disk", size_format(a, s.step_disk_bytes));
    else if (s.disk_blocks)
        text_append(t, ", %s read from disk (%d block%s)", size_format(a, s.step_disk_bytes),
            s.disk_blocks, s.disk_blocks == 1 ? "" : "s");
    if (s.packed_blocks)
        text_append(t, "; %d block%s packed%s", s.packed_blocks,
            s.packed_blocks == 1 ? " is" : "s are", s.packs ? " while they are read" : "");
    if (s.widened_blocks)
        text_append(t, "; %d block%s widened to 16 bits while they are read", s.widened_blocks,
            s.widened_blocks == 1 ? " is" : "s are");
    if (s.patched_blocks)
        text_append(t, "; %d block%s patched by adapters", s.patched_blocks,
            s.patched_blocks == 1 ? " is" : "s are");
    if (all > 1 && s.lanes >= all)
        text_append(t, "; its %d lanes share one pass over the blocks", all);
    else if (all > 1)
        text_append(
            t, "; its %d lanes take %d passes over the blocks", all, (all + s.lanes - 1) / s.lanes);
    text_append(t, "\n");
    explain_time(plan, &s, t);
}

static void explain_adapters(const struct shoal_plan *plan, struct text *t)
{
    char size[SIZE_TEXT_BYTES];

    for (int32_t i = 0; i < plan->adapters.count; i++) {
        const struct adapter_use *use = &plan->adapters.uses[i];

        text_append(t, "lora: %s, strength %g: %d module%s, %s in host memory\n",
            use->adapter->path, (double)use->strength, use->adapter->modules,
            use->adapter->modules == 1 ? "" : "s", size_format(size, use->adapter->factor_bytes));
    }
}

/* Whether and why decoding computes more than it need. */
static void explain_decode(const struct shoal_plan *plan, struct text *t)
{
    const struct phase_count *decode = &plan->counts[SHOAL_PHASE_DECODE];
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    if (!decode->strip_blocks) return;
    text_append(t,
        "decode: %d block%s %s in strips: %s of scratch in place of %s, for %.0f %% more "
        "arithmetic\n",
        decode->strip_blocks, decode->strip_blocks == 1 ? "" : "s",
        decode->strip_blocks == 1 ? "works" : "work", size_format(a, decode->scratch_bytes),
        size_format(b, plan->rungs.scratch_bytes),
        100 * ((double)decode->operations / (double)plan->rungs.operations - 1));
}

/* "6.00 MiB allowed", "no limit". */
static void explain_budget(const struct shoal_plan *plan, uint64_t bytes, struct text *t)
{
    char size[SIZE_TEXT_BYTES];

    if (bytes == SHOAL_UNLIMITED)
        text_append(t, "no limit");
    else
        text_append(t, "%s allowed", size_format(size, bytes));
    text_append(t, ", %s ", plan->solution.fits ? "peak" : "this plan needs");
}

static void explain_device(const struct shoal_plan *plan, struct text *t)
{
    char a[SIZE_TEXT_BYTES];

    text_append(t, "device memory: ");
    explain_budget(plan, plan->job.request.vram_bytes, t);
    text_append(t, "%s", size_format(a, plan->solution.peak_bytes));
    if (plan->target.context_bytes)
        text_append(t, " with %s%s for the driver and libraries",
            size_format(a, plan->target.context_bytes),
            plan->rates.origin == RATES_PUBLISHED && plan->target.elsewhere ? " assumed" : "");
    if (plan->least_bytes != SHOAL_UNLIMITED)
        text_append(t, "; %s is the least that works", size_format_up(a, plan->least_bytes));
    text_append(t, "; from %s on nothing streams\n", size_format_up(a, plan->full_bytes));
}

static void explain_host(const struct shoal_plan *plan, struct text *t)
{
    const struct plan_phase *most = &plan->solution.phases[0];
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], d[SIZE_TEXT_BYTES];

    for (int i = 1; i < job_phases(&plan->job); i++)
        if (plan->solution.phases[i].ram_bytes > most->ram_bytes) most = &plan->solution.phases[i];
    text_append(t, "host memory beside that: ");
    explain_budget(plan, plan->job.request.ram_bytes, t);
    text_append(t, "%s: %s of weights that wait, %s to read through, %s for the process",
        size_format(a, plan->solution.ram_bytes), size_format(b, most->tier_bytes),
        size_format(c, most->staging_bytes + most->packing_bytes),
        size_format(d, plan->process.bytes));
    if (plan->least_ram_bytes != SHOAL_UNLIMITED)
        text_append(t, "; %s is the least that works", size_format_up(a, plan->least_ram_bytes));
    text_append(t, "\n");
}

static double steps_seconds(const struct shoal_plan *plan)
{
    return plan->solution.phases[SHOAL_PHASE_STEPS].seconds;
}

/* Whether the next GiB, with which the steps would take `then`, is worth saying. */
static bool is_worth(const struct shoal_plan *plan, double then)
{
    return then > 0 && then < 0.97 * steps_seconds(plan);
}

static void explain_more(
    const struct shoal_plan *plan, const char *option, double then, struct text *t)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    if (is_worth(plan, then))
        text_append(t, "1 GiB more of %s: the steps would take %s in place of %s\n", option,
            format_seconds(a, then), format_seconds(b, steps_seconds(plan)));
}

/* Why wire packed packs nothing. */
static const char *vain_packing(const struct shoal_plan *plan)
{
    if (plan->solution.phases[SHOAL_PHASE_STEPS].patched)
        return "--wire packed has no effect with --lora: what adapters change crosses as its files "
               "have it (of files that shoal convert or --disk-cache packed, packed)";
    if (!plan->solution.phases[SHOAL_PHASE_STEPS].slots)
        return "--wire packed has no effect: every block is resident (set a smaller --vram or "
               "fewer "
               "--resident-blocks)";
    if (job_walks(&plan->job, SHOAL_PHASE_STEPS, plan->lanes) == 1)
        return "--wire packed has no effect: what crosses only once is not packed for that";
    return "--wire packed has no effect: none of the weights get smaller (BF16, F16 and FP8 do, in "
           "tensors of 64 KiB or more)";
}

/* Why nothing is widened. */
static const char *vain_widening(const struct shoal_plan *plan)
{
    if (!plan->solution.phases[SHOAL_PHASE_STEPS].slots)
        return "--host-format compute has no effect: every block is resident (set a smaller --vram "
               "or fewer --resident-blocks)";
    if (job_walks(&plan->job, SHOAL_PHASE_STEPS, plan->lanes) == 1)
        return "--host-format compute has no effect: what crosses only once is not widened for "
               "that";
    return "--host-format compute has no effect: only weights in FP8 are widened, and those that "
           "adapters change, of files that are not packed";
}

const char *plan_ring_options(int32_t prefetch_slots, enum shoal_buffer buffer)
{
    if (prefetch_slots != SHOAL_AUTO && buffer != SHOAL_BUFFER_AUTO)
        return "--prefetch-slots and --buffer have";
    if (prefetch_slots != SHOAL_AUTO) return "--prefetch-slots has";
    return buffer != SHOAL_BUFFER_AUTO ? "--buffer has" : NULL;
}

/* Of the settings that say how to run: those that change nothing here. */
static void note_settings(const struct shoal_plan *plan, json_t *notes, bool *failed)
{
    const struct shoal_request *r = &plan->job.request;
    const struct plan_phase *steps = &plan->solution.phases[SHOAL_PHASE_STEPS];
    int32_t all = job_lane_count(&plan->job);

    if (!steps->slots && plan_ring_options(r->prefetch_slots, r->buffer))
        json_append(notes,
            json_sprintf("%s no effect: every block is resident (set a smaller --vram or fewer "
                         "--resident-blocks)",
                plan_ring_options(r->prefetch_slots, r->buffer)),
            failed);
    /* Packed copies are read even if nothing of them crosses packed. */
    if (r->wire == SHOAL_WIRE_PACKED && (!steps->packed_count || steps->patched) &&
        !plan->job.model->copies)
        json_append(notes, json_string(vain_packing(plan)), failed);
    if (plan_widens(plan) && !(steps->packs && steps->packed_count))
        json_append(notes, json_string(vain_widening(plan)), failed);
    if (r->pin != SHOAL_PIN_ON && !plan->target.card)
        json_append(notes,
            json_string("--pin has no effect: only cards copy faster from pinned memory"), failed);
    if (r->vae_strips == SHOAL_STRIPS_ON && !plan->counts[SHOAL_PHASE_DECODE].strip_blocks)
        json_append(notes,
            json_string("--vae-strips has no effect: decoding would not take less memory"), failed);
    if (r->lanes != SHOAL_AUTO && r->lanes > all)
        json_append(
            notes, json_sprintf("--lanes: there %s only %d", all == 1 ? "is" : "are", all), failed);
}

/* What of the adapters is left out. */
static void note_adapters(const struct shoal_plan *plan, json_t *notes, bool *failed)
{
    for (int32_t i = 0; i < plan->adapters.count; i++) {
        const struct adapter *a = plan->adapters.uses[i].adapter;
        struct text text = {0};

        if (plan->adapters.uses[i].strength == 0.0f)
            json_append(
                notes, json_sprintf("--lora %s has no effect: its strength is 0", a->path), failed);
        if (!a->unmatched) continue;
        for (int32_t n = 0; n < ADAPTER_SHOWN && n < a->unmatched; n++)
            text_append(&text, "%s%s", n ? ", " : "", a->unmatched_names[n]);
        json_append(notes,
            json_sprintf("--lora %s: %d of its %d modules %s none of the model's and left out: "
                         "%s%s",
                a->path, a->unmatched, a->modules, a->unmatched == 1 ? "is" : "are",
                text.data ? text.data : "", a->unmatched > ADAPTER_SHOWN ? ", ..." : ""),
            failed);
        mem_free(text.data);
    }
}

/* Of the options that speak of this machine, in a plan for another one. */
static void note_elsewhere(const struct shoal_plan *plan, json_t *notes, bool *failed)
{
    const struct shoal_request *r = &plan->job.request;
    const struct rates *rates = &plan->rates;
    const bool card = plan->target.card;

    if (plan->names_rates)
        json_append(notes, json_string("--rates has no effect: --on says what to go by"), failed);
    if (plan->names_device)
        json_append(
            notes, json_string("--device has no effect: --on plans for another machine"), failed);
    /* By measured rates they tell how many pack. */
    if (r->threads && card && rates->origin == RATES_PUBLISHED)
        json_append(notes,
            json_string("--threads has no effect: --on plans for another machine, where a card "
                        "computes"),
            failed);
    if (r->pin == SHOAL_PIN_STAGING && card && rates->bounce_bytes >= rates->link_bytes)
        json_append(notes,
            json_string("--pin staging has no effect: by the rates of --on it copies as fast as "
                        "pinned memory"),
            failed);
    if (r->pin == SHOAL_PIN_OFF && card && rates->unpinned_bytes >= rates->link_bytes)
        json_append(notes,
            json_string("--pin off has no effect on what is predicted: --on goes by the rate of "
                        "pinned memory"),
            failed);
}

/* Of budgets that the machine does not have. */
static void note_memory(const struct shoal_plan *plan, json_t *notes, bool *failed)
{
    const uint64_t memory = memory_physical();
    const uint64_t arena = plan->target.device ? 0 : plan->solution.arena_bytes;
    char size[SIZE_TEXT_BYTES];

    if (!plan->target.elsewhere && plan->solution.fits && memory < arena + plan->solution.ram_bytes)
        json_append(notes,
            json_sprintf(
                "this machine has %s of memory, less than the plan's device and host memory",
                size_format(size, memory)),
            failed);
    if (plan->capped)
        json_append(notes,
            json_sprintf("%s has %s free: more of --vram has no effect", plan->target.name,
                size_format(size, plan->target.vram_bytes)),
            failed);
    if (plan->solution.fits && plan->solution.peak_bytes > plan->target.vram_bytes)
        json_append(notes,
            json_sprintf("the plan takes more memory than %s has: %s", plan->target.name,
                size_format(size, plan->target.vram_bytes)),
            failed);
    if (plan->target.no_card.status)
        json_append(
            notes, json_sprintf("computing on the CPU: %s", plan->target.no_card.text), failed);
}

/* Of prompts that are longer than the model takes. */
static void note_dropped(const struct shoal_plan *plan, json_t *notes, bool *failed)
{
    const struct job *job = &plan->job;

    for (int32_t i = 0; i < job_prompts(job) + job->branches - 1; i++) {
        const bool negative = i == job_prompts(job);
        const int32_t at = negative ? job->prompt_count - 1 : job->encoded[i];
        char name[JOB_PROMPT_NAME_BYTES];

        if (job->prompts[at][0].dropped)
            json_append(notes,
                json_sprintf("with its chat template %s is longer than %d tokens; the "
                             "last %d are not read",
                    negative               ? "the negative prompt"
                    : job_prompts(job) > 1 ? job_prompt_name(job, i, name)
                                           : "the prompt",
                    job->model->defaults.max_tokens, (int)job->prompts[at][0].dropped),
                failed);
    }
}

/* A setting that changes nothing is said, never silent. An array of sentences;
 * NULL when out of memory. */
static json_t *explain_notes(const struct shoal_plan *plan)
{
    const struct shoal_request *r = &plan->job.request;
    json_t *notes = json_array();
    bool failed = false;

    note_dropped(plan, notes, &failed);
    if (plan->job.branches == 1 && r->negative_prompt[0])
        json_append(notes,
            json_string("--negative has no effect: --cfg is 1, which is no guidance"), &failed);
    if (plan->job.calls != r->steps)
        json_append(notes,
            json_sprintf("%s calls the model %d times in %d steps: here each call counts as a step",
                r->sampler, plan->job.calls, r->steps),
            &failed);
    /* Where noise is added to a picture, some of it is left under any noise. */
    if (r->init && !plan->job.schedule.edm && plan->job.schedule.sigmas[0] >= 1)
        json_append(notes,
            json_sprintf(
                "--init has no effect: --steps %d at --strength %g begin with noise alone; "
                "take less strength or more steps",
                r->steps, (double)r->strength),
            &failed);
    note_adapters(plan, notes, &failed);
    note_settings(plan, notes, &failed);
    if (plan->target.elsewhere) note_elsewhere(plan, notes, &failed);
    if (r->seed > UINT32_MAX)
        json_append(notes,
            json_sprintf("of --seed the low 32 bits count, as in torch: it is %u",
                (unsigned)(r->seed & UINT32_MAX)),
            &failed);
    note_memory(plan, notes, &failed);
    if (failed) {
        json_decref(notes);
        return NULL;
    }
    return notes;
}

/* "shift 3"; of a shift that follows the size, and of noise levels that have none, what they are.
 */
static void explain_levels(const struct noise_levels *levels, struct text *t)
{
    if (levels->edm)
        text_append(t, "noise 80 to 0.002");
    else if (levels->dynamic)
        text_append(t, "shift %.3g by the size", exp(levels->mu));
    else
        text_append(t, "shift %g", levels->shift);
}

static void explain_text(const struct shoal_plan *plan, const json_t *notes, struct text *t)
{
    const struct shoal_request *r = &plan->job.request;
    const bool own = !strcmp(r->schedule, schedules[0]->name);
    const int32_t pictures = job_pictures(&plan->job);

    text_append(t, "plan: %s on %s, %dx%d, %d step%s, %d picture%s", plan->job.model->name,
        plan->target.name, r->width, r->height, r->steps, r->steps == 1 ? "" : "s", pictures,
        pictures == 1 ? "" : "s");
    if (job_prompts(&plan->job) > 1) text_append(t, " of %d prompts", (int)job_prompts(&plan->job));
    text_append(t, ", cfg %g, ", (double)r->cfg);
    explain_levels(&plan->job.levels, t);
    text_append(t, ", %s%s%s", r->sampler, own ? "" : ", ", own ? "" : r->schedule);
    if (r->init) text_append(t, ", strength %g", (double)r->strength);
    text_append(t, "\n");
    text_append(t, PHASE_FORMAT, "", "resident", "weights", "slots", "ring", "scratch", "peak",
        "streamed", "time", "limit");
    for (int i = 0; i < job_phases(&plan->job); i++)
        explain_phase(plan, i, t);
    explain_steps(plan, t);
    explain_adapters(plan, t);
    explain_decode(plan, t);
    explain_device(plan, t);
    explain_host(plan, t);
    explain_more(plan, "--vram", plan->more_vram_seconds, t);
    explain_more(plan, "--ram", plan->more_ram_seconds, t);
    for (size_t i = 0; i < json_array_size(notes); i++)
        text_append(t, "note: %s\n", json_string_value(json_array_get(notes, i)));
}

static json_t *phase_json(const struct shoal_plan *plan, int index)
{
    const struct plan_phase *p = &plan->solution.phases[index];
    const bool widened = plan_widens(plan) && p->packs;

    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
        " s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s}",
        "phase", p->name, "blocks", (int)p->block_count, "resident_blocks", (int)p->resident_count,
        "packed_blocks", (int)(widened || p->patched ? 0 : p->packed_count), "widened_blocks",
        (int)(widened ? p->packed_count : 0), "disk_blocks", (int)p->disk_count, "prefetch_slots",
        (int)p->slots, "globals_bytes", (json_int_t)p->globals_bytes, "resident_bytes",
        (json_int_t)p->resident_bytes, "ring_bytes", (json_int_t)p->ring_bytes, "unpack_bytes",
        (json_int_t)p->unpack_bytes, "staging_bytes", (json_int_t)p->staging_bytes,
        "ram_tier_bytes", (json_int_t)p->tier_bytes, "packing_bytes", (json_int_t)p->packing_bytes,
        "disk_bytes", (json_int_t)p->disk_bytes, "scratch_bytes", (json_int_t)p->scratch_bytes,
        "peak_vram_bytes", (json_int_t)p->peak_bytes, "streamed_bytes", (json_int_t)p->stream_bytes,
        "walks", (json_int_t)job_walks(&plan->job, (enum shoal_phase)index, plan->lanes),
        "operations", (json_int_t)plan->counts[index].operations, "first_walk_bytes",
        (json_int_t)p->first_disk_bytes, "first_walk_seconds", p->first_walk_seconds,
        "walk_seconds", p->walk_seconds, "seconds", p->seconds, "limit", limit_name(p->limit));
}

/* An unlimited budget is null: JSON has no infinity. */
static json_t *budget_json(uint64_t bytes)
{
    return bytes == SHOAL_UNLIMITED ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *more_json(const struct shoal_plan *plan, double then)
{
    if (!is_worth(plan, then)) return json_null();
    return json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)1 << 30, "steps_seconds", then,
        "steps_seconds_now", steps_seconds(plan));
}

static const char *origin_name(enum rates_origin origin)
{
    static const char *const names[] = {[RATES_GUESSED] = "guessed",
        [RATES_MEASURED] = "measured",
        [RATES_PUBLISHED] = "published"};

    return names[origin];
}

static json_t *explain_json(const struct shoal_plan *plan, json_t *notes)
{
    const struct shoal_request *r = &plan->job.request;
    struct shoal_plan_summary s;
    json_t *phases = json_array();
    bool failed = false;

    shoal_plan_summarise(plan, &s);
    for (int i = 0; i < job_phases(&plan->job); i++)
        json_append(phases, phase_json(plan, i), &failed);
    if (failed) {
        json_decref(phases);
        return NULL;
    }
    return json_pack(
        "{s:o, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:s, s:i, s:o, s:f, s:b, s:o, s:o,"
        " s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:f,"
        " s:f, s:s, s:s, s:s, s:f, s:f, s:i, s:b, s:i, s:i, s:o, s:I, s:i, s:i, s:o, s:o, s:o, "
        "s:O, s:i, s:i}",
        "model", json_text(plan->job.model->name), "device", plan->target.name, "width",
        (int)r->width, "height", (int)r->height, "steps", (int)r->steps, "count", (int)r->count,
        "cfg", (double)r->cfg, "shift", (double)r->shift, "sampler", r->sampler, "schedule",
        r->schedule, "calls", (int)s.calls, "init", r->init ? json_text(r->init) : json_null(),
        "strength", r->init ? (double)r->strength : 1.0, "fits", (int)s.fits, "vram_budget_bytes",
        budget_json(r->vram_bytes), "ram_budget_bytes", budget_json(r->ram_bytes),
        "peak_vram_bytes", (json_int_t)plan->solution.peak_bytes, "least_vram_bytes",
        (json_int_t)s.least_vram_bytes, "full_vram_bytes", (json_int_t)s.full_vram_bytes,
        "ram_bytes", (json_int_t)s.ram_bytes, "least_ram_bytes", budget_json(s.least_ram_bytes),
        "dit_weight_bytes", (json_int_t)s.dit_weight_bytes, "step_copy_bytes",
        (json_int_t)s.step_copy_bytes, "step_operations", (json_int_t)s.step_operations, "blocks",
        (int)s.blocks, "resident_blocks", (int)s.resident_blocks, "prefetch_slots",
        (int)s.prefetch_slots, "lanes", (int)s.lanes, "step_disk_bytes",
        (json_int_t)s.step_disk_bytes, "process_bytes", (json_int_t)plan->process.bytes,
        "step_seconds", s.step_seconds, "first_step_seconds", s.first_step_seconds, "seconds",
        s.seconds, "limit", limit_name(plan->solution.phases[SHOAL_PHASE_STEPS].limit), "rates",
        plan->rates.name, "rates_origin", origin_name(plan->rates.origin), "link_bytes_per_second",
        plan->rates.link_bytes, "disk_bytes_per_second", plan->rates.disk_bytes, "packed_blocks",
        (int)s.packed_blocks, "packed_while_read", (int)s.packs, "widened_blocks",
        (int)s.widened_blocks, "disk_blocks", (int)s.disk_blocks, "refusal",
        plan->refusal ? json_text(plan->refusal) : json_null(), "context_bytes",
        (json_int_t)plan->target.context_bytes, "strip_blocks", (int)s.strip_blocks, "all_lanes",
        (int)job_lane_count(&plan->job), "more_vram", more_json(plan, plan->more_vram_seconds),
        "more_ram", more_json(plan, plan->more_ram_seconds), "phases", phases, "notes", notes,
        "prompts", (int)job_prompts(&plan->job), "pictures", (int)job_pictures(&plan->job));
}

/* The plan's JSON, with what there is of adapters; NULL: out of memory. */
static json_t *with_adapters(const struct shoal_plan *plan, json_t *object)
{
    json_t *loras = json_array();
    struct shoal_plan_summary s;
    bool failed = !object;

    shoal_plan_summarise(plan, &s);
    for (int32_t i = 0; i < plan->adapters.count; i++) {
        const struct adapter_use *use = &plan->adapters.uses[i];

        json_append(loras,
            json_pack("{s:o, s:f, s:i, s:i, s:I}", "path", json_text(use->adapter->path),
                "strength", (double)use->strength, "modules", (int)use->adapter->modules,
                "unmatched", (int)use->adapter->unmatched, "bytes",
                (json_int_t)use->adapter->factor_bytes),
            &failed);
    }
    failed |= json_object_set_new(object, "loras", loras) != 0;
    failed |=
        json_object_set_new(object, "lora_bytes", json_integer((json_int_t)s.lora_bytes)) != 0;
    failed |= json_object_set_new(
                  object, "lora_read_bytes", json_integer((json_int_t)s.lora_read_bytes)) != 0;
    failed |= json_object_set_new(object, "patched_blocks", json_integer(s.patched_blocks)) != 0;
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

enum shoal_status plan_explain(struct shoal_plan *plan, struct shoal_error *error)
{
    struct text text = {0}, refusal = {0};
    json_t *object, *notes;
    char *dump;

    if (!plan->solution.fits) {
        explain_refusal(plan, &refusal);
        plan->refusal = refusal.data;
    }
    notes = explain_notes(plan);
    explain_text(plan, notes, &text);
    plan->text = text.data;
    object = with_adapters(plan, explain_json(plan, notes));
    dump = json_print(object);
    json_decref(object);
    json_decref(notes);
    if (!dump || text.failed || refusal.failed) {
        mem_free(dump);
        FAIL_MEMORY(error);
    }
    plan->json = dump;
    return SHOAL_OK;
}
