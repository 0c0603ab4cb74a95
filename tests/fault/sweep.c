/* Sweeps over the calls of a stage. */
#include "fault/sweep.h"

#include "base/checksum.h"

#include "base/tree.h"
#include "device/cpu/cpu.h"
#include "pipeline/bench_loop.h"
#include "unit/mini_adapter.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECONDS 60 /* that one run may take, in the slowest build */
#define OLD_TEXT "what was there"

static struct {
    struct shoal_model *model;
    struct shoal_request request, packing, adapting, baking;
    struct shoal_lora lora;
    char adapter[MINI_ADAPTER_PATH];
    struct shoal_plan *plan;
    struct shoal_result *result;
    uint64_t hash, packing_hash, adapting_hash, stream_hash, store_hash;
    char *inspected, *devices;
    int64_t png_bytes, trace_bytes, converted_bytes, cached_bytes;
    char folder[64], path[96], out[96]; /* a file and a folder in the folder */
    char init[64];                      /* a picture that packing begins with */
} world;

/* ---- the scratch folder ---- */

static void write_text(const char *text)
{
    FILE *file = fopen(world.path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* How many files it holds. */
static int scratch_files(void)
{
    DIR *folder = opendir(world.folder);
    int count = 0;

    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count - 2;
}

/* The picture's bytes if it is there whole, 0 if there is nothing, -1 for anything else. */
static int64_t scratch_bytes(void)
{
    struct stat info;

    if (scratch_files() == 0) return 0;
    if (scratch_files() > 1 || stat(world.path, &info)) return -1;
    return (int64_t)info.st_size;
}

static int64_t bytes_of_trees, unfinished;

static int add_bytes(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)at;
    if (type == FTW_F) bytes_of_trees += (int64_t)info->st_size;
    unfinished += strstr(path, ".part") != NULL;
    return 0;
}

/* Of all files in the folder that a stage made. */
static int64_t tree_bytes(void)
{
    bytes_of_trees = unfinished = 0;
    assert_int_equal(nftw(world.out, add_bytes, 8, FTW_PHYS), 0);
    return bytes_of_trees;
}

/* ---- the bench's loop ---- */

#define STREAM_BLOCKS 3

/* One block is resident, one packs, one is read in every step. */
static enum shoal_status run_loop(
    struct bench_model *model, struct device *device, uint64_t *hash, struct shoal_error *error)
{
    static const struct streamer_place places[STREAM_BLOCKS] = {
        {.resident = true}, {.packed = true}, {.disk = true}};
    const struct block *block = &model->blocks[0];
    const uint64_t wide = (uint64_t)block->weights[0].rows, hidden = (uint64_t)model->hidden;
    struct bench_loop_result result;
    struct packing packing;
    enum shoal_status status;

    TRY(packing_init(&packing, &model->model, &model->model.passes[BENCH_MODEL_STEP], error));
    status =
        bench_loop_run(&(struct bench_loop){.device = device,
                           .model = model,
                           .pass = BENCH_MODEL_STEP,
                           .places = places,
                           .packing = &packing,
                           .arena_bytes = 3 * block->bytes + sizeof(float) * (2 * hidden + wide),
                           .ring_bytes = block->bytes,
                           .unpack_bytes = block->bytes,
                           .staging_bytes = 2u << 20,
                           .threads = 2,
                           .steps = 2},
            &result, error);
    packing_fini(&packing);
    *hash = result.checksum;
    return status;
}

static enum shoal_status stream(uint64_t *hash, struct shoal_error *error)
{
    const struct bench_model_spec spec = {
        .blocks = STREAM_BLOCKS, .block_bytes = 256u << 10, .tokens = 1, .folder = world.folder};
    struct bench_model model;
    struct device *device = NULL;
    enum shoal_status status;

    TRY(bench_model_open(&model, &spec, error));
    TRY_OR_FAIL(bench_model_write(&model, &spec, error));
    TRY_OR_FAIL(cpu_create(&device, CPU_KERNELS_FAST, 2, error));
    status = run_loop(&model, device, hash, error);
fail:
    device_destroy(&device);
    bench_model_close(&model);
    return status;
}

/* ---- a store ---- */

#define STORE_FILE SCENARIO_MODEL "/vae/diffusion_pytorch_model.safetensors"

enum { STORE_BLOCKS = 3, STORE_BYTES = 140000, STORE_TENSORS = 2 };

/* Every block once, and its bytes into the hash. */
static enum shoal_status walk_store(
    struct shoal_store *store, uint64_t *hash, struct shoal_error *error)
{
    uint64_t addresses[STORE_TENSORS];

    for (int32_t i = 0; i < STORE_BLOCKS; i++) {
        TRY(shoal_store_acquire(store, i, NULL, addresses, error));
        for (int t = 0; t < STORE_TENSORS; t++)
            *hash = *hash * 31 + checksum_of((const void *)(uintptr_t)addresses[t], STORE_BYTES);
        TRY(shoal_store_release(store, i, error));
    }
    return SHOAL_OK;
}

static enum shoal_status run_store(uint64_t *hash, struct shoal_error *error)
{
    static const char memory[STORE_BYTES] = "weights";
    const struct shoal_store_tensor tensors[STORE_TENSORS] = {
        {.name = "a", .dtype = "BF16", .bytes = STORE_BYTES, .data = memory},
        {.name = "b", .dtype = "BF16", .bytes = STORE_BYTES, .path = STORE_FILE, .offset = 20000}};
    struct shoal_store_block blocks[STORE_BLOCKS];
    struct shoal_store_request request;
    struct shoal_store *store = NULL;
    enum shoal_status status;

    for (int i = 0; i < STORE_BLOCKS; i++)
        blocks[i] = (struct shoal_store_block){"block", tensors, STORE_TENSORS};
    shoal_store_request_init(&request);
    request.device = "cpu";
    request.threads = 2;
    request.wire = SHOAL_WIRE_PACKED;
    *hash = 0;
    TRY_OR_FAIL(shoal_store_create(blocks, STORE_BLOCKS, &request, &store, error));
    for (int run = 0; run < 2; run++) {
        TRY_OR_FAIL(shoal_store_resume(store, 0, error));
        TRY_OR_FAIL(walk_store(store, hash, error));
        TRY_OR_FAIL(shoal_store_suspend(store, error));
    }
    status = SHOAL_OK;
fail:
    shoal_store_destroy(&store);
    return status;
}

/* ---- the stages ---- */

/* What a stage leaves. */
struct outcome {
    enum shoal_status status;
    struct shoal_model *model;
    struct shoal_plan *plan;
    struct shoal_result *result;
    char *text;
    uint64_t hash;
};

static void plan_and_run(
    const struct shoal_request *request, struct outcome *o, struct shoal_error *error)
{
    struct shoal_plan *plan = NULL;

    o->status = shoal_plan_create(world.model, request, &plan, error);
    if (!o->status) o->status = shoal_run(plan, NULL, &o->result, error);
    shoal_plan_destroy(&plan);
}

/* The open model keeps adapters: without one it gives them up. */
static void forget_adapters(void)
{
    struct shoal_plan *plan = scenario_plan(world.model, &world.request);

    shoal_plan_destroy(&plan);
}

static void run_stage(enum stage stage, struct outcome *o, struct shoal_error *error)
{
    switch (stage) {
    case STAGE_OPEN:
        o->status = shoal_model_open(
            &(struct shoal_model_paths){.model = SCENARIO_MODEL}, &o->model, error);
        break;
    case STAGE_INSPECT:
        o->status = shoal_inspect(SCENARIO_MODEL, true, &o->text, NULL, error);
        break;
    case STAGE_PLAN:
        o->status = shoal_plan_create(world.model, &world.request, &o->plan, error);
        break;
    case STAGE_RUN:
        o->status = shoal_run(world.plan, NULL, &o->result, error);
        break;
    case STAGE_PACK:
        plan_and_run(&world.packing, o, error);
        break;
    case STAGE_ADAPT:
        plan_and_run(&world.adapting, o, error);
        break;
    case STAGE_BAKE:
        plan_and_run(&world.baking, o, error);
        break;
    case STAGE_DEVICES:
        o->status = shoal_devices(true, &o->text, error);
        break;
    case STAGE_TRACE:
        o->status = shoal_result_write_trace(world.result, world.path, error);
        break;
    case STAGE_CONVERT:
        o->status = shoal_convert(
            SCENARIO_MODEL "/text_encoder", world.out, SHOAL_WIRE_PACKED, false, NULL, error);
        break;
    case STAGE_CACHE:
        o->status = shoal_cache_prepare(
            &(struct shoal_model_paths){.model = SCENARIO_MODEL}, world.out, NULL, error);
        break;
    case STAGE_STREAM:
        o->status = stream(&o->hash, error);
        break;
    case STAGE_STORE:
        o->status = run_store(&o->hash, error);
        break;
    default:
        o->status = shoal_result_write_png(world.result, 0, world.path, error);
    }
}

/* Whether the result is what it is when nothing fails. */
static bool is_usual(enum stage stage, struct outcome *o)
{
    switch (stage) {
    case STAGE_OPEN:
        o->plan = scenario_plan(o->model, &world.request);
        return !strcmp(shoal_plan_json(o->plan), shoal_plan_json(world.plan));
    case STAGE_INSPECT:
        return !strcmp(o->text, world.inspected);
    case STAGE_PLAN:
        return !strcmp(shoal_plan_json(o->plan), shoal_plan_json(world.plan));
    case STAGE_RUN:
        return scenario_hash(o->result) == world.hash;
    case STAGE_PACK:
        return scenario_hash(o->result) == world.packing_hash;
    case STAGE_ADAPT:
    case STAGE_BAKE:
        return scenario_hash(o->result) == world.adapting_hash;
    case STAGE_DEVICES:
        return !strcmp(o->text, world.devices);
    case STAGE_CONVERT:
        return tree_bytes() == world.converted_bytes;
    case STAGE_CACHE:
        return tree_bytes() == world.cached_bytes;
    case STAGE_STREAM:
        return o->hash == world.stream_hash;
    case STAGE_STORE:
        return o->hash == world.store_hash;
    default:
        return true;
    }
}

static void outcome_fini(struct outcome *o)
{
    shoal_text_free(&o->text);
    shoal_result_destroy(&o->result);
    shoal_plan_destroy(&o->plan);
    shoal_model_close(&o->model);
}

static bool makes_folder(enum stage stage)
{
    return stage == STAGE_CONVERT || stage == STAGE_CACHE;
}

static bool adapts(enum stage stage)
{
    return stage == STAGE_ADAPT || stage == STAGE_BAKE;
}

static void before(enum stage stage)
{
    if (adapts(stage)) forget_adapters();
    if (makes_folder(stage) || stage == STAGE_STREAM) {
        unlink(world.path);
        tree_remove(world.out);
    }
    if (stage == STAGE_WRITE || stage == STAGE_TRACE) unlink(world.path);
    if (stage == STAGE_REPLACE) write_text(OLD_TEXT);
}

/* What is on the disk is the whole picture, or what was there before. */
static void check_disk(enum stage stage, bool succeeded)
{
    int64_t old = stage == STAGE_REPLACE ? (int64_t)strlen(OLD_TEXT) : 0;
    int64_t whole = stage == STAGE_TRACE ? world.trace_bytes : world.png_bytes;

    if (stage == STAGE_CACHE && !succeeded && scratch_files()) {
        /* The first copy may have been complete. */
        assert_in_range(tree_bytes(), 1, world.cached_bytes - 1);
        assert_int_equal(unfinished, 0);
        return;
    }
    if (makes_folder(stage) || stage == STAGE_STREAM) {
        assert_int_equal(scratch_files(), succeeded && makes_folder(stage) ? 1 : 0);
        return;
    }
    if (stage != STAGE_WRITE && stage != STAGE_REPLACE && stage != STAGE_TRACE) return;
    assert_int_equal(scratch_bytes(), succeeded ? whole : old);
}

/* Two steps, since what crosses once is not baked. */
static void set_up_adapting(void)
{
    struct shoal_request *r = &world.adapting;
    struct shoal_error error = {0};
    struct outcome o = {0};

    assert_ok(mini_adapter_write(world.adapter, &error));
    world.lora = (struct shoal_lora){world.adapter, 0.8f};
    *r = scenario_request(world.model);
    r->steps = 2;
    r->loras = &world.lora;
    r->lora_count = 1;
    r->resident_blocks = 2;
    world.baking = *r;
    world.baking.host_format = SHOAL_HOST_FORMAT_COMPUTE;
    scenario_least(world.model, r);
    plan_and_run(r, &o, &error);
    assert_ok(o.status);
    world.adapting_hash = scenario_hash(o.result);
    outcome_fini(&o);
}

/* Two steps, since what crosses once is not packed; blocks that stream and that are resident. */
static void set_up_packing(void)
{
    struct shoal_request *r = &world.packing;
    struct shoal_error error = {0};
    struct shoal_plan_summary summary;
    struct shoal_result *result = NULL;
    struct shoal_plan *plan;

    *r = scenario_request(world.model);
    r->steps = 2;
    r->threads = 8; /* of which two pack */
    r->resident_blocks = 6;
    r->wire = SHOAL_WIRE_PACKED;
    r->sampler = "euler_ancestral";
    assert_ok(shoal_result_write_png(world.result, 0, world.init, &error));
    r->init = world.init;
    scenario_least(world.model, r);
    plan = scenario_plan(world.model, r);
    shoal_plan_summarise(plan, &summary);
    assert_true(summary.packs && summary.packed_blocks > summary.blocks - summary.resident_blocks);
    assert_ok(shoal_run(plan, NULL, &result, &error));
    world.packing_hash = scenario_hash(result);
    shoal_result_destroy(&result);
    shoal_plan_destroy(&plan);
}

int sweep_set_up(void **state)
{
    struct shoal_error error = {0};

    (void)state;
    snprintf(world.init, sizeof world.init, "/tmp/shoal-fault-init-%d.png", (int)getpid());
    strcpy(world.folder, "/tmp/shoal-fault.XXXXXX");
    if (!mkdtemp(world.folder)) return -1;
    snprintf(world.path, sizeof world.path, "%s/picture.png", world.folder);
    snprintf(world.out, sizeof world.out, "%s/out", world.folder);
    world.model = scenario_model();
    world.request = scenario_request(world.model);
    world.request.trace = true;
    scenario_least(world.model, &world.request);
    world.plan = scenario_plan(world.model, &world.request);
    assert_ok(shoal_run(world.plan, NULL, &world.result, &error));
    world.hash = scenario_hash(world.result);
    set_up_packing();
    set_up_adapting();
    assert_ok(stream(&world.stream_hash, &error));
    assert_ok(run_store(&world.store_hash, &error));
    assert_ok(shoal_devices(true, &world.devices, &error));
    assert_ok(shoal_inspect(SCENARIO_MODEL, true, &world.inspected, NULL, &error));
    assert_ok(shoal_result_write_png(world.result, 0, world.path, &error));
    world.png_bytes = scratch_bytes();
    assert_ok(shoal_result_write_trace(world.result, world.path, &error));
    world.trace_bytes = scratch_bytes();
    assert_ok(shoal_convert(
        SCENARIO_MODEL "/text_encoder", world.out, SHOAL_WIRE_PACKED, false, NULL, &error));
    world.converted_bytes = tree_bytes();
    tree_remove(world.out);
    assert_ok(shoal_cache_prepare(
        &(struct shoal_model_paths){.model = SCENARIO_MODEL}, world.out, NULL, &error));
    world.cached_bytes = tree_bytes();
    tree_remove(world.out);
    return world.png_bytes > 0 && world.converted_bytes > 0 && world.cached_bytes > 0 ? 0 : -1;
}

int sweep_tear_down(void **state)
{
    (void)state;
    shoal_text_free(&world.inspected);
    shoal_text_free(&world.devices);
    shoal_result_destroy(&world.result);
    shoal_plan_destroy(&world.plan);
    shoal_model_close(&world.model);
    remove(world.adapter);
    tree_remove(world.out);
    unlink(world.path);
    unlink(world.init);
    return rmdir(world.folder);
}

/* ---- the sweep ---- */

static const char *const stage_names[STAGES] = {"open", "inspect", "plan", "run", "pack", "adapt",
    "bake", "write", "replace", "devices", "trace", "convert", "cache", "stream", "store"};

struct point {
    char name[240];
    enum shoal_status status;
    struct shoal_error error;
    struct inject_report report;
    bool changed;
};

static void run_point(enum stage stage, const struct inject_fault *fault, struct point *p)
{
    struct outcome o = {0};

    p->error = (struct shoal_error){0};
    before(stage);
    watchdog_set(p->name, SECONDS);
    inject_begin(fault);
    run_stage(stage, &o, &p->error);
    inject_pause();
    p->status = o.status;
    p->changed = o.status == SHOAL_OK && !is_usual(stage, &o);
    if (o.status && (o.model || o.plan || o.result || o.text))
        fail_msg("%s: a failure, with something handed out", p->name);
    outcome_fini(&o);
    if (adapts(stage)) forget_adapters();
    p->report = inject_end();
    watchdog_clear();
    check_disk(stage, p->status == SHOAL_OK);
}

static void check_point(const struct sweep *s, const struct point *p)
{
    static const char *const things[INJECT_THINGS] = {
        "blocks of memory", "mappings", "files", "folders", "threads"};

    for (int i = 0; i < INJECT_THINGS; i++)
        if (p->report.lost[i])
            fail_msg("%s: %lld %s lost; status %d, %s", p->name, (long long)p->report.lost[i],
                things[i], (int)p->status, p->error.text);
    if (p->changed && !s->may_change) fail_msg("%s: success, with another result", p->name);
    if (p->status == SHOAL_OK) return;
    if (s->harmless || (s->failure && p->status != s->failure))
        fail_msg("%s: status %d, %s", p->name, (int)p->status, p->error.text);
    assert_clean_failure(p->status, &p->error);
}

static void name_sweep(const struct sweep *s, char *name, size_t bytes)
{
    static const char *const hows[] = {"fails", "is short", "gives nothing"};

    snprintf(name, bytes, "%s%s, %s%s %s%s%s%s", stage_names[s->stage],
        s->uring    ? " over io_uring"
        : s->cached ? " from the page cache"
                    : "",
        s->jansson ? "jansson's or any " : "", inject_call_name(s->fault.call), hows[s->fault.how],
        s->fault.onwards ? " from then on" : "", s->fault.code ? ": " : "",
        s->fault.code ? strerror(s->fault.code) : "");
}

void sweep_run(const struct sweep *s)
{
    struct inject_fault fault = s->fault;
    struct point p = {.name = "counting"};
    int64_t total, points = 0, failed = 0;
    char name[160];

    name_sweep(s, name, sizeof name);
    inject_into_jansson(s->jansson);
    inject_reading(s->uring, s->cached);
    run_point(s->stage, NULL, &p);
    if (p.status || p.changed) fail_msg("%s: without a fault: %s", name, p.error.text);
    total = p.report.calls[fault.call];
    for (int64_t n = 1, step; n <= total; points++) {
        fault.at = n;
        snprintf(
            p.name, sizeof p.name, "%s, at %lld of %lld", name, (long long)n, (long long)total);
        run_point(s->stage, &fault, &p);
        check_point(s, &p);
        failed += p.status != SHOAL_OK;
        step = SCENARIO_THINNER * (n < s->dense ? 1 : s->stride);
        n = n < total && n + step > total ? total : n + step;
    }
    inject_into_jansson(false);
    printf("%5lld of %5lld points, %5lld failures: %s\n", (long long)points, (long long)total,
        (long long)failed, name);
}
