/*
 * Key prefixes: where a component's tensors lie in a checkpoint that holds them under a prefix, as
 * files with several components do. Which names follow the prefix is the model family's business.
 */
#ifndef CHECKPOINT_KEYS_H
#define CHECKPOINT_KEYS_H

#include "checkpoint/checkpoint.h"

/* The prefixes that each component is known to have, for keys_prefix; "" is the last. */
extern const char *const keys_dit_prefixes[];
extern const char *const keys_vae_prefixes[];
extern const char *const keys_text_prefixes[];

/*
 * The first of `candidates` (NULL-terminated) for which a tensor named candidate + probe exists;
 * NULL if there is none. Probe with a name that only this component has.
 */
const char *keys_prefix(
    const struct checkpoint *checkpoint, const char *const *candidates, const char *probe);

/* The tensor named prefix + name, or NULL. */
const struct checkpoint_tensor *keys_find(
    const struct checkpoint *checkpoint, const char *prefix, const char *name);

/*
 * The names that llama.cpp's converter gives a language model's tensors, as the families know them:
 * "blk.3.attn_q.weight" is "layers.3.self_attn.q_proj.weight", and of an encoder's
 * "enc.blk.3.attn_q.weight" is "encoder.block.3.layer.0.SelfAttention.q.weight". All other names
 * are left alone.
 * Writes the name, a 0 after it, to `to`, which has room for KEYS_CANONICAL_GROWTH more bytes than
 * `name` takes; returns its length.
 */
#define KEYS_CANONICAL_GROWTH 48
size_t keys_canonical(const char *name, size_t bytes, char *to);

#endif
