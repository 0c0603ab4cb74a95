/*
 * The streaming loop alone, held against the physical limit: the greater of what its arithmetic
 * takes with resident weights and what its bytes take over the link, both measured in the same run.
 */
#include "pipeline/bench_stream.h"

#include "base/memory.h"
#include "base/size.h"
#include "base/thread.h"
#include "device/count/count.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "pipeline/counting.h"
#include "pipeline/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_BLOCK_BYTES ((uint64_t)648 << 20) /* Qwen-Image's, of which it has 60 */
#define RESIDENT_STAGING_BYTES ((uint64_t)PLAN_DEFAULT_CHUNKS * PLAN_CHUNK_BYTES)

struct bench {
    struct shoal_stream_request request;
    struct target target;
    struct device *cpu, *device; /* the target's or the CPU's */
    bool all;                    /* vram_bytes is all that the card has */
    struct bench_model_spec spec;
    struct bench_model model;
    struct packing packing;
    struct links_figures links; /* its rates: what plans go by; measured ones where there are */
    uint64_t scratch_bytes;     /* of a step */
    uint64_t process_bytes;
    struct plan_block_input *inputs; /* of the step's blocks */
    double block_seconds;            /* arithmetic of a block */
    struct plan_solution solution;
    struct bench_figures figures;
};

void shoal_stream_request_init(struct shoal_stream_request *request)
{
    *request = (struct shoal_stream_request){.blocks = 60,
        .block_bytes = DEFAULT_BLOCK_BYTES,
        .tokens = 4096,
        .steps = 4,
        .vram_bytes = SHOAL_UNLIMITED,
        .ram_bytes = SHOAL_UNLIMITED,
        .prefetch_slots = SHOAL_AUTO};
}

/* ---- the request ---- */

static enum shoal_status check_request(
    const struct shoal_stream_request *r, struct shoal_error *error)
{
    char size[SIZE_TEXT_BYTES];

    TRY(request_check_range("blocks", r->blocks, 1, SHOAL_STREAM_MOST_BLOCKS, error));
    TRY(request_check_range("tokens", r->tokens, 1, SHOAL_STREAM_MOST_TOKENS, error));
    TRY(request_check_range("steps", r->steps, 2, 1000, error));
    TRY(request_check_range("threads", r->threads, 0, 1024, error));
    TRY(request_check_choices(r->buffer, r->wire, r->pin, error));
    if (r->block_bytes < BENCH_MODEL_LEAST_BYTES || r->block_bytes > BENCH_MODEL_MOST_BYTES)
        FAIL(error, SHOAL_E_INVALID, "--block-size: %s is not between 1 MiB and 1 TiB",
            size_format(size, r->block_bytes));
    return SHOAL_OK;
}

/* The folder for the weights' file, which may be large: not that of small things, /tmp. */
static const char *find_folder(const struct shoal_stream_request *request)
{
    const char *variable = getenv("TMPDIR");

    if (request->folder) return request->folder;
    return variable && *variable ? variable : "/var/tmp";
}

static enum shoal_status open_device(struct bench *b, struct shoal_error *error)
{
    struct shoal_request *as =
        &(struct shoal_request){.device = b->request.device, .threads = b->request.threads};
    bool whole_card;

    TRY(plan_target(as, &b->target, &b->links.rates, error));
    plan_cap_vram(&b->target, &b->request.vram_bytes, &whole_card, &b->figures.capped);
    b->all = whole_card || b->figures.capped;
    b->device = b->target.device;
    if (b->device) return SHOAL_OK;
    TRY(cpu_create(&b->cpu, CPU_KERNELS_FAST, b->request.threads, error));
    b->device = b->cpu;
    return SHOAL_OK;
}

/* ---- what a step needs ---- */

/* Runs a block on the counting device. */
static enum shoal_status count(struct bench *b, struct shoal_error *error)
{
    const struct block *block = &b->model.blocks[0];
    struct matrix *weights = mem_calloc((size_t)block->weight_count, sizeof *weights);
    struct counting c;
    struct bench_lane lane;
    enum shoal_status status;

    if (!weights) FAIL_MEMORY(error);
    TRY_OR_FAIL(counting_open(&c, b->target.traits, error));
    lane.hidden = exec_alloc_float(&c.exec, b->model.tokens, b->model.hidden);
    block_bind(block, c.device->arena, weights);
    block->forward(&c.exec, block, weights, &lane);
    b->scratch_bytes = region_high_water(c.scratch);
    b->figures.operations =
        (double)count_read(c.device).operations * (double)b->model.model.block_count;
    status = exec_check(&c.exec, error);
fail:
    counting_close(&c);
    mem_free(weights);
    return status;
}

/* ---- the plan ---- */

static enum shoal_status solve(struct bench *b, struct shoal_error *error)
{
    const struct shoal_stream_request *r = &b->request;
    const struct rates rates =
        plan_running_rates(&b->links.rates, &b->target, r->pin, b->figures.threads);
    const struct plan_limits limits = {.vram_bytes = r->vram_bytes,
        .ram_bytes = r->ram_bytes,
        .process_bytes = b->process_bytes,
        .context_bytes = b->target.context_bytes,
        .resident_blocks = r->resident_blocks,
        .prefetch_slots = r->prefetch_slots,
        .buffer = r->buffer,
        .wire = r->wire,
        .all_staged = b->target.card && r->pin != SHOAL_PIN_OFF,
        .rates = &rates};
    const struct plan_input input = {.name = "steps",
        .block_count = r->blocks,
        .blocks = b->inputs,
        .scratch_bytes = b->scratch_bytes,
        .walks = r->steps,
        .main = true};

    for (int32_t i = 0; i < r->blocks; i++) {
        b->inputs[i] = (struct plan_block_input){0};
        TRY(plan_block_forms(
            &b->model.blocks[i], packing_rooms(&b->packing, i), &b->inputs[i], error));
        b->inputs[i].compute_seconds = b->block_seconds;
    }
    planner_release(&b->solution);
    return planner_solve(&input, 1, &limits, &b->solution, error);
}

static uint64_t resident_arena_bytes(const struct bench *b)
{
    return (uint64_t)b->figures.distinct * b->figures.block_bytes + b->scratch_bytes;
}

/* Whether the machine has the memory, which the system would not say before it is used. */
static enum shoal_status check_memory(const struct bench *b, struct shoal_error *error)
{
    const uint64_t arena = max_u64(b->solution.arena_bytes, resident_arena_bytes(b));
    const uint64_t bytes = (b->target.card ? 0 : arena) + b->solution.ram_bytes;
    const uint64_t memory = memory_physical();
    char a[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];

    if (bytes <= memory) return SHOAL_OK;
    FAIL(error, SHOAL_E_BUDGET,
        "these blocks take %s of memory, and this machine has %s: give --ram less, so that some "
        "are read from disk in every step, or make --blocks or --block-size less",
        size_format_up(a, bytes), size_format(c, memory));
}

static enum shoal_status check_fits(const struct bench *b, struct shoal_error *error)
{
    TRY(plan_check_fits(
        &b->solution, &b->target, b->all, b->request.vram_bytes, b->request.ram_bytes, error));
    return check_memory(b, error);
}

/* Everything that can be refused is, before the first measurement; what packs needs the file. */
static enum shoal_status prepare(struct bench *b, struct shoal_error *error)
{
    const struct shoal_stream_request *r = &b->request;

    b->inputs = mem_calloc((size_t)r->blocks, sizeof *b->inputs);
    if (!b->inputs) FAIL_MEMORY(error);
    TRY(bench_model_check_room(&b->model, b->spec.folder, error));
    TRY(count(b, error));
    b->process_bytes = plan_program_bytes(&b->target, b->figures.threads) +
                       plan_list_bytes(&b->model.model) +
                       (uint64_t)(b->model.tokens * b->model.hidden) * sizeof(float);
    if (r->wire != SHOAL_WIRE_PACKED) {
        TRY(solve(b, error));
        TRY(check_fits(b, error));
    }
    TRY(bench_model_write(&b->model, &b->spec, error));
    if (r->wire == SHOAL_WIRE_RAW) return SHOAL_OK;
    TRY(packing_init(
        &b->packing, &b->model.model, &b->model.model.passes[BENCH_MODEL_STEP], error));
    TRY(solve(b, error));
    return check_fits(b, error);
}

/* ---- measuring ---- */

static enum shoal_status check_cancelled(const struct bench *b, struct shoal_error *error)
{
    if (b->request.cancelled && b->request.cancelled(b->request.user))
        FAIL(error, SHOAL_E_CANCELLED, "cancelled");
    return SHOAL_OK;
}

/* The faster of what it was and what it is now: the limit is what the machine can do. */
static enum shoal_status measure_link(struct bench *b, struct shoal_error *error)
{
    double rate = 0;

    TRY(check_cancelled(b, error));
    TRY(links_measure_link(b->device, &rate, &b->figures.pinned, error));
    b->figures.link_bytes = fmax(b->figures.link_bytes, rate);
    b->links.rates.link_bytes = b->figures.link_bytes;
    return SHOAL_OK;
}

/* As the loop reads, where it will. */
static enum shoal_status measure_disk(struct bench *b, struct shoal_error *error)
{
    char path[64];

    if (!b->solution.phases[0].disk_bytes) return SHOAL_OK;
    TRY(check_cancelled(b, error));
    snprintf(path, sizeof path, "/proc/self/fd/%d", b->model.file.fd); /* it has no name */
    TRY(links_measure_disk(path, &b->links, error));
    b->figures.disk_bytes = b->links.rates.disk_bytes;
    return SHOAL_OK;
}

/* Pins, slots and the like have no part in what is resident. */
static enum shoal_status measure_resident(
    struct bench *b, struct bench_loop_result *result, struct shoal_error *error)
{
    const int32_t distinct = b->figures.distinct;
    struct streamer_place places[BENCH_MODEL_DISTINCT];
    const struct bench_loop loop = {.device = b->device,
        .model = &b->model,
        .pass = BENCH_MODEL_RESIDENT,
        .places = places,
        .arena_bytes = resident_arena_bytes(b),
        .staging_bytes = RESIDENT_STAGING_BYTES,
        .threads = b->figures.threads,
        .steps = b->request.steps,
        .cancelled = b->request.cancelled,
        .user = b->request.user};

    for (int32_t i = 0; i < distinct; i++)
        places[i] = (struct streamer_place){.resident = true};
    TRY(bench_loop_run(&loop, result, error));
    b->figures.resident = result->times;
    b->block_seconds = result->times.mean_seconds / b->request.blocks;
    return SHOAL_OK;
}

static enum shoal_status measure_streamed(struct bench *b, struct shoal_error *error)
{
    const struct plan_phase *plan = &b->solution.phases[0];
    struct streamer_place *places = mem_calloc((size_t)plan->block_count, sizeof *places);
    struct bench_figures *f = &b->figures;
    const struct bench_loop loop = {.device = b->device,
        .model = &b->model,
        .pass = BENCH_MODEL_STEP,
        .places = places,
        .packing = &b->packing,
        .arena_bytes = b->solution.arena_bytes,
        .ring_bytes = plan->ring_bytes,
        .unpack_bytes = plan->unpack_bytes,
        .staging_bytes = plan->staging_bytes,
        .threads = f->threads,
        .steps = b->request.steps,
        .pin = b->request.pin,
        .cancelled = b->request.cancelled,
        .user = b->request.user};
    enum shoal_status status;

    if (!places) FAIL_MEMORY(error);
    plan_places(plan, places);
    f->weight_bytes += (uint64_t)(plan->block_count - plan->resident_count) * f->block_bytes;
    status = bench_loop_run(&loop, &f->loop, error);
    mem_free(places);
    if (status) return status;
    f->streamed = f->loop.times;
    f->copied_bytes =
        (f->loop.stats.copied_bytes - f->loop.stats.settled_bytes) / (uint64_t)b->request.steps;
    f->read_bytes = (f->loop.stats.read_bytes - f->loop.stats.first_read_bytes) /
                    (uint64_t)(b->request.steps - 1);
    return SHOAL_OK;
}

static enum shoal_status measure(struct bench *b, struct shoal_error *error)
{
    struct bench_figures *f = &b->figures;
    struct bench_loop_result resident;

    TRY(measure_link(b, error));
    TRY(measure_resident(b, &resident, error));
    if (b->request.wire != SHOAL_WIRE_RAW) {
        TRY(check_cancelled(b, error));
        TRY(links_measure_wire(b->device, f->threads, &b->links, error));
    }
    TRY(solve(b, error));
    TRY(measure_disk(b, error));
    if (f->disk_bytes > 0) TRY(solve(b, error));
    f->plan = &b->solution.phases[0];
    f->peak_bytes = b->solution.peak_bytes;
    f->ram_bytes = b->solution.ram_bytes;
    if (f->plan->packed_count) {
        f->unpack_bytes = b->links.rates.unpack_bytes;
        f->packed_part = b->links.packed_part;
    }
    TRY(measure_streamed(b, error));
    if (f->loop.checksum != resident.checksum)
        FAIL(error, SHOAL_E_NUMERIC,
            "streamed weights gave other activations than resident ones (checksums %016llx and "
            "%016llx): this is a bug in shoal, please report it",
            (unsigned long long)f->loop.checksum, (unsigned long long)resident.checksum);
    return measure_link(b, error);
}

/* ---- all of it ---- */

static enum shoal_status open_bench(struct bench *b, struct shoal_error *error)
{
    const struct shoal_stream_request *r = &b->request;
    struct bench_figures *f = &b->figures;

    TRY(open_device(b, error));
    b->spec = (struct bench_model_spec){.blocks = r->blocks,
        .block_bytes = r->block_bytes,
        .tokens = r->tokens,
        .folder = find_folder(r),
        .cancelled = r->cancelled,
        .user = r->user};
    TRY(bench_model_open(&b->model, &b->spec, error));
    f->request = &b->request;
    f->target = &b->target;
    f->device = b->target.device ? cuda_info(b->target.device).name : "cpu";
    f->threads = r->threads ? r->threads : thread_cores();
    f->block_bytes = b->model.blocks[0].bytes;
    f->distinct = b->model.model.passes[BENCH_MODEL_RESIDENT].count;
    return SHOAL_OK;
}

enum shoal_status shoal_bench_stream(
    const struct shoal_stream_request *request, bool json, char **text, struct shoal_error *error)
{
    struct bench b = {.request = *request, .model = {.file = {.fd = -1}}};
    enum shoal_status status;

    *text = NULL;
    TRY(check_request(request, error));
    TRY_OR_FAIL(open_bench(&b, error));
    TRY_OR_FAIL(prepare(&b, error));
    TRY_OR_FAIL(measure(&b, error));
    status = bench_report(&b.figures, json, text, error);
fail:
    planner_release(&b.solution);
    packing_fini(&b.packing);
    bench_model_close(&b.model);
    mem_free(b.inputs);
    device_destroy(&b.cpu);
    target_close(&b.target);
    return status;
}
