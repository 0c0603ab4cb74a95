/*
 * The figures of BENCH.md that are about tiers, over the public header only.
 *
 *     bench_tiers disk MODEL FILE VRAM RAM WIDTH HEIGHT
 *         Steps that read from disk beside plain sequential O_DIRECT reads of FILE in the same run,
 *         and beside the limit, max(disk, arithmetic).
 *     bench_tiers predict MODEL RATES WIDTH HEIGHT VRAM,RAM...
 *         Seconds a step as planned and as measured, plan by plan; by the rates in a file of
 *         `shoal bench links`, with the disk's measured again before each plan: plain reads of all
 * of the DiT's files. (Where the drive is virtual its rate is another one every minute.)
 *     bench_tiers load MODEL WIDTH HEIGHT
 *         From nothing to the end of the first step, beside reading the same bytes and no more.
 */
#include "shoal/shoal.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)4 << 20)

static _Noreturn void die(const char *text)
{
    fprintf(stderr, "bench_tiers: %s\n", text);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes a second of one plain O_DIRECT read after another, as dd does it; into large pages or
 * small. */
static double plain_rate(const char *path, bool large_pages)
{
    int fd = open(path, O_RDONLY | O_DIRECT);
    char *buffer =
        mmap(NULL, 2 * PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double start, seconds;
    size_t bytes = 0;
    ssize_t got;

    if (fd < 0 || buffer == MAP_FAILED) die("cannot read past the page cache");
    madvise(buffer, 2 * PIECE_BYTES, large_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(buffer, 1, 2 * PIECE_BYTES);
    start = now();
    while ((got = read(fd, buffer, PIECE_BYTES)) > 0)
        bytes += (size_t)got;
    seconds = now() - start;
    munmap(buffer, 2 * PIECE_BYTES);
    close(fd);
    return (double)bytes / seconds;
}

/* Takes a model's files out of the page cache, where they would be read from, faster. */
static void forget(const char *model)
{
    char pattern[4096];
    glob_t files = {0};

    snprintf(pattern, sizeof pattern, "%s/*/*.safetensors", model);
    if (glob(pattern, 0, NULL, &files)) die("no */*.safetensors in the model");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        int fd = open(files.gl_pathv[i], O_RDONLY);

        if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) die("cannot open the model");
        close(fd);
    }
    globfree(&files);
}

/* plain_rate over all of the model's DiT, into large pages. */
static double model_rate(const char *model)
{
    char pattern[4096];
    glob_t files = {0};
    double bytes = 0, seconds = 0;

    forget(model);
    snprintf(pattern, sizeof pattern, "%s/transformer/*.safetensors", model);
    if (glob(pattern, 0, NULL, &files)) die("no transformer/*.safetensors in the model");
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct stat info;
        double rate = plain_rate(files.gl_pathv[i], true);

        if (stat(files.gl_pathv[i], &info)) die("a file of the model has gone");
        bytes += (double)info.st_size;
        seconds += (double)info.st_size / rate;
    }
    globfree(&files);
    return bytes / seconds;
}

/* Writes the rates again with another disk. */
static void write_rates(const char *from, const char *to, double disk)
{
    char text[8192], *at;
    FILE *file = fopen(from, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;

    text[bytes] = 0;
    if (file) fclose(file);
    at = strstr(text, "\"disk_bytes\": ");
    file = fopen(to, "w");
    if (!at || !file) die("no rates, or no place for them");
    fprintf(file, "%.*s\"disk_bytes\": %f%s", (int)(at - text), text, disk, strchr(at, ','));
    fclose(file);
}

struct figures {
    struct shoal_plan_summary plan;
    struct shoal_report report;
};

static struct figures run(const struct shoal_model *model, const struct shoal_request *request)
{
    struct shoal_error error = {0};
    struct shoal_plan *plan = NULL;
    struct shoal_result *result = NULL;
    struct figures figures;

    if (shoal_plan_create(model, request, &plan, &error)) die(error.text);
    shoal_plan_summarise(plan, &figures.plan);
    if (shoal_run(plan, NULL, &result, &error)) die(error.text);
    shoal_result_report(result, &figures.report);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
    return figures;
}

static struct shoal_request request_for(
    const struct shoal_model *model, const char *width, const char *height, int32_t steps)
{
    struct shoal_request request;

    shoal_request_init(&request, model);
    request.prompt = "a cat wearing a hat";
    request.width = atoi(width);
    request.height = atoi(height);
    request.steps = steps;
    return request;
}

static uint64_t size_of(const char *text)
{
    struct shoal_error error = {0};
    uint64_t bytes;

    if (shoal_parse_size(text, &bytes, &error)) die(error.text);
    return bytes;
}

static void bench_disk(const struct shoal_model *model, const char *path, char **args)
{
    struct shoal_request free = request_for(model, args[3], args[4], 4), tight = free;
    double small = plain_rate(args[0], false), large = plain_rate(args[0], true);
    double arithmetic, limit, disk_seconds, step;
    struct figures f;

    forget(path);
    tight.vram_bytes = size_of(args[1]);
    tight.ram_bytes = size_of(args[2]);
    tight.steps = 6;
    f = run(model, &tight);
    /* The mean: reads run ahead into the next step, so the best of them has borrowed from others.
     */
    step = f.report.mean_step_seconds;
    small = (small + plain_rate(args[0], false)) / 2;
    large = (large + plain_rate(args[0], true)) / 2;
    arithmetic = run(model, &free).report.step_seconds;
    disk_seconds = (double)f.report.step_read_bytes / large;
    limit = disk_seconds > arithmetic ? disk_seconds : arithmetic;
    printf("%d of %d blocks resident, %.2f GiB read and %.2f copied a step (%s)\n",
        f.plan.resident_blocks, f.plan.blocks, (double)f.report.step_read_bytes / 0x1p30,
        (double)f.report.step_bytes / 0x1p30, f.report.reader);
    printf("plain O_DIRECT reads of 4 MiB: %.2f GB/s into small pages (as dd), %.2f into large\n",
        small * 1e-9, large * 1e-9);
    printf("a step %.2f s (mean; %.2f at best): %.2f GB/s, %.2f of the one, %.2f of the other\n",
        step, f.report.step_seconds, (double)f.report.step_read_bytes / step * 1e-9,
        (double)f.report.step_read_bytes / step / small,
        (double)f.report.step_read_bytes / step / large);
    printf("arithmetic alone %.2f s, disk alone %.2f s: limit / step %.3f\n", arithmetic,
        disk_seconds, limit / step);
}

static void bench_predict(const struct shoal_model *model, char **args, int n)
{
    const char *path = args[0], *width = args[2], *height = args[3];
    char rates[] = "/tmp/bench_tiers.XXXXXX";
    double worst = 0;

    close(mkstemp(rates));
    printf("%20s %9s %8s %8s %9s %10s %9s %7s\n", "vram,ram", "resident", "copied", "read",
        "disk GB/s", "predicted", "measured", "off");
    for (int i = 4; i < n; i++) {
        struct shoal_request request = request_for(model, width, height, 5);
        double disk = model_rate(path), off, step;
        char *comma = strchr(args[i], ',');
        struct figures f;

        if (!comma) die("VRAM,RAM: two sizes, apart by a comma");
        write_rates(args[1], rates, disk);
        request.rates_path = rates;
        *comma = 0;
        request.vram_bytes = size_of(args[i]);
        request.ram_bytes = size_of(comma + 1);
        *comma = ',';
        f = run(model, &request);
        step = f.report.mean_step_seconds;
        off = f.plan.step_seconds / step - 1;
        if (off > worst || -off > worst) worst = off > 0 ? off : -off;
        printf("%20s %3d of %2d %8.2f %8.2f %9.2f %8.3f s %7.3f s %+6.1f%%\n", args[i],
            f.plan.resident_blocks, f.plan.blocks, (double)f.plan.step_copy_bytes / 0x1p30,
            (double)f.plan.step_disk_bytes / 0x1p30, disk * 1e-9, f.plan.step_seconds, step,
            off * 100);
        fflush(stdout);
    }
    remove(rates);
    printf("worst %.1f %%\n", worst * 100);
}

static void bench_load(const struct shoal_model *model, const char *width, const char *height)
{
    struct shoal_request request = request_for(model, width, height, 1);
    double seconds;
    struct figures f = run(model, &request);

    seconds = f.report.phase_seconds[SHOAL_PHASE_TEXT] +
              f.report.phase_seconds[SHOAL_PHASE_CONTEXT] +
              f.report.phase_seconds[SHOAL_PHASE_STEPS];
    printf("to the end of the first step %.2f s; %.2f GiB read: %.2f GB/s\n", seconds,
        (double)f.report.read_bytes / 0x1p30, (double)f.report.read_bytes / seconds * 1e-9);
}

int main(int count, char **args)
{
    struct shoal_error error = {0};
    struct shoal_model *model = NULL;

    if (count < 5)
        die("disk MODEL FILE VRAM RAM WIDTH HEIGHT | predict MODEL RATES WIDTH HEIGHT "
            "VRAM,RAM... | load MODEL WIDTH HEIGHT");
    if (shoal_model_open(&(struct shoal_model_paths){.model = args[2]}, &model, &error))
        die(error.text);
    if (!strcmp(args[1], "disk") && count == 8)
        bench_disk(model, args[2], args + 3);
    else if (!strcmp(args[1], "predict") && count > 6)
        bench_predict(model, args + 2, count - 2);
    else if (!strcmp(args[1], "load"))
        bench_load(model, args[3], args[4]);
    shoal_model_close(&model);
    return 0;
}
