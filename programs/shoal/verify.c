/*
 * shoal verify: the promise of the project, tried. Runs one request under many memory plans and
 * compares the bytes of latents and pictures. The candidates are listed in list_candidates; those
 * whose plan is one that has run already are not run again.
 */
#include "hash.h"
#include "interrupt.h"
#include "job.h"
#include "progress.h"

#include <string.h>

#define VERIFY_STEPS 2
#define MAX_CANDIDATES 24

const struct command command_verify = {
    .name = "verify",
    .usage = "[-p TEXT] [-m MODEL] [--steps N] [options of generate]",
    .summary = "Runs without a limit and under several memory plans, compares the hashes of "
               "latents and pictures, prints a table, and fails (exit code 4) on a difference. "
               "Options that say how to run make a plan of their own, \"as asked\".",
    .set = COMMAND_VERIFY,
};

struct candidate {
    char name[24];
    struct shoal_request request;
    bool must_fit; /* the planner has promised it */
    /* Once tried: */
    bool ran;
    int same_as; /* an earlier candidate with the same plan; -1: none */
    struct shoal_plan_summary plan;
    char left_out[200]; /* why it was not run; "" if it was, or is the same as another */
};

struct verify {
    struct job *job;
    struct candidate candidates[MAX_CANDIDATES];
    int count, ran, different;
    struct hash latents, pictures; /* of the warm-up */
    double seconds;                /* of the unlimited run; 0 before it */
};

/* ---- what is tried ---- */

static struct shoal_request *add(
    struct verify *verify, const struct shoal_request *request, bool must_fit, const char *name)
{
    struct candidate *candidate = &verify->candidates[verify->count++];

    *candidate = (struct candidate){.request = *request, .must_fit = must_fit, .same_as = -1};
    snprintf(candidate->name, sizeof candidate->name, "%s", name);
    return &candidate->request;
}

/* The request as it would be had nobody limited it. */
static struct shoal_request unlimited_request(const struct job *job)
{
    struct shoal_request request = job->request;

    request.vram_bytes = SHOAL_UNLIMITED;
    request.ram_bytes = SHOAL_UNLIMITED;
    request.resident_blocks = SHOAL_AUTO;
    request.prefetch_slots = SHOAL_AUTO;
    request.buffer = SHOAL_BUFFER_AUTO;
    request.lanes = SHOAL_AUTO;
    return request;
}

static void list_candidates(struct verify *verify, const struct shoal_request *unlimited,
    const struct shoal_plan_summary *plan)
{
    uint64_t least = plan->least_vram_bytes;
    uint64_t quarter = plan->full_vram_bytes > least ? (plan->full_vram_bytes - least) / 4 : 0;
    struct shoal_request streamed = *unlimited;
    char name[24];

    streamed.resident_blocks = 0;
    add(verify, unlimited, true, "warm-up");
    add(verify, unlimited, true, "unlimited");
    if (options_limit_given(&verify->job->options))
        add(verify, &verify->job->request, true, "as asked");
    for (uint64_t quarters = 3; quarters > 0; quarters--) {
        snprintf(name, sizeof name, "%d %% budget", (int)quarters * 25);
        add(verify, unlimited, true, name)->vram_bytes = least + quarters * quarter;
    }
    add(verify, unlimited, true, "least budget")->vram_bytes = least;
    add(verify, &streamed, true, "no residents");
    add(verify, unlimited, true, "half resident")->resident_blocks = plan->blocks / 2;
    add(verify, unlimited, true, "all resident")->resident_blocks = plan->blocks;
    for (int32_t slots = 2; slots <= 6; slots++) {
        snprintf(name, sizeof name, "%d slots", slots);
        add(verify, &streamed, false, name)->prefetch_slots = slots;
    }
    add(verify, &streamed, true, "single buffer")->buffer = SHOAL_BUFFER_SINGLE;
    add(verify, &streamed, true, "double buffer")->buffer = SHOAL_BUFFER_DOUBLE;
    add(verify, &streamed, true, "one lane")->lanes = 1;
    add(verify, &streamed, false, "two lanes")->lanes = 2;
}

/* True if two plans do the same, whatever budgets and options led to them. */
static bool same_plan(const struct shoal_plan_summary *a, const struct shoal_plan_summary *b)
{
    return a->peak_vram_bytes == b->peak_vram_bytes && a->ram_bytes == b->ram_bytes &&
           a->step_copy_bytes == b->step_copy_bytes && a->resident_blocks == b->resident_blocks &&
           a->prefetch_slots == b->prefetch_slots && a->lanes == b->lanes;
}

/* ---- the table ---- */

static void print_head(const struct verify *verify)
{
    const struct job *job = verify->job;

    if (job->options.json) {
        printf("{\"version\": ");
        cli_json_string(stdout, shoal_version());
        printf(", \"model\": ");
        cli_json_string(stdout, job->model_name);
        printf(", \"prompt\": ");
        cli_json_string(stdout, job->request.prompt);
        printf(", \"seed\": %llu, \"steps\": %d,\n \"plans\": [",
            (unsigned long long)job->request.seed, job->request.steps);
        return;
    }
    cli_print_clean(stdout, job->model_name);
    printf(": '");
    cli_print_clean(stdout, job->request.prompt);
    printf("', %d x %d, %d step%s, seed %llu\n\n", job->request.width, job->request.height,
        job->request.steps, job->request.steps == 1 ? "" : "s",
        (unsigned long long)job->request.seed);
    printf("%-13s %9s %8s %5s %5s %9s %5s %8s %8s\n", "plan", "peak", "resident", "slots", "lanes",
        "time", "ratio", "latents", "picture");
}

static void print_row(const struct verify *verify, const struct candidate *row,
    const struct shoal_report *report, const struct hash *latents, const struct hash *pictures,
    const char *fault)
{
    char resident[24], ratio[16];
    bool json = verify->job->options.json;

    if (verify->seconds > 0)
        snprintf(ratio, sizeof ratio, json ? "%.4f" : "%.2f", report->seconds / verify->seconds);
    else
        snprintf(ratio, sizeof ratio, json ? "null" : "-");
    if (json) {
        printf("%s\n  {\"plan\": \"%s\", \"vram_bytes\": ", verify->ran > 1 ? "," : "", row->name);
        if (row->request.vram_bytes == SHOAL_UNLIMITED)
            printf("null");
        else
            printf("%llu", (unsigned long long)row->request.vram_bytes);
        printf(", \"planned_peak_vram_bytes\": %llu, \"peak_vram_bytes\": %llu, "
               "\"planned_step_bytes\": %llu, \"step_bytes\": %llu, \"resident_blocks\": %d, "
               "\"blocks\": %d, "
               "\"prefetch_slots\": %d, \"lanes\": %d, \"seconds\": %.6f, \"ratio\": %s, "
               "\"latents_xxh3_128\": \"%s\", \"pictures_xxh3_128\": \"%s\", \"same\": %s}",
            (unsigned long long)row->plan.peak_vram_bytes,
            (unsigned long long)report->peak_vram_bytes,
            (unsigned long long)row->plan.step_copy_bytes, (unsigned long long)report->step_bytes,
            row->plan.resident_blocks, row->plan.blocks, row->plan.prefetch_slots, row->plan.lanes,
            report->seconds, ratio, latents->text, pictures->text, fault ? "false" : "true");
        return;
    }
    snprintf(resident, sizeof resident, "%d/%d", row->plan.resident_blocks, row->plan.blocks);
    printf("%-13s %9s %8s %5d %5d %9s %5s %.8s %.8s%s%s%s\n", row->name,
        cli_size(report->peak_vram_bytes).text, resident, row->plan.prefetch_slots, row->plan.lanes,
        cli_seconds(report->seconds).text, ratio, latents->text, pictures->text,
        fault ? cli_colour(stdout, COLOUR_RED) : "", fault ? fault : "",
        fault ? cli_colour(stdout, COLOUR_NONE) : "");
}

static void print_left_out(const struct candidate *row)
{
    printf("%-13s left out: ", row->name);
    cli_print_clean(stdout, row->left_out);
    putchar('\n');
}

static void print_tail(const struct verify *verify)
{
    bool same = verify->different == 0;
    int printed = 0;

    if (verify->job->options.json) {
        printf("],\n \"left_out\": [");
        for (int i = 0; i < verify->count; i++) {
            const struct candidate *row = &verify->candidates[i];

            if (!row->left_out[0]) continue;
            printf("%s{\"plan\": \"%s\", \"why\": ", printed++ ? ", " : "", row->name);
            cli_json_string(stdout, row->left_out);
            fputc('}', stdout);
        }
        printf("],\n \"same\": %s}\n", same ? "true" : "false");
        return;
    }
    fputc('\n', stdout);
    for (int i = 0; i < verify->count; i++) {
        const struct candidate *row = &verify->candidates[i];

        if (row->same_as >= 0)
            printf("%-13s the same plan as %s\n", row->name, verify->candidates[row->same_as].name);
        else if (row->left_out[0])
            print_left_out(row);
    }
    if (same)
        printf("\n%sSame bytes:%s %d plans, streamed and unstreamed, gave the same latents and "
               "pictures.\n",
            cli_colour(stdout, COLOUR_GREEN), cli_colour(stdout, COLOUR_NONE), verify->ran);
    else
        printf("\n%sDIFFERENT:%s %d of %d plans gave other bytes than the first, or had another "
               "peak or copied other bytes a step than planned.\n",
            cli_colour(stdout, COLOUR_RED), cli_colour(stdout, COLOUR_NONE), verify->different,
            verify->ran);
}

/* ---- running ---- */

static int run_candidate(
    struct verify *verify, struct candidate *row, const struct shoal_plan *plan)
{
    struct progress progress;
    struct shoal_callbacks callbacks = {&progress, progress_update, interrupt_requested};
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    struct shoal_report report;
    struct hash latents, pictures;
    enum shoal_status status;
    const char *fault = NULL;

    progress_start(&progress, row->name, true);
    interrupt_defer(true);
    status = shoal_run(plan, &callbacks, &result, &error);
    interrupt_defer(false);
    progress_clear();
    if (status == SHOAL_OK && interrupt_requested(NULL)) {
        shoal_result_destroy(&result);
        error.status = status = SHOAL_E_CANCELLED;
    }
    if (status != SHOAL_OK) {
        if (status != SHOAL_E_CANCELLED) cli_error("the plan '%s' failed:", row->name);
        return cli_fail(&error);
    }
    shoal_result_report(result, &report);
    hash_result(result, &latents, &pictures);
    shoal_result_destroy(&result);
    if (verify->ran == 0) {
        verify->latents = latents;
        verify->pictures = pictures;
    } else if (verify->ran == 1) {
        verify->seconds = report.seconds;
    }
    verify->ran++;
    row->ran = true;
    if (strcmp(latents.text, verify->latents.text) != 0 ||
        strcmp(pictures.text, verify->pictures.text) != 0)
        fault = " DIFFERENT";
    else if (report.peak_vram_bytes != row->plan.peak_vram_bytes ||
             report.peak_vram_bytes > row->request.vram_bytes)
        fault = " PEAK";
    else if (report.step_bytes != row->plan.step_copy_bytes)
        fault = " COPIED";
    verify->different += fault != NULL;
    print_row(verify, row, &report, &latents, &pictures, fault);
    fflush(stdout);
    return CLI_OK;
}

/* Plans the candidate, and runs it unless it cannot or need not run. */
static int try_candidate(struct verify *verify, struct candidate *row)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;
    int code = CLI_OK;

    if (shoal_plan_create(verify->job->model, &row->request, &plan, &error) != SHOAL_OK) {
        if (row->must_fit) return cli_fail(&error);
        snprintf(row->left_out, sizeof row->left_out, "%.190s", error.text);
        return CLI_OK;
    }
    shoal_plan_summarise(plan, &row->plan);
    /* The warm-up's plan does run again: files are cached then, and times can be compared. */
    for (struct candidate *other = verify->candidates + 1; other < row && row->same_as < 0; other++)
        if (other->ran && same_plan(&other->plan, &row->plan))
            row->same_as = (int)(other - verify->candidates);
    if (!row->plan.fits && row->must_fit) {
        cli_error("the plan '%s' does not fit though the planner promised it: this is a bug in "
                  "shoal, please report it",
            row->name);
        code = CLI_FAILED;
    } else if (!row->plan.fits) {
        snprintf(row->left_out, sizeof row->left_out, "it does not fit");
    } else if (row->same_as < 0) {
        code = run_candidate(verify, row, plan);
    }
    shoal_plan_destroy(&plan);
    return code;
}

static int run_all(struct verify *verify)
{
    const struct shoal_request unlimited = unlimited_request(verify->job);
    struct shoal_plan_summary summary;
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;

    if (shoal_plan_create(verify->job->model, &unlimited, &plan, &error) != SHOAL_OK)
        return cli_fail(&error);
    shoal_plan_summarise(plan, &summary);
    shoal_plan_destroy(&plan);
    list_candidates(verify, &unlimited, &summary);
    print_head(verify);
    fflush(stdout);
    for (int i = 0; i < verify->count; i++) {
        int code = try_candidate(verify, &verify->candidates[i]);

        if (code != CLI_OK) return code;
    }
    print_tail(verify);
    return verify->different ? CLI_DIFFERENT : CLI_OK;
}

int verify_main(int argc, char **argv)
{
    struct job job;
    struct verify verify = {.job = &job};
    int code;

    if (!job_open(&job, &command_verify, argc, argv, &code)) goto done;
    if (!job.options.given[OPTION_STEPS]) job.request.steps = VERIFY_STEPS;
    if (job.options.given[OPTION_OUTPUT])
        job_note(&job, false, "--output has no effect: verify keeps no picture");
    if (!job_plan(&job, false, &code)) goto done;
    code = job_check_fits(&job);
    if (code == CLI_OK) code = run_all(&verify);
    code = cli_finish(code);
done:
    job_close(&job);
    return code;
}
