/* What shoal bench stream is made of: the made-up model's shapes and file, and cancelling it. */
#include "support.h"

#include "base/memory.h"
#include "pipeline/bench_model.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)

static void check_block(const struct bench_model *m, const struct block *block)
{
    uint64_t bytes = 0;

    assert_true(block->weight_count >= 2 && block->weight_count % 2 == 0);
    for (int32_t i = 0; i < block->weight_count; i++) {
        const struct weight *w = &block->weights[i];

        assert_int_equal(w->offset, bytes);
        assert_int_equal(w->bytes, 2 * w->rows * w->cols);
        assert_int_equal(i % 2 ? w->rows : w->cols, m->hidden);
        assert_int_equal((i % 2 ? w->cols : w->rows) % 64, 0);
        assert_ptr_equal(w->pieces[0]->file, &m->file);
        assert_true(w->bytes >= 64u << 10); /* or it would not pack */
        bytes += w->bytes;
    }
    assert_int_equal(block->bytes, bytes);
}

static void test_shapes(void **state)
{
    static const struct {
        uint64_t asked, given;
        int64_t hidden;
        int32_t weights;
    } cases[] = {{MIB, MIB, 128, 16}, {4 * MIB, 4 * MIB, 256, 16}, {64 * MIB, 64 * MIB, 1024, 16},
        {648 * MIB, 648 * MIB, 3072, 18}, {648 * MIB - 1, 648 * MIB - 768 * 1024, 3072, 16},
        {1100000, 1081344, 128, 16},
        {BENCH_MODEL_MOST_BYTES, BENCH_MODEL_MOST_BYTES - MIB / 4, 3072, 29126}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct bench_model_spec spec = {
            .blocks = 7, .block_bytes = cases[i].asked, .tokens = 1};
        struct shoal_error error = {0};
        struct bench_model m;

        assert_ok(bench_model_open(&m, &spec, &error));
        for (int32_t k = 0; k < 7; k++) {
            check_block(&m, &m.blocks[k]);
            assert_int_equal(m.blocks[k].bytes, cases[i].given);
            assert_int_equal(m.blocks[k].weight_count, cases[i].weights);
            assert_ptr_equal(m.blocks[k].weights, m.blocks[k % 4].weights);
        }
        assert_int_equal(m.hidden, cases[i].hidden);
        assert_in_range(bench_model_file_bytes(&m), 4 * cases[i].given, 4 * cases[i].given + 9000);
        bench_model_close(&m);
    }
}

static bool at_once(void *user)
{
    (void)user;
    return true;
}

/* Every tensor holds other values than the others, spread as weights are. */
static void test_file(void **state)
{
    const struct bench_model_spec spec = {
        .blocks = 5, .block_bytes = 4 * MIB, .tokens = 1, .folder = "/tmp"};
    struct bench_model_spec cancelled = spec;
    struct shoal_error error = {0};
    struct bench_model m;
    uint64_t firsts[64];
    int count = 0;

    (void)state;
    assert_ok(bench_model_open(&m, &spec, &error));
    cancelled.cancelled = at_once;
    assert_int_equal(bench_model_write(&m, &cancelled, &error), SHOAL_E_CANCELLED);
    bench_model_close(&m);
    assert_ok(bench_model_open(&m, &spec, &error));
    assert_ok(bench_model_check_room(&m, spec.folder, &error));
    assert_ok(bench_model_write(&m, &spec, &error));
    assert_int_equal(m.file.bytes, bench_model_file_bytes(&m));
    for (int32_t i = 0; i < 4 * m.blocks[0].weight_count; i++) {
        uint16_t values[4];

        assert_ok(file_read_at(&m.file, m.tensors[i].offset, values, sizeof values, &error));
        memcpy(&firsts[count], values, sizeof values);
        for (int k = 0; k < count; k++)
            assert_int_not_equal(firsts[k], firsts[count]);
        count++;
    }
    bench_model_close(&m);
}

/* ---- the whole ---- */

static struct shoal_stream_request small_request(void)
{
    struct shoal_stream_request r;

    shoal_stream_request_init(&r);
    r.blocks = 3;
    r.block_bytes = MIB;
    r.tokens = 2;
    r.steps = 2;
    r.threads = 2;
    r.device = "cpu";
    r.folder = "/tmp";
    return r;
}

static bool count_down(void *user)
{
    return --*(int *)user <= 0; /* and so from then on */
}

/* Each time later: while the file is written, between the measurements and in both loops. */
static void test_cancel_anywhere(void **state)
{
    struct shoal_stream_request r = small_request();
    struct shoal_error error = {0};
    char *text = NULL;
    int left = 0, cancelled = 0;

    (void)state;
    r.wire = SHOAL_WIRE_RAW;
    r.cancelled = count_down;
    r.user = &left;
    for (int at = 1;; at += at < 4 ? 1 : 4) {
        left = at;
        if (shoal_bench_stream(&r, true, &text, &error) == SHOAL_OK) break;
        assert_int_equal(error.status, SHOAL_E_CANCELLED);
        assert_null(text);
        cancelled++;
    }
    assert_true(cancelled >= 5);
    assert_non_null(strstr(text, "\"identical\": true"));
    shoal_text_free(&text);
}

/* What the program's options cannot say. */
static void test_refuses(void **state)
{
    struct shoal_error error = {0};
    char *text = NULL;

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct shoal_stream_request r = small_request();

        if (i == 0) r.blocks = 0;
        if (i == 1) r.tokens = SHOAL_STREAM_MOST_TOKENS + 1;
        if (i == 2) r.steps = 1;
        if (i == 3) r.block_bytes = MIB - 1;
        if (i == 4) r.threads = -1;
        if (i == 5) r.buffer = (enum shoal_buffer)3;
        if (i == 6) r.wire = (enum shoal_wire)7;
        if (i == 7) r.pin = (enum shoal_pin)9;
        assert_int_equal(shoal_bench_stream(&r, true, &text, &error), SHOAL_E_INVALID);
        assert_null(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_cancel_anywhere),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
