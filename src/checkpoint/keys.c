/* Key prefixes of components, and names in other styles. */
#include "checkpoint/keys.h"

#include <string.h>

const char *const keys_dit_prefixes[] = {
    "model.diffusion_model.", "model.model.", "net.", "model.", "", NULL};
const char *const keys_vae_prefixes[] = {"first_stage_model.", "vae.", "", NULL};
/* Saved with a language model's head the names begin with "model.", without it they don't. */
const char *const keys_text_prefixes[] = {"text_encoders.qwen3_4b.transformer.model.",
    "text_encoders.qwen3_4b.transformer.", "text_encoder.model.", "text_encoder.", "model.", "",
    NULL};

/* strcmp(prefix + name, full), without joining them. */
static int compare(const char *prefix, size_t length, const char *name, const char *full)
{
    int order = strncmp(prefix, full, length);

    return order ? order : strcmp(name, full + length);
}

const struct checkpoint_tensor *keys_find(
    const struct checkpoint *checkpoint, const char *prefix, const char *name)
{
    size_t low = 0, high = checkpoint_count(checkpoint), length = strlen(prefix);

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, middle);
        int order = compare(prefix, length, name, tensor->name);

        if (!order) return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *keys_prefix(
    const struct checkpoint *checkpoint, const char *const *candidates, const char *probe)
{
    for (; *candidates; candidates++)
        if (keys_find(checkpoint, *candidates, probe)) return *candidates;
    return NULL;
}

/* ---- llama.cpp's names ---- */

struct renaming {
    const char *from, *to;
};

static const struct renaming model_names[] = {
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"output", "lm_head"},
    {"enc.output_norm", "encoder.final_layer_norm"},
};

static const struct renaming layer_names[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

/* T5's. An ungated ffn_up is really "wi", which cannot be told here. */
static const struct renaming encoder_names[] = {
    {"attn_norm", "layer.0.layer_norm"},
    {"attn_q", "layer.0.SelfAttention.q"},
    {"attn_k", "layer.0.SelfAttention.k"},
    {"attn_v", "layer.0.SelfAttention.v"},
    {"attn_o", "layer.0.SelfAttention.o"},
    {"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"},
    {"ffn_norm", "layer.1.layer_norm"},
    {"ffn_gate", "layer.1.DenseReluDense.wi_0"},
    {"ffn_up", "layer.1.DenseReluDense.wi_1"},
    {"ffn_down", "layer.1.DenseReluDense.wo"},
};

/* What comes before a layer's number, and the names after it. */
static const struct group {
    const char *from, *to;
    const struct renaming *names;
    size_t count;
} groups[] = {
    {"blk.", "layers.", layer_names, sizeof layer_names / sizeof *layer_names},
    {"enc.blk.", "encoder.block.", encoder_names, sizeof encoder_names / sizeof *encoder_names},
};

static const struct group *group_of(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        size_t length = strlen(groups[i].from);

        if (bytes > length && !memcmp(name, groups[i].from, length)) return &groups[i];
    }
    return NULL;
}

/* The entry for the name that ends at the first '.', or NULL. */
static const struct renaming *renaming_of(
    const struct renaming *list, size_t count, const char *name, size_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(list[i].from);

        if (bytes > length && name[length] == '.' && !memcmp(name, list[i].from, length))
            return &list[i];
    }
    return NULL;
}

size_t keys_canonical(const char *name, size_t bytes, char *to)
{
    const char *end = name + bytes, *at = name;
    const struct group *group = group_of(name, bytes);
    const struct renaming *found;
    char *out = to;

    if (group) {
        const char *number = at += strlen(group->from);

        while (at < end && *at >= '0' && *at <= '9')
            at++;
        if (at < end && *at == '.') at++;
        found = renaming_of(group->names, group->count, at, (size_t)(end - at));
        memcpy(out, group->to, strlen(group->to));
        out += strlen(group->to);
        memcpy(out, number, (size_t)(at - number));
        out += at - number;
    } else {
        found = renaming_of(model_names, sizeof model_names / sizeof *model_names, name, bytes);
    }
    if (found) {
        memcpy(out, found->to, strlen(found->to));
        out += strlen(found->to);
        at += strlen(found->from);
    }
    memcpy(out, at, (size_t)(end - at));
    out += end - at;
    *out = 0;
    return (size_t)(out - to);
}
