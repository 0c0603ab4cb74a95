/* The families that make_checkpoint makes, and what their files are called. */
#include "make_checkpoint.h"

#include <string.h>

#define T5                                                                                         \
    {                                                                                              \
        make_t5, make_t5_config, "oldt5_xxl.safetensors", "", "text_encoders.t5xxl.transformer."   \
    }

#define WAN_VAE                                                                                    \
    {                                                                                              \
        make_wan_vae, make_wan_vae_config, "qwen_image_vae.safetensors", "", "vae."                \
    }

static const struct make_family families[] = {
    {.name = "z-image",
        .parts = {{make_z_image_dit, make_dit_config, "z_image.safetensors",
                      "model.diffusion_model.", "model.diffusion_model."},
            {make_qwen3, make_text_config, "qwen_3_4b.safetensors", "",
                "text_encoders.qwen3_4b.transformer."},
            {make_flux_vae, make_vae_config, "ae.safetensors", "", "vae."}},
        .scheduler = make_scheduler_config,
        .index = make_model_index},
    {.name = "qwen-image",
        .parts = {{make_qwen_image_dit, make_qwen_image_config, "qwen_image.safetensors", "",
                      "model.diffusion_model."},
            {make_qwen_vl, make_qwen_vl_config, "qwen_2.5_vl_7b.safetensors", "",
                "text_encoders.qwen25_7b.transformer."},
            WAN_VAE},
        .scheduler = make_qwen_image_scheduler,
        .index = make_qwen_image_index},
    {.name = "cosmos-2b",
        .parts = {{make_cosmos_2b, make_cosmos_2b_config, "cosmos_predict2_2B_t2i.safetensors",
                      "net.", "model.diffusion_model."},
            T5, WAN_VAE}},
    {.name = "cosmos-14b",
        .parts = {{make_cosmos_14b, make_cosmos_14b_config, "cosmos_predict2_14B_t2i.safetensors",
                      "net.", "model.diffusion_model."},
            T5, WAN_VAE}},
    {.name = "anima",
        .parts = {{make_cosmos_2b, make_cosmos_2b_config, "anima.safetensors", "net.",
                      "model.diffusion_model.", make_anima_adapter, make_anima_adapter_config,
                      "text_conditioner"},
            {make_qwen3_small, make_qwen3_small_config, "qwen_3_06b_base.safetensors", "",
                "text_encoders.qwen3_06b.transformer."},
            WAN_VAE}},
};

const char make_family_names[] = "z-image, qwen-image, cosmos-2b, cosmos-14b, anima";

const struct make_family *make_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!name || !strcmp(families[i].name, name)) return &families[i];
    return NULL;
}

unsigned make_family_parts(const struct make_family *family)
{
    unsigned parts = 0;

    for (int i = 0; i < MAKE_PARTS; i++)
        if (family->parts[i].fill) parts |= 1u << i;
    return parts;
}
