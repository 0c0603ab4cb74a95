/*
 * A job: a request resolved against a model, and the program it is: text, context, encode (if there
 * is a picture to begin with), steps, decode.
 *
 * The program runs on a stage. The counting stage adds up what it needs (that is the plan), the
 * real stage does it; the calls are the same, so the plan cannot be wrong about the run.
 */
#ifndef PIPELINE_JOB_H
#define PIPELINE_JOB_H

#include "pipeline/tokens.h"
#include "sampling/sampler.h"

struct job {
    const struct shoal_model *model;
    struct shoal_request request; /* its strings are owned */
    const struct sampler *sampler;
    struct noise_levels levels; /* that the schedule's are chosen from */
    struct schedule schedule;
    int32_t calls; /* of the DiT in a picture's sampling: sampler_calls */
    /* The request's prompts, each once, then the negative one if guided; in the model's
     * tokenizers. */
    struct chat_tokens (*prompts)[MODEL_TOKENIZERS];
    int32_t prompt_count;
    int32_t *encoded; /* [job_prompts]: where each of the request's is among these */
    int32_t branches; /* of a picture: conditional, and unconditional if guided */
    int64_t latent_height, latent_width, latent_channels;
    /* The picture to begin with, if there is one: [height, width, 3], and what encodes it. */
    uint8_t *init;
    uint64_t init_file_bytes;
    struct model *encoder;
};

/* The phases that it has: [0, count), as all are numbered. */
static inline int job_phases(const struct job *job)
{
    return job->encoder ? SHOAL_PHASES : SHOAL_PHASE_ENCODE;
}

/* SHOAL_E_INVALID, naming the member, for what is outside its range or no choice there is. */
enum shoal_status request_check_range(const char *name, int64_t value, int64_t low, int64_t high,
    struct shoal_error *error) SHOAL_CHECKED;
enum shoal_status request_check_choices(enum shoal_buffer buffer, enum shoal_wire wire,
    enum shoal_pin pin, struct shoal_error *error) SHOAL_CHECKED;

/* Checks and copies the request. */
enum shoal_status job_init(struct job *job, const struct shoal_model *model,
    const struct shoal_request *request, struct shoal_error *error) SHOAL_CHECKED;
void job_fini(struct job *job); /* accepts a zeroed one */

/* Threads to compute with. */
int job_threads(const struct job *job);

/* Prompts to paint. */
static inline int32_t job_prompts(const struct job *job)
{
    return 1 + job->request.more_prompt_count;
}

static inline const char *job_prompt(const struct job *job, int32_t index)
{
    return index ? job->request.more_prompts[index - 1] : job->request.prompt;
}

/* "prompt", or of several "prompt 2". */
#define JOB_PROMPT_NAME_BYTES 32
const char *job_prompt_name(const struct job *job, int32_t index, char name[JOB_PROMPT_NAME_BYTES]);

/* All pictures: those of the first prompt, then those of the next. */
static inline int32_t job_pictures(const struct job *job)
{
    return job->request.count * job_prompts(job);
}

/* Host memory that its prompts take while it runs, the first and the negative one apart. */
uint64_t job_prompt_bytes(const struct job *job);

static inline int32_t job_lane_count(const struct job *job)
{
    return job_pictures(job) * job->branches;
}

/* ---- stages ---- */

/* Which pass of which model a phase is. */
struct phase_pass {
    const struct model *model;
    const struct pass *pass;
};
struct phase_pass job_phase(const struct job *job, enum shoal_phase phase);

/* How often a phase walks its blocks when `lanes` lanes share a walk. */
int64_t job_walks(const struct job *job, enum shoal_phase phase, int32_t lanes);

/*
 * What a job runs on. begin makes a phase's weights available, acquire and release one block's for
 * work given in between. Members that say so may be NULL.
 */
struct stage {
    struct exec exec;
    int32_t lanes;        /* that share a walk */
    int32_t calls;        /* of the DiT to run: all of the job's, or 1 when counting */
    uint64_t whole_bytes; /* of decoding: see struct vae_lane, from which the next two come */
    int32_t strip_blocks;
    uint64_t largest_bytes;
    enum shoal_status (*begin)(
        struct stage *, const struct job *, enum shoal_phase, struct shoal_error *) SHOAL_CHECKED;
    /* After a phase that succeeded or failed; reports what went wrong with its weights. */
    enum shoal_status (*end)(struct stage *, enum shoal_phase, struct shoal_error *) SHOAL_CHECKED;
    /* Fill weights[i] with the block's weight i. */
    enum shoal_status (*globals)(
        struct stage *, struct matrix *weights, struct shoal_error *) SHOAL_CHECKED;
    enum shoal_status (*acquire)(
        struct stage *, int32_t block, struct matrix *weights, struct shoal_error *) SHOAL_CHECKED;
    void (*release)(struct stage *, int32_t block);
    /* May be NULL. After a walk's block, and after a phase's unit: of the steps, a call of the DiT;
     * a failure ends the run. */
    enum shoal_status (*block_done)(struct stage *, int32_t done, int32_t of, struct shoal_error *);
    void (*unit_done)(struct stage *, int32_t done, int32_t of);
};

/* Where the results go. The host side of copies, so it must outlive the job's run. */
struct job_output {
    float *latents; /* [pictures][channels * height * width]; NULL when counting */
    float
        *image; /* [3, 8 height * 8 width]: the one being decoded, or encoded; NULL when counting */
    /* Called with image `index` in `image`; NULL when counting. */
    enum shoal_status (*take)(struct job_output *, int32_t index, struct shoal_error *);
};

enum shoal_status job_run(const struct job *job, struct stage *stage, struct job_output *output,
    struct shoal_error *error) SHOAL_CHECKED;

/* Decoding alone, of one latent that nobody made: to count what it takes. */
enum shoal_status job_decode_one(
    const struct job *job, struct stage *stage, struct shoal_error *error) SHOAL_CHECKED;

#endif
