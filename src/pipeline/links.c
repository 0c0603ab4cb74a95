/* shoal_bench_links: measures, tells, and stores what plans predict by. */
#include "pipeline/links.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/json.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "pipeline/parts.h"
#include "pipeline/target.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SPREAD_OF_BUSY 1.3                   /* a quiet machine has less */
#define SMALL_FILE_BYTES ((uint64_t)1 << 30) /* less is read too fast to be measured well */
/* Less is not even as many reads as the loop has under way at once. The embedded model has more. */
#define LEAST_FILE_BYTES ((uint64_t)15 << 20)

/* ---- timing ---- */

#define MOST_CALLS 1024

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double links_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double links_median_rate(double *rates, int count, double *spread)
{
    const double median = links_median(rates, count);

    *spread = fmax(*spread, rates[count - 1] / median);
    return median;
}

double links_seconds(void (*body)(void *arg), void *arg, double seconds, double *spread)
{
    double calls[MOST_CALLS];
    uint64_t start = clock_ns();
    int count = 0;

    while (count < MOST_CALLS) {
        uint64_t begun = clock_ns(), now;

        body(arg);
        now = clock_ns();
        calls[count++] = (double)(now > begun ? now - begun : 1) * 1e-9;
        if ((double)(now - start) * 1e-9 >= (count < 3 ? 3 * seconds : seconds)) break;
    }
    seconds = links_median(calls, count); /* sorts them */
    *spread = fmax(*spread, seconds / calls[0]);
    return seconds;
}

/* ---- where rates are kept ---- */

enum shoal_status links_rates_path(const char *device, char **path, struct shoal_error *error)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool cpu = strcmp(device, "cpu") == 0;
    const char *dash = cpu ? "" : "-", *whose = cpu ? "" : device;

    if (cache && cache[0] == '/') /* any other is to be ignored, says its specification */
        *path = mem_format("%s/shoal/rates%s%s.json", cache, dash, whose);
    else if (home && home[0] == '/')
        *path = mem_format("%s/.cache/shoal/rates%s%s.json", home, dash, whose);
    else
        FAIL(error, SHOAL_E_MISSING,
            "no folder for rates: set HOME or XDG_CACHE_HOME, or name a file with --rates");
    if (!*path) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* Makes the folder of `path` and those above it. */
static enum shoal_status make_folders(char *path, struct shoal_error *error)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        int failed;

        *slash = 0;
        failed = mkdir(path, 0777) && errno != EEXIST && errno != EROFS ? errno : 0;
        if (!failed && file_kind(path) != FILE_FOLDER) failed = ENOTDIR;
        if (failed) {
            error_set(error, SHOAL_E_IO, __FILE__, __LINE__,
                "cannot make the folder %s: %s: name a file with --rates", path, strerror(failed));
            *slash = '/';
            return SHOAL_E_IO;
        }
        *slash = '/';
    }
    return SHOAL_OK;
}

/* *path: where the rates go; mem_free'd by the caller. Its folder is there. */
static enum shoal_status prepare_path(const struct shoal_links_request *request, const char *device,
    char **path, struct shoal_error *error)
{
    if (request->rates_path) {
        *path = mem_strdup(request->rates_path);
        if (!*path) FAIL_MEMORY(error);
        return SHOAL_OK;
    }
    TRY(links_rates_path(device, path, error));
    return make_folders(*path, error);
}

/* ---- what is said ---- */

struct report {
    const struct links_figures *figures;
    const char *device;
    bool card;
    const char *file, *path; /* that was read; where the rates were stored */
    int threads;
};

/* A row of the table; `note` may be "". */
static void row(struct text *t, const char *group, const char *what, double rate, const char *unit,
    const char *note)
{
    text_append(t, "%-12s%-20s%8.2f %s", group, what, rate * 1e-9, unit);
    if (*note) text_append(t, "%*s%s", (int)(10 - strlen(unit)), "", note);
    text_append(t, "\n");
}

static void disk_text(const struct report *r, struct text *t)
{
    const struct links_figures *f = r->figures;
    const struct rates *rates = &f->rates;
    struct text note = {0};
    char size[SIZE_TEXT_BYTES];

    row(t, "disk", "sequential", rates->disk_sequential_bytes, "GB/s",
        f->cached ? "4 MiB reads; not past the page cache" : "1 MiB O_DIRECT reads");
    text_append(&note, "%s; %.0f %% of sequential", f->reader,
        100 * rates->disk_bytes / rates->disk_sequential_bytes);
    row(t, "", "as the loop reads", rates->disk_bytes, "GB/s", note.failed ? "" : note.data);
    mem_free(note.data);
    text_append(t, "%-12s%s, %s; its pages in memory were dropped first\n", "", r->file,
        size_format(size, f->file_bytes));
    if (f->file_bytes < SMALL_FILE_BYTES)
        text_append(
            t, "%-12sthat is small: --file with a file of several GiB measures better\n", "");
}

/* Why the figures are not to be trusted; NULL: they are. mem_free'd by the caller. */
static char *busy_note(const struct links_figures *f, bool *failed)
{
    char *note;

    if (f->spread <= SPREAD_OF_BUSY) return NULL;
    note = mem_format("the machine or its drive was busy: a typical round took %.1f times the "
                      "shortest, so these figures and plans by them may be far off. Measure again "
                      "when nothing else runs",
        f->spread);
    *failed |= !note;
    return note;
}

static void report_text(const struct report *r, struct text *t)
{
    const struct links_figures *f = r->figures;
    const struct rates *rates = &f->rates;
    char kept[48], *busy = busy_note(f, &t->failed);

    text_append(t, "%s; %s, %d thread%s; each figure is the median of several rounds\n\n",
        r->device, cpu_describe(), r->threads, r->threads == 1 ? "" : "s");
    row(t, "link", "host to device", rates->link_bytes, "GB/s",
        "16 MiB pieces, beside linear products");
    row(t, "", "from the cache", f->link_cached_bytes, "GB/s", "");
    if (r->card) {
        row(t, "", "not pinned", rates->unpinned_bytes, "GB/s", "--pin off");
        row(t, "", "to a pinned ring", rates->bounce_bytes, "GB/s", "--pin staging");
    }
    disk_text(r, t);
    snprintf(kept, sizeof kept, "of bf16, to %.1f %% of its bytes", 100 * f->packed_part);
    row(t, "wire", "pack", rates->pack_bytes, "GB/s", kept);
    row(t, "", "unpack", rates->unpack_bytes, "GB/s", "");
    row(t, "arithmetic", "linear", rates->flops[WORK_LINEAR], "GFLOP/s", "");
    row(t, "", "its weights", rates->weight_bytes, "GB/s", "what products of few rows wait for");
    row(t, "", "attention", rates->flops[WORK_ATTENTION], "GFLOP/s", "");
    row(t, "", "convolution", rates->flops[WORK_CONV], "GFLOP/s", "");
    row(t, "", "all other", rates->memory_bytes, "GB/s", "of operands");
    text_append(t, "%-12s%-20s%8.1f us%8s%s\n", "", "each operation", 1e6 * rates->call_seconds, "",
        "whatever its size");
    text_append(t, "overlap     %-20s%8.0f %%         more time for linear products\n",
        "beside copies", 100 * rates->copy_tax);
    text_append(t, "%-12s%-20s%8.0f %%\n", "", "beside reads", 100 * rates->read_tax);
    text_append(t, "\nstored in %s: plans predict by it\n", r->path);
    if (busy) text_append(t, "note: %s\n", busy);
    mem_free(busy);
}

/* NULL when out of memory; else mem_free'd by the caller. */
static char *report_json(const struct report *r)
{
    const struct links_figures *f = r->figures;
    const struct rates *rates = &f->rates;
    json_t *object = json_object();
    json_t *notes = json_array();
    bool failed = !object;
    char *text, *busy = busy_note(f, &failed);

    if (busy) json_append(notes, json_string(busy), &failed);
    mem_free(busy);
    json_put(object, "device", json_string(r->device), &failed);
    json_put(object, "threads", json_integer(r->threads), &failed);
    json_put(object, "link_bytes", json_real(rates->link_bytes), &failed);
    json_put(object, "unpinned_bytes", json_real(rates->unpinned_bytes), &failed);
    json_put(object, "bounce_bytes", json_real(rates->bounce_bytes), &failed);
    json_put(object, "link_cached_bytes", json_real(f->link_cached_bytes), &failed);
    json_put(object, "disk_sequential_bytes", json_real(rates->disk_sequential_bytes), &failed);
    json_put(object, "disk_bytes", json_real(rates->disk_bytes), &failed);
    json_put(object, "reader", json_string(f->reader), &failed);
    json_put(object, "page_cache", json_boolean(f->cached), &failed);
    json_put(object, "file", json_text(r->file), &failed);
    json_put(object, "file_bytes", json_integer((json_int_t)f->file_bytes), &failed);
    json_put(object, "pack_bytes", json_real(rates->pack_bytes), &failed);
    json_put(object, "unpack_bytes", json_real(rates->unpack_bytes), &failed);
    json_put(object, "packed_part", json_real(f->packed_part), &failed);
    json_put(object, "linear_flops", json_real(rates->flops[WORK_LINEAR]), &failed);
    json_put(object, "attention_flops", json_real(rates->flops[WORK_ATTENTION]), &failed);
    json_put(object, "conv_flops", json_real(rates->flops[WORK_CONV]), &failed);
    json_put(object, "weight_bytes", json_real(rates->weight_bytes), &failed);
    json_put(object, "memory_bytes", json_real(rates->memory_bytes), &failed);
    json_put(object, "call_seconds", json_real(rates->call_seconds), &failed);
    json_put(object, "copy_tax", json_real(rates->copy_tax), &failed);
    json_put(object, "read_tax", json_real(rates->read_tax), &failed);
    json_put(object, "spread", json_real(f->spread), &failed);
    json_put(object, "rates", json_text(r->path), &failed);
    json_put(object, "notes", notes, &failed);
    text = failed ? NULL : json_print(object);
    json_decref(object);
    return text;
}

static enum shoal_status tell(
    const struct report *report, bool json, char **text, struct shoal_error *error)
{
    struct text t = {0};

    if (json) {
        *text = report_json(report);
    } else {
        report_text(report, &t);
        *text = t.data;
        if (t.failed) {
            mem_free(t.data);
            *text = NULL;
        }
    }
    if (!*text) FAIL_MEMORY(error);
    return SHOAL_OK;
}

/* ---- all of it ---- */

/* The processor's name; "cpu" if the system does not say. */
static void processor_name(char line[256])
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    const char *value = NULL;

    while (file && !value && fgets(line, 256, file))
        if (strncmp(line, "model name", 10) == 0) value = strchr(line, ':');
    if (file) fclose(file);
    if (value)
        memmove(line, value + 1, strlen(value));
    else
        strcpy(line, "cpu");
}

/* By what it computes with, without what names of processors hold beside the name: "Intel(R)
 * Xeon(R) Gold 6130 CPU @ 2.10GHz" is an Intel Xeon Gold 6130. */
static void name_machine(const struct target *target, char name[64])
{
    static const char *const fillers[] = {"(R)", "(TM)", "(tm)", "CPU", "Processor", " "};
    char line[256];
    size_t length = 0, filler;

    if (target->device)
        snprintf(line, sizeof line, "%s", cuda_info(target->device).name);
    else
        processor_name(line);
    for (const char *c = line; *c && *c != '@' && length < 62;) {
        for (filler = 0; filler < sizeof fillers / sizeof *fillers; filler++)
            if (strncmp(c, fillers[filler], strlen(fillers[filler])) == 0) break;
        if (filler < sizeof fillers / sizeof *fillers) {
            c += strlen(fillers[filler]);
            if (length && name[length - 1] != ' ') name[length++] = ' ';
        } else {
            if (*c > ' ' && *c < 0x7f) name[length++] = *c;
            c++;
        }
    }
    while (length && name[length - 1] == ' ')
        length--;
    name[length] = 0;
    if (!length) strcpy(name, "a machine");
}

/* The largest file of the model's DiT, or the one that was named. */
static enum shoal_status find_file(
    const struct shoal_links_request *request, const char **path, struct shoal_error *error)
{
    const struct checkpoint *checkpoint;
    uint64_t most = 0;

    *path = request->file;
    if (*path) return SHOAL_OK;
    if (!request->model) FAIL(error, SHOAL_E_INVALID, "nothing to read: name a file or a model");
    checkpoint = request->model->checkpoints[FAMILY_DIT];
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const struct file *file = checkpoint_at(checkpoint, i)->file;

        if (file->bytes <= most) continue;
        most = file->bytes;
        *path = file->path;
    }
    return SHOAL_OK;
}

/* What the rates of too small a file would say, plans would believe. */
static enum shoal_status check_file(const char *path, struct shoal_error *error)
{
    char size[SIZE_TEXT_BYTES], least[SIZE_TEXT_BYTES];
    struct file file;
    uint64_t bytes;

    TRY(file_open(path, &file, error));
    bytes = file.bytes;
    file_close(&file);
    if (bytes >= LEAST_FILE_BYTES) return SHOAL_OK;
    FAIL(error, SHOAL_E_INVALID,
        "%s is too small to measure the drive with, %s: name a file of several GiB with --file, or "
        "at least of %s",
        path, size_format(size, bytes), size_format(least, LEAST_FILE_BYTES));
}

static enum shoal_status measure(const struct report *r, const struct target *target,
    struct links_figures *figures, struct shoal_error *error)
{
    struct device *cpu = NULL, *device = target->device;
    enum shoal_status status;

    if (!device) {
        TRY(cpu_create(&cpu, CPU_KERNELS_FAST, r->threads, error));
        device = cpu;
    }
    TRY_OR_FAIL(links_measure_disk(r->file, figures, error));
    TRY_OR_FAIL(links_measure_wire(device, r->threads, figures, error));
    TRY_OR_FAIL(links_measure_device(device, r->file, figures, error));
    status = links_measure_unpinned(device, r->threads, figures, error);
fail:
    device_destroy(&cpu);
    return status;
}

enum shoal_status shoal_bench_links(
    const struct shoal_links_request *request, bool json, char **text, struct shoal_error *error)
{
    struct links_figures figures = {.rates = {.origin = RATES_MEASURED}};
    struct report report = {.figures = &figures, .threads = request->threads};
    struct target target;
    char *path = NULL;
    enum shoal_status status;

    *text = NULL;
    TRY(target_open(&target, request->device, error));
    report.card = target.card;
    report.device = target.device ? cuda_info(target.device).name : "cpu";
    if (report.threads == 0) report.threads = thread_cores();
    TRY_OR_FAIL(find_file(request, &report.file, error));
    TRY_OR_FAIL(check_file(report.file, error));
    TRY_OR_FAIL(prepare_path(request, target.name, &path, error));
    report.path = path;
    TRY_OR_FAIL(measure(&report, &target, &figures, error));
    name_machine(&target, figures.rates.name);
    if (target.device) { /* by which others plan for this card */
        figures.rates.vram_bytes = cuda_info(target.device).card_bytes;
        figures.rates.context_bytes = target.context_bytes;
    } else {
        figures.rates.threads = (uint64_t)report.threads;
    }
    TRY_OR_FAIL(rates_write(path, &figures.rates, error));
    status = tell(&report, json, text, error);
fail:
    target_close(&target);
    mem_free(path);
    return status;
}
