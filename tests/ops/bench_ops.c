/*
 * Measures the CPU device's operations, and OpenBLAS's plain f32 product beside `linear`. Not a
 * test. Each line gives operations per second of wall time, and per second of CPU time (times the
 * threads), which other processes disturb less.
 *
 *     bench_ops [threads]
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "device/cpu/internal.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct device *device;
static struct stream *stream;
static const struct compute_ops *ops;
static int threads;

struct timing {
    double wall, cpu; /* seconds, the best of several */
};

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Repeats `call` for at least half a second. */
#define MEASURE(timing, call)                                                                      \
    do {                                                                                           \
        uint64_t end_ = clock_ns() + 500000000;                                                    \
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

static struct matrix new (enum dtype dtype, int64_t rows, int64_t cols)
{
    struct matrix m = matrix_at(0, dtype, rows, cols);
    size_t count = (size_t)(rows * cols);
    uint16_t *half = pages_alloc(count * dtype_bits(dtype) / 8);

    if (!half) exit(1);
    for (size_t i = 0; i < count; i++) {
        float value = (float)rand() / (float)RAND_MAX - 0.5f;

        if (dtype == DTYPE_F32)
            ((float *)(void *)half)[i] = value;
        else
            half[i] = bf16_from_float(value);
    }
    m.addr = (device_addr)(uintptr_t)half;
    return m;
}

static void drop(struct matrix m)
{
    pages_free((void *)(uintptr_t)m.addr, (size_t)(m.rows * m.cols) * dtype_bits(m.dtype) / 8);
}

static void bench_linear(int64_t m, int64_t k, int64_t n, bool compare)
{
    struct matrix x = new (DTYPE_F32, m, k), w = new (DTYPE_BF16, n, k), y = new (DTYPE_F32, m, n);
    struct matrix wide = compare ? new (DTYPE_F32, n, k) : MATRIX_NONE;
    struct timing timing;
    char what[80];

    snprintf(
        what, sizeof what, "linear %lld x %lld -> %lld", (long long)m, (long long)k, (long long)n);
    MEASURE(timing, ops->linear(stream, y, x, w, MATRIX_NONE));
    report(what, timing, 2.0 * (double)m * (double)n * (double)k);
    if (compare) {
        MEASURE(
            timing, cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1,
                        row_of(x, 0), (int)k, row_of(wide, 0), (int)k, 0, row_of(y, 0), (int)n));
        report("    sgemm", timing, 2.0 * (double)m * (double)n * (double)k);
        drop(wide);
    }
    drop(x);
    drop(w);
    drop(y);
}

static void bench_attention(int64_t tokens, int32_t heads, int64_t dim)
{
    struct matrix qkv = new (DTYPE_F32, tokens, 3 * heads * dim), out;
    int64_t cols = heads * dim;
    struct timing timing;
    char what[80];

    out = new (DTYPE_F32, tokens, cols);
    snprintf(what, sizeof what, "attention %lld tokens, %d heads of %lld", (long long)tokens, heads,
        (long long)dim);
    MEASURE(
        timing, ops->attention(stream, out, matrix_cols(qkv, 0, cols), matrix_cols(qkv, cols, cols),
                    matrix_cols(qkv, 2 * cols, cols), heads, heads, 1 / sqrtf((float)dim), false));
    report(what, timing, 4.0 * (double)tokens * (double)tokens * (double)cols);
    drop(qkv);
    drop(out);
}

static void bench_conv(int64_t in, int64_t out, int64_t size, int32_t upsample)
{
    struct conv conv = {.height = size, .width = size, .kernel = 3, .upsample = upsample};
    struct matrix x = new (DTYPE_F32, in, size * size / upsample / upsample);
    struct matrix y = new (DTYPE_F32, out, size * size), w = new (DTYPE_BF16, out, in * 9);
    struct timing timing;
    char what[80];

    conv.affine = new (DTYPE_F32, 2, in);
    conv.activation = ACTIVATION_SILU;
    snprintf(what, sizeof what, "conv %lld -> %lld, %lld x %lld%s", (long long)in, (long long)out,
        (long long)size, (long long)size, upsample == 2 ? ", upsampling" : "");
    MEASURE(timing, ops->conv2d(stream, y, x, w, MATRIX_NONE, &conv));
    report(what, timing, 18.0 * (double)(in * out * size * size));
    drop(x);
    drop(y);
    drop(w);
    drop(conv.affine);
}

static void bench_rows(int64_t rows, int64_t cols)
{
    struct matrix x = new (DTYPE_F32, rows, cols), y = new (DTYPE_F32, rows, cols);
    struct matrix gamma = new (DTYPE_BF16, 1, cols), table = new (DTYPE_F32, rows, 64);
    double elements = (double)(rows * cols);
    struct timing timing;

    printf("rows [%lld, %lld]; here GFLOP/s are elements a nanosecond\n", (long long)rows,
        (long long)cols);
    MEASURE(timing, ops->rms_norm(stream, y, x, gamma, gamma, 1e-6f));
    report("    rms_norm", timing, elements);
    MEASURE(timing, ops->layer_norm(stream, y, x, gamma, 1e-6f));
    report("    layer_norm", timing, elements);
    MEASURE(timing, ops->gated_silu(stream, y, x, y));
    report("    gated_silu", timing, elements);
    MEASURE(timing, ops->gated_add(stream, y, gamma, x));
    report("    gated_add", timing, elements);
    MEASURE(timing, ops->rope(stream, y, table, ROPE_INTERLEAVED));
    report("    rope, interleaved", timing, elements);
    MEASURE(timing, ops->rope(stream, y, table, ROPE_HALF));
    report("    rope, half", timing, elements);
    MEASURE(timing, ops->activate(stream, y, x, ACTIVATION_GELU_TANH));
    report("    gelu_tanh", timing, elements);
    drop(x);
    drop(y);
    drop(gamma);
    drop(table);
}

int main(int argc, char **argv)
{
    struct shoal_error error = {0};

    threads = argc > 1 ? atoi(argv[1]) : thread_cores();
    if (cpu_create(&device, CPU_KERNELS_FAST, threads, &error) ||
        device->ops->stream_create(device, false, &stream, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    ops = device->ops->compute;
    openblas_set_num_threads(threads);
    printf("%d threads, %s; OpenBLAS %s\n", threads, cpu_describe(), openblas_get_corename());
    bench_linear(288, 3840, 3840, true);
    bench_linear(1024, 3840, 3840, true);
    bench_linear(4160, 3840, 3840, true);
    bench_linear(1024, 3840, 10240, true);
    bench_linear(1024, 10240, 3840, true);
    bench_linear(64, 320, 960, true);
    bench_linear(100, 320, 1024, true);
    bench_linear(1, 3840, 3840, true);
    bench_linear(4, 3840, 3840, true);
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
