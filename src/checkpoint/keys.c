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
    static const char block[] = "blk.", layers[] = "layers.";
    const char *end = name + bytes, *at = name;
    const struct renaming *found;
    char *out = to;

    if (bytes > strlen(block) && !memcmp(name, block, strlen(block))) {
        at += strlen(block);
        while (at < end && *at >= '0' && *at <= '9')
            at++;
        if (at < end && *at == '.') at++;
        found = renaming_of(
            layer_names, sizeof layer_names / sizeof *layer_names, at, (size_t)(end - at));
        memcpy(out, layers, strlen(layers));
        out += strlen(layers);
        memcpy(out, name + strlen(block), (size_t)(at - name) - strlen(block));
        out += (size_t)(at - name) - strlen(block);
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
