/* Finding and opening a model's tokenizers, and a request's tokens. */
#ifndef PIPELINE_TOKENS_H
#define PIPELINE_TOKENS_H

#include "pipeline/parts.h"
#include "tokenizer/chat.h"

/* *path: the file in a model's or a text encoder's folder, of whatever kind, that tokenizer `which`
 * is read from: 0, or 1 of DiTs that take prompts in two. NULL if there is none; mem_free'd by the
 * caller. */
enum shoal_status tokens_find(
    const char *folder, int which, char **path, struct shoal_error *error) SHOAL_CHECKED;

/* Whether a text encoder's files bring the first tokenizer themselves. */
bool tokens_within(const struct checkpoint *text);

/* The tokenizers that the model's DiT takes prompts in. The parts must be open. */
enum shoal_status tokens_open(const struct shoal_model_paths *paths, struct allowance *reading,
    struct shoal_model *model, struct shoal_error *error) SHOAL_CHECKED;
void tokens_close(struct shoal_model *model);

/* A prompt in each of the model's tokenizers, as its DiT takes it. tokens[i].ids are mem_free'd by
 * the owner, if this fails too. */
enum shoal_status tokens_encode(const struct shoal_model *model, const char *prompt,
    struct chat_tokens tokens[MODEL_TOKENIZERS], struct shoal_error *error) SHOAL_CHECKED;

#endif
