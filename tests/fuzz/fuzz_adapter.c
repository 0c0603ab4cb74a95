/*
 * Fuzz target: the input is a whole safetensors file, an adapter of a small model. What is accepted
 * must lie within the model's weights and the adapter's factors, and patches them without reaching
 * outside. `make fuzz` builds and runs it.
 */
#include "adapter/patches.h"
#include "device/cpu/patch.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static struct file file_of_model = {.path = (char *)(uintptr_t) "model"};
static struct checkpoint_tensor tensors[] = {
    {.name = "qkv", .file = &file_of_model}, {.name = "norm", .file = &file_of_model}};
static struct weight weights[] = {
    {.name = (char *)(uintptr_t) "qkv",
        .dtype = DTYPE_F32,
        .scale = 1,
        .rows = 8,
        .cols = 6,
        .pieces = {&tensors[0]},
        .piece_count = 1,
        .aliases = (char *)(uintptr_t) "l.to_q.weight+l.to_k.weight+l.to_v.weight|l.qkv.weight",
        .part_rows = {4, 2, 2},
        .parts = 3,
        .part = -1},
    {.name = (char *)(uintptr_t) "norm",
        .dtype = DTYPE_F32,
        .scale = 1,
        .rows = 1,
        .cols = 6,
        .pieces = {&tensors[1]},
        .piece_count = 1,
        .aliases = (char *)(uintptr_t) "l.norm.bias",
        .parts = 1,
        .part = -1},
};
static struct block block = {.name = "l", .weights = weights, .weight_count = 2};
static struct model model = {.family = "small", .blocks = &block, .block_count = 1};

static void patch_all(const struct adapter *adapter, const struct model *const models[FAMILY_KINDS])
{
    const struct adapter_use use = {adapter, 0.5f};
    struct shoal_error error = {0};
    struct patches patches;
    const struct block_patch *p;

    require(patches_open(&patches, &use, 1, models, &error) == SHOAL_OK);
    p = patches_of(&patches, &model, 0);
    require(p && p->run_count > 0);
    for (int32_t r = 0; r < p->run_count; r++) {
        const struct patch_run *run = &p->runs[r];
        const struct weight *w = &weights[run->weight];
        const bool vector = w->rows == 1;
        float values[8 * 6] = {0};
        struct matrix m = matrix_at((device_addr)(uintptr_t)values, DTYPE_F32, w->rows, w->cols);
        struct patch terms;

        require(run->first >= 0 && run->first + run->count <= (vector ? w->cols : w->rows));
        block_patch_terms(p, run, vector, run->first, 0, &terms);
        m = vector ? matrix_cols(m, run->first, run->count)
                   : matrix_rows(m, run->first, run->count);
        patch_on_host(NULL, m, m, &terms);
    }
    patches_close(&patches);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct model *const models[FAMILY_KINDS] = {[FAMILY_DIT] = &model};
    struct allowance allowance = {.most_bytes = UINT64_MAX};
    struct adapter_targets targets;
    struct adapter *adapter = NULL;
    struct shoal_error error = {0};
    char path[64];
    int file = memfd_create("fuzz.safetensors", 0);

    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    require(adapter_targets_open(&targets, models, &error) == SHOAL_OK);
    if (adapter_open(&adapter, path, &targets, &allowance, &error)) {
        require(!adapter && error.status && error.text[0]);
        for (const char *c = error.text; *c; c++)
            require((unsigned char)*c >= 0x20);
    } else {
        patch_all(adapter, models);
    }
    adapter_close(&adapter);
    adapter_targets_close(&targets);
    close(file);
    return 0;
}
