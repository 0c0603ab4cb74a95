/*
 * Stores: the streamer for blocks that somebody else computes with, on his streams and, if he
 * likes, in his device memory. There is no end to the walks, and each run may begin anew.
 */
#include "pipeline/store.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

#define PLANNED_WALKS 20                 /* what a run has, for the plan */
#define ENDLESS_WALKS ((int64_t)1 << 40) /* what the streamer is told */
#define TRACED_SPANS (1 << 16)           /* 5 MiB: 50 walks that read 1 GiB each */

void shoal_store_request_init(struct shoal_store_request *request)
{
    *request = (struct shoal_store_request){
        .vram_bytes = SHOAL_UNLIMITED, .ram_bytes = SHOAL_UNLIMITED, .prefetch_slots = SHOAL_AUTO};
}

/* ---- the plan ---- */

static enum shoal_status check_request(
    const struct shoal_store_request *r, struct shoal_error *error)
{
    if (r->prefetch_slots != SHOAL_AUTO)
        TRY(request_check_range("prefetch_slots", r->prefetch_slots, 2, PLAN_MAX_SLOTS, error));
    TRY(request_check_range("threads", r->threads, 0, 1024, error));
    if (!(r->block_seconds >= 0 && r->block_seconds < 1e6))
        FAIL(error, SHOAL_E_INVALID, "block_seconds: it must be 0 or more seconds");
    return request_check_choices(r->buffer, r->wire, r->pin, error);
}

static enum shoal_status open_device(struct shoal_store *s, struct shoal_error *error)
{
    const struct shoal_request as = {.device = s->request.device,
        .threads = s->request.threads,
        .rates_path = s->request.rates_path};

    TRY(plan_target(&as, &s->target, &s->rates, error));
    plan_cap_vram(&s->target, &s->request.vram_bytes, &s->whole_card, &s->capped);
    s->threads = s->request.threads ? s->request.threads : thread_cores();
    s->device = s->target.device;
    if (s->device) { /* a card: it takes as little of it as it can, since others compute there */
        cuda_stop_computing(s->device);
        return SHOAL_OK;
    }
    TRY(cpu_create(&s->cpu, CPU_KERNELS_FAST, s->request.threads, error));
    s->device = s->cpu;
    return SHOAL_OK;
}

static enum shoal_status solve(struct shoal_store *s, struct shoal_error *error)
{
    const struct shoal_store_request *r = &s->request;
    const struct rates rates = plan_running_rates(&s->rates, &s->target, r->pin, s->threads);
    struct plan_block_input *blocks = mem_calloc((size_t)s->model.block_count, sizeof *blocks);
    const struct plan_limits limits = {.vram_bytes = r->vram_bytes,
        .ram_bytes = r->ram_bytes,
        .process_bytes = plan_list_bytes(&s->model.model),
        .resident_blocks = r->resident_blocks,
        .prefetch_slots = r->prefetch_slots,
        .buffer = r->buffer,
        .wire = r->wire,
        .all_staged = s->target.card && r->pin != SHOAL_PIN_OFF,
        .rates = &rates};
    const struct plan_input input = {.name = "walk",
        .block_count = s->model.block_count,
        .blocks = blocks,
        .walks = PLANNED_WALKS,
        .main = true};
    enum shoal_status status = SHOAL_OK;

    if (!blocks) FAIL_MEMORY(error);
    for (int32_t i = 0; !status && i < s->model.block_count; i++) {
        status =
            plan_block_forms(&s->model.blocks[i], packing_rooms(&s->packing, i), &blocks[i], error);
        /* As long as its copy, if nobody knows: then the next one's is worth a slot. */
        blocks[i].compute_seconds = r->block_seconds > 0
                                        ? r->block_seconds
                                        : (double)s->model.blocks[i].bytes / rates.link_bytes;
    }
    if (!status) status = planner_solve(&input, 1, &limits, &s->solution, error);
    mem_free(blocks);
    return status;
}

static enum shoal_status take_places(struct shoal_store *s, struct shoal_error *error)
{
    const struct plan_phase *phase = store_phase(s);
    int32_t most = 0;

    s->places = mem_calloc((size_t)phase->block_count, sizeof *s->places);
    if (!s->places) FAIL_MEMORY(error);
    plan_places(phase, s->places);
    for (int32_t i = 0; i < phase->block_count; i++)
        if (s->model.blocks[i].weight_count > most) most = s->model.blocks[i].weight_count;
    s->bound = mem_calloc((size_t)most, sizeof *s->bound);
    if (!s->bound) FAIL_MEMORY(error);
    return SHOAL_OK;
}

static enum shoal_status plan(struct shoal_store *s, struct shoal_error *error)
{
    /* Nobody knows what packing would be worth. */
    if (s->request.wire == SHOAL_WIRE_AUTO && s->request.block_seconds == 0)
        s->request.wire = SHOAL_WIRE_RAW;
    if (s->request.wire != SHOAL_WIRE_RAW)
        TRY(packing_init(&s->packing, &s->model.model, &s->model.model.passes[0], error));
    TRY(solve(s, error));
    TRY(plan_check_fits(&s->solution, &s->target, s->whole_card || s->capped, s->request.vram_bytes,
        s->request.ram_bytes, error));
    return take_places(s, error);
}

enum shoal_status shoal_store_create(const struct shoal_store_block *blocks, int32_t block_count,
    const struct shoal_store_request *request, struct shoal_store **store,
    struct shoal_error *error)
{
    struct shoal_store *s = mem_calloc(1, sizeof *s);
    enum shoal_status status;

    *store = NULL;
    if (!s) FAIL_MEMORY(error);
    s->request = *request;
    s->held = -1;
    TRY_OR_FAIL(check_request(request, error));
    TRY_OR_FAIL(store_model_open(&s->model, blocks, block_count, error));
    TRY_OR_FAIL(open_device(s, error));
    TRY_OR_FAIL(plan(s, error));
    if (request->trace) TRY_OR_FAIL(trace_create(&s->trace, TRACED_SPANS, error));
    s->request.device = s->request.rates_path = NULL;
    *store = s;
    return SHOAL_OK;
fail:
    shoal_store_destroy(&s);
    return status;
}

/* Residents are visited in the first walk only, so that no block can be left out. */
static bool order_is_fixed(const struct shoal_store *s)
{
    return store_phase(s)->resident_count > 0;
}

/* ---- the device's memory ---- */

uint64_t shoal_store_device_bytes(const struct shoal_store *s)
{
    return s->solution.arena_bytes;
}

static enum shoal_status begin(struct shoal_store *s, struct shoal_error *error)
{
    const struct plan_phase *phase = store_phase(s);
    const struct streamer_setup setup = {.arena = &s->arena,
        .compute = s->compute,
        .model = &s->model.model,
        .pass = &s->model.model.passes[0],
        .places = s->places,
        .packing = &s->packing,
        .threads = s->threads,
        .ring_bytes = phase->ring_bytes,
        .unpack_bytes = phase->unpack_bytes,
        .staging_bytes = phase->staging_bytes,
        .walks = ENDLESS_WALKS,
        .pin = s->request.pin,
        .trace = s->trace};

    s->next = 0;
    trace_clear(s->trace);
    if (s->streamer) return streamer_attach(s->streamer, 0, error);
    return streamer_create(&s->streamer, &setup, error);
}

/* Work is given to the library's own stream again. */
static void stop_following(struct shoal_store *s)
{
    if (s->following) cuda_stream_return(s->compute);
    s->following = false;
}

/* With what it has done so far. */
static void drop_streamer(struct shoal_store *s)
{
    s->done = store_done(s);
    streamer_destroy(&s->streamer);
}

enum shoal_status shoal_store_resume(
    struct shoal_store *s, uint64_t memory, struct shoal_error *error)
{
    const uint64_t bytes = s->solution.arena_bytes;
    enum shoal_status status;

    if (s->resumed) FAIL(error, SHOAL_E_INVALID, "the store has been resumed already");
    if (memory % 4096)
        FAIL(error, SHOAL_E_INVALID, "the memory lent to the store begins at no multiple of 4096");
    if (!s->compute) TRY(s->device->ops->stream_create(s->device, false, &s->compute, error));
    if (!s->handover) TRY(s->device->ops->event_create(s->device, &s->handover, error));
    if (memory)
        TRY(arena_open_at(&s->arena, s->device, memory, bytes, error));
    else
        TRY(arena_open(&s->arena, s->device, bytes, error));
    status = begin(s, error);
    if (status) {
        drop_streamer(s);
        arena_close(&s->arena);
        return status;
    }
    s->resumed = true;
    return SHOAL_OK;
}

enum shoal_status shoal_store_suspend(struct shoal_store *s, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    if (!s->resumed) return SHOAL_OK;
    if (s->held >= 0) streamer_release(s->streamer, s->held);
    s->held = -1;
    status = streamer_check(s->streamer, error);
    if (status || order_is_fixed(s)) {
        drop_streamer(s);
    } else {
        status = streamer_detach(s->streamer, error);
        if (status) drop_streamer(s);
    }
    stop_following(s);
    arena_close(&s->arena);
    s->resumed = false;
    return status;
}

void shoal_store_destroy(struct shoal_store **store)
{
    struct shoal_store *s = *store;
    enum shoal_status ignored;

    if (!s) return;
    ignored = shoal_store_suspend(s, NULL);
    (void)ignored;
    streamer_destroy(&s->streamer);
    if (s->handover) s->device->ops->event_destroy(&s->handover);
    if (s->compute) s->device->ops->stream_destroy(&s->compute);
    planner_release(&s->solution);
    packing_fini(&s->packing);
    store_model_close(&s->model);
    device_destroy(&s->cpu);
    target_close(&s->target);
    trace_destroy(&s->trace);
    mem_free(s->places);
    mem_free(s->bound);
    mem_free(s->text);
    mem_free(s->json);
    mem_free(s);
    *store = NULL;
}

/* ---- blocks ---- */

/* From now on work goes to the caller's stream, after what went to another one of his. */
static void follow(struct shoal_store *s, void *stream)
{
    const struct device_ops *ops = s->device->ops;

    if (!s->target.card || (s->following && s->stream == stream)) return;
    ops->event_record(s->compute, s->handover);
    cuda_stream_follow(s->compute, stream);
    ops->event_wait(s->compute, s->handover);
    s->following = true;
    s->stream = stream;
}

/* Brings the next block in order to this one. */
static enum shoal_status go_to(struct shoal_store *s, int32_t block, struct shoal_error *error)
{
    if (block == s->next) return SHOAL_OK;
    if (!order_is_fixed(s)) streamer_seek(s->streamer, block);
    while (order_is_fixed(s) && s->next != block) {
        TRY(streamer_acquire(s->streamer, s->next, s->bound, error));
        streamer_release(s->streamer, s->next);
        s->next = (s->next + 1) % s->model.block_count;
    }
    s->next = block;
    return SHOAL_OK;
}

enum shoal_status shoal_store_acquire(struct shoal_store *s, int32_t block, void *stream,
    uint64_t *addresses, struct shoal_error *error)
{
    if (!s->resumed) FAIL(error, SHOAL_E_INVALID, "the store is suspended: resume it first");
    if (block < 0 || block >= s->model.block_count)
        FAIL(error, SHOAL_E_INVALID, "there is no block %d: the store has %d", (int)block,
            (int)s->model.block_count);
    if (s->held >= 0)
        FAIL(error, SHOAL_E_INVALID, "block %d has not been released: one is held at a time",
            (int)s->held);
    follow(s, stream);
    TRY(go_to(s, block, error));
    TRY(streamer_acquire(s->streamer, block, s->bound, error));
    s->held = block;
    for (int32_t t = 0; t < s->model.blocks[block].weight_count; t++)
        addresses[t] = s->bound[t].addr;
    return SHOAL_OK;
}

enum shoal_status shoal_store_release(
    struct shoal_store *s, int32_t block, struct shoal_error *error)
{
    if (block < 0 || s->held != block)
        FAIL(error, SHOAL_E_INVALID, "block %d is not held", (int)block);
    streamer_release(s->streamer, block);
    s->held = -1;
    s->next = (block + 1) % s->model.block_count;
    return SHOAL_OK;
}

/* Whether memory that a tensor was described by is read again, as the plan has it. */
static bool reads_memory_again(const struct shoal_store *s)
{
    for (int32_t i = 0; i < s->model.block_count; i++) {
        const struct block *block = &s->model.blocks[i];

        if (!s->places[i].disk && !order_is_fixed(s)) continue;
        for (int32_t t = 0; t < block->weight_count; t++)
            if (block->weights[t].pieces[0]->file->memory) return true;
    }
    return false;
}

bool shoal_store_loaded(struct shoal_store *s)
{
    return s->streamer && streamer_loaded(s->streamer) && !reads_memory_again(s);
}

enum shoal_status shoal_store_write_trace(
    struct shoal_store *s, const char *path, struct shoal_error *error)
{
    if (!s->trace)
        FAIL(error, SHOAL_E_INVALID, "this store records no trace: set the request's `trace`");
    if (s->resumed) FAIL(error, SHOAL_E_INVALID, "the store still records: suspend it first");
    return trace_write(s->trace, "a store", path, error);
}
