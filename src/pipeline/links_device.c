/*
 * Measuring the device: the copy into it, each kind of arithmetic at the shapes of a large DiT and
 * VAE, and what the one takes away from the other.
 */
#include "pipeline/links.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/size.h"
#include "stream/intake.h"

#include <math.h>
#include <string.h>

#define SOURCE_BYTES ((uint64_t)256 << 20) /* more than caches hold */
#define TARGET_BYTES ((uint64_t)64 << 20)
#define PIECE_BYTES ((uint64_t)16 << 20) /* what the streamer copies at once, at most */
#define WORK_BYTES ((uint64_t)640 << 20) /* operands of any one measurement */

#define SECONDS 0.4 /* for each figure */

/* Z-Image's: 3840 wide, its feed-forward 10240, heads of 128. */
#define FEW_TOKENS 64
#define LEAST_PART 0.05 /* of a time, that a part of it is believed to be at least */
#define HIDDEN 3840
#define WIDE 10240
#define HEAD 128

#define WEIGHT_SETS 3
#define LINEAR_WEIGHTS (HIDDEN * (HIDDEN + 2 * WIDE)) /* of a set */

struct bench {
    struct device *device;
    const char *path; /* of the file that is read beside products */
    struct stream *compute, *copies;
    char *source; /* SOURCE_BYTES, pinned if that can be; the arena's first TARGET_BYTES are
                     the target */
    bool pinned;
    struct pool *pool;   /* to measure what bounces with */
    char *ring;          /* PIECE_BYTES */
    uint64_t arena_used; /* by the operands of this measurement */
    struct event *half;  /* of the copies that go on beside something */
    struct matrix m[5];
    struct matrix weights[WEIGHT_SETS][3]; /* in turns: more than caches hold */
    int turn;
    struct conv conv;
    double spread;            /* as links_seconds raises it */
    enum shoal_status status; /* the first failure, and what it was */
    struct shoal_error error;
};

/* As many as the device likes to have at once, but for its operands' sake half of them. */
static int64_t many_tokens(const struct bench *b)
{
    return b->device->traits.chunk_rows / 2;
}

static void wait_for(struct bench *b, struct stream *stream)
{
    struct shoal_error error = {0};
    enum shoal_status status = b->device->ops->stream_synchronize(stream, &error);

    if (!status || b->status) return;
    b->status = status;
    b->error = error;
}

/* ---- the link ---- */

/* Copies `count` pieces, from the first `pieces` of the source round and round. */
static void give_copies(struct bench *b, uint64_t count, uint64_t pieces)
{
    for (uint64_t i = 0; i < count; i++)
        b->device->ops->copy_in(b->copies,
            b->device->arena + i % (TARGET_BYTES / PIECE_BYTES) * PIECE_BYTES,
            b->source + i % pieces * PIECE_BYTES, PIECE_BYTES);
}

static void copy_large(void *arg)
{
    struct bench *b = arg;

    give_copies(b, SOURCE_BYTES / PIECE_BYTES, SOURCE_BYTES / PIECE_BYTES);
    wait_for(b, b->copies);
}

/* Bytes a second, of copies alone. */
static double link_rate(struct bench *b)
{
    return (double)SOURCE_BYTES / links_seconds(copy_large, b, SECONDS, &b->spread);
}

/* Goes to the ring as the intake copies what is not pinned: a half after the other. */
static void copy_to_ring(void *arg)
{
    struct bench *b = arg;

    for (uint64_t at = 0; at < SOURCE_BYTES; at += PIECE_BYTES / 2)
        pool_copy(b->pool, b->ring + at % PIECE_BYTES, b->source + at, PIECE_BYTES / 2);
}

static void copy_cached(void *arg)
{
    struct bench *b = arg;

    give_copies(b, SOURCE_BYTES / PIECE_BYTES, 1);
    wait_for(b, b->copies);
}

/* ---- arithmetic ---- */

/* An operand, filled with small numbers that no operation here turns into slow ones. */
static struct matrix operand(struct bench *b, enum dtype dtype, int64_t rows, int64_t cols)
{
    uint64_t bytes = (uint64_t)dtype_bytes(dtype, rows * cols);
    device_addr addr = b->device->arena + TARGET_BYTES + b->arena_used;

    b->arena_used += size_align(bytes, 256);
    for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
        uint64_t left = bytes - done;

        b->device->ops->copy_in(
            b->compute, addr + done, b->source, left < PIECE_BYTES ? left : PIECE_BYTES);
    }
    return matrix_at(addr, dtype, rows, cols);
}

/* Operations between two waits: a card may be done with one before the host knows. */
static int repeats(const struct bench *b)
{
    return b->device->traits.activation == DTYPE_F32 ? 1 : 16;
}

/* Seconds of one of the operations that `body` repeats. */
static double seconds_of(struct bench *b, void (*body)(void *arg), double seconds)
{
    return links_seconds(body, b, seconds, &b->spread) / repeats(b);
}

static void give_products(struct bench *b)
{
    const struct matrix *w = b->weights[b->turn++ % WEIGHT_SETS];
    const struct compute_ops *ops = b->device->ops->compute;

    ops->linear(b->compute, b->m[1], b->m[0], w[0], MATRIX_NONE);
    ops->linear(b->compute, b->m[2], b->m[0], w[1], MATRIX_NONE);
    ops->linear(b->compute, b->m[1], b->m[2], w[2], MATRIX_NONE);
}

static void linear(void *arg)
{
    struct bench *b = arg;

    for (int i = 0; i < repeats(b); i++)
        give_products(b);
    wait_for(b, b->compute);
}

/* One of attention's products and two of the feed-forward's. Returns the operations of a call. */
static double set_linear(struct bench *b, int64_t tokens)
{
    b->arena_used = 0;
    b->m[0] = operand(b, b->device->traits.activation, tokens, HIDDEN);
    b->m[1] = operand(b, b->device->traits.activation, tokens, HIDDEN);
    b->m[2] = operand(b, b->device->traits.activation, tokens, WIDE);
    for (int i = 0; i < WEIGHT_SETS; i++) {
        b->weights[i][0] = operand(b, DTYPE_BF16, HIDDEN, HIDDEN);
        b->weights[i][1] = operand(b, DTYPE_BF16, WIDE, HIDDEN);
        b->weights[i][2] = operand(b, DTYPE_BF16, HIDDEN, WIDE);
    }
    return 2.0 * (double)tokens * LINEAR_WEIGHTS;
}

/* Sizes at which each device is at its best: a CPU soon is, a card needs more. */
static int64_t attention_tokens(const struct bench *b)
{
    return 2 * b->device->traits.chunk_rows;
}

static int32_t attention_heads(const struct bench *b)
{
    return (int32_t)(b->device->traits.chunk_rows / 256);
}

static void attention(void *arg)
{
    struct bench *b = arg;

    for (int i = 0; i < repeats(b); i++)
        b->device->ops->compute->attention(b->compute, b->m[0], b->m[1], b->m[2], b->m[3],
            &(struct attention){.heads = attention_heads(b),
                .kv_heads = attention_heads(b),
                .scale = 1 / sqrtf(HEAD)});
    wait_for(b, b->compute);
}

static double set_attention(struct bench *b)
{
    const int64_t cols = attention_heads(b) * HEAD;

    b->arena_used = 0;
    for (int i = 0; i < 4; i++)
        b->m[i] = operand(b, b->device->traits.activation, attention_tokens(b), cols);
    return 4.0 * (double)attention_tokens(b) * (double)attention_tokens(b) * (double)cols;
}

enum { CONV_CHANNELS = 256 };

static int64_t conv_size(const struct bench *b)
{
    return 512 / dtype_bytes(b->device->traits.activation, 1);
}

static void conv(void *arg)
{
    struct bench *b = arg;

    for (int i = 0; i < repeats(b); i++)
        b->device->ops->compute->conv2d(
            b->compute, b->m[0], b->m[1], b->m[2], MATRIX_NONE, &b->conv);
    wait_for(b, b->compute);
}

static double set_conv(struct bench *b)
{
    const int64_t pixels = conv_size(b) * conv_size(b);

    b->arena_used = 0;
    b->m[0] = operand(b, b->device->traits.activation, CONV_CHANNELS, pixels);
    b->m[1] = operand(b, b->device->traits.activation, CONV_CHANNELS, pixels);
    b->m[2] = operand(b, DTYPE_BF16, CONV_CHANNELS, CONV_CHANNELS * 9);
    b->conv = (struct conv){.height = conv_size(b),
        .width = conv_size(b),
        .kernel = 3,
        .upsample = 1,
        .affine = operand(b, DTYPE_F32, 2, CONV_CHANNELS),
        .activation = ACTIVATION_SILU};
    return 18.0 * CONV_CHANNELS * CONV_CHANNELS * (double)pixels;
}

/* More than caches hold: 42 MB an operand. */
static int64_t others_tokens(const struct bench *b)
{
    return 4096 / dtype_bytes(b->device->traits.activation, 1);
}

/* What a block does between its products. */
static void others(void *arg)
{
    struct bench *b = arg;
    const struct compute_ops *ops = b->device->ops->compute;
    struct matrix x = matrix_cols(b->m[0], 0, HIDDEN), y = matrix_cols(b->m[1], 0, HIDDEN);
    struct matrix head = matrix_cols(b->m[3], 0, HEAD);

    for (int i = 0; i < repeats(b); i++) {
        ops->rms_norm(b->compute, y, x, b->m[3], MATRIX_NONE, 1e-6f);
        ops->gated(b->compute, b->m[2], b->m[0], b->m[1], ACTIVATION_SILU);
        ops->gated_add(b->compute, y, b->m[3], x, b->m[3], 1e-6f);
        ops->rms_norm_rope(b->compute, y, head, 1e-6f, b->m[4], ROPE_INTERLEAVED);
    }
    wait_for(b, b->compute);
}

/* Returns the bytes of a call's operands, counted as the counting device does it. */
static double set_others(struct bench *b)
{
    b->arena_used = 0;
    for (int i = 0; i < 3; i++)
        b->m[i] = operand(b, b->device->traits.activation, others_tokens(b), WIDE);
    b->m[3] = operand(b, DTYPE_F32, 1, HIDDEN);
    b->m[4] = operand(b, DTYPE_F32, others_tokens(b), HEAD);
    return (double)dtype_bytes(b->device->traits.activation, others_tokens(b)) *
               (5.0 * HIDDEN + 3.0 * WIDE) +
           sizeof(float) * ((double)others_tokens(b) * HEAD + 3.0 * HIDDEN + HEAD);
}

/*
 * Linear products of few rows and of many take the same weights in. What more rows take longer is
 * their arithmetic; what is left of the time of few is the weights'.
 */
static void measure_linear(struct bench *b, struct rates *rates)
{
    const double few = set_linear(b, FEW_TOKENS), seconds = seconds_of(b, linear, 3 * SECONDS);
    const double many = set_linear(b, many_tokens(b)),
                 longer = seconds_of(b, linear, 3 * SECONDS) - seconds;
    const double weights = (double)dtype_bytes(DTYPE_BF16, LINEAR_WEIGHTS);

    /* On a machine that is busy elsewhere the differences may come to nothing, or less. */
    rates->flops[WORK_LINEAR] = (many - few) / fmax(longer, LEAST_PART * (longer + seconds));
    rates->weight_bytes =
        weights / fmax(seconds - few / rates->flops[WORK_LINEAR], LEAST_PART * seconds);
}

/* ---- operations as such ---- */

#define SMALL_CALLS                                                                                \
    48 /* after each set of products, that keeps a card busy while they are given                  \
        */

static void small_calls(struct bench *b)
{
    const struct matrix small = matrix_cols(matrix_rows(b->m[1], 0, 8), 0, HEAD);

    for (int i = 0; i < SMALL_CALLS; i++)
        b->device->ops->compute->activate(b->compute, small, small, ACTIVATION_SILU);
}

static void small_alone(void *arg)
{
    small_calls(arg);
    wait_for(arg, ((struct bench *)arg)->compute);
}

static void linear_and_small(void *arg)
{
    struct bench *b = arg;

    for (int i = 0; i < repeats(b); i++) {
        give_products(b);
        small_calls(b);
    }
    wait_for(b, b->compute);
}

/* What a card takes for a small operation shows only if it does not wait for the host meanwhile. */
static double call_seconds(struct bench *b)
{
    double products, both;

    (void)set_linear(b, many_tokens(b));
    if (repeats(b) == 1) return links_seconds(small_alone, b, SECONDS, &b->spread) / SMALL_CALLS;
    products = seconds_of(b, linear, SECONDS);
    both = seconds_of(b, linear_and_small, SECONDS);
    return fmax(0, both - products) / SMALL_CALLS;
}

/* ---- both at once ---- */

#define OVERLAP_ROUNDS 5
#define OVERLAP_NS 8000000000u /* no further round after it */
/* So long that the system has found a core for every thread: it takes a tenth of a second. */
#define OVERLAP_SECONDS 0.6

static double linear_seconds(struct bench *b, int calls)
{
    uint64_t begun = clock_ns();

    for (int i = 0; i < calls; i++)
        linear(b);
    return (double)(clock_ns() - begun) * 1e-9;
}

/* Products beside as many copies as they last, and as many again, should they take twice the time.
 * *rate: bytes a second that are copied meanwhile. */
static double seconds_beside_copies(
    struct bench *b, int calls, double alone, double copies_alone, double *rate)
{
    const struct device_ops *ops = b->device->ops;
    uint64_t pieces = 1 + (uint64_t)(alone * copies_alone / (double)PIECE_BYTES);
    uint64_t from = clock_ns();
    double seconds;

    give_copies(b, pieces, SOURCE_BYTES / PIECE_BYTES);
    ops->event_record(b->copies, b->half);
    give_copies(b, pieces, SOURCE_BYTES / PIECE_BYTES);
    seconds = linear_seconds(b, calls);
    wait_for(b, b->copies);
    *rate = (double)(pieces * PIECE_BYTES) / ((double)(ops->event_time_ns(b->half) - from) * 1e-9);
    return seconds;
}

static double seconds_beside_reads(struct bench *b, int calls)
{
    struct links_reading *reading = NULL;
    double seconds = 0;

    if (!b->status) b->status = links_reading_open(b->path, &reading, &b->error);
    if (b->status) return 1;
    seconds = linear_seconds(b, calls);
    b->status = links_reading_close(&reading, &b->error);
    return seconds;
}

/*
 * Linear products alone, beside copies and beside reads, in turns, and the copies beside them: they
 * share the memory, on a CPU the cores too. Plans go by the rate that copies have then. Of times
 * the shortest are compared: a tax is a small difference, and what disturbs one makes it longer.
 */
static void measure_overlap(struct bench *b, struct rates *rates)
{
    const double copies_alone = rates->link_bytes;
    double alone = INFINITY, copies = INFINITY, reads = INFINITY, copied[OVERLAP_ROUNDS];
    uint64_t begun;
    int n = 0, calls;

    (void)set_linear(b, many_tokens(b));
    calls = 1 + (int)(OVERLAP_SECONDS / linear_seconds(b, 1));
    begun = clock_ns();
    while (n < OVERLAP_ROUNDS && (n == 0 || clock_ns() - begun < OVERLAP_NS)) {
        alone = fmin(alone, linear_seconds(b, calls));
        copies = fmin(copies, seconds_beside_copies(b, calls, alone, copies_alone, &copied[n++]));
        reads = fmin(reads, seconds_beside_reads(b, calls));
    }
    rates->copy_tax = fmax(0, copies / alone - 1);
    rates->read_tax = fmax(0, reads / alone - 1);
    rates->link_bytes = fmin(copies_alone, links_median_rate(copied, n, &b->spread));
}

static void measure_all(struct bench *b, struct links_figures *figures)
{
    struct rates *rates = &figures->rates;
    double amount;

    rates->link_bytes = link_rate(b);
    figures->link_cached_bytes =
        (double)SOURCE_BYTES / links_seconds(copy_cached, b, SECONDS, &b->spread);
    measure_linear(b, rates);
    rates->call_seconds = call_seconds(b);
    amount = set_attention(b);
    rates->flops[WORK_ATTENTION] = amount / seconds_of(b, attention, SECONDS);
    amount = set_conv(b);
    rates->flops[WORK_CONV] = amount / seconds_of(b, conv, SECONDS);
    amount = set_others(b);
    rates->memory_bytes = amount / seconds_of(b, others, SECONDS);
    measure_overlap(b, rates);
    figures->spread = fmax(figures->spread, b->spread);
}

/* Numbers that are small as F32 and as BF16, whatever they are read as, and otherwise random as
 * weights are: a card that multiplies a few numbers over and over takes less power, and is faster.
 */
static void fill(char *source)
{
    struct rng rng;

    rng_init(&rng, 1);
    for (uint64_t at = 0; at < PIECE_BYTES; at += sizeof(uint32_t)) {
        uint32_t two = (rng_next(&rng) & 0x80ff80ff) | 0x3c003c00;

        memcpy(source + at, &two, sizeof two);
    }
    for (uint64_t at = PIECE_BYTES; at < SOURCE_BYTES; at += PIECE_BYTES)
        memcpy(source + at, source, PIECE_BYTES);
}

/* bench_fini is due, whatever comes of it. */
static enum shoal_status bench_init(
    struct bench *b, struct device *device, uint64_t arena_bytes, struct shoal_error *error)
{
    const struct device_ops *ops = device->ops;

    *b = (struct bench){.device = device, .source = pages_alloc(SOURCE_BYTES)};
    if (!b->source) FAIL_MEMORY(error);
    pages_want_large(b->source, SOURCE_BYTES); /* as what streams has it */
    fill(b->source);
    /* What cannot be pinned will not be by a run either. */
    b->pinned =
        ops->host_register && ops->host_register(device, b->source, SOURCE_BYTES, NULL) == SHOAL_OK;
    TRY(ops->arena_reserve(device, arena_bytes, error));
    if (ops->arena_mark) ops->arena_mark(device, device->arena, arena_bytes, true);
    TRY(ops->stream_create(device, false, &b->compute, error));
    TRY(ops->stream_create(device, true, &b->copies, error));
    return ops->event_create(device, &b->half, error);
}

static void bench_fini(struct bench *b)
{
    const struct device_ops *ops = b->device->ops;

    if (b->copies) ops->stream_destroy(&b->copies);
    if (b->half) ops->event_destroy(&b->half);
    if (b->compute) ops->stream_destroy(&b->compute);
    if (b->pinned) ops->host_unregister(b->device, b->source);
    if (b->device->arena_bytes) ops->arena_release(b->device);
    pool_destroy(&b->pool);
    pages_free(b->ring, PIECE_BYTES);
    pages_free(b->source, SOURCE_BYTES);
}

/* What came of the bench's work. */
static enum shoal_status bench_status(const struct bench *b, struct shoal_error *error)
{
    if (b->status && error) *error = b->error;
    return b->status;
}

enum shoal_status links_measure_device(struct device *device, const char *path,
    struct links_figures *figures, struct shoal_error *error)
{
    struct bench b;
    enum shoal_status status;

    TRY_OR_FAIL(bench_init(&b, device, TARGET_BYTES + WORK_BYTES, error));
    b.path = path;
    measure_all(&b, figures);
    status = bench_status(&b, error);
fail:
    bench_fini(&b);
    return status;
}

enum shoal_status links_measure_link(
    struct device *device, double *link_bytes, bool *pinned, struct shoal_error *error)
{
    struct bench b;
    enum shoal_status status;

    TRY_OR_FAIL(bench_init(&b, device, TARGET_BYTES, error));
    *link_bytes = link_rate(&b);
    *pinned = b.pinned;
    status = bench_status(&b, error);
fail:
    bench_fini(&b);
    return status;
}

enum shoal_status links_measure_unpinned(
    struct device *device, int threads, struct links_figures *figures, struct shoal_error *error)
{
    struct rates *rates = &figures->rates;
    struct bench b;
    enum shoal_status status;

    rates->unpinned_bytes = rates->bounce_bytes = rates->link_bytes;
    if (!device->ops->host_register) return SHOAL_OK;
    TRY_OR_FAIL(bench_init(&b, device, TARGET_BYTES, error));
    if (b.pinned) device->ops->host_unregister(device, b.source);
    b.pinned = false;
    rates->unpinned_bytes = link_rate(&b);
    TRY_OR_FAIL(bench_status(&b, error));
    TRY_OR_FAIL(pool_create(&b.pool, intake_workers(threads, true), error));
    b.ring = pages_alloc(PIECE_BYTES);
    if (!b.ring) {
        status = error_set(error, SHOAL_E_MEMORY, __FILE__, __LINE__, "out of memory");
        goto fail;
    }
    pages_want_large(b.ring, PIECE_BYTES);
    rates->bounce_bytes =
        (double)SOURCE_BYTES / links_seconds(copy_to_ring, &b, SECONDS, &b.spread);
    figures->spread = fmax(figures->spread, b.spread);
fail:
    bench_fini(&b);
    return status;
}
