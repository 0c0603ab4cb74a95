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
#define MAX_CANDIDATES 32

const struct command command_verify = {
    .name = "verify",
    .usage = "[-p TEXT] [-m MODEL] [--steps N] [options of generate]",
    .summary = "Runs without a limit and under some twenty memory plans, compares the hashes of "
               "latents and pictures, checks what was copied and read a step, prints a table, and "
               "fails (exit code 4) on a difference. "
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
    char left_out[400]; /* why it was not run; "" if it was, or is the same as another */
};

/* What a run gave. */
struct outcome {
    struct shoal_report report;
    struct hash latents, pictures;
    const char *fault; /* how it broke its promise; NULL: it did not */
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
    request.vae_strips = SHOAL_STRIPS_AUTO;
    request.wire = SHOAL_WIRE_AUTO;
    request.host_format = SHOAL_HOST_FORMAT_STORAGE;
    request.pin = SHOAL_PIN_ON;
    return request;
}

/* The budgets that a request's plan speaks of. */
static int look(const struct verify *verify, const struct shoal_request *request,
    struct shoal_plan_summary *summary)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;

    if (shoal_plan_create(verify->job->model, request, &plan, &error) != SHOAL_OK)
        return cli_fail(&error);
    shoal_plan_summarise(plan, summary);
    shoal_plan_destroy(&plan);
    return CLI_OK;
}

/* The request with a share of what host memory it can use, in quarters; 0: the least that works. */
static int add_ram(
    struct verify *verify, const struct shoal_request *request, int quarters, const char *name)
{
    struct shoal_plan_summary plan;
    int code = look(verify, request, &plan);
    uint64_t least = plan.least_ram_bytes;

    if (code != CLI_OK) return code;
    /* What forces residents need not fit a card. */
    add(verify, request, plan.fits, name)->ram_bytes =
        !plan.fits
            ? SHOAL_UNLIMITED
            : least +
                  (plan.ram_bytes > least ? (plan.ram_bytes - least) / 4 * (uint64_t)quarters : 0);
    return CLI_OK;
}

/* What of the files is in FP8, widened: all of it, and half. */
static int list_widened(struct verify *verify, const struct shoal_request *streamed)
{
    struct shoal_request widened = *streamed;
    struct shoal_plan_summary plan;
    int code;

    widened.host_format = SHOAL_HOST_FORMAT_COMPUTE;
    code = look(verify, &widened, &plan);
    if (code != CLI_OK || !plan.widened_blocks) return code;
    add(verify, &widened, false, "wide");
    if ((code = add_ram(verify, &widened, 0, "wide, least"))) return code;
    widened.resident_blocks = verify->job->summary.blocks / 2;
    return add_ram(verify, &widened, 1, "wide, half");
}

/* The tiers of host memory and disk, with no, half and as many residents as fit the least budget;
 * and the wire: weights of plain files are packed, or widened, while they are read. */
static int list_tiers(
    struct verify *verify, const struct shoal_request *unlimited, uint64_t least_vram)
{
    struct shoal_request streamed = *unlimited, half = *unlimited, little = *unlimited, packed;
    int code;

    streamed.resident_blocks = 0;
    half.resident_blocks = verify->job->summary.blocks / 2;
    little.vram_bytes = least_vram;
    packed = streamed;
    packed.wire = SHOAL_WIRE_PACKED;
    if ((code = add_ram(verify, &streamed, 2, "50 % in RAM"))) return code;
    if ((code = add_ram(verify, &streamed, 1, "25 % in RAM"))) return code;
    if ((code = add_ram(verify, &streamed, 0, "all on disk"))) return code;
    if ((code = add_ram(verify, &half, 0, "half on disk"))) return code;
    if ((code = add_ram(verify, &little, 0, "least of both"))) return code;
    add(verify, &streamed, false, "raw")->wire = SHOAL_WIRE_RAW;
    add(verify, &packed, false, "packed");
    if ((code = add_ram(verify, &packed, 0, "packed, least"))) return code;
    packed.resident_blocks = half.resident_blocks;
    if ((code = add_ram(verify, &packed, 1, "packed, half"))) return code;
    return list_widened(verify, &streamed);
}

static void list_candidates(struct verify *verify, const struct shoal_request *unlimited,
    const struct shoal_plan_summary *plan)
{
    uint64_t least = plan->least_vram_bytes;
    uint64_t quarter = plan->full_vram_bytes > least ? (plan->full_vram_bytes - least) / 4 : 0;
    struct shoal_request streamed = *unlimited;
    char name[24];

    const bool holds_all = plan->full_vram_bytes <= plan->vram_bytes; /* a small card does not */

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
    add(verify, unlimited, holds_all, "half resident")->resident_blocks = plan->blocks / 2;
    add(verify, unlimited, holds_all, "all resident")->resident_blocks = plan->blocks;
    for (int32_t slots = 2; slots <= 6; slots++) {
        snprintf(name, sizeof name, "%d slots", slots);
        add(verify, &streamed, false, name)->prefetch_slots = slots;
    }
    add(verify, &streamed, true, "single buffer")->buffer = SHOAL_BUFFER_SINGLE;
    add(verify, &streamed, true, "double buffer")->buffer = SHOAL_BUFFER_DOUBLE;
    add(verify, &streamed, true, "one lane")->lanes = 1;
    add(verify, &streamed, false, "two lanes")->lanes = 2;
    add(verify, unlimited, holds_all, "VAE strips")->vae_strips = SHOAL_STRIPS_ON;
}

/* True if two plans do the same, whatever budgets and options led to them. */
static bool same_plan(const struct shoal_plan_summary *a, const struct shoal_plan_summary *b)
{
    return a->peak_vram_bytes == b->peak_vram_bytes && a->ram_bytes == b->ram_bytes &&
           a->step_copy_bytes == b->step_copy_bytes && a->step_disk_bytes == b->step_disk_bytes &&
           a->resident_blocks == b->resident_blocks && a->packed_blocks == b->packed_blocks &&
           a->prefetch_slots == b->prefetch_slots && a->lanes == b->lanes &&
           a->strip_blocks == b->strip_blocks && a->widened_blocks == b->widened_blocks;
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
        job_print_prompts(job);
        printf(", \"seed\": %llu, \"width\": %d, \"height\": %d, \"steps\": %d,\n \"plans\": [",
            (unsigned long long)job->request.seed, job->request.width, job->request.height,
            job->request.steps);
        return;
    }
    cli_print_clean(stdout, job->model_name);
    printf(": '");
    cli_print_clean(stdout, job->request.prompt);
    for (int32_t i = 0; i < job->request.more_prompt_count; i++) {
        printf("', '");
        cli_print_clean(stdout, job->request.more_prompts[i]);
    }
    printf("', %d x %d, %d step%s, seed %llu\n\n", job->request.width, job->request.height,
        job->request.steps, job->request.steps == 1 ? "" : "s",
        (unsigned long long)job->request.seed);
    printf("%-13s %9s %9s %8s %9s %9s %9s %5s %8s\n", "plan", "device", "host", "resident",
        "copied", "read", "time", "ratio", "picture");
}

static void print_json_budget(const char *name, uint64_t bytes)
{
    printf(", \"%s\": ", name);
    if (bytes == SHOAL_UNLIMITED)
        printf("null");
    else
        printf("%llu", (unsigned long long)bytes);
}

static void print_json_number(const char *name, uint64_t number)
{
    printf(", \"%s\": %llu", name, (unsigned long long)number);
}

static void print_json_row(
    const struct verify *verify, const struct candidate *row, const struct outcome *outcome)
{
    const struct shoal_report *report = &outcome->report;
    const struct shoal_plan_summary *plan = &row->plan;

    printf("%s\n  {\"plan\": \"%s\"", verify->ran > 1 ? "," : "", row->name);
    print_json_budget("vram_bytes", row->request.vram_bytes);
    print_json_budget("ram_bytes", row->request.ram_bytes);
    print_json_number("planned_peak_vram_bytes", plan->peak_vram_bytes);
    print_json_number("peak_vram_bytes", report->peak_vram_bytes);
    print_json_number("planned_ram_bytes", plan->ram_bytes);
    print_json_number("planned_step_bytes", plan->step_copy_bytes);
    print_json_number("step_bytes", report->step_bytes);
    print_json_number("planned_step_read_bytes", plan->step_disk_bytes);
    print_json_number("step_read_bytes", report->step_read_bytes);
    printf(", \"blocks\": %d, \"resident_blocks\": %d, \"packed_blocks\": %d, "
           "\"disk_blocks\": %d, \"prefetch_slots\": %d, \"lanes\": %d, \"strip_blocks\": %d, "
           "\"widened_blocks\": %d",
        plan->blocks, plan->resident_blocks, plan->packed_blocks, plan->disk_blocks,
        plan->prefetch_slots, plan->lanes, plan->strip_blocks, plan->widened_blocks);
    printf(", \"seconds\": %.6f, \"ratio\": ", report->seconds);
    if (verify->seconds > 0)
        printf("%.4f", report->seconds / verify->seconds);
    else
        printf("null");
    printf(", \"latents_xxh3_128\": \"%s\", \"pictures_xxh3_128\": \"%s\", \"same\": %s}",
        outcome->latents.text, outcome->pictures.text, outcome->fault ? "false" : "true");
}

/* Zero is a dash: nothing moves. */
static struct cli_text moved(uint64_t bytes)
{
    struct cli_text dash = {"-"};

    return bytes ? cli_size(bytes) : dash;
}

static void print_row(
    const struct verify *verify, const struct candidate *row, const struct outcome *outcome)
{
    const struct shoal_report *report = &outcome->report;
    char resident[24], ratio[16] = "-";

    snprintf(resident, sizeof resident, "%d/%d", row->plan.resident_blocks, row->plan.blocks);
    if (verify->seconds > 0)
        snprintf(ratio, sizeof ratio, "%.2f", report->seconds / verify->seconds);
    printf("%-13s %9s %9s %8s %9s %9s %9s %5s %.8s%s%s%s\n", row->name,
        cli_size(report->peak_vram_bytes).text, cli_size(row->plan.ram_bytes).text, resident,
        moved(report->step_bytes).text, moved(report->step_read_bytes).text,
        cli_seconds(report->seconds).text, ratio, outcome->pictures.text,
        outcome->fault ? cli_colour(stdout, COLOUR_RED) : "", outcome->fault ? outcome->fault : "",
        outcome->fault ? cli_colour(stdout, COLOUR_NONE) : "");
}

static void print_left_out(const struct candidate *row)
{
    printf("%-13s left out: ", row->name);
    cli_print_clean(stdout, row->left_out);
    putchar('\n');
}

/* The candidates whose plan turned out as that of candidate `index`, on one line. */
static void print_same(const struct verify *verify, int index)
{
    int printed = 0;

    for (int i = 0; i < verify->count; i++) {
        if (verify->candidates[i].same_as != index) continue;
        if (!printed++)
            printf("the same as %s:", verify->candidates[index].name);
        else
            putchar(',');
        printf(" %s", verify->candidates[i].name);
    }
    if (printed) putchar('\n');
}

static void print_json_tail(const struct verify *verify)
{
    int printed = 0;

    printf("],\n \"same_plans\": [");
    for (int i = 0; i < verify->count; i++) {
        const struct candidate *row = &verify->candidates[i];

        if (row->same_as < 0) continue;
        printf("%s{\"plan\": \"%s\", \"as\": \"%s\"}", printed++ ? ", " : "", row->name,
            verify->candidates[row->same_as].name);
    }
    printed = 0;
    printf("],\n \"left_out\": [");
    for (int i = 0; i < verify->count; i++) {
        const struct candidate *row = &verify->candidates[i];

        if (!row->left_out[0]) continue;
        printf("%s{\"plan\": \"%s\", \"why\": ", printed++ ? ", " : "", row->name);
        cli_json_string(stdout, row->left_out);
        fputc('}', stdout);
    }
    printf("],\n \"same\": %s}\n", verify->different == 0 ? "true" : "false");
}

static void print_tail(const struct verify *verify)
{
    bool same = verify->different == 0;

    if (verify->job->options.json) {
        print_json_tail(verify);
        return;
    }
    fputc('\n', stdout);
    for (int i = 0; i < verify->count; i++) {
        const struct candidate *row = &verify->candidates[i];

        if (row->ran)
            print_same(verify, i);
        else if (row->left_out[0])
            print_left_out(row);
    }
    if (same)
        printf("\n%sSame bytes:%s %d plans, streamed and unstreamed, gave the same latents and "
               "pictures.\n",
            cli_colour(stdout, COLOUR_GREEN), cli_colour(stdout, COLOUR_NONE), verify->ran);
    else
        printf("\n%sDIFFERENT:%s %d of %d plans gave other bytes than the first, or had another "
               "peak, or copied or read other bytes a step than planned.\n",
            cli_colour(stdout, COLOUR_RED), cli_colour(stdout, COLOUR_NONE), verify->different,
            verify->ran);
}

/* ---- running ---- */

/* How the run broke a promise: of bytes, of the peak, of what moves in a step; NULL: it did not. */
static const char *find_fault(
    const struct verify *verify, const struct candidate *row, const struct outcome *outcome)
{
    const struct shoal_report *report = &outcome->report;

    if (strcmp(outcome->latents.text, verify->latents.text) != 0 ||
        strcmp(outcome->pictures.text, verify->pictures.text) != 0)
        return " DIFFERENT";
    if (report->replanned) return NULL; /* another plan was run, for a reason that is the files' */
    if (report->peak_vram_bytes != row->plan.peak_vram_bytes ||
        report->peak_vram_bytes > row->request.vram_bytes)
        return " PEAK";
    if (report->step_bytes != row->plan.step_copy_bytes) return " COPIED";
    if (report->step_read_bytes != row->plan.step_disk_bytes) return " READ";
    return NULL;
}

static int run_candidate(
    struct verify *verify, struct candidate *row, const struct shoal_plan *plan)
{
    struct progress progress;
    struct shoal_callbacks callbacks = {&progress, progress_update, interrupt_requested};
    struct shoal_error error = {0};
    struct shoal_result *result = NULL;
    struct outcome outcome;
    enum shoal_status status;

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
    shoal_result_report(result, &outcome.report);
    hash_result(result, &outcome.latents, &outcome.pictures);
    shoal_result_destroy(&result);
    if (verify->ran == 0) {
        verify->latents = outcome.latents;
        verify->pictures = outcome.pictures;
    } else if (verify->ran == 1) {
        verify->seconds = outcome.report.seconds;
    }
    verify->ran++;
    row->ran = true;
    outcome.fault = find_fault(verify, row, &outcome);
    verify->different += outcome.fault != NULL;
    if (verify->job->options.json)
        print_json_row(verify, row, &outcome);
    else
        print_row(verify, row, &outcome);
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
        snprintf(row->left_out, sizeof row->left_out, "%.390s", error.text);
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
        snprintf(row->left_out, sizeof row->left_out, "%.390s", shoal_plan_refusal(plan));
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
    int code = look(verify, &unlimited, &summary);

    if (code != CLI_OK) return code;
    list_candidates(verify, &unlimited, &summary);
    code = list_tiers(verify, &unlimited, summary.least_vram_bytes);
    if (code != CLI_OK) return code;
    print_head(verify);
    fflush(stdout);
    for (int i = 0; i < verify->count; i++) {
        code = try_candidate(verify, &verify->candidates[i]);
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
    shoal_plan_destroy(&job.plan); /* a card that it holds is wanted by the plans to come */
    if (code == CLI_OK) code = run_all(&verify);
    code = cli_finish(code);
done:
    job_close(&job);
    return code;
}
