/* Operands, placements, comparisons: see gpu_support.h. */
#include "cuda/gpu_support.h"

#include "cuda/emulator.h"
#include "cuda/fake_driver.h"
#include "device/cuda/internal.h"
#include "ops/ops_support.h"
#include "tensor/quant.h"

#define MARGIN_BYTES 256 /* before and after an operand: nothing writes there */
#define SPOILT 0xff      /* as F32, F16 and BF16: not a number */

#if defined(__SANITIZE_ADDRESS__)
#define MARGIN_AFTER_BYTES (gpu.real ? MARGIN_BYTES : 0) /* ASan's own are there */
#else
#define MARGIN_AFTER_BYTES MARGIN_BYTES
#endif

enum role { INPUT, OUTPUT, INOUT };

struct operand {
    enum role role;
    bool dense;
    uint64_t alignment; /* 0: of the element */
    struct matrix m;    /* dense, on the host; its values before the operation */
    struct matrix wide; /* what the CPU has */
    struct matrix now;  /* where it lies for this side */
    device_addr block;  /* the memory that it lies in, on the device */
    uint8_t *image;     /* what was put there */
    size_t image_bytes;
    struct matrix first; /* dense: what the device made of it the first time */
};

/* How operands lie: `gap` and `shift` elements (of quantised types, blocks and 2 bytes). */
static const struct placement {
    int gap, shift;
    bool mixed;     /* every second operand lies as in the first */
    bool backwards; /* the emulated threads' turns */
} placements[] = {
    {0, 0, false, false},
    {8, 8, false, true},
    {3, 1, false, false},
    {5, 3, true, true},
};
#define PLACEMENT_COUNT ((int)(sizeof placements / sizeof *placements))

#define MAX_OPERANDS 16
#define TIMED_RUNS 20

enum { BEFORE = -2, REFERENCE = -1 }; /* then the placements, then timed runs of the last one */

static struct check {
    struct operand *operands[MAX_OPERANDS];
    int count;
    const char *what;
    double tolerance, flops, bytes;
    bool timed;
    int side, runs;
    struct event *begin, *end;
} check;

struct gpu gpu;
const enum dtype gpu_activations[3] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static struct bench reference, fast;
static struct device *device;
static bool untimed; /* on a card too */
static struct stream *stream;

static uint8_t *host(struct matrix m)
{
    return (uint8_t *)(uintptr_t)m.addr;
}

static size_t row_bytes(struct matrix m)
{
    return (size_t)dtype_bytes(m.dtype, m.cols);
}

static size_t stride_bytes(struct matrix m)
{
    return (size_t)dtype_bytes(m.dtype, m.stride);
}

/* Dense operands are bits, packed or unpacked: they stay as they are. */
static bool widens(const struct operand *o)
{
    enum dtype dtype = o->m.dtype;

    return !o->dense && (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16);
}

/* ---- the device's memory: as much as asked for, so that ASan sees what goes beyond ---- */

static device_addr device_alloc(size_t bytes)
{
    struct cuda_device *cuda = cuda_device(device);
    CUdeviceptr addr = 0;

    assert_true(cuda_enter(cuda));
    assert_int_equal(cuda->driver->memory_alloc(&addr, bytes), CUDA_SUCCESS);
    return addr;
}

static void device_free(device_addr addr)
{
    struct cuda_device *cuda = cuda_device(device);

    if (cuda_enter(cuda)) cuda->driver->memory_free(addr);
}

/* ---- operands ---- */

/* Without its values: large operands of checks that do nothing are never made. */
static struct operand *operand_new(enum role role, enum dtype dtype, int64_t rows, int64_t cols)
{
    struct operand *o = calloc(1, sizeof *o);

    assert_non_null(o);
    assert_true(check.count < MAX_OPERANDS);
    o->role = role;
    o->m = (struct matrix){0, dtype, rows, cols, cols, 1.0f};
    check.operands[check.count++] = o;
    return o;
}

/* Makes the values, if they are not there. */
static void fill(struct operand *o)
{
    struct matrix m = o->m;

    if (m.addr) return;
    if (o->role != OUTPUT && widens(o)) {
        o->m = random_matrix(m.dtype, m.rows, m.cols, m.cols);
        return;
    }
    o->m = matrix_new(m.dtype, m.rows, m.cols, m.cols);
    /* Of quantised weights no bits that would make a scale infinite. */
    for (size_t i = 0; i < matrix_bytes(o->m); i++)
        host(o->m)[i] = o->role == OUTPUT ? SPOILT : (uint8_t)(test_random(&seed) & 0xb3);
    if (dtype_is_f8(m.dtype)) o->m.scale = 0.0371f;
}

struct operand *gpu_input(enum dtype dtype, int64_t rows, int64_t cols)
{
    return operand_new(INPUT, dtype, rows, cols);
}

struct operand *gpu_output(enum dtype dtype, int64_t rows, int64_t cols)
{
    return operand_new(OUTPUT, dtype, rows, cols);
}

struct operand *gpu_inout(enum dtype dtype, int64_t rows, int64_t cols)
{
    return operand_new(INOUT, dtype, rows, cols);
}

struct operand *gpu_bytes(const void *bytes, uint64_t count, uint64_t alignment)
{
    struct operand *o = operand_new(INPUT, DTYPE_U8, 1, (int64_t)count);

    o->m = matrix_new(DTYPE_U8, 1, (int64_t)count, (int64_t)count);
    memcpy(host(o->m), bytes, (size_t)count);
    o->dense = true;
    o->alignment = alignment;
    return o;
}

struct operand *gpu_dense(struct operand *o)
{
    o->dense = true;
    return o;
}

/* Rounds to nearest, ties to even. */
static uint16_t narrow(enum dtype dtype, float value)
{
    uint32_t sign = float_to_bits(value) >> 16 & 0x8000, bits;
    int exponent;

    if (dtype == DTYPE_BF16) return bf16_from_float(value);
    if (isnan(value)) return 0x7fff;
    if (fabsf(value) >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    exponent = value == 0 ? -14 : ilogbf(value) < -14 ? -14 : ilogbf(value);
    bits = (uint32_t)lrintf(ldexpf(fabsf(value), 10 - exponent));
    return (uint16_t)(sign | (bits + ((uint32_t)(exponent + 14) << 10)));
}

void gpu_set(struct operand *o, const float *values)
{
    fill(o);
    for (int64_t i = 0; i < o->m.rows * o->m.cols; i++) {
        if (o->m.dtype == DTYPE_F32)
            ((float *)(void *)host(o->m))[i] = values[i];
        else
            ((uint16_t *)(void *)host(o->m))[i] = narrow(o->m.dtype, values[i]);
    }
}

struct matrix on(const struct operand *o)
{
    return o ? o->now : MATRIX_NONE;
}

struct matrix on_rows(const struct operand *o, int64_t first, int64_t count)
{
    return matrix_rows(o->now, first, count);
}

struct matrix on_cols(const struct operand *o, int64_t first, int64_t count)
{
    return matrix_cols(o->now, first, count);
}

static void operand_drop(struct operand *o)
{
    if (o->m.addr) matrix_drop(o->m);
    if (o->wide.addr) matrix_drop(o->wide);
    if (o->first.addr) matrix_drop(o->first);
    if (o->block) device_free(o->block);
    free(o->image);
    free(o);
}

static void drop_all(void)
{
    for (int i = 0; i < check.count; i++)
        operand_drop(check.operands[i]);
    memset(&check, 0, sizeof check);
    check.side = BEFORE;
}

/* ---- the reference's side ---- */

static void place_wide(struct operand *o)
{
    enum dtype dtype = widens(o) ? DTYPE_F32 : o->m.dtype;

    if (o->alignment) { /* bytes as they are: memory of theirs that is aligned */
        o->wide = o->m;
        o->wide.addr = (device_addr)(uintptr_t)aligned_alloc(
            o->alignment, (matrix_bytes(o->m) + o->alignment - 1) / o->alignment * o->alignment);
        assert_true(o->wide.addr != 0);
        memcpy(host(o->wide), host(o->m), matrix_bytes(o->m));
    } else {
        o->wide = matrix_new(dtype, o->m.rows, o->m.cols, o->m.cols);
        if (widens(o))
            quant_widen((float *)(void *)host(o->wide), host(o->m), o->m.dtype, o->m.scale, 0,
                o->m.rows * o->m.cols);
        else
            memcpy(host(o->wide), host(o->m), matrix_bytes(o->m));
    }
    o->wide.scale = o->m.scale;
    o->now = o->wide;
}

/* ---- the device's sides ---- */

static void place(struct operand *o, const struct placement *p, bool as_first)
{
    int64_t gap = as_first || o->dense ? 0 : p->gap, shift = as_first ? 0 : p->shift;
    int64_t block = dtype_block_elements(o->m.dtype);
    size_t before = MARGIN_BYTES, bytes;

    o->now = o->m;
    o->now.stride = o->m.cols + gap * block;
    if (o->alignment)
        before = (before + o->alignment - 1) / o->alignment * o->alignment;
    else
        before += (size_t)(shift * (block > 1 ? 2 : dtype_bytes(o->m.dtype, 1)));
    bytes = before + matrix_bytes(o->now) + (size_t)MARGIN_AFTER_BYTES;
    o->image = malloc(bytes);
    assert_non_null(o->image);
    o->image_bytes = bytes;
    memset(o->image, SPOILT, bytes);
    for (int64_t r = 0; r < o->m.rows; r++)
        memcpy(o->image + before + (size_t)r * stride_bytes(o->now),
            host(o->m) + (size_t)r * row_bytes(o->m), row_bytes(o->m));
    o->block = device_alloc(bytes);
    device->ops->copy_in(stream, o->block, o->image, bytes);
    o->now.addr = o->block + before;
}

/* What lies there now: its elements, dense. Nothing else may have changed. */
static struct matrix collect(struct operand *o, int index)
{
    struct shoal_error error = {0};
    uint8_t *block = malloc(o->image_bytes);
    size_t before = (size_t)(o->now.addr - o->block);
    struct matrix got = matrix_new(o->m.dtype, o->m.rows, o->m.cols, o->m.cols);

    assert_non_null(block);
    device->ops->copy_out(stream, block, o->block, o->image_bytes);
    assert_ok(device->ops->stream_synchronize(stream, &error));
    for (int64_t r = 0; r < o->m.rows; r++) {
        size_t at = before + (size_t)r * stride_bytes(o->now);

        memcpy(host(got) + (size_t)r * row_bytes(got), block + at, row_bytes(got));
        if (o->role != INPUT) memcpy(block + at, o->image + at, row_bytes(got));
    }
    for (size_t i = 0; i < o->image_bytes; i++)
        if (block[i] != o->image[i])
            fail_msg("%s: operand %d (%s [%lld, %lld], stride %lld): byte %lld from its first "
                     "element on was written, and should not have been",
                check.what, index, dtype_name(o->m.dtype), (long long)o->m.rows,
                (long long)o->m.cols, (long long)o->now.stride, (long long)i - (long long)before);
    free(block);
    device_free(o->block);
    o->block = 0;
    free(o->image);
    o->image = NULL;
    return got;
}

/* ---- comparisons ---- */

/* Half of the step between values of a type around `value`. */
static double half_step(enum dtype dtype, double value)
{
    if (dtype == DTYPE_BF16) return fabs(value) * 0x1p-8;
    if (dtype == DTYPE_F16) return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    return 0;
}

static bool near(enum dtype dtype, double got, double want, double allowed)
{
    if (isnan(want)) return isnan(got);
    if (got == want) return true;
    if (dtype == DTYPE_F16 && fabs(want) >= 65504) /* what is stored saturates */
        return isfinite(got) && (got > 0) == (want > 0) && fabs(got) >= 65504 * 0.99;
    return fabs(got - want) <= allowed + half_step(dtype, want);
}

static void compare(const struct operand *o, int index)
{
    int64_t count = o->m.rows * o->m.cols;
    const float *want = (const float *)(const void *)host(o->wide);
    float *got;
    double largest = 1e-6, worst = 0;

    if (!widens(o)) { /* unpacked bits */
        assert_memory_equal(host(o->first), host(o->wide), matrix_bytes(o->m));
        return;
    }
    got = malloc((size_t)count * sizeof *got);
    assert_non_null(got);
    quant_widen(got, host(o->first), o->m.dtype, o->m.scale, 0, count);
    for (int64_t i = 0; i < count; i++)
        if (isfinite(want[i])) largest = fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < count; i++) {
        if (!near(o->m.dtype, (double)got[i], (double)want[i], check.tolerance * largest))
            fail_msg("%s: operand %d, %s [%lld, %lld] of [%lld, %lld] is %.9g, not %.9g (%.3g of "
                     "the largest, %.9g, may be off)",
                check.what, index, dtype_name(o->m.dtype), (long long)(i / o->m.cols),
                (long long)(i % o->m.cols), (long long)o->m.rows, (long long)o->m.cols,
                (double)got[i], (double)want[i], check.tolerance, largest);
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]) / largest);
    }
    if (getenv("GPU_VERBOSE"))
        printf("%s: %s [%lld, %lld]: off by %.3g of the largest, %.3g allowed\n", check.what,
            dtype_name(o->m.dtype), (long long)o->m.rows, (long long)o->m.cols, worst,
            check.tolerance);
    free(got);
}

static void finish_device_side(void)
{
    struct shoal_error error = {0};

    assert_ok(device->ops->stream_synchronize(stream, &error));
    for (int i = 0; i < check.count; i++) {
        struct operand *o = check.operands[i];
        struct matrix got = collect(o, i);

        if (o->role == INPUT) {
            matrix_drop(got);
        } else if (check.side == 0) {
            o->first = got;
            compare(o, i);
        } else {
            if (memcmp(host(got), host(o->first), matrix_bytes(got)) != 0)
                fail_msg("%s: operand %d, %s [%lld, %lld] comes out otherwise where it lies "
                         "otherwise (placement %d)",
                    check.what, i, dtype_name(got.dtype), (long long)got.rows, (long long)got.cols,
                    check.side);
            matrix_drop(got);
        }
    }
}

/* ---- sides ---- */

static void begin(const char *what, double tolerance)
{
    check.what = what;
    check.tolerance = tolerance;
    check.side = BEFORE;
}

void gpu_begin(const char *what, double tolerance)
{
    begin(what, tolerance);
    check.timed = false;
}

void gpu_begin_timed(const char *what, double tolerance, double flops, double bytes)
{
    begin(what, tolerance);
    check.timed = true;
    check.flops = flops;
    check.bytes = bytes;
    check.runs = 0;
}

static void place_all(int side)
{
    const struct placement *p = &placements[side];

    for (int i = 0; i < check.count; i++)
        place(check.operands[i], p, p->mixed && i % 2);
    emulate_set_order(p->backwards);
    gpu.ops = device->ops->compute;
    gpu.stream = stream;
}

static void print_time(void)
{
    double seconds =
        (double)(device->ops->event_time_ns(check.end) - device->ops->event_time_ns(check.begin)) /
        1e9 / TIMED_RUNS;

    printf("  %-12s", check.what);
    for (int i = 0; i < check.count; i++)
        printf(" %s[%lld,%lld]", dtype_name(check.operands[i]->m.dtype),
            (long long)check.operands[i]->m.rows, (long long)check.operands[i]->m.cols);
    printf(": %.3f ms", seconds * 1e3);
    if (check.flops > 0) printf(", %.1f TFLOP/s", check.flops / seconds / 1e12);
    if (check.bytes > 0) printf(", %.0f GB/s", check.bytes / seconds / 1e9);
    printf("\n");
    fflush(stdout);
}

/* One run to warm up, the others between two events. */
static bool next_timed_run(void)
{
    struct shoal_error error = {0};
    const struct device_ops *ops = device->ops;

    if (check.runs == 0) {
        place_all(0);
        assert_ok(ops->event_create(device, &check.begin, &error));
        assert_ok(ops->event_create(device, &check.end, &error));
    }
    if (check.runs == 1) ops->event_record(stream, check.begin);
    if (check.runs++ <= TIMED_RUNS) return true;
    ops->event_record(stream, check.end);
    assert_ok(ops->stream_synchronize(stream, &error));
    print_time();
    ops->event_destroy(&check.begin);
    ops->event_destroy(&check.end);
    return false;
}

bool gpu_next(void)
{
    int last = check.timed ? 1 : PLACEMENT_COUNT - 1;

    if (check.timed && (!gpu.real || untimed)) {
        drop_all();
        return false;
    }
    if (check.side >= 0 && check.side <= last) finish_device_side();
    if (check.side <= last) check.side++;
    if (check.side == REFERENCE) {
        for (int i = 0; i < check.count; i++) {
            fill(check.operands[i]);
            place_wide(check.operands[i]);
        }
        gpu.ops = check.timed ? fast.ops : reference.ops;
        gpu.stream = check.timed ? fast.stream : reference.stream;
        return true;
    }
    if (check.side <= last) {
        place_all(check.side);
        return true;
    }
    if (check.timed && next_timed_run()) return true;
    drop_all();
    return false;
}

/* ---- programs ---- */

static struct bench open_fast(void)
{
    struct shoal_error error = {0};
    struct bench b = {0};

    assert_ok(cpu_create(&b.device, CPU_KERNELS_FAST, 0, &error));
    assert_ok(b.device->ops->stream_create(b.device, false, &b.stream, &error));
    b.ops = b.device->ops->compute;
    return b;
}

/* A card, or an emulated one; false, with a line that says why, where there is none. */
static bool open_device(bool real, int sm)
{
    struct fake_driver_options options = {.pace = PACE_LATE, .sm = sm};
    struct cuda_driver driver;
    struct shoal_error error = {0};

    if (!real) fake_driver_open(&driver, &options);
    if (real ? cuda_create(&device, 0, &error) : cuda_create_with(&device, &driver, 0, &error)) {
        printf("%s: %s\n", real ? "skipped" : "failed", error.text);
        return false;
    }
    if (real) printf("on %s\n", cuda_info(device).name);
    if (device->ops->stream_create(device, false, &stream, &error)) abort();
    return true;
}

int gpu_open(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "80";

    gpu.real = strcmp(which, "gpu") == 0;
    untimed = argc > 2 && strcmp(argv[2], "untimed") == 0;
    if (!open_device(gpu.real, atoi(which))) return gpu.real ? 77 : 1;
    reference = bench_open(NULL, 1);
    fast = open_fast();
    drop_all();
    return 0;
}

struct device *gpu_device(void)
{
    return device;
}

void gpu_close(void)
{
    bench_close(&reference);
    bench_close(&fast);
    drop_all();
    device->ops->stream_destroy(&stream);
    device_destroy(&device);
    if (fake_driver_counts().violation || fake_driver_counts().things) {
        printf("the driver: %s, %lld things left\n", fake_driver_counts().violation,
            (long long)fake_driver_counts().things);
        abort();
    }
}
