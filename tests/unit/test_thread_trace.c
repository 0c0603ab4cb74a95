/* src/base/trace: what threads record arrives whole, in a file that viewers and jansson read. */
#include "checkpoint_files.h"

#include "base/thread.h"
#include "base/trace.h"

#include <jansson.h>
#include <math.h>

static json_t *written(const struct trace *trace, const char *title)
{
    const char *path = at("trace.json");
    struct shoal_error error = {0};
    json_error_t cause;
    json_t *root;

    assert_ok(trace_write(trace, title, path, &error));
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &cause);
    if (!root) fail_msg("%s: %s", path, cause.text);
    return root;
}

/* The complete events, in the order of the file. */
static size_t complete_events(const json_t *root, const json_t **events, size_t most)
{
    const json_t *event;
    size_t count = 0, i;

    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) continue;
        assert_true(count < most);
        events[count++] = event;
    }
    return count;
}

static double number(const json_t *event, const char *member)
{
    return json_number_value(json_object_get(event, member));
}

/* cmocka's own compares floats. */
static void assert_number(const json_t *event, const char *member, double expected)
{
    if (fabs(number(event, member) - expected) > 1e-9)
        fail_msg("%s is %.12g, not %.12g", member, number(event, member), expected);
}

static const char *string(const json_t *event, const char *member)
{
    return json_string_value(json_object_get(event, member));
}

static void test_one_of_each(void **state)
{
    static const char *const kinds[TRACE_KINDS] = {
        "phase", "read", "copy", "unpack", "compute", "wait"};
    const json_t *events[TRACE_KINDS], *other;
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    json_t *root;

    (void)state;
    assert_ok(trace_create(&trace, TRACE_MOST_SPANS, &error));
    for (int kind = 0; kind < TRACE_KINDS; kind++)
        trace_add(trace, (enum trace_kind)kind, "layers.3", 1000000000001 + (uint64_t)kind * 10,
            1000000001235 + (uint64_t)kind * 10, (uint64_t)kind << 33);
    root = written(trace, "a \"mini\" \\ model\n\x80");
    other = json_object_get(root, "otherData");
    assert_string_equal(string(root, "displayTimeUnit"), "ms");
    assert_string_equal(string(other, "program"), "shoal");
    assert_string_equal(string(other, "title"), "a \"mini\" \\ model??");
    assert_int_equal(json_integer_value(json_object_get(other, "spans")), TRACE_KINDS);
    assert_int_equal(json_integer_value(json_object_get(other, "dropped")), 0);
    assert_int_equal(complete_events(root, events, TRACE_KINDS), TRACE_KINDS);
    for (int kind = 0; kind < TRACE_KINDS; kind++) {
        assert_string_equal(string(events[kind], "cat"), kinds[kind]);
        assert_string_equal(string(events[kind], "name"), "layers.3");
        assert_number(events[kind], "ts", 0.01 * kind);
        assert_number(events[kind], "dur", 1.234);
        assert_number(
            json_object_get(events[kind], "args"), "bytes", (double)((uint64_t)kind << 33));
    }
    json_decref(root);
    trace_destroy(&trace);
    assert_null(trace);
    trace_destroy(&trace);
}

/* Viewers refuse spans of one thread that overlap and do not nest. */
static void test_overlapping_spans_get_rows(void **state)
{
    static const struct {
        uint64_t begin_ns, end_ns;
        int tid;
    } spans[] = {{0, 30, 200}, {10, 40, 201}, {20, 50, 202}, {30, 60, 200}, {45, 50, 201}};
    const json_t *events[8];
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    json_t *root;

    (void)state;
    assert_ok(trace_create(&trace, TRACE_MOST_SPANS, &error));
    /* Recorded when they end, as reads are. */
    for (size_t i = 5; i-- > 0;)
        trace_add(trace, TRACE_READ, "x", spans[i].begin_ns, spans[i].end_ns, 1);
    trace_add(trace, TRACE_PHASE, "step 1", 0, 50, 0);
    trace_add(trace, TRACE_PHASE, "steps", 0, 100, 0);
    trace_add(trace, TRACE_WAIT, "backwards", 70, 60, 0);
    root = written(trace, "");
    assert_int_equal(complete_events(root, events, 8), 8);
    assert_string_equal(string(events[0], "name"), "steps");
    assert_string_equal(string(events[1], "name"), "step 1");
    assert_number(events[1], "tid", 100);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(string(events[i + 2], "cat"), "read");
        assert_number(events[i + 2], "tid", spans[i].tid);
    }
    assert_number(events[7], "dur", 0);
    json_decref(root);
    trace_destroy(&trace);
}

static void test_names_are_cut_and_cleaned(void **state)
{
    const json_t *events[2];
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    char name[2 * TRACE_NAME_BYTES];
    json_t *root;

    (void)state;
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    assert_ok(trace_create(&trace, TRACE_MOST_SPANS, &error));
    trace_add(trace, TRACE_COPY, name, 1, 2, 0);
    trace_add(trace, TRACE_COPY, "\"\\\x1b[\xc3\xa9\x7f", 3, 4, 0);
    root = written(trace, "");
    assert_int_equal(complete_events(root, events, 2), 2);
    assert_int_equal(strlen(string(events[0], "name")), TRACE_NAME_BYTES - 1);
    assert_string_equal(string(events[1], "name"), "\"\\?[???");
    json_decref(root);
    trace_destroy(&trace);
}

static void test_nothing_recorded(void **state)
{
    const json_t *events[1];
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    json_t *root;

    (void)state;
    trace_add(NULL, TRACE_READ, "x", 1, 2, 3);
    assert_ok(trace_create(&trace, TRACE_MOST_SPANS, &error));
    root = written(trace, "");
    assert_int_equal(complete_events(root, events, 1), 0);
    json_decref(root);
    assert_int_equal(trace_write(trace, "", "/no/such/folder/t.json", &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, "/no/such/folder/t.json"));
    trace_destroy(&trace);
}

/* A trace that may go on for ever keeps what came last. */
static void test_the_last_are_kept(void **state)
{
    enum { MOST = 4096, MORE = 1000, KEPT = MOST + MORE - 1024 };
    static const json_t *events[MOST];
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    const json_t *other;
    json_t *root;

    (void)state;
    assert_ok(trace_create(&trace, MOST, &error));
    for (uint64_t i = 0; i < 10 * MOST + MORE; i++)
        trace_add(trace, TRACE_COMPUTE, "x", 1000 * i, 1000 * i + 1, i);
    root = written(trace, "");
    other = json_object_get(root, "otherData");
    assert_int_equal(json_integer_value(json_object_get(other, "spans")), KEPT);
    assert_int_equal(
        json_integer_value(json_object_get(other, "dropped")), 10 * MOST + MORE - KEPT);
    assert_int_equal(
        json_integer_value(json_object_get(other, "begin_ns")), 1000 * (10 * MOST + MORE - KEPT));
    assert_int_equal(complete_events(root, events, MOST), KEPT);
    for (int i = 0; i < KEPT; i++)
        assert_number(json_object_get(events[i], "args"), "bytes", 10 * MOST + MORE - KEPT + i);
    json_decref(root);
    trace_clear(trace);
    trace_clear(NULL);
    trace_add(trace, TRACE_COMPUTE, "y", 7, 8, 9);
    root = written(trace, "");
    other = json_object_get(root, "otherData");
    assert_int_equal(json_integer_value(json_object_get(other, "dropped")), 0);
    assert_int_equal(json_integer_value(json_object_get(other, "begin_ns")), 7);
    assert_int_equal(complete_events(root, events, MOST), 1);
    json_decref(root);
    trace_destroy(&trace);
}

/* ---- many threads ---- */

enum { THREADS = 4, EACH = 3000 };

struct recorder {
    struct trace *trace;
    int number;
};

static void record(void *arg)
{
    const struct recorder *r = arg;
    char name[16];

    snprintf(name, sizeof name, "thread %d", r->number);
    for (uint64_t i = 0; i < EACH; i++)
        trace_add(r->trace, (enum trace_kind)(TRACE_READ + r->number), name, 1000 + i * 10,
            1000 + i * 10 + 5, i);
}

static void test_threads_record_at_once(void **state)
{
    static const json_t *events[THREADS * EACH];
    uint64_t seen[THREADS] = {0};
    struct recorder recorders[THREADS];
    struct thread threads[THREADS];
    struct shoal_error error = {0};
    struct trace *trace = NULL;
    json_t *root;

    (void)state;
    assert_ok(trace_create(&trace, TRACE_MOST_SPANS, &error));
    for (int i = 0; i < THREADS; i++) {
        recorders[i] = (struct recorder){trace, i};
        assert_ok(thread_start(&threads[i], record, &recorders[i], &error));
    }
    for (int i = 0; i < THREADS; i++)
        thread_join(&threads[i]);
    root = written(trace, "");
    assert_int_equal(complete_events(root, events, THREADS * EACH), THREADS * EACH);
    for (size_t i = 0; i < THREADS * EACH; i++) {
        int number_of = string(events[i], "name")[7] - '0';

        assert_in_range(number_of, 0, THREADS - 1);
        assert_number(json_object_get(events[i], "args"), "bytes", (double)seen[number_of]);
        seen[number_of]++;
    }
    json_decref(root);
    trace_destroy(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_of_each),
        cmocka_unit_test(test_overlapping_spans_get_rows),
        cmocka_unit_test(test_names_are_cut_and_cleaned),
        cmocka_unit_test(test_nothing_recorded),
        cmocka_unit_test(test_the_last_are_kept),
        cmocka_unit_test(test_threads_record_at_once),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
