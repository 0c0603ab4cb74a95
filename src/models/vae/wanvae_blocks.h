/* What the decoder and the encoder of the Wan VAE are made of. For wanvae.c alone. */
#ifndef MODELS_VAE_WANVAE_BLOCKS_H
#define MODELS_VAE_WANVAE_BLOCKS_H

#include "models/vae/wanvae.h"

/* Weights: post_quant's convolution and its bias, conv in and its bias. */
block_forward wanvae_decode_in;

/* Weights: norm, conv out, its bias. */
block_forward wanvae_decode_out;

/* Weights: norm, conv out, its bias, quant's convolution and its bias. */
block_forward wanvae_encode_out;

/* Weights: norm, convolution, its bias, norm, convolution, its bias; where the number of channels
 * changes, the shortcut's convolution and its bias. */
block_forward wanvae_resnet;

/* Weights: norm; q, k and v together, their bias; the projection, its bias. */
block_forward wanvae_attention;

#endif
