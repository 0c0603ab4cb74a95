/*
 * Attention by cuDNN, with a fake one: what it is told of operands, what it is spared, what becomes
 * of what it refuses or fails at, and what the environment says of it. How the real one does is in
 * test_gpu_attention, on a card.
 */
#include "cuda/fake_cudnn.h"
#include "cuda/fake_driver.h"
#include "device/cuda/cudnn.h"
#include "device/cuda/internal.h"
#include "ops/ops_support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static struct fake_cudnn *library;

static void environment(const char *attention, const char *file)
{
    setenv("SHOAL_CUDA_ATTENTION", attention, 1);
    setenv("SHOAL_CUDNN", file, 1);
}

static void assert_says(const struct shoal_error *error, const char *words)
{
    if (!strstr(error->text, words)) fail_msg("\"%s\" does not say \"%s\"", error->text, words);
}

/* As the real one is: one engine that works. */
static int set_up(void **state)
{
    (void)state;
    *library = (struct fake_cudnn){.give = fake_stream_give,
        .version = 91507,
        .engines = {{.workspace_bytes = 256}},
        .engine_count = 1,
        .things = library->things};
    environment("cudnn", FAKE_CUDNN);
    return 0;
}

/* ---- devices ---- */

static struct device *device;
static struct stream *stream;

static enum shoal_status open_card(int sm, struct shoal_error *error)
{
    struct cuda_driver driver;

    fake_driver_open(&driver, &(struct fake_driver_options){.pace = PACE_LATE, .sm = sm});
    return cuda_create_with(&device, &driver, 0, error);
}

static void open_device(void)
{
    struct shoal_error error = {0};

    assert_ok(open_card(90, &error));
    assert_ok(device->ops->stream_create(device, false, &stream, &error));
}

static enum shoal_status synchronize(struct shoal_error *error)
{
    return device->ops->stream_synchronize(stream, error);
}

static void close_device(void)
{
    if (stream) device->ops->stream_destroy(&stream);
    device_destroy(&device);
    if (library->violation) fail_msg("%s", library->violation);
    assert_int_equal(library->things, 0);
    assert_int_equal(fake_driver_counts().things, 0);
    assert_null(fake_driver_counts().violation);
    assert_null(fake_driver_counts().kernel_error);
}

/* ---- results ---- */

struct shape {
    int64_t queries, keys, dim;
    int32_t heads, kv_heads;
    bool causal;
    int64_t gap; /* between rows */
};

/* Whether the library did it. The result is near the reference's whoever does. */
static bool check(struct shape s)
{
    struct bench reference = bench_open(NULL, 1);
    const int64_t cols = s.heads * s.dim, kv_cols = s.kv_heads * s.dim, before = library->runs;
    const struct attention how = {
        s.heads, s.kv_heads, 0.3f / sqrtf((float)s.dim), s.causal, MATRIX_NONE};
    struct matrix q = random_matrix(DTYPE_BF16, s.queries, cols, cols + s.gap);
    struct matrix kv = random_matrix(DTYPE_BF16, s.keys, 2 * kv_cols, 2 * kv_cols + 2 * s.gap);
    struct matrix k = matrix_cols(kv, 0, kv_cols), v = matrix_cols(kv, kv_cols, kv_cols);
    struct matrix want = matrix_new(DTYPE_F32, s.queries, cols, cols);
    struct matrix out = matrix_new(DTYPE_BF16, s.queries, cols, cols + 3 * s.gap);
    struct shoal_error error = {0};
    float largest = 0;

    reference.ops->attention(reference.stream, want, q, k, v, &how);
    device->ops->compute->attention(stream, out, q, k, v, &how);
    assert_ok(synchronize(&error));
    for (int64_t i = 0; i < s.queries * cols; i++)
        largest = fmaxf(largest, fabsf(row_of(want, 0)[i]));
    for (int64_t t = 0; t < s.queries; t++)
        for (int64_t c = 0; c < cols; c++) {
            const uint16_t *row = (const uint16_t *)(uintptr_t)out.addr + t * out.stride;

            if (!(fabsf(bf16_to_float(row[c]) - row_of(want, t)[c]) <= 1e-2f * largest))
                fail_msg("[%lld, %lld] is %g, not %g", (long long)t, (long long)c,
                    (double)bf16_to_float(row[c]), (double)row_of(want, t)[c]);
        }
    matrix_drop(q);
    matrix_drop(kv);
    matrix_drop(want);
    matrix_drop(out);
    bench_close(&reference);
    return library->runs > before;
}

static void test_attention(void **state)
{
    int64_t plans;

    (void)state;
    open_device();
    assert_string_equal(cuda_info(device).attends, "cuDNN 9.15");
    plans = library->plans;
    assert_true(check((struct shape){512, 520, 64, 4, 2, false, 0}));
    assert_true(check((struct shape){514, 512, 128, 1, 1, false, 8}));
    /* Ours. */
    assert_false(check((struct shape){512, 512, 64, 1, 1, true, 0}));
    assert_false(check((struct shape){40, 512, 64, 1, 1, false, 0}));
    assert_int_equal(library->plans, plans + 2);
    close_device();
}

/* ---- what it takes: no operand is there ---- */

#define SOMEWHERE ((device_addr)4096)

static bool attend(struct matrix out, struct matrix q, struct matrix k, struct matrix v)
{
    return cuda_cudnn_attend(stream, out, q, k, v, 2, 1, 0.1f);
}

/* Two heads of queries, one of keys. */
static bool attend_to(int64_t queries, int64_t keys, int64_t dim)
{
    struct matrix q = matrix_at(SOMEWHERE, DTYPE_BF16, queries, 2 * dim);
    struct matrix k = matrix_at(SOMEWHERE, DTYPE_BF16, keys, dim);

    return attend(q, q, k, k);
}

static void test_taken(void **state)
{
    const struct matrix q = matrix_at(SOMEWHERE, DTYPE_BF16, 512, 256);
    const struct matrix k = matrix_at(SOMEWHERE, DTYPE_BF16, 512, 128);
    struct matrix m;

    (void)state;
    library->idle = true;
    open_device();
    assert_true(attend(q, q, k, k));
    assert_true(attend_to(512, 512, 64));
    assert_false(attend_to(512, 512, 96));
    assert_false(attend_to(512, 512, 256));
    assert_false(attend_to(511, 512, 128));
    assert_false(attend_to(512, 511, 128));
    m = q, m.dtype = DTYPE_F16;
    assert_false(attend(m, m, k, k));
    m = q, m.addr += 8;
    assert_false(attend(m, q, k, k));
    assert_false(attend(q, m, k, k));
    m = k, m.addr += 8;
    assert_false(attend(q, q, m, k));
    assert_false(attend(q, q, k, m));
    m = q, m.stride += 4;
    assert_false(attend(m, q, k, k));
    close_device();
}

/* A plan is of its strides, each of them. */
static void test_strides(void **state)
{
    struct matrix m[4]; /* out, q, k, v */
    int64_t plans;

    (void)state;
    library->idle = true;
    open_device();
    for (int i = 0; i < 4; i++)
        m[i] = matrix_at(SOMEWHERE, DTYPE_BF16, 512, i < 2 ? 128 : 64);
    plans = library->plans;
    for (int i = 0; i < 4; i++) {
        assert_true(attend(m[0], m[1], m[2], m[3]));
        m[i].stride += 8;
    }
    assert_true(attend(m[0], m[1], m[2], m[3]));
    assert_int_equal(library->plans, plans + 5);
    close_device();
}

/* More shapes than are kept take turns; a plan that is replaced has done its work. */
static void test_plans_take_turns(void **state)
{
    int64_t plans;

    (void)state;
    library->idle = true;
    open_device();
    plans = library->plans;
    for (int64_t i = 0; i < 40; i++)
        assert_true(attend_to(512 + i, 512, 64));
    assert_int_equal(library->plans, plans + 40);
    for (int64_t i = 30; i < 40; i++)
        assert_true(attend_to(512 + i, 512, 64));
    assert_int_equal(library->plans, plans + 40);
    assert_true(attend_to(512, 512, 64));
    assert_int_equal(library->plans, plans + 41);
    close_device();
}

/* The first engine that does what we need. */
static void test_engines(void **state)
{
    const struct fake_engine engines[] = {{.varies = true}, {.workspace_bytes = (int64_t)64 << 20},
        {.status = 3002}, {.workspace_bytes = 1024}};

    (void)state;
    library->idle = true;
    memcpy(library->engines, engines, sizeof engines);
    library->engine_count = 6; /* the last two are not asked for */
    open_device();
    assert_true(attend_to(512, 512, 64));
    assert_int_equal(library->engine, 3);
    close_device();
}

/* ---- refusals and failures ---- */

enum call { OPERATION, HEURISTIC, ENGINE, RUN };

static void answer(enum call call, int status)
{
    library->operation_status = call == OPERATION ? status : 0;
    library->heuristic_status = call == HEURISTIC ? status : 0;
    library->engines[0].status = call == ENGINE ? status : 0;
    library->run_status = call == RUN ? status : 0;
}

/* Of a device that is open; it is closed. */
static void assert_fails(const char *words)
{
    struct shoal_error error = {0};

    assert_true(attend_to(512, 512, 64));
    assert_int_equal(synchronize(&error), SHOAL_E_DEVICE);
    assert_says(&error, "is lost to this device: attention by cuDNN 9.15: ");
    assert_says(&error, words);
    assert_says(&error, "SHOAL_CUDA_ATTENTION=own does without");
    close_device();
}

/* What the library cannot do is no reason to take our own kernels, nor is what fails: it was asked
 * for, and the bits would depend on the failure. */
static void test_failures(void **state)
{
    static const char *const words[] = {
        "cudnnBackendFinalize of the attention, status %d (the fake says %d)",
        "cudnnBackendFinalize of the heuristic, status %d (the fake says %d)",
        "cudnnBackendFinalize of the plan, status %d (the fake says %d)",
        "cudnnBackendExecute of the plan, status %d (the fake says %d)"};
    const int statuses[] = {1008, 2000, 3000, 3008, 4001, 4003, 5000};
    char text[100];

    (void)state;
    for (int call = OPERATION; call <= RUN; call++)
        for (int i = 0; i < 7; i++) {
            answer(OPERATION, 0);
            open_device();
            answer((enum call)call, statuses[i]);
            snprintf(text, sizeof text, words[call], statuses[i], statuses[i]);
            assert_fails(text);
        }
    answer(OPERATION, 0);
    open_device();
    library->engine_count = 0;
    assert_fails("no engine is suggested");
    library->engine_count = 1;
    open_device();
    library->engines[0].varies = true;
    assert_fails("an engine is not deterministic");
}

/* ---- opening ---- */

static void assert_attends(int sm, const char *who)
{
    struct shoal_error error = {0};

    assert_ok(open_card(sm, &error));
    assert_string_equal(cuda_info(device).attends, who);
    close_device();
}

static void assert_refused(int sm, enum shoal_status status, const char *words)
{
    struct shoal_error error = {0};

    assert_int_equal(open_card(sm, &error), status);
    assert_says(&error, words);
    assert_int_equal(library->things, 0);
    assert_int_equal(fake_driver_counts().things, 0);
}

static void test_environment(void **state)
{
    const int cards[] = {80, 86, 89, 90, 100, 103, 120};

    (void)state;
    stream = NULL;
    for (int i = 0; i < 7; i++) {
        environment("", FAKE_CUDNN);
        assert_attends(cards[i], "own kernels");
        environment("own", FAKE_CUDNN);
        assert_attends(cards[i], "own kernels");
        environment("cudnn", FAKE_CUDNN);
        assert_attends(cards[i], "cuDNN 9.15");
    }
    /* One that is not asked for is not looked for. */
    environment("", "/nowhere/libcudnn_graph.so.9");
    assert_attends(90, "own kernels");
    unsetenv("SHOAL_CUDA_ATTENTION");
    assert_attends(90, "own kernels");
    environment("cudnn", FAKE_CUDNN);
    assert_refused(75, SHOAL_E_DEVICE, "needs BF16, which Emulated does not have");
    environment("quickly", FAKE_CUDNN);
    assert_refused(90, SHOAL_E_INVALID, "\"quickly\"; it may be \"own\" or \"cudnn\"");
}

static void test_unusable(void **state)
{
    (void)state;
    stream = NULL;
    environment("cudnn", "/nowhere/libcudnn_graph.so.9");
    assert_refused(90, SHOAL_E_DEVICE,
        "/nowhere/libcudnn_graph.so.9, which the environment's SHOAL_CUDNN names, is no cuDNN");
    environment("cudnn", "libm.so.6");
    assert_refused(90, SHOAL_E_DEVICE, "(it has no cudnnGetVersion)");
    environment("cudnn", FAKE_CUDNN);
    library->version = 91300;
    assert_refused(90, SHOAL_E_DEVICE, "(it is cuDNN 9.13, and 9.13.1 or newer would do)");
    library->version = 91301;
    library->handle_status = 3005;
    assert_refused(90, SHOAL_E_DEVICE, "(cudnnCreate, status 3005)");
    library->handle_status = 0;
    /* One that does not do even what it is warmed up with. */
    answer(OPERATION, 3000);
    assert_refused(90, SHOAL_E_DEVICE, "(cudnnBackendFinalize of the attention, status 3000 (the");
    answer(ENGINE, 3008);
    assert_refused(90, SHOAL_E_DEVICE, "(cudnnBackendFinalize of the plan, status 3008 (the fake");
    answer(ENGINE, 0);
    library->engines[0].varies = true;
    assert_refused(90, SHOAL_E_DEVICE, "(an engine is not deterministic)");
    library->engines[0] = (struct fake_engine){.workspace_bytes = (int64_t)64 << 20};
    assert_refused(90, SHOAL_E_DEVICE, "(an engine wants a workspace of 67108864 bytes)");
    library->engines[0] = (struct fake_engine){.status = 4004};
    assert_refused(90, SHOAL_E_DEVICE, "(cudnnBackendFinalize of the plan, status 4004 (the fake");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(test_attention, set_up),
    cmocka_unit_test_setup(test_taken, set_up),
    cmocka_unit_test_setup(test_strides, set_up),
    cmocka_unit_test_setup(test_plans_take_turns, set_up),
    cmocka_unit_test_setup(test_engines, set_up),
    cmocka_unit_test_setup(test_failures, set_up),
    cmocka_unit_test_setup(test_environment, set_up),
    cmocka_unit_test_setup(test_unusable, set_up),
};

int main(void)
{
    void *handle = dlopen(FAKE_CUDNN, RTLD_NOW);

    library = handle ? dlsym(handle, "fake_cudnn") : NULL;
    if (!library) {
        printf("no %s\n", FAKE_CUDNN);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
