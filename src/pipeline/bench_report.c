/* What shoal bench stream has measured, as a table for a person and as one JSON object. */
#include "pipeline/bench_stream.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/json.h"
#include "pipeline/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a step cannot be faster than. */
struct limits {
    double arithmetic, link, disk; /* seconds */
    double all;
    const char *name; /* of the greatest */
};

/* `arithmetic`: of a step with resident weights. */
static struct limits limits_of(const struct bench_figures *f, double arithmetic)
{
    struct limits l = {.arithmetic = arithmetic, .link = (double)f->copied_bytes / f->link_bytes};

    if (f->disk_bytes > 0) l.disk = (double)f->read_bytes / f->disk_bytes;
    l.all = fmax(l.arithmetic, fmax(l.link, l.disk));
    l.name = l.all <= l.arithmetic ? "arithmetic" : l.all <= l.link ? "link" : "disk";
    return l;
}

static double mean_over_limit(const struct bench_figures *f)
{
    return f->streamed.mean_seconds / limits_of(f, f->resident.mean_seconds).all;
}

static double best_over_limit(const struct bench_figures *f)
{
    return f->streamed.best_seconds / limits_of(f, f->resident.best_seconds).all;
}

/* Of weights as they are computed with, a second. */
static double delivered(const struct bench_figures *f)
{
    return (double)f->weight_bytes / f->streamed.mean_seconds;
}

/* ---- notes ---- */

#define LEAST_OVER_LIMIT 0.9 /* of what is measured on a quiet machine; 1 but for noise */

static void note_settings(const struct bench_figures *f, json_t *notes, bool *failed)
{
    const struct shoal_stream_request *r = f->request;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];

    if (f->block_bytes != r->block_bytes)
        json_append(notes,
            json_sprintf("blocks are of %s, the next size below %s that their products can have",
                size_format(a, f->block_bytes), size_format(b, r->block_bytes)),
            failed);
    if (!f->plan->slots && plan_ring_options(r->prefetch_slots, r->buffer))
        json_append(notes,
            json_sprintf("%s no effect: every block is resident",
                plan_ring_options(r->prefetch_slots, r->buffer)),
            failed);
    if (!f->plan->slots && r->wire == SHOAL_WIRE_PACKED && !f->plan->packed_count)
        json_append(
            notes, json_string("--wire packed has no effect: every block is resident"), failed);
    if (r->pin != SHOAL_PIN_ON && !f->target->card)
        json_append(notes,
            json_string("--pin has no effect: only cards copy faster from pinned memory"), failed);
}

/* Of a card, what it makes no use of. */
static void note_card(const struct bench_figures *f, json_t *notes, bool *failed)
{
    const bool bounces =
        f->plan->slots && (f->request->pin == SHOAL_PIN_STAGING || f->loop.stats.unpinned.status);
    char size[SIZE_TEXT_BYTES];

    if (f->capped)
        json_append(notes,
            json_sprintf("%s has %s free: more of --vram has no effect", f->target->name,
                size_format(size, f->request->vram_bytes)),
            failed);
    if (f->request->threads && !f->plan->packed_count && !bounces)
        json_append(notes,
            json_string("--threads has no effect: a card computes, and nothing is packed here"),
            failed);
    if (!f->pinned)
        json_append(notes,
            json_string("the link's rate is that of memory that is not pinned: the system pins "
                        "no 256 MiB"),
            failed);
}

static void note_machine(const struct bench_figures *f, json_t *notes, bool *failed)
{
    if (mean_over_limit(f) < LEAST_OVER_LIMIT)
        json_append(notes,
            json_sprintf(
                "a step took %.2f of its limit, which cannot be: the machine was busy while "
                "the limit was measured. Measure again when nothing else runs",
                mean_over_limit(f)),
            failed);
    if (f->target->no_card.status)
        json_append(
            notes, json_sprintf("computing on the CPU: %s", f->target->no_card.text), failed);
    if (!f->target->card && f->plan->slots)
        json_append(notes,
            json_string("the CPU copies with the cores and the memory that it computes with, so "
                        "that its limit is below what it can reach"),
            failed);
    if (f->target->card) note_card(f, notes, failed);
    if (f->loop.stats.unpinned.status)
        json_append(notes,
            json_sprintf("not all of host memory could be pinned, so copies are slower: %.300s",
                f->loop.stats.unpinned.text),
            failed);
    if (f->read_bytes && strstr(f->loop.reader, "cached"))
        json_append(notes,
            json_string("the file could not be read past the page cache: its rate is not the "
                        "drive's"),
            failed);
}

/* An array of sentences; NULL when out of memory. */
static json_t *list_notes(const struct bench_figures *f)
{
    json_t *notes = json_array();
    bool failed = false;

    note_settings(f, notes, &failed);
    note_machine(f, notes, &failed);
    if (!failed) return notes;
    json_decref(notes);
    return NULL;
}

/* ---- for a person ---- */

/* A row of the table; `note` may be "". */
static void row(struct text *t, const char *group, const char *what, double value, const char *unit,
    const char *note)
{
    text_append(t, "%-12s%-20s%10.2f %s", group, what, value, unit);
    if (*note) text_append(t, "%*s%s", (int)(10 - strlen(unit)), "", note);
    text_append(t, "\n");
}

static void alone_text(const struct bench_figures *f, struct text *t)
{
    const double rate = f->operations / f->resident.mean_seconds;
    const bool tera = rate >= 1e12;
    char note[96];

    snprintf(note, sizeof note, "best %.2f; %.4g %cFLOP/s, weights resident",
        f->resident.best_seconds * 1e3, rate * (tera ? 1e-12 : 1e-9), tera ? 'T' : 'G');
    row(t, "alone", "arithmetic of a step", f->resident.mean_seconds * 1e3, "ms", note);
    row(t, "", "link", f->link_bytes * 1e-9, "GB/s",
        f->pinned ? "16 MiB pieces of pinned memory" : "16 MiB pieces");
    if (f->disk_bytes > 0) row(t, "", "disk", f->disk_bytes * 1e-9, "GB/s", "as the loop reads");
    if (f->unpack_bytes > 0) {
        snprintf(note, sizeof note, "%.2f ms of a step; packed to %.1f %%",
            f->plan->unpack_seconds * 1e3, 100 * f->packed_part);
        row(t, "", "unpacking", f->unpack_bytes * 1e-9, "GB/s", note);
    }
}

/* What a step moves. */
static void moved_text(const struct bench_figures *f, struct text *t)
{
    const double seconds = f->streamed.mean_seconds;
    char note[96], size[SIZE_TEXT_BYTES];

    if (!f->plan->slots) return;
    snprintf(note, sizeof note, "%s a step", size_format(size, f->copied_bytes));
    row(t, "", "copied", (double)f->copied_bytes / seconds * 1e-9, "GB/s", note);
    if (f->read_bytes) {
        snprintf(
            note, sizeof note, "%s a step, %s", size_format(size, f->read_bytes), f->loop.reader);
        row(t, "", "read", (double)f->read_bytes / seconds * 1e-9, "GB/s", note);
    }
    snprintf(
        note, sizeof note, "of bf16 weights; %.3f x the link's rate", delivered(f) / f->link_bytes);
    row(t, "", "delivered", delivered(f) * 1e-9, "GB/s", note);
}

static void streamed_text(const struct bench_figures *f, struct text *t)
{
    const struct limits l = limits_of(f, f->resident.mean_seconds);
    char note[96];

    snprintf(note, sizeof note, "best %.2f; the first, which loads, %.2f",
        f->streamed.best_seconds * 1e3, f->streamed.first_seconds * 1e3);
    row(t, "streamed", "a step", f->streamed.mean_seconds * 1e3, "ms", note);
    moved_text(f, t);
    row(t, "limit", l.name, l.all * 1e3, "ms",
        f->disk_bytes > 0 ? "the greatest of arithmetic, copies and reads, each alone"
                          : "the greater of arithmetic and copies, each alone");
    snprintf(note, sizeof note, "best / best %.3f", best_over_limit(f));
    text_append(t, "%-12s%-20s%10.3f %10s%s\n", "", "step / limit", mean_over_limit(f), "", note);
}

static void plan_text(const struct bench_figures *f, struct text *t)
{
    const struct plan_phase *p = f->plan;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];

    text_append(t,
        "\nplan: %d of %d blocks resident, %d packed, %d on disk, %d slot%s; device "
        "memory %s, host memory %s, of which pinned %s\n",
        (int)p->resident_count, (int)p->block_count, (int)p->packed_count, (int)p->disk_count,
        (int)p->slots, p->slots == 1 ? "" : "s", size_format(a, f->peak_bytes),
        size_format(b, f->ram_bytes), size_format(c, f->loop.stats.pinned_bytes));
    text_append(t, "the activations are those of resident weights to the bit: %016llx\n",
        (unsigned long long)f->loop.checksum);
}

static void report_text(const struct bench_figures *f, const json_t *notes, struct text *t)
{
    const struct shoal_stream_request *r = f->request;
    char size[SIZE_TEXT_BYTES];

    text_append(t, "%s; %d blocks of %s, of which %d differ; %d tokens, %d steps\n\n", f->device,
        (int)r->blocks, size_format(size, f->block_bytes), (int)f->distinct, (int)r->tokens,
        (int)r->steps);
    alone_text(f, t);
    streamed_text(f, t);
    plan_text(f, t);
    for (size_t i = 0; i < json_array_size(notes); i++)
        text_append(t, "note: %s\n", json_string_value(json_array_get(notes, i)));
}

/* ---- for a program ---- */

struct fields {
    json_t *object;
    bool failed;
};

/* What was not measured is null. */
static void put_real(struct fields *to, const char *key, double value)
{
    json_put(to->object, key, value > 0 ? json_real(value) : json_null(), &to->failed);
}

static void put_integer(struct fields *to, const char *key, uint64_t value)
{
    json_put(to->object, key, json_integer((json_int_t)value), &to->failed);
}

static void put_text(struct fields *to, const char *key, const char *value)
{
    json_put(to->object, key, json_text(value), &to->failed);
}

static void put_times(struct fields *to, const struct bench_figures *f)
{
    const struct limits l = limits_of(f, f->resident.mean_seconds);

    put_real(to, "resident_step_seconds", f->resident.mean_seconds);
    put_real(to, "best_resident_step_seconds", f->resident.best_seconds);
    put_real(to, "link_bytes", f->link_bytes);
    json_put(to->object, "link_pinned", json_boolean(f->pinned), &to->failed);
    put_real(to, "disk_bytes", f->disk_bytes);
    put_real(to, "unpack_bytes", f->unpack_bytes);
    put_real(to, "packed_part", f->packed_part);
    put_real(to, "first_step_seconds", f->streamed.first_seconds);
    put_real(to, "step_seconds", f->streamed.mean_seconds);
    put_real(to, "best_step_seconds", f->streamed.best_seconds);
    put_real(to, "delivered_bytes", delivered(f));
    put_real(to, "delivered_over_link", delivered(f) / f->link_bytes);
    put_real(to, "limit_seconds", l.all);
    put_text(to, "limit", l.name);
    put_real(to, "step_over_limit", mean_over_limit(f));
    put_real(to, "best_step_over_limit", best_over_limit(f));
}

static void put_plan(struct fields *to, const struct bench_figures *f)
{
    const struct plan_phase *p = f->plan;

    put_integer(to, "resident_blocks", (uint64_t)p->resident_count);
    put_integer(to, "packed_blocks", (uint64_t)p->packed_count);
    put_integer(to, "disk_blocks", (uint64_t)p->disk_count);
    put_integer(to, "prefetch_slots", (uint64_t)p->slots);
    put_integer(to, "planned_vram_bytes", f->peak_bytes);
    put_integer(to, "peak_vram_bytes", f->loop.peak_bytes + f->target->context_bytes);
    put_integer(to, "ram_bytes", f->ram_bytes);
    put_integer(to, "pinned_bytes", f->loop.stats.pinned_bytes);
    put_integer(to, "planned_step_copy_bytes", p->stream_bytes);
    put_integer(to, "step_copy_bytes", f->copied_bytes);
    put_integer(to, "planned_step_read_bytes", p->disk_bytes);
    put_integer(to, "step_read_bytes", f->read_bytes);
    put_integer(to, "step_weight_bytes", f->weight_bytes);
}

/* NULL when out of memory; else mem_free'd by the caller. */
static char *report_json(const struct bench_figures *f, json_t *notes)
{
    const struct shoal_stream_request *r = f->request;
    struct fields to = {.object = json_object()};
    char checksum[20], *text;

    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)f->loop.checksum);
    put_text(&to, "device", f->device);
    put_integer(&to, "threads", (uint64_t)f->threads);
    put_integer(&to, "blocks", (uint64_t)r->blocks);
    put_integer(&to, "distinct_blocks", (uint64_t)f->distinct);
    put_integer(&to, "block_bytes", f->block_bytes);
    put_integer(&to, "tokens", (uint64_t)r->tokens);
    put_integer(&to, "steps", (uint64_t)r->steps);
    put_real(&to, "step_operations", f->operations);
    put_times(&to, f);
    put_plan(&to, f);
    put_text(&to, "reader", f->loop.reader);
    put_text(&to, "checksum", checksum);
    json_put(to.object, "identical", json_true(), &to.failed); /* else it would have failed */
    json_put(to.object, "notes", json_incref(notes), &to.failed);
    text = to.failed ? NULL : json_print(to.object);
    json_decref(to.object);
    return text;
}

enum shoal_status bench_report(
    const struct bench_figures *figures, bool json, char **text, struct shoal_error *error)
{
    json_t *notes = list_notes(figures);
    struct text t = {0};

    *text = NULL;
    if (!notes) FAIL_MEMORY(error);
    if (json)
        *text = report_json(figures, notes);
    else
        report_text(figures, notes, &t);
    json_decref(notes);
    if (t.failed)
        mem_free(t.data);
    else if (t.data)
        *text = t.data;
    if (!*text) FAIL_MEMORY(error);
    return SHOAL_OK;
}
