/* An adapter of every kind: of the fused attention, of an MLP, of the final layer (which stays on
 * the device) and of the text encoder; and differences of a norm, and of one of q, k and v. */
#include "unit/mini_adapter.h"

#include "unit/tensor_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct tensor_spec tensors[] = {
    {"lora_unet_layers_0_attention_qkv.lora_up.weight", DTYPE_BF16, SHAPE2(576, 4)},
    {"lora_unet_layers_0_attention_qkv.lora_down.weight", DTYPE_BF16, SHAPE2(4, 192)},
    {"lora_unet_layers_3_feed_forward_w2.lora_up.weight", DTYPE_F32, SHAPE2(192, 33)},
    {"lora_unet_layers_3_feed_forward_w2.lora_down.weight", DTYPE_F32, SHAPE2(33, 512)},
    {"lora_unet_final_layer_linear.lora_up.weight", DTYPE_F32, SHAPE2(64, 2)},
    {"lora_unet_final_layer_linear.lora_down.weight", DTYPE_F32, SHAPE2(2, 192)},
    {"lora_te_layers_0_self_attn_q_proj.lora_up.weight", DTYPE_F32, SHAPE2(192, 3)},
    {"lora_te_layers_0_self_attn_q_proj.lora_down.weight", DTYPE_F32, SHAPE2(3, 192)},
    {"transformer.layers.2.attention.to_k.diff", DTYPE_F32, SHAPE2(192, 192)},
    {"transformer.layers.4.attention.norm_q.diff", DTYPE_F32, SHAPE1(64)},
    {"transformer.layers.5.feed_forward.w1.lokr_w1", DTYPE_F32, SHAPE2(16, 12)},
    {"transformer.layers.5.feed_forward.w1.lokr_w2", DTYPE_F32, SHAPE2(32, 16)},
};

enum shoal_status mini_adapter_write(char path[MINI_ADAPTER_PATH], struct shoal_error *error)
{
    int fd;

    strcpy(path, "/tmp/shoal-adapter-XXXXXX.safetensors");
    fd = mkstemps(path, 12);
    if (fd < 0 || close(fd)) FAIL(error, SHOAL_E_IO, "no file in /tmp");
    return tensor_file_write(path, tensors, sizeof tensors / sizeof *tensors, NULL, true, error);
}
