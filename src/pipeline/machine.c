/* The machine that a plan is for: how fast it is, and what the process takes of its memory. */
#include "pipeline/plan.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "pipeline/links.h"

#include <string.h>

enum shoal_status plan_rates(
    const struct shoal_request *request, struct rates *rates, struct shoal_error *error)
{
    char *path = NULL;
    enum shoal_status status = SHOAL_OK;

    if (request->on) {
        if (strchr(request->on, '/') || strchr(request->on, '.'))
            return rates_read(request->on, rates, error);
        return rates_of_card(request->on, rates, error);
    }
    if (request->rates_path) return rates_read(request->rates_path, rates, error);
    /* Nowhere to keep rates is no reason not to plan. */
    if (links_rates_path(&path, NULL) == SHOAL_OK && file_kind(path) == FILE_REGULAR)
        status = rates_read(path, rates, error);
    else
        rates_guess(rates, request->threads ? request->threads : thread_cores());
    mem_free(path);
    return status;
}

/* Measured, rounded up: code, libraries, stacks and what is small; a token, with its merge, while
 * tokenizer.json is read; a tensor, while its header is. */
#define PROGRAM_BYTES (12ull << 20)
#define TOKEN_BYTES 700
#define TENSOR_BYTES 2048

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

uint64_t plan_process_bytes(const struct job *job)
{
    const struct shoal_model *model = job->model;
    int threads = job->request.threads ? job->request.threads : thread_cores();
    uint64_t bytes = PROGRAM_BYTES + TOKEN_BYTES * (uint64_t)tokenizer_vocab(model->tokenizer);

    for (int kind = 0; kind < FAMILY_KINDS; kind++)
        bytes += TENSOR_BYTES * checkpoint_count(model->checkpoints[kind]);
    return bytes + (uint64_t)threads * CPU_WORKER_BYTES + result_bytes(job);
}
