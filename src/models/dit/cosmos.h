/* Cosmos-Predict2's diffusion transformer for pictures: a family of dit.h's; and what Anima, which
 * has the same one behind an adapter of its own, shares with it. */
#ifndef MODELS_DIT_COSMOS_H
#define MODELS_DIT_COSMOS_H

#include "models/dit/dit.h"

#define COSMOS_PATCH 2     /* pixels of the latent a side */
#define COSMOS_CONTEXT 512 /* rows of the context: what a prompt lacks of them are zeros */

struct cosmos_config {
    struct dit_config base;
    int64_t dim, ffn_dim, lora_dim, context_dim;
    int32_t heads, head_dim, layers;
    int32_t axes[3]; /* of a head's dimensions: time, row, column */
    double theta[3]; /* of each */
    bool diffusers;  /* its tensors are named as diffusers names them */
};

/*
 * `config_path`: a config.json that says what shapes do not and must agree where they do, or NULL
 * for the published values. The checkpoint must outlive the model.
 */
enum shoal_status cosmos_open(const struct checkpoint *checkpoint, const char *config_path,
    struct model **model, struct shoal_error *error) SHOAL_CHECKED;

static inline const struct cosmos_config *cosmos_config(const struct model *model)
{
    return model->config;
}

/* ---- for Anima, whose config begins with a cosmos_config ---- */

/*
 * A prompt's tables. The context pass makes of the sinusoids [steps, dim] of TIMES what blocks are
 * modulated by, and SHARED [steps, 3 dim], which it adds; CONTEXT [padded, ...] it moves to the
 * prompt's `context`. Others are free for the family.
 */
enum { COSMOS_TIMES, COSMOS_SHARED, COSMOS_ROPE, COSMOS_CONTEXT_ROWS, COSMOS_TABLES };

struct source;
struct source_family;

/* Sets source->key to the name of the patches' embedder in this checkpoint's layout. */
void cosmos_find_key(struct source_family *source, const struct checkpoint *checkpoint);

/* Reads all but base.family and base.width from the tensors and the config. */
void cosmos_read_config(struct source *source, struct cosmos_config *config);

/* dit_family's, but for CONTEXT: its cols and what it is filled with. */
void cosmos_measure(struct dit_prompt *prompt);
enum shoal_status cosmos_fill(
    struct dit_prompt *prompt, const struct dit_prompt_spec *spec, struct shoal_error *error);

/* For the context pass's begin: uploads the tables and moves CONTEXT. */
void cosmos_begin_context(struct exec *x, struct dit_prompt *prompt);

/* Blocks, in this order: the globals of the step pass, whose index it returns; the one that embeds
 * the times, for the context pass; the layers. */
int32_t cosmos_build_ends(struct model_builder *builder, const struct cosmos_config *config);
void cosmos_build_times(struct model_builder *builder, const struct cosmos_config *config);
void cosmos_build_layers(struct model_builder *builder, const struct cosmos_config *config);
/* `first`: of the layers. */
struct pass cosmos_step_pass(const struct cosmos_config *config, int32_t globals, int32_t first);

#endif
