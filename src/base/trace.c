/* Recording spans in chunks that never move, and writing them as Chrome trace events. */
#include "base/trace.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_SPANS 1024
#define MOST_ROWS 64 /* threads of one kind in the file; more at once share the last */

struct span {
    uint64_t begin_ns, end_ns, bytes;
    enum trace_kind kind;
    char name[TRACE_NAME_BYTES];
};

struct chunk {
    struct chunk *next;
    struct span spans[CHUNK_SPANS];
};

struct trace {
    struct mutex mutex;
    struct chunk *first, *last;
    size_t most, count, dropped; /* every chunk but the last is full */
};

static const char *const kind_names[TRACE_KINDS] = {
    "phase", "read", "copy", "unpack", "compute", "wait"};

enum shoal_status trace_create(struct trace **trace, size_t most_spans, struct shoal_error *error)
{
    struct trace *new = mem_calloc(1, sizeof *new);

    *trace = new;
    if (!new) FAIL_MEMORY(error);
    assert(most_spans >= 2 * CHUNK_SPANS && most_spans % CHUNK_SPANS == 0);
    new->most = most_spans;
    mutex_init(&new->mutex);
    return SHOAL_OK;
}

void trace_clear(struct trace *trace)
{
    if (!trace) return;
    mutex_lock(&trace->mutex);
    for (struct chunk *chunk = trace->first, *next; chunk; chunk = next) {
        next = chunk->next;
        mem_free(chunk);
    }
    trace->first = trace->last = NULL;
    trace->count = trace->dropped = 0;
    mutex_unlock(&trace->mutex);
}

void trace_destroy(struct trace **trace)
{
    struct trace *t = *trace;

    if (!t) return;
    trace_clear(t);
    mutex_fini(&t->mutex);
    mem_free(t);
    *trace = NULL;
}

/* ---- recording ---- */

static bool printable(char c)
{
    return c >= 0x20 && c < 0x7f;
}

/* An empty chunk: that of the oldest spans if the trace is full. NULL: out of memory. */
static struct chunk *next_chunk(struct trace *trace)
{
    struct chunk *oldest = trace->first;

    if (trace->count < trace->most) return mem_alloc(sizeof(struct chunk));
    trace->first = oldest->next;
    trace->count -= CHUNK_SPANS;
    trace->dropped += CHUNK_SPANS;
    return oldest;
}

/* Room for one more span, or NULL. The lock is held. */
static struct span *next_span(struct trace *trace)
{
    size_t place = trace->count % CHUNK_SPANS;

    if (place == 0) {
        struct chunk *chunk = next_chunk(trace);

        if (!chunk) return NULL;
        chunk->next = NULL;
        if (trace->last)
            trace->last->next = chunk;
        else
            trace->first = chunk;
        trace->last = chunk;
    }
    trace->count++;
    return &trace->last->spans[place];
}

void trace_add(struct trace *trace, enum trace_kind kind, const char *name, uint64_t begin_ns,
    uint64_t end_ns, uint64_t bytes)
{
    struct span span = {.begin_ns = begin_ns,
        .end_ns = end_ns < begin_ns ? begin_ns : end_ns,
        .bytes = bytes,
        .kind = kind};
    struct span *room;

    if (!trace) return;
    for (size_t i = 0; i < TRACE_NAME_BYTES - 1 && name[i]; i++)
        span.name[i] = name[i];
    mutex_lock(&trace->mutex);
    room = next_span(trace);
    if (room)
        *room = span;
    else
        trace->dropped++;
    mutex_unlock(&trace->mutex);
}

/* ---- writing ---- */

/* By time, so that the file does not depend on which thread came first; outer spans before inner.
 */
static int by_time(const void *a, const void *b)
{
    const struct span *x = *(const struct span *const *)a, *y = *(const struct span *const *)b;

    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* All spans in order; mem_free'd by the caller. NULL when out of memory. */
static const struct span **sorted_spans(const struct trace *trace)
{
    const struct span **spans = mem_alloc((trace->count + 1) * sizeof *spans);
    size_t i = 0;

    if (!spans) return NULL;
    for (const struct chunk *chunk = trace->first; chunk; chunk = chunk->next)
        for (size_t k = 0; k < CHUNK_SPANS && i < trace->count; k++)
            spans[i++] = &chunk->spans[k];
    qsort(spans, trace->count, sizeof *spans, by_time);
    return spans;
}

#define TITLE_BYTES 240

/* `text` as the inside of a JSON string: into `to`, which is returned. */
static const char *escape(char to[2 * TITLE_BYTES], const char *text)
{
    size_t used = 0;

    for (size_t i = 0; i < TITLE_BYTES - 1 && text[i]; i++) {
        char c = printable(text[i]) ? text[i] : '?';

        if (c == '"' || c == '\\') to[used++] = '\\';
        to[used++] = c;
    }
    to[used] = 0;
    return to;
}

static void append_us(struct text *t, const char *member, uint64_t ns)
{
    text_append(
        t, ",\"%s\":%llu.%03u", member, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

struct rows {
    uint64_t end_ns[MOST_ROWS]; /* of each row's last span */
    int count;
};

/* The first row of its kind that is free when the span begins. Phases nest and share one. */
static int row_of(struct rows rows[TRACE_KINDS], const struct span *span)
{
    struct rows *r = &rows[span->kind];
    int row = 0;

    if (span->kind != TRACE_PHASE)
        while (row < MOST_ROWS - 1 && row < r->count && r->end_ns[row] > span->begin_ns)
            row++;
    if (row >= r->count) r->count = row + 1;
    r->end_ns[row] = span->end_ns;
    return row;
}

static int thread_id(enum trace_kind kind, int row)
{
    return ((int)kind + 1) * 100 + row;
}

static void append_span(struct text *t, const struct span *span, int row, uint64_t start_ns)
{
    char name[2 * TITLE_BYTES];

    text_append(t, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s\"",
        thread_id(span->kind, row), kind_names[span->kind], escape(name, span->name));
    append_us(t, "ts", span->begin_ns - start_ns);
    append_us(t, "dur", span->end_ns - span->begin_ns);
    text_append(t, ",\"args\":{\"bytes\":%llu}}", (unsigned long long)span->bytes);
}

/* What the viewers call the threads, and their order. */
static void append_threads(struct text *t, const struct rows rows[TRACE_KINDS])
{
    for (int kind = 0; kind < TRACE_KINDS; kind++)
        for (int row = 0; row < rows[kind].count; row++) {
            int tid = thread_id((enum trace_kind)kind, row);

            text_append(t,
                ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\","
                "\"args\":{\"name\":\"%s",
                tid, kind_names[kind]);
            if (row) text_append(t, " %d", row + 1);
            text_append(t,
                "\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\","
                "\"args\":{\"sort_index\":%d}}",
                tid, tid);
        }
}

enum shoal_status trace_write(
    const struct trace *trace, const char *title, const char *path, struct shoal_error *error)
{
    const struct span **spans = sorted_spans(trace);
    struct rows rows[TRACE_KINDS] = {0};
    struct text t = {0};
    char shown[2 * TITLE_BYTES];
    enum shoal_status status = SHOAL_OK;

    if (!spans) FAIL_MEMORY(error);
    text_append(&t, "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
                    "\"args\":{\"name\":\"shoal\"}}");
    for (size_t i = 0; i < trace->count; i++)
        append_span(&t, spans[i], row_of(rows, spans[i]), spans[0]->begin_ns);
    append_threads(&t, rows);
    text_append(&t,
        "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"program\":\"shoal\","
        "\"version\":\"" SHOAL_VERSION "\",\"title\":\"%s\",\"begin_ns\":%llu,\"spans\":%zu,"
        "\"dropped\":%zu}}\n",
        escape(shown, title), (unsigned long long)(trace->count ? spans[0]->begin_ns : 0),
        trace->count, trace->dropped);
    if (t.failed)
        status = error_set(
            error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory for the trace %s", path);
    else
        status = file_write_whole(path, t.data, t.length, error);
    mem_free(t.data);
    mem_free(spans);
    return status;
}
