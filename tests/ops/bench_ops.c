/*
 * Measures the CPU device's operations, and OpenBLAS's plain f32 product beside `linear`. Not a
 * test. Each line gives operations per second of wall time, and per second of CPU time (times the
 * threads), which other processes disturb less.
 *
 *     bench_ops [threads [word in the line's name]]
 */
#include "base/clock.h"
#include "base/number.h"
#include "base/size.h"
#include "device/cpu/internal.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct device *device;
static struct stream *stream;
static const struct compute_ops *ops;
static int threads;
static uint64_t arena_used;
static const char *wanted = "";

struct timing {
    double wall, cpu; /* seconds, the best of several */
};

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Repeats `call` for a third of a second, and at least thrice. */
#define MEASURE(timing, call)                                                                      \
    do {                                                                                           \
        uint64_t end_ = clock_ns() + 300000000;                                                    \
                                                                                                   \
        (timing) = (struct timing){1e9, 1e9};                                                      \
        for (int round_ = 0; round_ < 3 || clock_ns() < end_; round_++) {                          \
            double cpu_ = cpu_seconds();                                                           \
            uint64_t wall_ = clock_ns();                                                           \
                                                                                                   \
            call;                                                                                  \
            (timing).wall = fmin((timing).wall, (double)(clock_ns() - wall_) * 1e-9);              \
            (timing).cpu = fmin((timing).cpu, cpu_seconds() - cpu_);                               \
        }                                                                                          \
    } while (0)

static void report(const char *what, struct timing timing, double operations)
{
    printf("%-46s %9.3f ms %8.1f GFLOP/s, %8.1f by CPU time\n", what, timing.wall * 1e3,
        operations / timing.wall * 1e-9, operations / timing.cpu * threads * 1e-9);
    fflush(stdout);
}

/* From the arena, as models get theirs; every bench starts with all of it. */
static struct matrix matrix_new(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct matrix m = matrix_at(device->arena + arena_used, dtype, rows, cols);
    uint64_t count = (uint64_t)(rows * cols);

    arena_used += size_align((uint64_t)dtype_bytes(dtype, rows * cols), 256);
    if (arena_used > device->arena_bytes) exit(1);
    if (dtype_is_quantised(dtype)) {
        /* Any bits will do, but for scales that are infinite. */
        for (int64_t i = 0; i < dtype_bytes(dtype, rows * cols); i++)
            ((uint8_t *)(uintptr_t)m.addr)[i] = (uint8_t)(rand() & 0x33);
        return m;
    }
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)rand() / (float)RAND_MAX - 0.5f;

        if (dtype == DTYPE_F32)
            ((float *)(uintptr_t)m.addr)[i] = value;
        else
            ((uint16_t *)(uintptr_t)m.addr)[i] = bf16_from_float(value);
    }
    return m;
}

static void bench_linear(int64_t m, int64_t k, int64_t n)
{
    struct matrix x, w, y, wide;
    struct timing timing;
    char what[80];

    snprintf(
        what, sizeof what, "linear %lld x %lld -> %lld", (long long)m, (long long)k, (long long)n);
    if (!strstr(what, wanted)) return;
    arena_used = 0;
    x = matrix_new(DTYPE_F32, m, k);
    w = matrix_new(DTYPE_BF16, n, k);
    y = matrix_new(DTYPE_F32, m, n);
    wide = matrix_new(DTYPE_F32, n, k);
    MEASURE(timing, ops->linear(stream, y, x, w, MATRIX_NONE));
    report(what, timing, 2.0 * (double)m * (double)n * (double)k);
    MEASURE(timing, cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1,
                        row_of(x, 0), (int)k, row_of(wide, 0), (int)k, 0, row_of(y, 0), (int)n));
    report("    sgemm", timing, 2.0 * (double)m * (double)n * (double)k);
}

/* The product again with quantised weights, for what widening them costs beside BF16. */
static void bench_quantised(int64_t m, int64_t k, int64_t n)
{
    const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
        DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    struct matrix x, w, y;
    struct timing timing;
    char what[80];

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        snprintf(what, sizeof what, "quantised %lld x %lld -> %lld, %s", (long long)m, (long long)k,
            (long long)n, dtype_name(dtypes[i]));
        if (!strstr(what, wanted)) continue;
        arena_used = 0;
        x = matrix_new(DTYPE_F32, m, k);
        w = matrix_new(dtypes[i], n, k);
        y = matrix_new(DTYPE_F32, m, n);
        MEASURE(timing, ops->linear(stream, y, x, w, MATRIX_NONE));
        report(what, timing, 2.0 * (double)m * (double)n * (double)k);
    }
}

static void bench_attention(int64_t tokens, int32_t heads, int64_t dim)
{
    const struct attention how = {
        .heads = heads, .kv_heads = heads, .scale = 1 / sqrtf((float)dim)};
    int64_t cols = heads * dim;
    struct matrix qkv, out;
    struct timing timing;
    char what[80];

    snprintf(what, sizeof what, "attention %lld tokens, %d heads of %lld", (long long)tokens, heads,
        (long long)dim);
    if (!strstr(what, wanted)) return;
    arena_used = 0;
    qkv = matrix_new(DTYPE_F32, tokens, 3 * cols);
    out = matrix_new(DTYPE_F32, tokens, cols);
    MEASURE(timing, ops->attention(stream, out, matrix_cols(qkv, 0, cols),
                        matrix_cols(qkv, cols, cols), matrix_cols(qkv, 2 * cols, cols), &how));
    report(what, timing, 4.0 * (double)tokens * (double)tokens * (double)cols);
}

static void bench_conv(int64_t in, int64_t out, int64_t size, int32_t upsample)
{
    struct conv conv = {.height = size, .width = size, .kernel = 3, .upsample = upsample};
    struct matrix x, y, w;
    struct timing timing;
    char what[80];

    snprintf(what, sizeof what, "conv %lld -> %lld, %lld x %lld%s", (long long)in, (long long)out,
        (long long)size, (long long)size, upsample == 2 ? ", upsampling" : "");
    if (!strstr(what, wanted)) return;
    arena_used = 0;
    x = matrix_new(DTYPE_F32, in, size * size / upsample / upsample);
    y = matrix_new(DTYPE_F32, out, size * size);
    w = matrix_new(DTYPE_BF16, out, in * 9);
    conv.affine = matrix_new(DTYPE_F32, 2, in);
    conv.activation = ACTIVATION_SILU;
    MEASURE(timing, ops->conv2d(stream, y, x, w, MATRIX_NONE, &conv));
    report(what, timing, 18.0 * (double)(in * out * size * size));
}

static void bench_rows(int64_t rows, int64_t cols)
{
    struct matrix x, y, gamma, gammas, head, table;
    double elements = (double)(rows * cols);
    struct timing timing;

    if (!strstr("rows", wanted)) return;
    arena_used = 0;
    printf("rows [%lld, %lld]; here GFLOP/s are elements a nanosecond\n", (long long)rows,
        (long long)cols);
    x = matrix_new(DTYPE_F32, rows, cols);
    y = matrix_new(DTYPE_F32, rows, cols);
    gamma = matrix_new(DTYPE_BF16, 1, cols);
    gammas = matrix_new(DTYPE_F32, 1, rows);
    head = matrix_cols(gamma, 0, 64);
    table = matrix_new(DTYPE_F32, rows, 64);
    /* Real rotations. */
    for (int64_t i = 0; i < rows * 64; i++)
        row_of(table, 0)[i] = i % 64 < 32 ? 0.6f : 0.8f;
    MEASURE(timing, ops->rms_norm(stream, y, x, gamma, gamma, 1e-6f));
    report("    rms_norm", timing, elements);
    MEASURE(timing, ops->layer_norm(stream, y, x, MATRIX_NONE, gamma, gamma, 1e-6f));
    report("    layer_norm", timing, elements);
    MEASURE(timing, ops->rms_norm_rope(stream, y, head, 1e-6f, table, ROPE_INTERLEAVED));
    report("    rms_norm_rope, interleaved", timing, elements);
    MEASURE(timing, ops->rms_norm_rope(stream, y, head, 1e-6f, table, ROPE_HALF));
    report("    rms_norm_rope, half", timing, elements);
    MEASURE(timing, ops->gated_add(stream, y, gamma, x, MATRIX_NONE, 0));
    report("    gated_add", timing, elements);
    MEASURE(timing, ops->gated_add(stream, y, gamma, x, gamma, 1e-6f));
    report("    gated_add, normed", timing, elements);
    MEASURE(timing, ops->activate(stream, y, x, ACTIVATION_GELU_TANH));
    report("    gelu_tanh", timing, elements);
    MEASURE(timing, ops->gated(stream, y, x, x, ACTIVATION_SILU));
    report("    gated, silu", timing, elements);
    MEASURE(timing, ops->gated(stream, y, x, x, ACTIVATION_GELU_TANH));
    report("    gated, gelu_tanh", timing, elements);
    MEASURE(timing, ops->match_norms(stream, y, x));
    report("    match_norms", timing, elements);
    MEASURE(timing, ops->channel_norm(stream, y, x, gammas, ACTIVATION_SILU));
    report("    channel_norm", timing, elements);
}

int main(int argc, char **argv)
{
    struct shoal_error error = {0};

    threads = argc > 1 ? atoi(argv[1]) : thread_cores();
    if (argc > 2) wanted = argv[2];
    if (cpu_create(&device, CPU_KERNELS_FAST, threads, &error) ||
        device->ops->arena_reserve(device, (uint64_t)1 << 30, &error) ||
        device->ops->stream_create(device, false, &stream, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    device->ops->arena_mark(device, device->arena, device->arena_bytes, true);
    ops = device->ops->compute;
    openblas_set_num_threads(threads);
    printf("%d threads, %s; OpenBLAS %s\n", threads, cpu_describe(), openblas_get_corename());
    bench_linear(288, 3840, 3840);
    bench_linear(1024, 3840, 3840);
    bench_linear(4160, 3840, 3840);
    bench_linear(1024, 3840, 10240);
    bench_linear(1024, 10240, 3840);
    bench_linear(64, 320, 960);
    bench_linear(100, 320, 1024);
    bench_linear(1, 3840, 3840);
    bench_linear(4, 3840, 3840);
    bench_quantised(288, 3840, 3840);
    bench_quantised(1024, 3840, 3840);
    bench_quantised(1, 3840, 3840);
    bench_attention(100, 5, 64);
    bench_attention(1024, 30, 128);
    bench_attention(4160, 4, 128);
    bench_attention(4096, 1, 512);
    bench_conv(512, 512, 64, 1);
    bench_conv(512, 512, 128, 2);
    bench_conv(256, 256, 256, 1);
    bench_conv(128, 128, 512, 1);
    bench_conv(128, 3, 512, 1);
    bench_conv(64, 64, 32, 1);
    bench_rows(1024, 3840);
    bench_rows(64, 320);
    device->ops->stream_destroy(&stream);
    device_destroy(&device);
    return 0;
}
