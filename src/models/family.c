/*
 * The registry: families told apart by a few tensors' names and shapes, first match wins. A family
 * that this build runs has an open function; the others are here for the sake of good errors.
 */
#include "models/family.h"

#include "base/memory.h"
#include "checkpoint/json.h"
#include "models/dit/anima.h"
#include "models/dit/cosmos.h"
#include "models/dit/qwen_image.h"
#include "models/dit/zimage.h"
#include "models/source.h"
#include "models/text/qwen.h"
#include "models/text/t5.h"
#include "models/vae/klvae.h"
#include "models/vae/wanvae.h"

#include <stdio.h>
#include <string.h>

const char *family_kind_name(enum family_kind kind)
{
    static const char *const names[] = {"diffusion transformer", "text encoder", "VAE"};

    return names[kind];
}

/* ---- recognising ---- */

#define SIGN_MAX_KEYS 3

/* How a family is recognised: all of `has` (alternatives apart by '|') and none of `not` must be
 * there, under the prefix that the first key of `has` is found under. */
struct sign {
    const char *has[SIGN_MAX_KEYS], *not [SIGN_MAX_KEYS];
    /* If rows is not 0: the first tensor must be [rows, cols]. */
    int64_t rows, cols;
};

struct entry {
    struct family family;
    struct sign sign;
};

#define Z_QK "layers.0.attention.norm_k.weight|layers.0.attention.k_norm.weight"
#define FLUX_BLOCK                                                                                 \
    "double_blocks.0.img_attn.norm.key_norm.weight|double_blocks.0.img_attn.norm.key_norm.scale"

#define VL_QKV                                                                                     \
    "layers.0.self_attn.q_proj.bias|model.layers.0.self_attn.q_proj.bias|"                         \
    "language_model.layers.0.self_attn.q_proj.bias"
#define COSMOS_DIFFUSERS "transformer_blocks.0.norm1.linear_1.weight"
/* Nunchaku's files have the second one packed in their own way, which opening them says. */
#define QWEN_IMAGE                                                                                 \
    "txt_norm.weight",                                                                             \
        "transformer_blocks.0.img_mod.1.weight|transformer_blocks.0.img_mod.1.qweight"

static const struct entry entries[] = {
    /* ---- diffusion transformers ---- */
    {{"lumina-2", "Lumina 2", FAMILY_DIT, NULL},
        {.has = {"cap_embedder.1.weight", Z_QK}, .rows = 2304, .cols = 2304}},
    {{"lumina-2", "Lumina 2", FAMILY_DIT, NULL},
        {.has = {"cap_embedder.1.weight", Z_QK, "layers.0.adaLN_modulation.1.weight"}}},
    {{"z-image-omni", "Z-Image Omni", FAMILY_DIT, NULL},
        {.has = {"cap_embedder.1.weight", Z_QK, "siglip_embedder.1.weight"}}},
    {{"z-image-pixel", "Z-Image in pixel space", FAMILY_DIT, NULL},
        {.has = {"cap_embedder.1.weight", Z_QK,
             "dec_net.cond_embed.weight|dec_net.cond_embed.bias|dec_net.cond_embed.0.weight"}}},
    {{"z-image", "Z-Image", FAMILY_DIT, zimage_open},
        {.has = {"cap_embedder.1.weight", Z_QK, "cap_pad_token"}}},
    {{"ming-image", "Ming-Image", FAMILY_DIT, NULL}, {.has = {"cap_embedder.1.weight", Z_QK}}},
    {{"chroma", "Chroma", FAMILY_DIT, NULL},
        {.has = {FLUX_BLOCK, "distilled_guidance_layer.in_proj.weight|"
                             "distilled_guidance_layer.norms.0.scale"}}},
    {{"hunyuan-video", "HunyuanVideo", FAMILY_DIT, NULL},
        {.has = {FLUX_BLOCK, "txt_in.individual_token_refiner.blocks.0.norm1.weight"}}},
    {{"flux.2", "FLUX.2", FAMILY_DIT, NULL},
        {.has = {FLUX_BLOCK, "double_stream_modulation_img.lin.weight"}}},
    {{"flux.1", "FLUX.1", FAMILY_DIT, NULL}, {.has = {FLUX_BLOCK, "img_in.weight"}}},
    {{"flux.2", "FLUX.2", FAMILY_DIT, NULL},
        {.has = {"single_transformer_blocks.0.attn.norm_q.weight",
             "double_stream_modulation_img.linear.weight"}}},
    {{"flux.1", "FLUX.1", FAMILY_DIT, NULL},
        {.has = {"single_transformer_blocks.0.attn.norm_q.weight", "x_embedder.weight"}}},
    {{"ltx", "LTX", FAMILY_DIT, NULL}, {.has = {"adaln_single.emb.timestep_embedder.linear_1.bias"},
                                           .not = {"pos_embed.proj.bias"}}},
    {{"ltx", "LTX", FAMILY_DIT, NULL}, {.has = {"time_embed.emb.timestep_embedder.linear_1.bias",
                                            "transformer_blocks.0.scale_shift_table"}}},
    {{"wan", "Wan", FAMILY_DIT, NULL}, {.has = {"head.modulation"}}},
    {{"wan", "Wan", FAMILY_DIT, NULL},
        {.has = {"condition_embedder.time_proj.weight", "blocks.0.scale_shift_table"}}},
    {{"cosmos-predict1", "Cosmos-Predict1", FAMILY_DIT, NULL},
        {.has = {"blocks.block0.blocks.0.block.attn.to_q.0.weight"}}},
    {{"cosmos-predict1", "Cosmos-Predict1", FAMILY_DIT, NULL},
        {.has = {COSMOS_DIFFUSERS, "learnable_pos_embed.pos_emb_t"}}},
    {{"cosmos-predict2.5", "Cosmos-Predict2.5", FAMILY_DIT, NULL},
        {.has = {"blocks.0.mlp.layer1.weight|" COSMOS_DIFFUSERS, "crossattn_proj.0.weight"}}},
    {{"cosmos-transfer", "a control network of Cosmos-Transfer", FAMILY_DIT, NULL},
        {.has = {"control_blocks.0.norm1.linear_1.weight"}}},
    {{"anima", "Anima", FAMILY_DIT, anima_open},
        {.has = {"blocks.0.mlp.layer1.weight|" COSMOS_DIFFUSERS,
             "llm_adapter.blocks.0.cross_attn.q_proj.weight"}}},
    {{"cosmos", "Cosmos-Predict2", FAMILY_DIT, cosmos_open},
        {.has = {"blocks.0.mlp.layer1.weight"}}},
    {{"cosmos", "Cosmos-Predict2", FAMILY_DIT, cosmos_open},
        {.has = {COSMOS_DIFFUSERS, "time_embed.t_embedder.linear_1.weight"}}},
    {{"lens", "Lens", FAMILY_DIT, NULL}, {.has = {"transformer_blocks.0.img_mlp.w1.weight",
                                              "transformer_blocks.0.attn.norm_added_q.weight"}}},
    {{"mage-flow", "Mage-Flow", FAMILY_DIT, NULL},
        {.has = {"proj_out.weight", QWEN_IMAGE}, .rows = 128, .cols = 3072}},
    {{"qwen-image-controlnet", "a ControlNet of Qwen-Image", FAMILY_DIT, NULL},
        {.has = {QWEN_IMAGE, "controlnet_blocks.0.weight"}}},
    {{"qwen-image-layered", "Qwen-Image-Layered", FAMILY_DIT, NULL},
        {.has = {QWEN_IMAGE, "time_text_embed.addition_t_embedding.weight"}}},
    {{"qwen-image-edit-2511", "Qwen-Image-Edit-2511", FAMILY_DIT, NULL},
        {.has = {QWEN_IMAGE, "__index_timestep_zero__"}}},
    {{"qwen-image", "Qwen-Image", FAMILY_DIT, qwen_image_open}, {.has = {QWEN_IMAGE}}},
    {{"sd3", "Stable Diffusion 3", FAMILY_DIT, NULL},
        {.has = {"joint_blocks.0.x_block.attn.qkv.weight"}}},
    {{"sd-unet", "Stable Diffusion (a U-Net)", FAMILY_DIT, NULL},
        {.has = {"input_blocks.0.0.weight", "time_embed.0.weight"}}},
    {{"sd-unet", "Stable Diffusion (a U-Net)", FAMILY_DIT, NULL},
        {.has = {"down_blocks.0.resnets.0.time_emb_proj.weight"}}},

    /* ---- text encoders ---- */
    {{"gemma", "Gemma", FAMILY_TEXT, NULL}, {.has = {"layers.0.pre_feedforward_layernorm.weight"}}},
    {{"qwen3-moe", "Qwen3 mixture-of-experts", FAMILY_TEXT, NULL},
        {.has = {"layers.0.self_attn.q_norm.weight", "layers.0.mlp.gate.weight"}}},
    {{"qwen3", "Qwen3", FAMILY_TEXT, qwen3_open},
        {.has = {"layers.0.self_attn.q_norm.weight", "embed_tokens.weight"}}},
    {{"qwen2-vl", "Qwen2-VL", FAMILY_TEXT, NULL},
        {.has = {"visual.blocks.0.mlp.fc1.weight", VL_QKV}}},
    {{"qwen2.5-vl", "Qwen2.5-VL", FAMILY_TEXT, qwen_vl_open}, {.has = {QWEN_VL_VISION, VL_QKV}}},
    /* Without its vision model it looks like a plain Qwen2. */
    {{"qwen2.5-vl", "Qwen2.5-VL, or a plain Qwen2", FAMILY_TEXT, qwen_vl_open},
        {.has = {"layers.0.self_attn.q_proj.bias", "layers.0.mlp.gate_proj.weight"}}},
    {{"llama", "a Llama-like language model", FAMILY_TEXT, NULL},
        {.has = {"layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight"}}},
    {{"umt5", "UMT5", FAMILY_TEXT, t5_open},
        {.has = {"encoder.block.0.layer.0.SelfAttention.q.weight", T5_SECOND_BIAS}}},
    {{"t5", "T5", FAMILY_TEXT, t5_open},
        {.has = {"encoder.block.0.layer.0.SelfAttention.q.weight"}}},
    {{"clip", "CLIP", FAMILY_TEXT, NULL},
        {.has = {"text_model.encoder.layers.0.self_attn.q_proj.weight"}}},

    /* ---- VAEs ---- */
    {{"flux.2-vae", "FLUX.2 VAE", FAMILY_VAE, NULL},
        {.has = {"bn.running_mean", "decoder.conv_in.weight"}}},
    {{"wan2.2-vae", "Wan 2.2 VAE", FAMILY_VAE, NULL},
        {.has = {"decoder.middle.0.residual.0.gamma",
             "decoder.upsamples.0.upsamples.0.residual.2.weight"}}},
    {{"wan2.2-vae", "Wan 2.2 VAE", FAMILY_VAE, NULL},
        {.has = {"decoder.mid_block.resnets.0.norm1.gamma",
             "decoder.up_blocks.0.upsampler.resample.1.weight"}}},
    {{"wan-vae", "Wan 2.1 VAE", FAMILY_VAE, wanvae_open},
        {.has = {"decoder.middle.0.residual.0.gamma"}}},
    {{"wan-vae", "Wan 2.1 VAE", FAMILY_VAE, wanvae_open},
        {.has = {"decoder.mid_block.resnets.0.norm1.gamma"}}},
    {{"kl-vae", "KL autoencoder", FAMILY_VAE, klvae_open},
        {.has = {"decoder.mid_block.resnets.0.conv1.weight",
             "decoder.up_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight"}}},
    {{"kl-vae", "KL autoencoder", FAMILY_VAE, klvae_open},
        {.has = {"decoder.mid.block_1.conv1.weight", "decoder.up.0.block.0.conv1.weight",
             "decoder.conv_in.weight"}}},
    {{"ltx-vae", "LTX VAE", FAMILY_VAE, NULL},
        {.has = {"decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"}}},
    {{"taesd", "TAESD", FAMILY_VAE, NULL}, {.has = {"decoder.layers.1.weight"}}},
};

/* The first of the alternatives that is there: anywhere, or under `prefix` (of `prefix_bytes`). */
static const struct checkpoint_tensor *find_any(const struct checkpoint *checkpoint,
    const char *keys, const char *prefix, size_t prefix_bytes, size_t *key_bytes)
{
    while (*keys) {
        size_t length = strcspn(keys, "|");
        char name[512];
        const struct checkpoint_tensor *tensor = NULL;

        if (prefix_bytes + length < sizeof name) {
            if (prefix_bytes) memcpy(name, prefix, prefix_bytes);
            memcpy(name + prefix_bytes, keys, length);
            name[prefix_bytes + length] = 0;
            tensor = prefix ? checkpoint_find(checkpoint, name) : source_probe(checkpoint, name);
        }
        *key_bytes = length;
        if (tensor) return tensor;
        keys += length + (keys[length] == '|');
    }
    return NULL;
}

static bool matches(const struct checkpoint *checkpoint, const struct sign *sign)
{
    size_t key_bytes, prefix_bytes;
    const struct checkpoint_tensor *first = find_any(checkpoint, sign->has[0], NULL, 0, &key_bytes);

    if (!first) return false;
    prefix_bytes = strlen(first->name) - key_bytes;
    if (sign->rows && (first->shape.rank != 2 || first->shape.dim[0] != sign->rows ||
                          first->shape.dim[1] != sign->cols))
        return false;
    for (int i = 1; i < SIGN_MAX_KEYS && sign->has[i]; i++)
        if (!find_any(checkpoint, sign->has[i], first->name, prefix_bytes, &key_bytes))
            return false;
    for (int i = 0; i < SIGN_MAX_KEYS && sign->not [i]; i++)
        if (find_any(checkpoint, sign->not [i], first -> name, prefix_bytes, &key_bytes))
            return false;
    return true;
}

const struct family *family_detect(const struct checkpoint *checkpoint, enum family_kind kind)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (entries[i].family.kind == kind && matches(checkpoint, &entries[i].sign))
            return &entries[i].family;
    return NULL;
}

/* ---- opening ---- */

#define RUNS_BYTES 400

/* "Z-Image or FLUX.1": the titles of the families of that kind that this build runs. */
static const char *runs(char text[RUNS_BYTES], enum family_kind kind)
{
    const char *last = NULL;
    int used = snprintf(text, RUNS_BYTES, "none");

    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct family *f = &entries[i].family;

        if (f->kind != kind || !f->open || used >= RUNS_BYTES) continue;
        if (last && strcmp(last, f->title) == 0) continue; /* another layout of the same */
        if (!last) used = 0;
        used += snprintf(
            text + used, (size_t)(RUNS_BYTES - used), "%s%s", last ? " or " : "", f->title);
        last = f->title;
    }
    return text;
}

enum shoal_status family_open(const struct checkpoint *checkpoint, enum family_kind kind,
    const char *config_path, struct model **model, struct shoal_error *error)
{
    const struct family *family = family_detect(checkpoint, kind);
    const char *path = checkpoint_path(checkpoint);
    const char *type = checkpoint_metadata(checkpoint, "general.architecture");
    char shown[JSON_SHOWN_BYTES], known[RUNS_BYTES];

    *model = NULL;
    if (family && family->open) return family->open(checkpoint, config_path, model, error);
    if (family)
        FAIL(error, SHOAL_E_UNSUPPORTED, "%s is %s; the %s that this build runs is %s", path,
            family->title, family_kind_name(kind), runs(known, kind));
    for (int other = 0; other < FAMILY_KINDS; other++) {
        family = family_detect(checkpoint, (enum family_kind)other);
        if (family)
            FAIL(error, SHOAL_E_INVALID, "%s is %s, a %s; a %s (%s) is needed here", path,
                family->title, family_kind_name(family->kind), family_kind_name(kind),
                runs(known, kind));
    }
    if (type) /* a GGUF file says what it is */
        FAIL(error, SHOAL_E_UNSUPPORTED,
            "%s: its general.architecture is \"%s\", and its %zu tensors are of no known %s; the "
            "one that this build runs is %s",
            path, json_show(shown, type), checkpoint_count(checkpoint), family_kind_name(kind),
            runs(known, kind));
    FAIL(error, SHOAL_E_UNSUPPORTED,
        "%s: its %zu tensors are of no known %s; the one that this build runs is %s", path,
        checkpoint_count(checkpoint), family_kind_name(kind), runs(known, kind));
}

enum shoal_status family_config_beside(
    const char *checkpoint_path, char **config_path, struct shoal_error *error)
{
    const char *slash = strrchr(checkpoint_path, '/');
    size_t folder_bytes = slash ? (size_t)(slash - checkpoint_path) + 1 : 0;
    char *path;

    *config_path = NULL;
    if (file_kind(checkpoint_path) == FILE_FOLDER)
        path = mem_format("%s/config.json", checkpoint_path);
    else
        path = mem_format("%.*sconfig.json", (int)folder_bytes, checkpoint_path);
    if (!path) FAIL_MEMORY(error);
    if (file_kind(path) == FILE_NONE)
        mem_free(path);
    else
        *config_path = path;
    return SHOAL_OK;
}
