/* The configurations beside the weights, with the keys that diffusers and transformers write. */
#include "make_checkpoint.h"

#include "base/text.h"

typedef long long ll;

void make_dit_config(struct text *json, bool small)
{
    const struct make_dit_size *size = &make_dit_sizes[small];

    text_append(json,
        "{\n"
        "  \"_class_name\": \"ZImageTransformer2DModel\",\n"
        "  \"all_f_patch_size\": [1],\n"
        "  \"all_patch_size\": [2],\n"
        "  \"axes_dims\": [32, 48, 48],\n"
        "  \"axes_lens\": [1024, 512, 512],\n"
        "  \"cap_feat_dim\": %lld,\n"
        "  \"dim\": %lld,\n"
        "  \"in_channels\": %d,\n"
        "  \"n_heads\": %lld,\n"
        "  \"n_kv_heads\": %lld,\n"
        "  \"n_layers\": %lld,\n"
        "  \"n_refiner_layers\": %lld,\n"
        "  \"norm_eps\": 1e-05,\n"
        "  \"qk_norm\": true,\n"
        "  \"rope_theta\": 256.0,\n"
        "  \"siglip_feat_dim\": null,\n"
        "  \"t_scale\": 1000.0\n"
        "}\n",
        (ll)size->caption, (ll)size->dim, MAKE_VAE_LATENT, (ll)size->heads, (ll)size->heads,
        (ll)size->layers, (ll)size->refiners);
}

void make_text_config(struct text *json, bool small)
{
    make_qwen3_config(json, &make_text_sizes[small]);
}

void make_qwen3_config(struct text *json, const struct make_text_size *size)
{
    text_append(json,
        "{\n"
        "  \"architectures\": [\"Qwen3ForCausalLM\"],\n"
        "  \"attention_bias\": false,\n"
        "  \"head_dim\": %lld,\n"
        "  \"hidden_act\": \"silu\",\n"
        "  \"hidden_size\": %lld,\n"
        "  \"intermediate_size\": %lld,\n"
        "  \"max_position_embeddings\": 40960,\n"
        "  \"model_type\": \"qwen3\",\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_hidden_layers\": %lld,\n"
        "  \"num_key_value_heads\": %lld,\n"
        "  \"rms_norm_eps\": 1e-06,\n"
        "  \"rope_theta\": 1000000,\n"
        "  \"tie_word_embeddings\": true,\n"
        "  \"vocab_size\": %lld\n"
        "}\n",
        (ll)size->head_dim, (ll)size->hidden, (ll)size->ffn, (ll)size->heads, (ll)size->layers,
        (ll)size->kv_heads, (ll)size->vocabulary);
}

void make_vae_config(struct text *json, bool small)
{
    const int64_t *channels = make_vae_sizes[small].channels;

    text_append(json,
        "{\n"
        "  \"_class_name\": \"AutoencoderKL\",\n"
        "  \"act_fn\": \"silu\",\n"
        "  \"block_out_channels\": [%lld, %lld, %lld, %lld],\n"
        "  \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\",\n"
        "    \"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],\n"
        "  \"force_upcast\": true,\n"
        "  \"in_channels\": 3,\n"
        "  \"latent_channels\": %d,\n"
        "  \"layers_per_block\": %d,\n"
        "  \"mid_block_add_attention\": true,\n"
        "  \"norm_num_groups\": 32,\n"
        "  \"out_channels\": 3,\n"
        "  \"sample_size\": 1024,\n"
        "  \"scaling_factor\": 0.3611,\n"
        "  \"shift_factor\": 0.1159,\n"
        "  \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\",\n"
        "    \"UpDecoderBlock2D\", \"UpDecoderBlock2D\"],\n"
        "  \"use_post_quant_conv\": false,\n"
        "  \"use_quant_conv\": false\n"
        "}\n",
        (ll)channels[0], (ll)channels[1], (ll)channels[2], (ll)channels[3], MAKE_VAE_LATENT,
        MAKE_VAE_LAYERS);
}

void make_scheduler_config(struct text *json, bool small)
{
    (void)small;
    text_append(json, "{\n"
                      "  \"_class_name\": \"FlowMatchEulerDiscreteScheduler\",\n"
                      "  \"num_train_timesteps\": 1000,\n"
                      "  \"shift\": 3.0,\n"
                      "  \"use_dynamic_shifting\": false\n"
                      "}\n");
}

void make_model_index(struct text *json, bool small)
{
    (void)small;
    text_append(json, "{\n"
                      "  \"_class_name\": \"ZImagePipeline\",\n"
                      "  \"scheduler\": [\"diffusers\", \"FlowMatchEulerDiscreteScheduler\"],\n"
                      "  \"text_encoder\": [\"transformers\", \"Qwen3ForCausalLM\"],\n"
                      "  \"tokenizer\": [\"transformers\", \"Qwen2Tokenizer\"],\n"
                      "  \"transformer\": [\"diffusers\", \"ZImageTransformer2DModel\"],\n"
                      "  \"vae\": [\"diffusers\", \"AutoencoderKL\"]\n"
                      "}\n");
}
