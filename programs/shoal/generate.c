/* shoal generate: paints pictures, and says what that took. */
#include "hash.h"
#include "interrupt.h"
#include "job.h"
#include "output.h"
#include "progress.h"

const struct command command_generate = {
    .name = "generate",
    .usage = "-p TEXT [options]",
    .summary = "Paints pictures. Prints the plan, the progress, the measured peak of device memory "
               "against the budget, and where the pictures are.",
    .set = COMMAND_GENERATE,
};

/* ---- what is printed at the end ---- */

/* The first step loads, so that others take less or, if that is hidden, more. */
static void print_step(const struct job *job, const struct shoal_report *report)
{
    printf("a step    ");
    if (job->summary.calls > 1)
        printf("the first %s, later ones %s at best; ",
            cli_seconds(report->first_step_seconds).text, cli_seconds(report->step_seconds).text);
    else
        printf("%s; beside what stays ", cli_seconds(report->first_step_seconds).text);
    printf("%s copied to the device, %s read\n", cli_size(report->step_bytes).text,
        cli_size(report->step_read_bytes).text);
}

static void print_report(const struct job *job, const struct shoal_report *report)
{
    printf("\ntime      %s: ", cli_seconds(report->seconds).text);
    for (int phase = 0; phase < (job->request.init ? SHOAL_PHASES : SHOAL_PHASE_ENCODE); phase++)
        printf("%s %s, ", shoal_phase_name((enum shoal_phase)phase),
            cli_seconds(report->phase_seconds[phase]).text);
    printf("of which waiting for weights %s\n", cli_seconds(report->wait_seconds).text);
    print_step(job, report);
    printf("files     %s read (%s)\n", cli_size(report->read_bytes).text, report->reader);
    if (job->summary.packs && !report->replanned)
        printf("packed    %d of %d blocks, while they were read\n", job->summary.packed_blocks,
            job->summary.blocks);
    if (job->summary.widened_blocks)
        printf("widened   %d of %d blocks, while they were read\n", job->summary.widened_blocks,
            job->summary.blocks);
    if (report->pinned_bytes)
        printf("pinned    %s of host memory\n", cli_size(report->pinned_bytes).text);
    printf("peak      %s of device memory, ", cli_size(report->peak_vram_bytes).text);
    if (job->summary.vram_bytes == SHOAL_UNLIMITED)
        puts("no limit");
    else
        printf("%s allowed\n", cli_size(job->summary.vram_bytes).text);
    if (report->driver_vram_bytes)
        printf("          %s by the driver\n", cli_size(report->driver_vram_bytes).text);
    if (report->note[0]) {
        printf("note: ");
        cli_print_clean(stdout, report->note);
        putchar('\n');
    }
}

static void print_json_report(const struct job *job, const struct shoal_report *report)
{
    printf("{\"version\": ");
    cli_json_string(stdout, shoal_version());
    printf(", \"model\": ");
    cli_json_string(stdout, job->model_name);
    job_print_prompts(job);
    printf(", \"notes\": [");
    for (int i = 0; i < job->note_count; i++) {
        if (i) printf(", ");
        cli_json_string(stdout, job->notes[i].text);
    }
    printf("],\n \"plan\": %s,\n \"report\": {", shoal_plan_json(job->plan));
    printf("\"peak_vram_bytes\": %llu, \"driver_vram_bytes\": %llu, \"pinned_bytes\": %llu, ",
        (unsigned long long)report->peak_vram_bytes, (unsigned long long)report->driver_vram_bytes,
        (unsigned long long)report->pinned_bytes);
    printf("\"copied_bytes\": %llu, \"step_bytes\": %llu, ",
        (unsigned long long)report->copied_bytes, (unsigned long long)report->step_bytes);
    printf("\"read_bytes\": %llu, \"step_read_bytes\": %llu, \"reader\": ",
        (unsigned long long)report->read_bytes, (unsigned long long)report->step_read_bytes);
    cli_json_string(stdout, report->reader);
    printf(", \"note\": ");
    cli_json_string(stdout, report->note);
    printf(", \"seconds\": %.6f, \"wait_seconds\": %.6f, \"first_step_seconds\": %.6f, "
           "\"step_seconds\": %.6f, \"mean_step_seconds\": %.6f",
        report->seconds, report->wait_seconds, report->first_step_seconds, report->step_seconds,
        report->mean_step_seconds);
    for (int phase = 0; phase < SHOAL_PHASES; phase++)
        printf(", \"%s_seconds\": %.6f", shoal_phase_name((enum shoal_phase)phase),
            report->phase_seconds[phase]);
    printf("},\n \"pictures\": [");
}

static void print_picture(
    const struct job *job, int32_t index, const struct shoal_image *image, const char *path)
{
    if (!job->options.json) {
        printf("picture   ");
        cli_print_clean(stdout, path);
        printf(
            " (%d x %d, seed %llu", image->width, image->height, (unsigned long long)image->seed);
        if (job->request.more_prompt_count) {
            printf(", '");
            cli_print_clean(stdout, image->prompt);
            putchar('\'');
        }
        puts(")");
        return;
    }
    printf("%s{\"path\": ", index ? ", " : "");
    cli_json_string(stdout, path);
    printf(", \"prompt\": ");
    cli_json_string(stdout, image->prompt);
    printf(", \"width\": %d, \"height\": %d, \"seed\": %llu, \"latents_xxh3_128\": \"%s\", "
           "\"picture_xxh3_128\": \"%s\"}",
        image->width, image->height, (unsigned long long)image->seed, hash_latents(image).text,
        hash_picture(image).text);
}

/* ---- the run ---- */

static int write_pictures(
    const struct job *job, const struct output *output, const struct shoal_result *result)
{
    bool silent = output->kind == OUTPUT_STDOUT;
    int32_t count = shoal_result_count(result);

    for (int32_t i = 0; i < count; i++) {
        char path[TARGET_PATH_BYTES];
        struct shoal_error error = {0};
        struct shoal_image image;

        if (interrupt_requested(NULL)) {
            cli_error("interrupted; %d of %d pictures were written", i, count);
            return interrupt_exit_code();
        }
        if (output_write(output, result, i, path, &error) != SHOAL_OK) return cli_fail(&error);
        shoal_result_image(result, i, &image);
        if (!silent) print_picture(job, i, &image, path);
    }
    return CLI_OK;
}

static int write_trace(
    const struct job *job, const struct output *output, const struct shoal_result *result)
{
    const char *path = job->options.trace;
    struct shoal_error error = {0};

    if (shoal_result_write_trace(result, path, &error) != SHOAL_OK) return cli_fail(&error);
    if (job->options.json) {
        printf(",\n \"trace\": ");
        cli_json_string(stdout, path);
    } else if (output->kind != OUTPUT_STDOUT) {
        printf("trace     ");
        cli_print_clean(stdout, path);
        puts(" (draw it with shoal trace)");
    }
    return CLI_OK;
}

/* The promise of the budget, checked against what the arena measured; and that of the plan, if it
 * is the one that was run. */
static int check_peak(const struct job *job, const struct shoal_report *report)
{
    if (report->peak_vram_bytes <= job->request.vram_bytes &&
        (report->replanned || report->peak_vram_bytes <= job->summary.peak_vram_bytes))
        return CLI_OK;
    cli_error("the measured peak of %llu bytes is over the plan's %llu: this is a bug in shoal, "
              "please report it",
        (unsigned long long)report->peak_vram_bytes,
        (unsigned long long)job->summary.peak_vram_bytes);
    return CLI_FAILED;
}

static int finish_run(
    const struct job *job, const struct output *output, const struct shoal_result *result)
{
    bool json = job->options.json;
    struct shoal_report report;
    int code;

    shoal_result_report(result, &report);
    if (json)
        print_json_report(job, &report);
    else if (output->kind != OUTPUT_STDOUT)
        print_report(job, &report);
    code = write_pictures(job, output, result);
    if (json) fputs("]", stdout);
    if (code == CLI_OK && job->options.trace) code = write_trace(job, output, result);
    if (json) puts("}");
    return code == CLI_OK ? check_peak(job, &report) : code;
}

static int run(const struct job *job, const struct output *output)
{
    struct progress progress;
    struct shoal_callbacks callbacks = {&progress, progress_update, interrupt_requested};
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    enum shoal_status status;
    int code;

    progress_start(&progress, NULL, false);
    interrupt_defer(true);
    status = shoal_run(job->plan, &callbacks, &result, &error);
    progress_clear();
    code = status == SHOAL_OK ? finish_run(job, output, result) : cli_fail(&error);
    shoal_result_destroy(&result);
    return code;
}

static bool check_trace(const char *path, const struct output *output)
{
    return target_check("--trace", TARGET_TRACE, path) && !output_takes(output, "--trace", path);
}

int generate_main(int argc, char **argv)
{
    struct job job;
    struct output output;
    bool shows_plan;
    int code;

    if (!job_open(&job, &command_generate, argc, argv, &code)) goto done;
    code = CLI_USAGE;
    if (!output_prepare(job.options.output, job_pictures(&job), job.options.json, &output))
        goto done;
    if (job.options.trace && !check_trace(job.options.trace, &output)) goto done;
    job.request.trace = job.options.trace != NULL;
    shows_plan = !job.options.json && output.kind != OUTPUT_STDOUT;
    if (!job_plan(&job, shows_plan, &code)) goto done;
    if (shows_plan) {
        cli_print_text(shoal_plan_text(job.plan), false);
        fflush(stdout);
    }
    code = job_check_fits(&job);
    if (code == CLI_OK) code = run(&job, &output);
    code = cli_finish(code);
done:
    job_close(&job);
    return code;
}
