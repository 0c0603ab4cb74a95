/* The emulator itself: what later tests of kernels take for granted. */
#include "device/cuda/kernels/gpu.cuh"

extern "C" {
#include "support.h"
}

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct emulate_size one = {1, 1, 1};

template <typename args, void kernel(args)> static void call(const void *given)
{
    kernel(*(const args *)given);
}

/* Runs in both orders; the last error, or NULL. */
template <typename args, void kernel(args)>
static const char *launch(args given, uint32_t blocks, uint32_t threads, size_t shared_bytes)
{
    const char *error = NULL;

    for (int backwards = 1; backwards >= 0; backwards--) {
        emulate_set_order(backwards);
        error = emulate_launch(
            "kernel", call<args, kernel>, &given, {blocks, 1, 1}, {threads, 1, 1}, shared_bytes);
    }
    return error;
}

#define LAUNCH(kernel, given, blocks, threads, shared_bytes)                                       \
    launch<decltype(given), kernel>(given, blocks, threads, shared_bytes)

static void assert_no_error(const char *error)
{
    if (error) fail_msg("%s", error);
}

static void assert_says(const char *error, const char *what)
{
    assert_non_null(error);
    if (!strstr(error, what)) fail_msg("\"%s\" does not say \"%s\"", error, what);
}

/* ---- blocks and warps ---- */

struct sums_args {
    float *out;
    int n;
};

KERNEL __launch_bounds__(96) sums(struct sums_args args)
{
    __shared__ float partial[3];
    SHARED_BYTES(bytes);
    float *mine = (float *)bytes, sum;

    mine[threadIdx.x] = (float)(blockIdx.x * 1000 + threadIdx.x);
    sync_threads();
    sum = block_sum(mine[blockDim.x - 1 - threadIdx.x], partial);
    if ((int)(blockIdx.x * blockDim.x + threadIdx.x) < args.n)
        args.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void test_sums(void **state)
{
    float out[2 * 96];

    (void)state;
    assert_no_error(LAUNCH(sums, (sums_args{out, 2 * 96}), 2, 96, 96 * sizeof(float)));
    for (int i = 0; i < 2 * 96; i++)
        assert_true(out[i] == (float)(95 * 96 / 2 + i / 96 * 96 * 1000));
}

struct lanes_args {
    int *up, *down;
    double *other;
    uint32_t *votes;
};

KERNEL lanes(struct lanes_args args)
{
    int i = (int)threadIdx.x;

    args.up[i] = shuffle_up(i, 5);
    args.down[i] = shuffle(i * 2, i + 1);
    args.other[i] = shuffle_xor(i + 0.5, 3);
    args.votes[i] = warp_ballot(i % 3 == 0);
    sync_warp();
}

static void test_lanes(void **state)
{
    int up[64], down[64];
    double other[64];
    uint32_t votes[64];

    (void)state;
    assert_no_error(LAUNCH(lanes, (lanes_args{up, down, other, votes}), 1, 64, 0));
    for (int i = 0; i < 64; i++) {
        uint32_t expected = 0;

        for (int lane = 0; lane < 32; lane++)
            expected |= (uint32_t)((i / 32 * 32 + lane) % 3 == 0) << lane;
        assert_int_equal(up[i], i % 32 < 5 ? i : i - 5);
        assert_int_equal(down[i], 2 * (i / 32 * 32 + (i + 1) % 32));
        assert_true(other[i] == (i ^ 3) + 0.5);
        assert_int_equal(votes[i], expected);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    assert_int_equal(byte_permute(0x33221100, 0x77665544, 0x7250), 0x77225500);
    assert_int_equal(byte_permute(0x00008000, 0, 0x9980), 0xffff0000);
    assert_int_equal(count_bits(0xf0f00001), 9);
}

/* ---- numbers ---- */

static void test_numbers(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float half = f16_as_float((uint16_t)bits), brain = bf16_as_float((uint16_t)bits);

        assert_int_equal(float_as_f16(half), half != half              ? 0x7fff
                                             : bits % 0x8000 == 0x7c00 ? bits - 1
                                                                       : bits);
        assert_int_equal(float_as_bf16(brain), brain == brain ? bits : 0x7fff);
    }
    assert_int_equal(float_as_bf16(1 + 0x1p-8f), 0x3f80); /* ties to even */
    assert_int_equal(float_as_bf16(1 + 0x3p-8f), 0x3f82);
    assert_int_equal(float_as_bf16(3.4e38f), 0x7f80);
    assert_int_equal(float_as_f16(1 + 0x1p-11f), 0x3c00);
    assert_int_equal(float_as_f16(1 + 0x3p-11f), 0x3c02);
    assert_int_equal(float_as_f16(65519.0f), 0x7bff);
    assert_int_equal(float_as_f16(65520.0f), 0x7bff); /* saturates */
    assert_int_equal(float_as_f16(-3.4e38f), 0xfbff);
    assert_int_equal(float_as_f16(-INFINITY), 0xfbff);
    assert_int_equal(floats_as_f16(1e6f, NAN), 0x7fff7bffu);
    assert_int_equal(floats_as_bf16(1, -2), 0xc0003f80u);
    assert_int_equal(floats_as_f16(1, -2), 0xc0003c00u);
    assert_int_equal(float_as_f16(0x1p-25f), 0);
    assert_int_equal(float_as_f16(0x1.8p-25f), 1);
    assert_int_equal(float_as_f16(-0x3p-25f), 0x8002);
    assert_int_equal(float_as_f16(0x1.ff8p-15f), 0x3ff);
    assert_int_equal(float_as_f16(0x1.ffcp-15f), 0x400);
}

/* ---- matrix instructions ---- */

struct multiply_args {
    const uint16_t *a, *b; /* [16, 16], [8, 16] */
    float *d;              /* [16, 8] */
    bool half, transposed;
};

/* As a kernel would: through shared memory. */
KERNEL multiply(struct multiply_args args)
{
    __shared__ __align__(16) uint16_t a[16][24];
    __shared__ __align__(16) uint16_t b[8][24];
    __shared__ __align__(16) uint16_t bt[16][8];
    int lane = (int)threadIdx.x;
    uint32_t fa[4], fb[4];
    float d[4] = {1, 2, 3, 4};

    copy_async_16(&a[lane / 2][lane % 2 * 8], args.a + lane / 2 * 16 + lane % 2 * 8, true);
    copy_async_commit();
    copy_async_16(&b[lane / 2 % 8][lane % 2 * 8], args.b + lane / 2 % 8 * 16 + lane % 2 * 8, true);
    copy_async_commit();
    for (int i = lane; i < 128; i += WARP)
        bt[i % 16][i / 16] = args.b[i];
    copy_async_wait<0>();
    sync_threads();
    load_matrices(fa, &a[lane % 16][lane / 16 * 8]);
    if (args.transposed)
        load_matrices_transposed(fb, &bt[lane % 16][0]);
    else
        load_matrices(fb, &b[lane % 8][lane / 8 % 2 * 8]);
    if (args.half)
        mma_f16(d, fa, fb);
    else
        mma_bf16(d, fa, fb);
    for (int i = 0; i < 4; i++)
        args.d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

static void test_multiply(void **state)
{
    alignas(16) uint16_t a[16 * 16], b[8 * 16];
    uint64_t random = 1;

    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bool half = variant % 2;
        float d[16 * 8];

        for (uint16_t &x : a)
            x = half ? float_as_f16((float)(test_random(&random) % 64) - 32)
                     : float_as_bf16((float)(test_random(&random) % 64) - 32);
        for (uint16_t &x : b)
            x = half ? float_as_f16((float)(test_random(&random) % 64) - 32)
                     : float_as_bf16((float)(test_random(&random) % 64) - 32);
        assert_no_error(LAUNCH(multiply, (multiply_args{a, b, d, half, variant >= 2}), 1, 32, 0));
        for (int row = 0; row < 16; row++)
            for (int col = 0; col < 8; col++) {
                float sum = (float)(1 + row / 8 * 2 + col % 2);

                for (int k = 0; k < 16; k++)
                    sum += load_float(a, 16 * row + k, half ? GPU_F16 : GPU_BF16) *
                           load_float(b, 16 * col + k, half ? GPU_F16 : GPU_BF16);
                assert_true(d[row * 8 + col] == sum);
            }
    }
}

/* ---- asynchronous copies ---- */

struct copies_args {
    const float *from;
    float *seen; /* [4][4] */
};

KERNEL copies(struct copies_args args)
{
    __shared__ __align__(16) float to[3][4];

    copy_async_16(to[0], args.from, true);
    copy_async_commit();
    copy_async_16(to[1], args.from + 4, true);
    copy_async_commit();
    copy_async_16(to[2], args.from, false);
    memcpy(args.seen, to[0], 16); /* too early */
    copy_async_wait<1>();
    memcpy(args.seen + 4, to[0], 16);
    memcpy(args.seen + 8, to[1], 16); /* too early */
    copy_async_commit();
    copy_async_wait<0>();
    memcpy(args.seen + 12, to[2], 16);
}

KERNEL misaligned_copy(struct copies_args args)
{
    __shared__ __align__(16) float to[4];

    copy_async_16(to, args.from + 1, true);
}

KERNEL copy_to_elsewhere(struct copies_args args)
{
    copy_async_16(args.seen, args.from, true);
}

static void test_copies(void **state)
{
    alignas(16) float from[8] = {1, 2, 3, 4, 5, 6, 7, 8}, seen[16];

    (void)state;
    assert_says(LAUNCH(misaligned_copy, (copies_args{from, seen}), 1, 1, 0), "not aligned");
    assert_says(LAUNCH(copy_to_elsewhere, (copies_args{from, seen}), 1, 1, 0), "not in shared");
    assert_no_error(LAUNCH(copies, (copies_args{from, seen}), 1, 1, 0));
    for (int i = 0; i < 4; i++) {
        assert_true(seen[i] != seen[i]);
        assert_true(seen[4 + i] == from[i]);
        assert_true(seen[8 + i] != seen[8 + i]);
        assert_true(seen[12 + i] == 0);
    }
}

/* ---- what no GPU does ---- */

struct wrong_args {
    int kind;
    float *out;
};

KERNEL wrong(struct wrong_args args)
{
    bool odd = threadIdx.x % 2;

    if (args.kind == 0 && threadIdx.x == 40) return;
    if (args.kind <= 1 && (args.kind == 0 || threadIdx.x < 32)) sync_threads();
    if (args.kind == 2 && odd) sync_warp();
    if (args.kind == 3) args.out[threadIdx.x] = odd ? shuffle(1.0f, 0) : shuffle_xor(1.0f, 1);
    if (args.kind == 4 && threadIdx.x < 32) sync_threads();
    if (args.kind == 4 && threadIdx.x >= 32) sync_warp();
    if (args.kind == 5) sync_warp();
}

static void test_divergence(void **state)
{
    const char *says[] = {"sync_threads, but 1 threads have exited",
        "sync_threads, but 32 threads have exited", "sync_warp, but 32 threads have exited",
        "others of its warp in shuffle", "sync_threads, but 32 threads have exited",
        "in a warp of 8 threads"};
    float out[64];

    (void)state;
    for (int kind = 0; kind < 6; kind++)
        assert_says(LAUNCH(wrong, (wrong_args{kind, out}), 3, kind == 5 ? 40 : 64, 0), says[kind]);
    assert_says(LAUNCH(wrong, (wrong_args{6, out}), 1, 2000, 0), "no grid");
    assert_no_error(LAUNCH(wrong, (wrong_args{6, out}), 2, 64, 0));
}

/* ---- a barrier that is missing ---- */

struct neighbours_args {
    int *seen;
};

KERNEL neighbours(struct neighbours_args args)
{
    __shared__ int numbers[32];

    numbers[threadIdx.x] = (int)threadIdx.x;
    args.seen[threadIdx.x] = numbers[(threadIdx.x + 1) % 32];
}

/* One order or the other shows it. */
static void test_order(void **state)
{
    neighbours_args forwards, backwards;
    int seen[2][32];

    (void)state;
    forwards.seen = seen[0];
    backwards.seen = seen[1];
    for (int order = 0; order < 2; order++) {
        emulate_set_order(order);
        assert_no_error(emulate_launch("neighbours", call<neighbours_args, neighbours>,
            order ? &backwards : &forwards, one, {32, 1, 1}, 0));
    }
    assert_memory_not_equal(seen[0], seen[1], sizeof seen[0]);
    assert_int_equal(seen[0][5], -1); /* as it was spoilt */
    assert_int_equal(seen[1][5], 6);
}

/* ---- bounds: only ASan sees them ---- */

struct stray_args {
    int dynamic, index;
    float *out;
};

KERNEL stray(struct stray_args args)
{
    __shared__ float fixed[8];
    SHARED_BYTES(bytes);

    fixed[threadIdx.x] = 1;
    if (args.dynamic)
        ((float *)bytes)[args.index] = 2;
    else
        *(fixed + args.index) = 2;
    sync_threads();
    args.out[threadIdx.x] = fixed[threadIdx.x];
}

static bool survives(int dynamic, int index)
{
    float out[8];
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        _exit(LAUNCH(stray, (stray_args{dynamic, index, out}), 1, 8, 20) ? 1 : 0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_bounds(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    assert_false(survives(1, 5));
    assert_false(survives(0, 8));
#endif
    assert_true(survives(1, 4));
    assert_true(survives(0, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_multiply),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
