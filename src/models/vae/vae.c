/* What VAEs of all families have in common: an encoder and its decoder. */
#include "models/vae/vae.h"

enum shoal_status vae_encoder_missing(
    const struct checkpoint *checkpoint, struct shoal_error *error)
{
    FAIL(error, SHOAL_E_MISSING,
        "%s: the VAE has no encoder, which a picture to begin with needs; take a file that has "
        "\"encoder.\" tensors (--vae)",
        checkpoint_path(checkpoint));
}

enum shoal_status vae_encoder_fits(const struct vae_config *encoder,
    const struct vae_config *decoder, const char *path, struct shoal_error *error)
{
    if (encoder->latent_channels != decoder->latent_channels || encoder->factor != decoder->factor)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: the VAE's encoder makes %lld latent channels at 1/%d of the size, its decoder "
            "takes %lld at 1/%d",
            path, (long long)encoder->latent_channels, (int)encoder->factor,
            (long long)decoder->latent_channels, (int)decoder->factor);
    return SHOAL_OK;
}
