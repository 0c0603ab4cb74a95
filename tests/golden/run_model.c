/* The simplest runner there can be, and golden files. */
#include "support.h"

#include "golden/run_model.h"

#include "base/memory.h"
#include "device/count/count.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "tensor/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *run_device_name(enum run_device device)
{
    static const char *const names[] = {"reference", "fast", "card", "count"};

    return names[device];
}

const struct device_traits *run_count_traits;

static enum shoal_status open_device(
    struct run *run, enum run_device device, struct shoal_error *error)
{
    if (device == RUN_COUNT)
        return count_create(&run->device, run_count_traits ? *run_count_traits : CPU_TRAITS, error);
    if (device == RUN_CARD) return cuda_create(&run->device, 0, error);
    return cpu_create(
        &run->device, device == RUN_FAST ? CPU_KERNELS_FAST : CPU_KERNELS_REFERENCE, 2, error);
}

static enum shoal_status load_block(
    struct run *run, const struct block *block, device_addr to, struct shoal_error *error)
{
    char *bytes = mem_alloc(block->bytes);
    enum shoal_status status = SHOAL_OK;

    if (!bytes) FAIL_MEMORY(error);
    for (int32_t w = 0; w < block->weight_count; w++) {
        const struct weight *weight = &block->weights[w];
        char *at = bytes + weight->offset;

        for (int32_t p = 0; p < weight->piece_count; p++) {
            TRY_OR_FAIL(checkpoint_read(weight->pieces[p], at, error));
            at += weight->pieces[p]->bytes;
        }
    }
    run->device->ops->copy_in(run->stream, to, bytes, block->bytes);
    status = run->device->ops->stream_synchronize(run->stream, error);
fail:
    mem_free(bytes);
    return status;
}

enum shoal_status run_open(struct run *run, const struct model *model, enum run_device device,
    uint64_t scratch_bytes, struct shoal_error *error)
{
    uint64_t weight_bytes = 0;
    int32_t most_weights = 0;
    device_addr at;

    *run = (struct run){.model = model};
    for (int32_t i = 0; i < model->block_count; i++) {
        weight_bytes += model->blocks[i].bytes;
        if (model->blocks[i].weight_count > most_weights)
            most_weights = model->blocks[i].weight_count;
    }
    TRY(open_device(run, device, error));
    TRY(run->device->ops->arena_reserve(run->device, weight_bytes + scratch_bytes, error));
    TRY(run->device->ops->stream_create(run->device, false, &run->stream, error));
    TRY(region_create(&run->region, scratch_bytes, error));
    run->block_addr = mem_calloc((size_t)model->block_count, sizeof *run->block_addr);
    run->block_weights = mem_calloc((size_t)most_weights, sizeof *run->block_weights);
    if (!run->block_addr || !run->block_weights) FAIL_MEMORY(error);
    at = run->device->arena;
    if (run->device->ops->arena_mark)
        run->device->ops->arena_mark(run->device, at, weight_bytes, true);
    for (int32_t i = 0; i < model->block_count; i++) {
        run->block_addr[i] = at;
        TRY(load_block(run, &model->blocks[i], at, error));
        at += model->blocks[i].bytes;
    }
    exec_init(&run->exec, run->device, run->stream, run->region, at + scratch_bytes);
    return SHOAL_OK;
}

void run_close(struct run *run)
{
    if (run->stream) run->device->ops->stream_destroy(&run->stream);
    device_destroy(&run->device);
    region_destroy(&run->region);
    mem_free(run->block_addr);
    mem_free(run->block_weights);
    *run = (struct run){0};
}

static const struct matrix *weights_of(struct run *run, int32_t index)
{
    const struct block *block = &run->model->blocks[index];

    block_bind(block, run->block_addr[index], run->block_weights);
    return run->block_weights;
}

/* Begin or end of the pass for every lane. */
static void run_hook(
    struct run *run, const struct pass *pass, block_forward *hook, void **lanes, int32_t lane_count)
{
    const struct block *globals = pass->globals < 0 ? NULL : &run->model->blocks[pass->globals];

    if (!hook) return;
    for (int32_t i = 0; i < lane_count; i++)
        hook(&run->exec, globals, globals ? weights_of(run, pass->globals) : NULL, lanes[i]);
}

enum shoal_status run_pass(
    struct run *run, int32_t index, void **lanes, int32_t lane_count, struct shoal_error *error)
{
    const struct pass *pass = &run->model->passes[index];

    run_hook(run, pass, pass->begin, lanes, lane_count);
    for (int32_t i = pass->first; i < pass->first + pass->count; i++)
        for (int32_t l = 0; l < lane_count; l++) {
            const struct block *block = &run->model->blocks[i];

            block->forward(&run->exec, block, weights_of(run, i), lanes[l]);
            if (run->after) run->after(run->user, run, block, lanes[l]);
        }
    run_hook(run, pass, pass->end, lanes, lane_count);
    if (run->exec.error.status) {
        if (error) *error = run->exec.error;
        return run->exec.error.status;
    }
    return run->device->ops->stream_synchronize(run->stream, error);
}

float *run_values(struct run *run, struct matrix m)
{
    struct shoal_error error = {0};
    size_t count = (size_t)(m.rows * m.cols);
    float *values = mem_alloc(count * sizeof *values);
    void *stored = mem_alloc(count * sizeof *values);

    assert_non_null(values);
    assert_non_null(stored);
    assert_int_equal(m.stride, m.cols);
    run->device->ops->copy_out(
        run->stream, stored, m.addr, (uint64_t)dtype_bytes(m.dtype, m.rows * m.cols));
    assert_ok(run->device->ops->stream_synchronize(run->stream, &error));
    quant_widen(values, stored, m.dtype, m.scale, 0, m.rows * m.cols);
    mem_free(stored);
    return values;
}

/* ---- golden files ---- */

enum shoal_status golden_open(const char *name, struct golden *golden, struct shoal_error *error)
{
    char *path = mem_format("tests/golden/%s.safetensors", name);
    const char *config;
    enum shoal_status status;
    int fd;

    *golden = (struct golden){0};
    if (!path) FAIL_MEMORY(error);
    status = checkpoint_open(path, &golden->checkpoint, error);
    mem_free(path);
    TRY(status);
    config = checkpoint_metadata(golden->checkpoint, "config");
    if (!config) FAIL(error, SHOAL_E_MISSING, "%s has no config", name);
    golden->config_path = mem_strdup("/tmp/shoal-golden-XXXXXX");
    if (!golden->config_path) FAIL_MEMORY(error);
    fd = mkstemp(golden->config_path);
    if (fd < 0) FAIL(error, SHOAL_E_IO, "no temporary file");
    close(fd);
    return file_write_whole(golden->config_path, config, strlen(config), error);
}

void golden_close(struct golden *golden)
{
    checkpoint_close(&golden->checkpoint);
    if (golden->config_path) unlink(golden->config_path);
    mem_free(golden->config_path);
    golden->config_path = NULL;
}

bool golden_has(const struct golden *golden, const char *tensor)
{
    return checkpoint_find(golden->checkpoint, tensor) != NULL;
}

int64_t golden_dim(const struct golden *golden, const char *tensor, int32_t axis)
{
    const struct checkpoint_tensor *found = checkpoint_find(golden->checkpoint, tensor);

    if (!found || axis >= found->shape.rank) fail_msg("%s is missing", tensor);
    return found->shape.dim[axis];
}

float *golden_values(const struct golden *golden, const char *tensor, int64_t *count)
{
    const struct checkpoint_tensor *found = checkpoint_find(golden->checkpoint, tensor);
    struct shoal_error error = {0};
    float *values;

    if (!found || found->dtype != DTYPE_F32) fail_msg("%s is missing", tensor);
    values = mem_alloc(found->bytes);
    assert_non_null(values);
    assert_ok(checkpoint_read(found, values, &error));
    if (count) *count = (int64_t)(found->bytes / sizeof *values);
    return values;
}

struct golden_gap golden_gap(const float *a, const float *b, int64_t count)
{
    double worst = 0, largest = 0, error = 0, power = 0;

    for (int64_t i = 0; i < count; i++) {
        double gap = fabs((double)a[i] - (double)b[i]);

        if (isnan(gap) || gap > worst) worst = gap; /* what is no number stays */
        largest = fmax(largest, fabs((double)b[i]));
        error += gap * gap;
        power += (double)b[i] * (double)b[i];
    }
    return (struct golden_gap){worst / largest, sqrt(error / power)};
}

void golden_compare(const char *what, const float *a, const struct golden *golden,
    const char *tensor, struct golden_gap limit)
{
    int64_t count;
    float *b = golden_values(golden, tensor, &count);
    struct golden_gap gap = golden_gap(a, b, count);

    mem_free(b);
    printf("    %-32s %-28s max %.2e  rms %.2e\n", what, tensor, gap.max, gap.rms);
    if (!(gap.max <= limit.max))
        fail_msg("%s: %s is off by %g of its largest value, more than %g", what, tensor, gap.max,
            limit.max);
    if (!(gap.rms <= limit.rms))
        fail_msg("%s: %s is off by %g of its size, more than %g", what, tensor, gap.rms, limit.rms);
}
