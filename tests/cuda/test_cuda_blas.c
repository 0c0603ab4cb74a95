/*
 * Products by cuBLASLt, with a fake one: what it is told of operands, what it is spared, and what
 * the environment says of it. How the real one does is in test_gpu_linear, on a card.
 */
#include "cuda/gpu_support.h"

#include "base/number.h"
#include "cuda/fake_cublaslt.h"
#include "cuda/fake_driver.h"
#include "device/cuda/blas.h"
#include "device/cuda/internal.h"
#include "ops/ops_support.h"
#include "tensor/quant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static struct fake_cublaslt *library;

static void environment(const char *multiply, const char *file)
{
    setenv("SHOAL_CUDA_MULTIPLY", multiply, 1);
    setenv("SHOAL_CUBLASLT", file, 1);
}

static void assert_says(const struct shoal_error *error, const char *words)
{
    if (!strstr(error->text, words)) fail_msg("\"%s\" does not say \"%s\"", error->text, words);
}

/* ---- products ---- */

/* How many products the library made of it; each check runs four times. */
static int64_t check(int64_t m, int64_t n, int64_t k, enum dtype y_type, enum dtype x_type,
    enum dtype w_type, enum dtype bias_type)
{
    struct operand *x = gpu_input(x_type, m, k), *w = gpu_input(w_type, n, k);
    struct operand *bias = bias_type == DTYPE_COUNT ? NULL : gpu_input(bias_type, 1, n);
    struct operand *y = gpu_output(y_type, m, n);
    int64_t before = library->products;
    bool same = x_type == DTYPE_BF16 && w_type == DTYPE_BF16;

    GPU_CHECK(same ? 1e-5 : 1e-2, linear, on(y), on(x), on(w), on(bias));
    if (library->violation) fail_msg("%s", library->violation);
    return library->products - before;
}

static void test_products(void **state)
{
    const enum dtype none = DTYPE_COUNT;

    (void)state;
    /* Of the four placements two have y aligned, three with a bias: that is enough. */
    assert_int_equal(check(20, 48, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, none), 2);
    assert_int_equal(check(9, 16, 24, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, none), 2);
    assert_int_equal(check(33, 64, 37, DTYPE_F32, DTYPE_F32, DTYPE_F16, none), 2);
    assert_int_equal(check(10, 32, 256, DTYPE_BF16, DTYPE_BF16, DTYPE_Q4_K, none), 2);
    /* Biases of y's type, and those that it holds; others would be rounded. */
    assert_int_equal(check(20, 64, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16), 3);
    assert_int_equal(check(20, 64, 40, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_F32), 3);
    assert_int_equal(check(20, 64, 40, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16), 3);
    assert_int_equal(check(20, 64, 40, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_Q8_0), 3);
    assert_int_equal(check(20, 64, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F32), 0);
    assert_int_equal(check(20, 64, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F16), 0);
    assert_int_equal(check(20, 64, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F8_E4M3), 3);
    /* Few rows are not its. */
    assert_int_equal(check(FEW_ROWS, 64, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, none), 0);
    /* Where it has nothing, our own kernels multiply. */
    assert_int_equal(
        check(20, FAKE_N_WITHOUT_ALGORITHM, 40, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, none), 0);
    assert_int_equal(
        check(20, FAKE_N_NOT_SUPPORTED, 40, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, none), 0);
}

/* A shape is asked for once, however its operands lie; more shapes than are kept take turns. */
static void test_suggestions(void **state)
{
    int64_t before = library->suggestions;

    (void)state;
    check(21, 32, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_COUNT);
    check(21, 32, 40, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_COUNT);
    assert_int_equal(library->suggestions - before, 1);
    for (int64_t m = 30; m < 110; m++)
        assert_int_equal(check(m, 16, 8, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_COUNT), 2);
    check(21, 32, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_COUNT);
    assert_int_equal(library->suggestions - before, 82);
}

/* Where activations are F16 the library multiplies them, but what it would write overflows. */
static void test_f16(void **state)
{
    static float large[20 * 64], ones[48 * 64];
    struct operand *x = gpu_input(DTYPE_F16, 20, 64), *w = gpu_input(DTYPE_F16, 48, 64);
    struct operand *y = gpu_output(DTYPE_F16, 20, 48);
    int64_t before = library->products;

    (void)state;
    assert_int_equal(gpu_device()->traits.activation, DTYPE_F16);
    for (int i = 0; i < 20 * 64; i++)
        large[i] = i / 64 % 2 ? -30000 : 1500;
    for (int i = 0; i < 48 * 64; i++)
        ones[i] = 1;
    gpu_set(x, large);
    gpu_set(w, ones);
    GPU_CHECK(1e-5, linear, on(y), on(x), on(w), MATRIX_NONE);
    assert_int_equal(library->products, before);
    x = gpu_input(DTYPE_F16, 20, 64), w = gpu_input(DTYPE_F16, 48, 64);
    y = gpu_output(DTYPE_F32, 20, 48);
    GPU_CHECK(1e-5, linear, on(y), on(x), on(w), MATRIX_NONE);
    assert_int_equal(library->products, before + 2);
    if (library->violation) fail_msg("%s", library->violation);
}

/* ---- opening and failing ---- */

static enum shoal_status open_device(struct device **device, struct shoal_error *error)
{
    struct cuda_driver driver;

    fake_driver_open(&driver, &(struct fake_driver_options){.pace = PACE_LATE});
    return cuda_create_with(device, &driver, 0, error);
}

static void assert_clean(void)
{
    assert_int_equal(library->things, 0);
    assert_int_equal(fake_driver_counts().things, 0);
    assert_null(fake_driver_counts().violation);
}

static void test_environment(void **state)
{
    struct shoal_error error = {0};
    struct device *device;

    (void)state;
    environment("own", FAKE_CUBLASLT);
    assert_ok(open_device(&device, &error));
    assert_string_equal(cuda_info(device).multiplies, "own kernels");
    device_destroy(&device);
    environment("", FAKE_CUBLASLT);
    assert_ok(open_device(&device, &error));
    assert_string_equal(cuda_info(device).multiplies, "cuBLASLt 13.2");
    device_destroy(&device);
    environment("quickly", FAKE_CUBLASLT);
    assert_int_equal(open_device(&device, &error), SHOAL_E_INVALID);
    assert_says(&error, "\"quickly\"; it may be \"own\" or \"cublaslt\"");
    environment("cublaslt", "/nowhere/libcublasLt.so");
    assert_int_equal(open_device(&device, &error), SHOAL_E_DEVICE);
    assert_says(&error, "/nowhere/libcublasLt.so, which the environment's SHOAL_CUBLASLT names");
    assert_clean();
}

/* A product of this shape is given to a device, which says what became of it. */
static enum shoal_status multiply(
    struct device *device, int64_t m, int64_t n, int64_t k, struct shoal_error *error)
{
    static _Alignas(16) uint16_t operands[4096];
    const device_addr at = (device_addr)(uintptr_t)operands;
    struct stream *stream;
    enum shoal_status status;

    assert_int_equal(device->ops->stream_create(device, false, &stream, error), SHOAL_OK);
    device->ops->compute->linear(stream, matrix_at(at, DTYPE_BF16, m, n),
        matrix_at(at, DTYPE_BF16, m, k), matrix_at(at, DTYPE_BF16, n, k), MATRIX_NONE);
    status = device->ops->stream_synchronize(stream, error);
    device->ops->stream_destroy(&stream);
    return status;
}

/* Weights in F8 panel by panel, as a workspace of so many rows makes them, and the same in BF16. */
static void check_panels(struct device *device, int64_t n, int64_t rows, int64_t products)
{
    enum { M = 9, K = 64 };
    struct matrix x = random_matrix(DTYPE_BF16, M, K, K),
                  codes = matrix_new(DTYPE_F8_E4M3, n, K, K);
    struct matrix wide = matrix_new(DTYPE_BF16, n, K, K), y[2];
    struct cuda_device *cuda = cuda_device(device);
    struct shoal_error error = {0};
    struct stream *stream;
    uint8_t *code = (uint8_t *)(uintptr_t)codes.addr;
    float *values = malloc((size_t)(n * K) * sizeof *values);
    int64_t before = library->products;

    assert_non_null(values);
    for (int64_t i = 0; i < n * K; i++)
        code[i] = (uint8_t)(i * 37 % 113 + (i % 3 ? 128 : 0));
    codes.scale = 0.0371f;
    quant_widen(values, code, codes.dtype, codes.scale, 0, n * K);
    for (int64_t i = 0; i < n * K; i++)
        ((uint16_t *)(uintptr_t)wide.addr)[i] = bf16_from_float(values[i]);
    assert_ok(device->ops->stream_create(device, false, &stream, &error));
    cuda->workspace_bytes =
        CUDA_BLAS_WORKSPACE_BYTES + (uint64_t)(ceil_div(n * 4, 256) * 256 + rows * K * 2);
    for (int i = 0; i < 2; i++) {
        y[i] = matrix_new(DTYPE_BF16, M, n, n);
        device->ops->compute->linear(stream, y[i], x, i ? wide : codes, MATRIX_NONE);
    }
    assert_ok(device->ops->stream_synchronize(stream, &error));
    assert_memory_equal(
        (void *)(uintptr_t)y[0].addr, (void *)(uintptr_t)y[1].addr, (size_t)(M * n * 2));
    assert_int_equal(library->products - before, products);
    if (library->violation) fail_msg("%s", library->violation);
    device->ops->stream_destroy(&stream);
    for (int i = 0; i < 2; i++)
        matrix_drop(y[i]);
    matrix_drop(x), matrix_drop(codes), matrix_drop(wide);
    free(values);
}

/* What weights are stored in does not show in y, though the library adds up the sums of a whole and
 * of panels otherwise if it is asked for each; and it is the library that makes both, or neither.
 */
static void test_panels(void **state)
{
    struct shoal_error error = {0};
    struct device *device;

    (void)state;
    environment("cublaslt", FAKE_CUBLASLT);
    assert_ok(open_device(&device, &error));
    check_panels(device, 520, 600, 2);
    check_panels(device, 520, 520, 2);
    check_panels(device, 520, 264, 3 + 1); /* 256, 256, 8 */
    check_panels(device, 520, 48, 11 + 1);
    check_panels(device, 512 + FAKE_N_NO_PANEL, 256, 0);
    device_destroy(&device);
    assert_clean();
}

static void assert_fails(const char *words)
{
    struct shoal_error error = {0};
    struct device *device;

    assert_ok(open_device(&device, &error));
    assert_int_equal(multiply(device, 9, 104, 8, &error), SHOAL_E_DEVICE);
    assert_says(&error, words);
    device_destroy(&device);
    assert_clean();
}

static void test_failure(void **state)
{
    (void)state;
    environment("cublaslt", FAKE_CUBLASLT);
    library->product_status = 13;
    assert_fails("cuBLASLt 13.2, status 13");
    library->product_status = 0;
}

/* What the library cannot is our own kernels' work, and it is not asked again. But what fails is no
 * reason to take them from then on: the bits would depend on the failure. */
static void test_failing_description(void **state)
{
    const int cannot[] = {7, 8, 15};
    struct shoal_error error = {0};
    struct device *device;
    int64_t before;

    (void)state;
    environment("cublaslt", FAKE_CUBLASLT);
    for (int i = 0; i < 3; i++) {
        assert_ok(open_device(&device, &error));
        library->suggestion_status = cannot[i];
        before = library->suggestions;
        assert_ok(multiply(device, 9, 16, 8, &error));
        assert_ok(multiply(device, 9, 16, 8, &error));
        assert_int_equal(library->suggestions, before + 1);
        library->suggestion_status = 0;
        library->product_status = cannot[i];
        assert_ok(multiply(device, 9, 24, 8, &error));
        library->product_status = 0;
        device_destroy(&device);
        assert_clean();
    }
    library->suggestion_status = 3;
    assert_fails("cuBLASLt 13.2, status 3");
    library->suggestion_status = 14;
    assert_fails("cuBLASLt 13.2, status 14");
    library->suggestion_status = 0;
    library->description_status = 3;
    assert_fails("cuBLASLt 13.2, status 3");
    /* While it warms up nobody needs the product. */
    assert_ok(open_device(&device, &error));
    library->description_status = 0;
    library->product_status = 13;
    before = library->suggestions;
    assert_int_equal(multiply(device, 64, 2048, 2048, &error), SHOAL_E_DEVICE);
    assert_int_equal(library->suggestions, before + 1);
    library->product_status = 0;
    device_destroy(&device);
    assert_clean();
}

/* Device after device: what one had is gone before the next, on the card and in the library; what
 * it had of the process's memory, ASan sees. Every other one has failed at something. */
static void test_opened_often(void **state)
{
    (void)state;
    environment("cublaslt", FAKE_CUBLASLT);
    for (int i = 0; i < 500; i++) {
        struct shoal_error error = {0};
        struct device *device;
        struct stream *copy;
        struct event *event;
        static char bytes[4096];

        assert_ok(open_device(&device, &error));
        assert_ok(device->ops->arena_reserve(device, 1 << 16, &error));
        assert_ok(device->ops->stream_create(device, true, &copy, &error));
        assert_ok(device->ops->event_create(device, &event, &error));
        device->ops->copy_in(copy, device->arena, bytes, sizeof bytes);
        device->ops->event_record(copy, event);
        library->product_status = i % 2 ? 13 : 0;
        assert_int_equal(multiply(device, 9, 16, 8, &error), i % 2 ? SHOAL_E_DEVICE : SHOAL_OK);
        device->ops->stream_destroy(&copy); /* waits for it */
        device->ops->event_destroy(&event);
        device_destroy(&device);
        assert_clean();
    }
    library->product_status = 0;
}

static const struct CMUnitTest products[] = {
    cmocka_unit_test(test_products),
    cmocka_unit_test(test_suggestions),
};
static const struct CMUnitTest turing[] = {
    cmocka_unit_test(test_f16),
};
static const struct CMUnitTest opening[] = {
    cmocka_unit_test(test_environment),
    cmocka_unit_test(test_panels),
    cmocka_unit_test(test_failure),
    cmocka_unit_test(test_failing_description),
    cmocka_unit_test(test_opened_often),
};

int main(int argc, char **argv)
{
    void *handle = dlopen(FAKE_CUBLASLT, RTLD_NOW);
    int failed;

    library = handle ? dlsym(handle, "fake_cublaslt") : NULL;
    if (!library) {
        printf("no %s\n", FAKE_CUBLASLT);
        return 1;
    }
    library->give = fake_stream_give;
    environment("cublaslt", FAKE_CUBLASLT);
    if (gpu_open(argc, argv)) return 1;
    failed = cmocka_run_group_tests(products, NULL, NULL);
    gpu_close();
    if (!gpu.real) {
        if (gpu_open(2, (char *[]){argv[0], "75"})) return 1;
        failed += cmocka_run_group_tests(turing, NULL, NULL);
        gpu_close();
    }
    return failed + cmocka_run_group_tests(opening, NULL, NULL);
}
