/*
 * Scales of F8 weights, as checkpoints have them. Beside "LAYER.weight" lies its scale, one number,
 * as "LAYER.weight_scale" or, in files of before, "LAYER.scale_weight"; none is 1. Which format a
 * layer is in says JSON in "LAYER.comfy_quant" or, of all layers, in the header's metadata
 * ("_quantization_metadata"). Scales of inputs are for products in F8, which nothing here computes.
 */
#ifndef MODELS_SCALES_H
#define MODELS_SCALES_H

#include "checkpoint/checkpoint.h"

struct scales {
    const struct checkpoint *checkpoint;
    json_t *layers; /* of the metadata; NULL: there is none */
};

/* SHOAL_E_UNSUPPORTED names a layer under the prefix whose format is not computed with. */
enum shoal_status scales_open(struct scales *scales, const struct checkpoint *checkpoint,
    const char *prefix, struct shoal_error *error) SHOAL_CHECKED;
void scales_close(struct scales *scales); /* accepts a zeroed one */

/* A weight's scale: 1 for most. Reads a few bytes of the file. */
enum shoal_status scales_find(const struct scales *scales, const struct checkpoint_tensor *weight,
    float *scale, struct shoal_error *error) SHOAL_CHECKED;

/* Of tensors under the prefix, how many are scales of inputs. */
size_t scales_of_inputs(const struct checkpoint *checkpoint, const char *prefix);

#endif
