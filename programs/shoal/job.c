/*
 * From a command line to a plan, and the notes: every option that was given and cannot take effect
 * is named here, since libshoal sees values only and not whether somebody typed them.
 */
#include "job.h"

#include "interrupt.h"
#include "pack_progress.h"
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void job_note(struct job *job, bool in_plan, const char *format, ...)
{
    struct job_note *note = &job->notes[job->note_count];
    va_list values;

    if (job->note_count == JOB_MAX_NOTES) return;
    va_start(values, format);
    vsnprintf(note->text, sizeof note->text, format, values);
    va_end(values);
    note->in_plan = in_plan;
    job->note_count++;
}

/* Writes the packed copies that the cache does not have. False: *code says how to end. */
static bool fill_cache(const struct shoal_model_paths *paths, int *code)
{
    struct pack_progress progress;
    struct shoal_pack_callbacks callbacks = {&progress, pack_progress_update, pack_progress_written,
        interrupt_requested, pack_progress_waiting};
    struct shoal_error error = {0};
    enum shoal_status status;

    pack_progress_start(&progress, NULL, true);
    interrupt_defer(true);
    status = shoal_cache_prepare(paths, paths->disk_cache, &callbacks, &error);
    interrupt_defer(false);
    progress_clear();
    if (status == SHOAL_OK && interrupt_requested(NULL)) error.status = status = SHOAL_E_CANCELLED;
    if (status == SHOAL_OK) return true;
    *code = cli_fail(&error);
    return false;
}

/* --disk-cache: the copies are written, by a command that runs, or it is said that they are not
 * there. */
static bool use_cache(
    struct job *job, const struct command *command, struct shoal_model_paths *paths, int *code)
{
    struct shoal_error error = {0};
    struct shoal_cache_state state;

    if (!job->options.given[OPTION_DISK_CACHE]) return true;
    if (job->options.request.wire != SHOAL_WIRE_PACKED) {
        job_note(job, false,
            "--disk-cache has no effect: it holds packed copies, which --wire "
            "packed asks for");
        paths->disk_cache = NULL;
        return true;
    }
    if (shoal_cache_look(paths, paths->disk_cache, &state, &error) != SHOAL_OK) {
        *code = cli_fail(&error);
        return false;
    }
    job->uses_copies = state.parts > 0;
    if (!state.parts)
        job_note(job, false,
            "--disk-cache has no effect: the model's files are packed already, or "
            "are of a type that does not pack");
    else if (state.present < state.parts && !(command->set & COMMAND_PLAN))
        return fill_cache(paths, code);
    else if (state.present < state.parts) {
        paths->expect_copies = true;
        job_note(job, false,
            "--disk-cache: %d of %d packed copies are not there yet: generate writes them, of %s "
            "of weights; how large they will be is told from samples",
            state.parts - state.present, state.parts, cli_size(state.missing_bytes).text);
    }
    return true;
}

static bool open_model(struct job *job, const struct command *command, int *code)
{
    const struct options *options = &job->options;
    struct shoal_model_paths paths = options->paths;
    struct shoal_error error = {0};

    if (options->given[OPTION_RAM]) paths.ram_bytes = options->request.ram_bytes;
    /* With --dit every part is given: options_parse saw to it. */
    if (!paths.model && !options->given[OPTION_DIT]) paths.model = MODEL_DEFAULT;
    if (paths.model) paths.model = model_path_find(paths.model, job->model_path);
    *code = CLI_FAILED;
    if (!paths.model && !options->given[OPTION_DIT]) return false;
    if (!use_cache(job, command, &paths, code)) return false;
    if (shoal_model_open(&paths, &job->model, &error) == SHOAL_OK) return true;
    *code = cli_fail(&error);
    return false;
}

bool job_open(struct job *job, const struct command *command, int argc, char **argv, int *code)
{
    *job = (struct job){0};
    interrupt_install();
    if (!options_parse(command, argc, argv, &job->options, code)) return false;
    if (!open_model(job, command, code)) return false;
    shoal_request_init(&job->request, job->model);
    options_apply(&job->options, &job->request);
    if (job->request.init && !job->options.given[OPTION_WIDTH] &&
        !job->options.given[OPTION_HEIGHT])
        job->request.width = job->request.height = 0; /* its own */
    job->model_name = shoal_model_name(job->model);
    if (job->request.prompt) return true;
    job->request.prompt = JOB_DEFAULT_PROMPT;
    job_note(job, false, "no --prompt: '%s' stands in for it", JOB_DEFAULT_PROMPT);
    return true;
}

/* What of --lora is left out. */
static void note_adapters(struct job *job)
{
    for (size_t i = 0; i < job->request.lora_count; i++) {
        struct shoal_error error = {0};
        struct shoal_lora_info lora;
        char names[300] = "";

        if (shoal_plan_lora(job->plan, i, &lora, &error)) continue;
        if (lora.strength == 0.0f)
            job_note(job, true, "--lora %s has no effect: its strength is 0", lora.path);
        for (int n = 0; n < 4 && lora.unmatched_names[n]; n++) {
            const size_t used = strlen(names);

            snprintf(names + used, sizeof names - used, "%s%.60s", n ? ", " : "",
                lora.unmatched_names[n]);
        }
        if (lora.unmatched)
            job_note(job, true,
                "--lora %.80s: %d of its %d modules %s none of the model's and left out: %s%s",
                lora.path, lora.unmatched, lora.modules, lora.unmatched == 1 ? "is" : "are", names,
                lora.unmatched > 4 ? ", ..." : "");
    }
}

static void note_what_has_no_effect(struct job *job)
{
    const struct shoal_request *request = &job->request;
    const struct shoal_plan_summary *plan = &job->summary;
    const bool *given = job->options.given;
    const char *negative = request->negative_prompt;

    note_adapters(job);
    if (given[OPTION_NEGATIVE] && negative && *negative && fabsf(request->cfg - 1) <= 0)
        job_note(job, true, "--negative has no effect: --cfg is 1, which is no guidance");
    if (given[OPTION_THREADS] && !given[OPTION_ON] && request->threads && plan->rates_threads &&
        request->threads != plan->rates_threads)
        job_note(job, false,
            "--threads %d: times are predicted for %d, with which this machine was measured",
            request->threads, plan->rates_threads);
    if (given[OPTION_PROMPT] && fabsf(request->cfg) <= 0)
        job_note(job, false, "--prompt has no effect: --cfg 0 follows the negative prompt alone");
    if (!plan->fits) return;
    if (plan->resident_blocks >= plan->blocks) {
        if (given[OPTION_PREFETCH_SLOTS] && request->prefetch_slots != SHOAL_AUTO)
            job_note(job, true, "--prefetch-slots has no effect: every block stays on the device");
        if (given[OPTION_BUFFER] && request->buffer != SHOAL_BUFFER_AUTO)
            job_note(job, true, "--buffer has no effect: every block stays on the device");
    }
    if (given[OPTION_WIRE] && request->wire == SHOAL_WIRE_PACKED && !plan->packed_blocks &&
        !job->uses_copies)
        job_note(job, true, "--wire packed has no effect here: %s",
            plan->resident_blocks >= plan->blocks ? "every block stays on the device"
            : plan->patched_blocks
                ? "what adapters change crosses as its files have it"
                : "what crosses only once is not packed, nor what does not get smaller by it");
    if (given[OPTION_HOST_FORMAT] && request->host_format == SHOAL_HOST_FORMAT_COMPUTE &&
        !plan->widened_blocks)
        job_note(job, true, "--host-format compute has no effect here: %s",
            plan->resident_blocks >= plan->blocks
                ? "every block stays on the device"
                : "what crosses only once is not widened, nor what is not in FP8 and no adapter "
                  "changes, or is packed");
    if (given[OPTION_VAE_STRIPS] && request->vae_strips == SHOAL_STRIPS_ON && !plan->strip_blocks)
        job_note(job, true, "--vae-strips on has no effect: decoding would not take less memory");
    if (given[OPTION_LANES] && request->lanes != SHOAL_AUTO && request->lanes > plan->lanes)
        job_note(
            job, true, "--lanes %d: %d are all that this run has", request->lanes, plan->lanes);
}

bool job_plan(struct job *job, bool shows_plan, int *code)
{
    struct shoal_error error = {0};

    if (shoal_plan_create(job->model, &job->request, &job->plan, &error) != SHOAL_OK) {
        *code = cli_fail(&error);
        /* A device that is not there: the command line is at fault. */
        if (error.status == SHOAL_E_UNSUPPORTED) *code = CLI_USAGE;
        return false;
    }
    shoal_plan_summarise(job->plan, &job->summary);
    job->request.width = job->summary.width; /* which may be those of --init */
    job->request.height = job->summary.height;
    note_what_has_no_effect(job);
    for (int i = 0; i < job->note_count; i++)
        if (!(shows_plan && job->notes[i].in_plan)) cli_note("%s", job->notes[i].text);
    *code = CLI_OK;
    return true;
}

int job_check_fits(const struct job *job)
{
    if (job->summary.fits) return CLI_OK;
    fflush(stdout); /* the plan comes before what is wrong with it */
    cli_error("%s", shoal_plan_refusal(job->plan));
    return CLI_BUDGET;
}

void job_print_prompts(const struct job *job)
{
    const struct shoal_request *request = &job->request;

    printf(", \"prompt\": ");
    cli_json_string(stdout, request->prompt);
    printf(", \"prompts\": [");
    cli_json_string(stdout, request->prompt);
    for (int32_t i = 0; i < request->more_prompt_count; i++) {
        printf(", ");
        cli_json_string(stdout, request->more_prompts[i]);
    }
    putchar(']');
}

void job_close(struct job *job)
{
    shoal_plan_destroy(&job->plan);
    shoal_model_close(&job->model);
    options_fini(&job->options);
}
