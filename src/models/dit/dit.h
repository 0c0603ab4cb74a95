/*
 * What diffusion transformers of all families have in common: a prompt under one, what it is told
 * of each step, and one picture under one prompt. Passes: "context" (what depends on the prompt
 * only; its lanes are struct dit_prompt; once for each prompt) and "step" (its lanes are struct
 * dit_lane; every step).
 *
 *     dit_prompt_create(...)  for each prompt (conditional, unconditional)
 *     run DIT_PASS_CONTEXT over the prompts
 *     for each step: set every lane's `step`; run DIT_PASS_STEP over the lanes; read every lane's
 *     velocity
 *     dit_prompt_destroy(...)
 */
#ifndef MODELS_DIT_DIT_H
#define MODELS_DIT_DIT_H

#include "layers/table.h"
#include "models/text/text.h"

enum { DIT_PASS_CONTEXT, DIT_PASS_STEP };

#define DIT_MAX_TOKENS (1 << 20) /* of a prompt, and of an image */
#define DIT_TABLES 6

struct dit_prompt;
struct dit_prompt_spec;

/* What every family's config begins with. */
struct dit_config {
    const struct dit_family *family;
    int64_t channels; /* of the latent */
    int64_t width;    /* of the text encoder's features that it takes */
};

/* How a family wants a prompt made into tokens and features. */
struct dit_text {
    const char *before, *after; /* the prompt: its template; "" where it has none */
    /* What a prompt of no tokens is encoded as: a special token's text; or NULL. */
    const char *empty;
    bool ends;    /* the tokenizer's end of text is appended, as its own template has it */
    int32_t skip; /* of the features, the first so many rows are dropped: a system's turn */
    int32_t most; /* tokens that are kept, what is skipped not counted */
    enum text_state state;
    const char *families[3]; /* of text encoders that it is trained with, up to NULL */
    bool second;             /* it also takes the prompt's ids in a second tokenizer, T5's, ended */
    int32_t second_most;
};

/* How it is sampled where nothing else is asked for. */
struct dit_sampling {
    bool edm; /* noise is added, sigma 80 to 0.002 times, rather than blended in: RFlow of
                 Cosmos-Predict2; else flow matching */
    int32_t width, height, steps;
    float cfg;     /* cond + (cfg - 1) (cond - uncond) */
    float shift;   /* of flow matching */
    int32_t table; /* noise levels that ComfyUI's schedules choose among; 0: 1000 */
    /* If max_shift is not 0: by the image's tokens, e^mu with mu on the line through
     * (base_tokens, base_shift) and (max_tokens, max_shift). */
    int32_t base_tokens, max_tokens;
    float base_shift, max_shift, terminal; /* the last noise level, stretched to; 0: as it is */
    bool keeps_norm; /* guidance leaves each patch's norm as the conditional branch has it */
};

struct dit_family {
    int32_t patch;   /* the latent's sides are multiples of it */
    const char *vae; /* the family of VAEs whose latents it is trained with */
    struct dit_text text;
    struct dit_sampling sampling;
    /* Sets what follows from sizes: image_padded and padded, and tables' rows and cols. */
    void (*measure)(struct dit_prompt *prompt);
    /* Fills the tables in host memory. Not called where the prompt is only counted. */
    enum shoal_status (*fill)(
        struct dit_prompt *prompt, const struct dit_prompt_spec *spec, struct shoal_error *error);
};

/* The DiT's. */
static inline const struct dit_config *dit_config(const struct model *model)
{
    return model->config;
}

/* All that stays the same for one prompt: a lane of the context pass. Host memory is made by
 * create, device memory (scratch) by the context pass. */
struct dit_prompt {
    const struct dit_config *config;
    int64_t tokens, padded; /* of the text: its features, and what the model makes of them */
    int64_t ids;            /* in the second tokenizer */
    int64_t height, width;  /* of the latent */
    int64_t image_tokens, image_padded;
    int32_t steps;
    const float *features;           /* [tokens, width], the caller's; NULL: only counted */
    struct table tables[DIT_TABLES]; /* the family's, e.g. rope and times; the context pass uploads
                                        them */
    struct matrix context;           /* what the context pass leaves */
};

struct dit_prompt_spec {
    const float *features; /* [tokens, width]; must stay valid until the context pass is done and
                              the stream synchronised; may be NULL on the counting device */
    int64_t tokens;        /* at least 1 */
    const int32_t *ids;    /* [id_count], if the family takes them; NULL where features are */
    int64_t id_count;
    int64_t height, width; /* of the latent */
    const float *sigmas;   /* [steps]: noise levels, 1 noise and 0 picture, of flow matching */
    int32_t steps;
};

enum shoal_status dit_prompt_create(const struct model *model, const struct dit_prompt_spec *spec,
    struct dit_prompt **prompt, struct shoal_error *error) SHOAL_CHECKED;
/* Host memory that its tables take. */
uint64_t dit_prompt_bytes(const struct model *model, const struct dit_prompt_spec *spec);
/* Frees its scratch too. The stream must have been synchronised since the context pass. */
void dit_prompt_destroy(struct exec *x, struct dit_prompt **prompt);

/* A table of rotary positions on three axes. */
struct dit_rope {
    int table;
    const int32_t *axes; /* [3]: of a head's dimensions */
    double theta;
    bool single; /* frequencies: rope_frequencies_single */
    void (*position)(const struct dit_prompt *prompt, int64_t row, int64_t place[3]);
};

/* For fill. */
enum shoal_status dit_fill_rope(
    struct dit_prompt *prompt, const struct dit_rope *rope, struct shoal_error *error);

/* One picture under one prompt: a lane of the step pass. Zero-initialise, then fill in the first
 * part. Several lanes may share a prompt. */
struct dit_lane {
    const struct dit_prompt *prompt; /* whose context pass is done */
    int32_t step;                    /* which of the prompt's noise levels */
    struct matrix latent;            /* [channels, height * width], device; only read */
    struct matrix velocity; /* the same shape, device, the caller's: what the pass leaves, in the
                               convention latent += (sigma_next - sigma) * velocity */

    /* Between begin and end, each the family's own: the image's tokens (or all of them), the
     * text's, the embedded timestep, and what blocks take of that. */
    struct matrix hidden, text, time, shared;
};

/* After a pass that was broken off, and for its end: frees what it held. */
void dit_lane_fini(struct exec *x, struct dit_lane *lane);

#endif
