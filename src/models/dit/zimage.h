/*
 * Z-Image's diffusion transformer. Passes: "context" (what depends on the prompt only; its lanes
 * are struct zimage_prompt; once for each prompt) and "step" (its lanes are struct zimage_lane;
 * every step).
 *
 *     zimage_prompt_create(...)  for each prompt (conditional, unconditional)
 *     run pass 0 over the prompts
 *     for each step: set every lane's `step`; run pass 1 over the lanes; read every lane's velocity
 *     zimage_prompt_destroy(...)
 */
#ifndef MODELS_DIT_ZIMAGE_H
#define MODELS_DIT_ZIMAGE_H

#include "models/model.h"

#define ZIMAGE_PATCH 2           /* pixels of the latent a side */
#define ZIMAGE_FREQUENCIES 256   /* width of the timestep's sinusoid */
#define ZIMAGE_TOKEN_MULTIPLE 32 /* image and caption tokens are each padded to a multiple */

enum { ZIMAGE_PASS_CONTEXT, ZIMAGE_PASS_STEP };

struct zimage_config {
    int64_t dim, ffn_dim, cap_dim, t_mid, t_dim, channels;
    int32_t heads, head_dim, layers, noise_refiners, context_refiners;
    int32_t axes[3]; /* of a head's dimensions: caption position or time, row, column */
    double theta;
    float t_scale, norm_eps;
};

/*
 * `config_path`: a config.json that says what shapes do not and must agree where they do, or NULL
 * for the published values. The checkpoint must outlive the model.
 */
enum shoal_status zimage_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;
const struct zimage_config *zimage_config(const struct model *model);

/* All that stays the same for one prompt: a lane of the context pass. Host memory is made by
 * create, device memory (scratch) by the context pass. */
struct zimage_prompt {
    const struct zimage_config *config;
    int64_t tokens, padded;             /* of the caption */
    int64_t height, width;              /* of the latent */
    int64_t image_tokens, image_padded; /* of the image */
    int32_t steps;
    const float *features; /* [tokens, cap_dim], the caller's */
    float *host_rope;      /* [image_padded + padded, head_dim] */
    float *host_times;     /* [steps, ZIMAGE_FREQUENCIES] */
    struct matrix context; /* [padded, dim]: the refined caption, once the context pass is done */
    struct matrix rope;    /* [image_padded + padded, head_dim] */
    struct matrix times;   /* [steps, ZIMAGE_FREQUENCIES] */
};

struct zimage_prompt_spec {
    const float *features; /* [tokens, cap_dim]; must stay valid until the context pass is done and
                              the stream synchronised; may be NULL on the counting device */
    int64_t tokens;        /* at least 1 */
    int64_t height, width; /* of the latent; multiples of ZIMAGE_PATCH */
    const float *times;    /* [steps], see zimage_time; copied */
    int32_t steps;
};

/* What the model is told for a noise level (1: noise, 0: picture). In the reference's arithmetic.
 */
static inline float zimage_time(float sigma)
{
    return (1000.0f - 1000.0f * sigma) / 1000.0f;
}

enum shoal_status zimage_prompt_create(const struct model *model,
    const struct zimage_prompt_spec *spec, struct zimage_prompt **prompt,
    struct shoal_error *error) SHOAL_CHECKED;
/* Frees its scratch too. The stream must have been synchronised since the context pass. */
void zimage_prompt_destroy(struct exec *x, struct zimage_prompt **prompt);

/* One picture under one prompt: a lane of the step pass. Zero-initialise, then fill in the first
 * part. Several lanes may share a prompt. */
struct zimage_lane {
    const struct zimage_prompt *prompt; /* whose context pass is done */
    int32_t step;                       /* which of the prompt's times */
    struct matrix latent;               /* [channels, height * width], device; only read */
    struct matrix velocity; /* the same shape, device, the caller's: what the pass leaves, in the
                               convention latent += (sigma_next - sigma) * velocity */

    /* Between begin and end: */
    struct matrix hidden; /* [image_padded + padded, dim]: image, then caption */
    struct matrix time;   /* [1, t_dim]: the embedded timestep */
};

/* After a pass that was broken off: frees what it held. */
void zimage_lane_fini(struct exec *x, struct zimage_lane *lane);

#endif
