/*
 * The figures of BENCH.md that are about time: ratios measured in one run, best of N.
 *
 *     bench stream MODEL [ROUNDS]           what streaming costs: streamed time / unlimited time
 *     bench budgets MODEL ROUNDS VRAM...    seconds a step under each budget, against unlimited
 *     bench forward MODEL VRAM WIDTH HEIGHT one DiT step, its GFLOP/s beside OpenBLAS's own sgemm
 *
 * Over the public header only; OpenBLAS is the yardstick, called as anybody would call it.
 */
#include "shoal/shoal.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Noreturn void die(const struct shoal_error *error)
{
    fprintf(stderr, "bench: %s\n", error->text);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs the request once. */
static struct shoal_report run(const struct shoal_model *model, const struct shoal_request *request,
    struct shoal_plan_summary *summary)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;
    struct shoal_result *result = NULL;
    struct shoal_report report;

    if (shoal_plan_create(model, request, &plan, &error)) die(&error);
    shoal_plan_summarise(plan, summary);
    if (shoal_run(plan, NULL, &result, &error)) die(&error);
    shoal_result_report(result, &report);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    return report;
}

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

/* Alternates streamed and unlimited runs, so that both see the same machine. */
static void bench_stream(const struct shoal_model *model, int rounds)
{
    struct shoal_request streamed, unlimited;
    struct shoal_plan_summary s, u;
    double best[2][2] = {{1e9, 1e9}, {1e9, 1e9}}; /* [streamed][whole, step] */

    shoal_request_init(&streamed, model);
    streamed.prompt = "a cat wearing a hat";
    unlimited = streamed;
    streamed.resident_blocks = 0;
    streamed.prefetch_slots = 2;
    for (int i = 0; i < rounds; i++) {
        struct shoal_report a = run(model, &unlimited, &u), b = run(model, &streamed, &s);

        best[0][0] = lesser(best[0][0], a.seconds);
        best[0][1] = lesser(best[0][1], a.step_seconds);
        best[1][0] = lesser(best[1][0], b.seconds);
        best[1][1] = lesser(best[1][1], b.step_seconds);
    }
    printf(
        "best of %d, %d steps, %dx%d\n", rounds, streamed.steps, streamed.width, streamed.height);
    printf("unlimited  %.4f s, best step %.2f ms, %.1f GFLOP/s in steps, peak %.2f MiB\n",
        best[0][0], best[0][1] * 1e3, (double)u.step_operations / best[0][1] * 1e-9,
        (double)u.peak_vram_bytes / 0x1p20);
    printf("streamed   %.4f s, best step %.2f ms, %.2f MiB copied a step, peak %.2f MiB\n",
        best[1][0], best[1][1] * 1e3, (double)s.step_copy_bytes / 0x1p20,
        (double)s.peak_vram_bytes / 0x1p20);
    printf("streamed / unlimited: picture %.3f, step %.3f\n", best[1][0] / best[0][0],
        best[1][1] / best[0][1]);
}

#define MAX_BUDGETS 8

/* A table of memory against time. The budgets take turns, so that all see the same machine. */
static void bench_budgets(
    const struct shoal_model *model, int rounds, char **budgets, int budget_count)
{
    struct shoal_plan_summary s[MAX_BUDGETS + 1];
    double best[MAX_BUDGETS + 1];
    struct shoal_error error = {0};

    if (budget_count > MAX_BUDGETS) budget_count = MAX_BUDGETS;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i <= budget_count; i++) {
            struct shoal_request request;
            double seconds;

            shoal_request_init(&request, model);
            request.prompt = "a cat wearing a hat";
            if (i > 0 && shoal_parse_size(budgets[i - 1], &request.vram_bytes, &error)) die(&error);
            seconds = run(model, &request, &s[i]).step_seconds;
            best[i] = round ? lesser(best[i], seconds) : seconds;
        }
    printf("best of %d; DiT %.2f MiB\n", rounds, (double)s[0].dit_weight_bytes / 0x1p20);
    printf("%10s %10s %9s %12s %10s %6s\n", "budget", "peak MiB", "resident", "copied MiB",
        "ms a step", "ratio");
    for (int i = 0; i <= budget_count; i++)
        printf("%10s %10.2f %3d of %2d %12.2f %10.2f %6.3f\n", i ? budgets[i - 1] : "unlimited",
            (double)s[i].peak_vram_bytes / 0x1p20, s[i].resident_blocks, s[i].blocks,
            (double)s[i].step_copy_bytes / 0x1p20, best[i] * 1e3, best[i] / best[0]);
}

/* OpenBLAS's own rate for tokens x features x features in F32, all cores; best of 5. */
static double sgemm_rate(int tokens, int features)
{
    size_t x_size = (size_t)tokens * (size_t)features, w_size = (size_t)features * (size_t)features;
    float *x = malloc(x_size * sizeof *x), *w = malloc(w_size * sizeof *w);
    float *y = malloc(x_size * sizeof *y);
    double best = 1e9;

    if (!x || !w || !y) exit(1);
    for (size_t i = 0; i < x_size; i++)
        x[i] = (float)(i % 17) * 0.1f;
    for (size_t i = 0; i < w_size; i++)
        w[i] = (float)(i % 13) * 0.1f;
    for (int i = 0; i < 5; i++) {
        double start = now();

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, features, features, 1, x,
            features, w, features, 0, y, features);
        best = lesser(best, now() - start);
    }
    free(x);
    free(w);
    free(y);
    return 2.0 * (double)tokens * (double)features * (double)features / best;
}

static void bench_forward(const struct shoal_model *model, const char *vram, int width, int height)
{
    struct shoal_error error = {0};
    struct shoal_request request;
    struct shoal_plan_summary s;
    struct shoal_report report;
    double sgemm, rate;

    shoal_request_init(&request, model);
    request.prompt = "a cat wearing a hat";
    request.width = width;
    request.height = height;
    request.steps = 1;
    request.cfg = 1;
    if (shoal_parse_size(vram, &request.vram_bytes, &error)) die(&error);
    sgemm = sgemm_rate(width * height / 256 + 32, 3840);
    report = run(model, &request, &s);
    sgemm = sgemm > 0 ? sgemm : 1;
    rate = (double)s.step_operations / report.step_seconds;
    printf("%dx%d in %.2f GiB: one forward %.2f s, %.1f GFLOP, %.2f GiB copied, peak %.3f GiB "
           "(plan %.3f), %d of %d blocks resident\n",
        width, height, (double)request.vram_bytes / 0x1p30, report.step_seconds,
        (double)s.step_operations * 1e-9, (double)s.step_copy_bytes / 0x1p30,
        (double)report.peak_vram_bytes / 0x1p30, (double)s.peak_vram_bytes / 0x1p30,
        s.resident_blocks, s.blocks);
    printf("loading %.1f s; text %.1f s, context %.1f s, steps %.1f s, decode %.1f s\n",
        report.wait_seconds, report.phase_seconds[SHOAL_PHASE_TEXT],
        report.phase_seconds[SHOAL_PHASE_CONTEXT], report.phase_seconds[SHOAL_PHASE_STEPS],
        report.phase_seconds[SHOAL_PHASE_DECODE]);
    printf("forward %.1f GFLOP/s; OpenBLAS sgemm %.1f GFLOP/s (%s); ratio %.3f\n", rate * 1e-9,
        sgemm * 1e-9, openblas_get_corename(), rate / sgemm);
}

int main(int count, char **args)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;

    if (count < 3) {
        fprintf(stderr, "bench stream MODEL [ROUNDS] | bench budgets MODEL ROUNDS VRAM... | "
                        "bench forward MODEL VRAM WIDTH HEIGHT\n");
        return 2;
    }
    if (shoal_model_open(&(struct shoal_model_paths){.model = args[2]}, &model, &error))
        die(&error);
    if (!strcmp(args[1], "stream"))
        bench_stream(model, count > 3 ? atoi(args[3]) : 10);
    else if (!strcmp(args[1], "budgets") && count > 4)
        bench_budgets(model, atoi(args[3]), args + 4, count - 4);
    else if (!strcmp(args[1], "forward") && count == 6)
        bench_forward(model, args[3], atoi(args[4]), atoi(args[5]));
    shoal_model_close(&model);
    return 0;
}
