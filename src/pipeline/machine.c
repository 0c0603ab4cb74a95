/* The machine that a plan is for: how fast it is, and what the process takes of its memory. */
#include "pipeline/plan.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/trace.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "memory/cargo.h"
#include "pipeline/links.h"

#include <string.h>

static enum shoal_status rates_elsewhere(
    const char *on, struct rates *rates, struct shoal_error *error)
{
    if (strchr(on, '/') || strchr(on, '.')) return rates_read(on, rates, error);
    return rates_of_card(on, rates, error);
}

static enum shoal_status rates_here(const struct shoal_request *request,
    const struct target *target, struct rates *rates, struct shoal_error *error)
{
    char *path = NULL;
    enum shoal_status status = SHOAL_OK;

    if (request->rates_path) return rates_read(request->rates_path, rates, error);
    /* Nowhere to keep rates is no reason not to plan. */
    if (links_rates_path(target->name, &path, NULL) == SHOAL_OK && file_kind(path) == FILE_REGULAR)
        status = rates_read(path, rates, error);
    else if (target->device)
        rates_guess_card(rates, cuda_info(target->device).name);
    else
        rates_guess(rates, request->threads ? request->threads : thread_cores());
    mem_free(path);
    return status;
}

enum shoal_status plan_target(const struct shoal_request *request, struct target *target,
    struct rates *rates, struct shoal_error *error)
{
    if (request->on) {
        TRY(rates_elsewhere(request->on, rates, error));
        target_elsewhere(target, rates);
        return SHOAL_OK;
    }
    TRY(target_open(target, request->device, error));
    return rates_here(request, target, rates, error);
}

/*
 * Measured as peak RSS under glibc, and rounded up; `tests/cli/test_cli_memory.py` checks the sum.
 * What the program takes at the least: code, libraries, stacks, plan and PNG writer were 6.4 MiB.
 * What malloc frees it mostly keeps, so that opening's peak stays: 545 bytes a token of a
 * tokenizer.json of 151 000 tokens and as many merges; 1500 a tensor of a safetensors header. A
 * GGUF header is read in steps that double, and kept. The lists by which a chunk travels
 * (memory/cargo.h) take 100 bytes. A span of a trace takes 80 bytes, and 160 as text in the end.
 */
#define PROGRAM_BYTES (8ull << 20)
#define TOKEN_BYTES 600
#define TENSOR_BYTES 2048
#define CHUNK_BYTES 128
#define SPAN_BYTES 256

/* The pictures, their latents and the noise that they start from. */
static uint64_t result_bytes(const struct job *job)
{
    uint64_t pixels = (uint64_t)job->request.width * (uint64_t)job->request.height;
    uint64_t latents =
        (uint64_t)(job->latent_channels * job->latent_height * job->latent_width) * sizeof(float);
    uint64_t count = (uint64_t)job->request.count;

    /* And one decoded picture in F32; its PNG is not larger than its pixels by more than a little.
     */
    return count * (3 * pixels + 2 * latents) + 3 * pixels * (sizeof(float) + 1);
}

/* Headers and what is made of them. */
static uint64_t checkpoint_bytes(const struct checkpoint *checkpoint)
{
    uint64_t header = UINT64_MAX;
    size_t count = checkpoint_count(checkpoint);

    for (size_t i = 0; i < count; i++) {
        uint64_t offset = checkpoint_at(checkpoint, i)->offset;

        if (offset < header) header = offset;
    }
    return count ? TENSOR_BYTES * count + 2 * header : 0;
}

/* What moving the weights takes beside them: the lists of the largest phase, and the trace's spans:
 * of a read for each chunk, and a copy, an unpacking, a forward and a wait for each block. */
static uint64_t moving_bytes(const struct job *job)
{
    uint64_t most = 0, spans = 0;

    for (int phase = 0; phase < SHOAL_PHASES; phase++) {
        struct phase_pass p = job_phase(job, (enum shoal_phase)phase);
        uint64_t chunks = 0, walks = (uint64_t)job_walks(job, (enum shoal_phase)phase, 1);

        for (int32_t i = 0; i < p.model->block_count; i++)
            chunks += p.model->blocks[i].bytes / CARGO_CHUNK_BYTES + 1;
        if (chunks > most) most = chunks;
        spans += walks * (chunks + 4 * (uint64_t)p.pass->count + 1);
    }
    if (spans > TRACE_MOST_SPANS) spans = TRACE_MOST_SPANS;
    return CHUNK_BYTES * most + (job->request.trace ? SPAN_BYTES * spans : 0);
}

uint64_t plan_process_bytes(const struct job *job, const struct target *target)
{
    const struct shoal_model *model = job->model;
    int threads = job->request.threads ? job->request.threads : thread_cores();
    uint64_t bytes = PROGRAM_BYTES + target->host_bytes +
                     TOKEN_BYTES * (uint64_t)tokenizer_vocab(model->tokenizer);

    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        bytes += checkpoint_bytes(model->checkpoints[kind]);
    /* A card computes without workers. */
    if (!target->device) bytes += (uint64_t)threads * CPU_WORKER_BYTES;
    return bytes + result_bytes(job) + moving_bytes(job);
}
