/* Walking the bench's blocks on a device, weights through the streamer. */
#include "pipeline/bench_loop.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "pipeline/noise.h"
#include "pipeline/steps.h"

#include <math.h>

struct running {
    const struct bench_loop *loop;
    const struct pass *pass;
    struct arena arena;
    struct stream *compute;
    struct streamer *streamer;
    struct steps steps;
    struct exec exec;
    struct bench_lane lane;
    float *host;          /* [tokens, hidden]: what goes in, then what comes out */
    struct matrix *bound; /* a block's weights */
};

static size_t host_count(const struct running *r)
{
    return (size_t)(r->loop->model->tokens * r->loop->model->hidden);
}

static enum shoal_status synchronise(const struct running *r, struct shoal_error *error)
{
    return r->loop->device->ops->stream_synchronize(r->compute, error);
}

static enum shoal_status walk(struct running *r, struct shoal_error *error)
{
    const struct bench_loop *loop = r->loop;

    for (int32_t i = 0; i < loop->model->model.block_count; i++) {
        const int32_t index = i % r->pass->count;
        const struct block *block = &loop->model->blocks[index];

        TRY(streamer_acquire(r->streamer, index, r->bound, error));
        block->forward(&r->exec, block, r->bound, &r->lane);
        streamer_release(r->streamer, index);
        TRY(exec_check(&r->exec, error));
        if (loop->cancelled && loop->cancelled(loop->user))
            FAIL(error, SHOAL_E_CANCELLED, "cancelled");
    }
    return SHOAL_OK;
}

static struct streamer_setup setup_of(struct running *r)
{
    const struct bench_loop *loop = r->loop;

    return (struct streamer_setup){.arena = &r->arena,
        .compute = r->compute,
        .model = &loop->model->model,
        .pass = r->pass,
        .places = loop->places,
        .packing = loop->packing,
        .threads = loop->threads,
        .ring_bytes = loop->ring_bytes,
        .unpack_bytes = loop->unpack_bytes,
        .staging_bytes = loop->staging_bytes,
        .walks = loop->pass == BENCH_MODEL_STEP ? loop->steps : 1,
        .pin = loop->pin,
        .cancelled = loop->cancelled,
        .user = loop->user};
}

/* Takes host memory, the arena, the streamer, which begins to read, and the steps' events. */
static enum shoal_status begin(struct running *r, struct shoal_error *error)
{
    const struct bench_loop *loop = r->loop;
    const struct bench_model *model = loop->model;
    struct streamer_setup setup;

    r->host = mem_calloc(host_count(r), sizeof *r->host);
    r->bound = mem_calloc((size_t)model->blocks[0].weight_count, sizeof *r->bound);
    if (!r->host || !r->bound) FAIL_MEMORY(error);
    noise_values(r->host, host_count(r));
    TRY(arena_open(&r->arena, loop->device, loop->arena_bytes, error));
    TRY(loop->device->ops->stream_create(loop->device, false, &r->compute, error));
    exec_init(&r->exec, loop->device, r->compute, r->arena.scratch, arena_top(&r->arena));
    r->lane.hidden = exec_alloc_float(&r->exec, model->tokens, model->hidden);
    exec_upload(&r->exec, r->lane.hidden, r->host);
    TRY(exec_check(&r->exec, error));
    TRY(synchronise(r, error));
    setup = setup_of(r);
    TRY(streamer_create(&r->streamer, &setup, error));
    return steps_open(&r->steps, loop->device, loop->steps, error);
}

static void take_times(const struct running *r, struct bench_times *times)
{
    const int32_t steps = r->loop->steps;
    uint64_t begin_ns, end_ns;

    *times = (struct bench_times){.best_seconds = INFINITY};
    for (int32_t i = 0; i < steps && steps_span(&r->steps, i, &begin_ns, &end_ns); i++) {
        double seconds = (double)(end_ns - begin_ns) * 1e-9;

        if (!i) times->first_seconds = seconds;
        if (!i) continue;
        times->mean_seconds += seconds / (steps - 1);
        times->best_seconds = fmin(times->best_seconds, seconds);
    }
}

/* What came out. Numbers that are none would be equal whatever had gone wrong. */
static enum shoal_status take_output(
    struct running *r, uint64_t *checksum, struct shoal_error *error)
{
    const size_t count = host_count(r);

    exec_download(&r->exec, r->host, r->lane.hidden);
    TRY(synchronise(r, error));
    for (size_t i = 0; i < count; i++)
        if (!isfinite(r->host[i]))
            FAIL(error, SHOAL_E_NUMERIC,
                "the activations are no numbers after %d steps: this is a bug in shoal, please "
                "report it",
                (int)r->loop->steps);
    *checksum = checksum_of(r->host, count * sizeof *r->host);
    return SHOAL_OK;
}

static enum shoal_status run(
    struct running *r, struct bench_loop_result *result, struct shoal_error *error)
{
    TRY(begin(r, error));
    for (int32_t step = 0; step < r->loop->steps; step++) {
        TRY(walk(r, error));
        steps_given(&r->steps, r->compute);
    }
    TRY(synchronise(r, error));
    TRY(streamer_check(r->streamer, error));
    take_times(r, &result->times);
    TRY(take_output(r, &result->checksum, error));
    result->stats = streamer_stats(r->streamer);
    result->peak_bytes = arena_peak(&r->arena);
    streamer_describe(r->streamer, result->reader, sizeof result->reader);
    return SHOAL_OK;
}

enum shoal_status bench_loop_run(
    const struct bench_loop *loop, struct bench_loop_result *result, struct shoal_error *error)
{
    struct running r = {.loop = loop, .pass = &loop->model->model.passes[loop->pass]};
    enum shoal_status status;

    *result = (struct bench_loop_result){0};
    status = run(&r, result, error);
    if (status && r.compute) {
        /* What was given may still read host memory; what it says now is of no interest. */
        enum shoal_status ignored = synchronise(&r, NULL);
        (void)ignored;
    }
    streamer_destroy(&r.streamer);
    steps_close(&r.steps);
    if (r.compute) loop->device->ops->stream_destroy(&r.compute);
    arena_close(&r.arena);
    mem_free(r.host);
    mem_free(r.bound);
    return status;
}
