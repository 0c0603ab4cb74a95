/* The machine that a plan is for: how fast it is, and what the process takes of its memory. */
#include "pipeline/plan.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/size.h"
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
    enum shoal_status status;

    if (strchr(on, '/') || strchr(on, '.')) return rates_read(on, rates, error);
    status = rates_of_card(on, rates, error);
    if (status) error_prefix(error, "--on: ");
    return status;
}

static enum shoal_status rates_here(const struct shoal_request *request,
    const struct target *target, struct rates *rates, struct shoal_error *error)
{
    const int threads = request->threads ? request->threads : thread_cores();
    char *path = NULL;
    struct shoal_error damage = {0};
    enum shoal_status status = SHOAL_E_MISSING;

    if (request->rates_path) return rates_read(request->rates_path, rates, error);
    /* Nowhere to keep rates is no reason not to plan, nor that another version has kept them: that
     * they are guessed is said. */
    if (links_rates_path(target->name, &path, NULL) == SHOAL_OK && file_kind(path) == FILE_REGULAR)
        status = rates_read(path, rates, &damage);
    mem_free(path);
    if (status && status != SHOAL_E_MISSING)
        FAIL(error, status, "%s; remove the file, or let `shoal bench links` write it again",
            damage.text);
    if (!status) return SHOAL_OK;
    if (target->device)
        rates_guess_card(rates, cuda_info(target->device).name, threads);
    else
        rates_guess(rates, threads);
    return SHOAL_OK;
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
 * What malloc frees it mostly keeps, so that opening's peak stays: 545 bytes a token of a
 * tokenizer.json of 151 000 tokens and as many merges; 1500 a tensor of a safetensors header. A
 * GGUF header is read in steps that double, and kept. A file may hold more beside its tokens and
 * tensors: then it is what was counted while it was read (base/allowance.h), and what is made of
 * tokens and tensors, 30 and 250 bytes. The lists by which a chunk travels (memory/cargo.h) take
 * 100 bytes. A span of a trace takes 80 bytes, and 160 as text in the end.
 */
#define TOKEN_BYTES 600
#define TOKEN_KEPT_BYTES 48
#define TENSOR_BYTES 2048
#define TENSOR_KEPT_BYTES 256
#define CHUNK_BYTES 128
#define SPAN_BYTES 256

/* The pictures, their latents and the noise that they start from, and what is made of
 * further prompts: PROGRAM_BYTES has the first and the negative one. */
static uint64_t result_bytes(const struct job *job)
{
    uint64_t pixels = (uint64_t)job->request.width * (uint64_t)job->request.height;
    uint64_t latents =
        (uint64_t)(job->latent_channels * job->latent_height * job->latent_width) * sizeof(float);
    uint64_t count = (uint64_t)job_pictures(job), begin = job_prompt_bytes(job);

    /* The picture to begin with, and its file, which is forgotten, but not always given back. */
    if (job->init) begin += 3 * pixels + job->init_file_bytes + (1 << 20);
    /* And one decoded picture in F32; its PNG is not larger than its pixels by more than a little.
     */
    if (job->sampler->noisy) latents += sizeof(struct rng) / 2 + 1;
    return begin + count * (3 * pixels + 2 * latents) + 3 * pixels * (sizeof(float) + 1);
}

/* Headers and what is made of them. */
static uint64_t checkpoint_bytes(const struct checkpoint *checkpoint, uint64_t reading_bytes)
{
    uint64_t count = checkpoint_count(checkpoint);

    return max_u64(TENSOR_BYTES * count + 2 * checkpoint_header_bytes(checkpoint),
        reading_bytes + TENSOR_KEPT_BYTES * count);
}

static uint64_t tokenizer_bytes(const struct model_tokenizer *t)
{
    uint64_t count = t->tokenizer ? (uint64_t)tokenizer_vocab(t->tokenizer) : 0;

    return max_u64(TOKEN_BYTES * count, t->bytes + TOKEN_KEPT_BYTES * count);
}

/* `bytes` more, that a file takes: is it the one that takes most? */
static void add_file(struct process_memory *memory, uint64_t bytes, const char *path)
{
    memory->bytes += bytes;
    if (bytes <= memory->largest_bytes) return;
    memory->largest_bytes = bytes;
    memory->largest_path = path;
}

static uint64_t model_chunks(const struct model *model)
{
    uint64_t chunks = 0;

    for (int32_t i = 0; i < model->block_count; i++)
        chunks += model->blocks[i].bytes / CARGO_CHUNK_BYTES + 1;
    return chunks;
}

uint64_t plan_list_bytes(const struct model *model)
{
    return CHUNK_BYTES * model_chunks(model);
}

uint64_t plan_program_bytes(const struct target *target, int threads)
{
    /* A card computes without workers. */
    return PROGRAM_BYTES + target->host_bytes +
           (target->card ? 0 : (uint64_t)threads * CPU_WORKER_BYTES);
}

/* What moving the weights takes beside them: the lists of the largest phase, and the trace's spans:
 * of a read for each chunk, and a copy, an unpacking, a forward and a wait for each block. */
static uint64_t moving_bytes(const struct job *job)
{
    uint64_t most = 0, spans = 0;

    for (int phase = 0; phase < job_phases(job); phase++) {
        struct phase_pass p = job_phase(job, (enum shoal_phase)phase);
        uint64_t chunks = model_chunks(p.model);
        uint64_t walks = (uint64_t)job_walks(job, (enum shoal_phase)phase, 1);

        if (chunks > most) most = chunks;
        spans += walks * (chunks + 4 * (uint64_t)p.pass->count + 1);
    }
    if (spans > TRACE_MOST_SPANS) spans = TRACE_MOST_SPANS;
    return CHUNK_BYTES * most + (job->request.trace ? SPAN_BYTES * spans : 0);
}

void plan_process(const struct job *job, const struct target *target, uint64_t adapter_bytes,
    struct process_memory *memory)
{
    const struct shoal_model *model = job->model;
    const struct checkpoint *text = model->checkpoints[FAMILY_TEXT];

    *memory =
        (struct process_memory){.bytes = plan_program_bytes(target, job_threads(job)) +
                                         result_bytes(job) + moving_bytes(job) + adapter_bytes};
    for (int i = 0; i < MODEL_TOKENIZERS; i++) {
        const struct model_tokenizer *t = &model->tokenizers[i];

        add_file(memory, tokenizer_bytes(t), t->path ? t->path : checkpoint_path(text));
    }
    for (int kind = 0; kind < FAMILY_KINDS; kind++) {
        const struct checkpoint *checkpoint = model->checkpoints[kind];

        add_file(memory, checkpoint_bytes(checkpoint, model->reading_bytes[kind]),
            checkpoint_path(checkpoint));
    }
}
