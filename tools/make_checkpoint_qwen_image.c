/* Qwen-Image's models: the tensors of its transformer and of Qwen2.5-VL, and their
 * configurations. */
#include "make_checkpoint.h"

#include "base/text.h"

#include <stdio.h>

typedef long long ll;

/* [0] the real one, [1] the small one. */
static const struct {
    int64_t dim, layers, heads, width, ffn;
} dit_sizes[2] = {{3072, 60, 24, 3584, 12288}, {128, 3, 1, 256, 512}};
static const struct make_text_size text_sizes[2] = {
    {3584, 28, 28, 4, 128, 18944, 152064}, {256, 3, 2, 1, 128, 512, 2048}};
/* Of the first matrix of Qwen2.5-VL's vision model. */
static const int64_t vision_sizes[2][2] = {{3420, 1280}, {24, 16}};

enum { PATCH = 4 * MAKE_VAE_LATENT, FREQUENCIES = 256 };

/* ---- tensors: all have one name in both layouts ---- */

/* "NAME.weight" and "NAME.bias". */
static void pair(struct make_list *list, const char *name, int64_t outputs, int64_t inputs)
{
    char full[96];

    snprintf(full, sizeof full, "%s.weight", name);
    list_linear(list, full, full, outputs, inputs);
    snprintf(full, sizeof full, "%s.bias", name);
    list_bias(list, full, full, outputs);
}

static void double_block(struct make_list *list, int64_t d, int64_t ffn, int64_t head)
{
    static const char *const squares[] = {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"};
    static const char *const norms[] = {"attn.norm_q.weight", "attn.norm_k.weight",
        "attn.norm_added_q.weight", "attn.norm_added_k.weight"};

    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        pair(list, squares[i], d, d);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        list_norm(list, norms[i], norms[i], head);
    pair(list, "img_mod.1", 6 * d, d);
    pair(list, "txt_mod.1", 6 * d, d);
    pair(list, "img_mlp.net.0.proj", ffn, d);
    pair(list, "img_mlp.net.2", d, ffn);
    pair(list, "txt_mlp.net.0.proj", ffn, d);
    pair(list, "txt_mlp.net.2", d, ffn);
}

void make_qwen_image_dit(struct make_list *list, bool small)
{
    const int64_t d = dit_sizes[small].dim, width = dit_sizes[small].width;

    list->component = "dit";
    list_scope(list, "", "");
    list_norm(list, "txt_norm.weight", "txt_norm.weight", width);
    pair(list, "txt_in", d, width);
    pair(list, "img_in", d, PATCH);
    pair(list, "time_text_embed.timestep_embedder.linear_1", d, FREQUENCIES);
    pair(list, "time_text_embed.timestep_embedder.linear_2", d, d);
    for (int i = 0; i < dit_sizes[small].layers; i++) {
        char name[64];

        snprintf(name, sizeof name, "transformer_blocks.%d.", i);
        list_scope(list, name, name);
        double_block(list, d, dit_sizes[small].ffn, d / dit_sizes[small].heads);
    }
    list_scope(list, "", "");
    pair(list, "norm_out.linear", 2 * d, d);
    pair(list, "proj_out", PATCH, d);
}

/* The language model, and as much of the vision model as tells it from a plain Qwen2. */
void make_qwen_vl(struct make_list *list, bool small)
{
    make_language_model(list, &text_sizes[small], true);
    list_scope(list, "visual.blocks.0.", "visual.blocks.0.");
    list_linear(list, "mlp.gate_proj.weight", "mlp.gate_proj.weight", vision_sizes[small][0],
        vision_sizes[small][1]);
}

/* ---- configurations ---- */

void make_qwen_image_config(struct text *json, bool small)
{
    const int64_t head = dit_sizes[small].dim / dit_sizes[small].heads;

    text_append(json,
        "{\n"
        "  \"_class_name\": \"QwenImageTransformer2DModel\",\n"
        "  \"attention_head_dim\": %lld,\n"
        "  \"axes_dims_rope\": [16, 56, 56],\n"
        "  \"guidance_embeds\": false,\n"
        "  \"in_channels\": %d,\n"
        "  \"joint_attention_dim\": %lld,\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_layers\": %lld,\n"
        "  \"out_channels\": %d,\n"
        "  \"patch_size\": 2\n"
        "}\n",
        (ll)head, PATCH, (ll)dit_sizes[small].width, (ll)dit_sizes[small].heads,
        (ll)dit_sizes[small].layers, MAKE_VAE_LATENT);
}

void make_qwen_vl_config(struct text *json, bool small)
{
    const struct make_text_size *size = &text_sizes[small];

    text_append(json,
        "{\n"
        "  \"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"],\n"
        "  \"hidden_act\": \"silu\",\n"
        "  \"hidden_size\": %lld,\n"
        "  \"intermediate_size\": %lld,\n"
        "  \"max_position_embeddings\": 128000,\n"
        "  \"model_type\": \"qwen2_5_vl\",\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_hidden_layers\": %lld,\n"
        "  \"num_key_value_heads\": %lld,\n"
        "  \"rms_norm_eps\": 1e-06,\n"
        "  \"rope_scaling\": {\"mrope_section\": [16, 24, 24], \"rope_type\": \"default\",\n"
        "    \"type\": \"default\"},\n"
        "  \"rope_theta\": 1000000.0,\n"
        "  \"tie_word_embeddings\": false,\n"
        "  \"use_sliding_window\": false,\n"
        "  \"vocab_size\": %lld\n"
        "}\n",
        (ll)size->hidden, (ll)size->ffn, (ll)size->heads, (ll)size->layers, (ll)size->kv_heads,
        (ll)size->vocabulary);
}

void make_qwen_image_scheduler(struct text *json, bool small)
{
    (void)small;
    text_append(json, "{\n"
                      "  \"_class_name\": \"FlowMatchEulerDiscreteScheduler\",\n"
                      "  \"base_image_seq_len\": 256,\n"
                      "  \"base_shift\": 0.5,\n"
                      "  \"max_image_seq_len\": 8192,\n"
                      "  \"max_shift\": 0.9,\n"
                      "  \"num_train_timesteps\": 1000,\n"
                      "  \"shift\": 1.0,\n"
                      "  \"shift_terminal\": 0.02,\n"
                      "  \"time_shift_type\": \"exponential\",\n"
                      "  \"use_dynamic_shifting\": true\n"
                      "}\n");
}

void make_qwen_image_index(struct text *json, bool small)
{
    (void)small;
    text_append(json,
        "{\n"
        "  \"_class_name\": \"QwenImagePipeline\",\n"
        "  \"scheduler\": [\"diffusers\", \"FlowMatchEulerDiscreteScheduler\"],\n"
        "  \"text_encoder\": [\"transformers\", \"Qwen2_5_VLForConditionalGeneration\"],\n"
        "  \"tokenizer\": [\"transformers\", \"Qwen2Tokenizer\"],\n"
        "  \"transformer\": [\"diffusers\", \"QwenImageTransformer2DModel\"],\n"
        "  \"vae\": [\"diffusers\", \"AutoencoderKLQwenImage\"]\n"
        "}\n");
}
