"""Golden VAE decoder: small random models of diffusers' AutoencoderKL, decoder weights only.

in.latent [16,h,w] as the pipeline's last step leaves it; in.z = latent / scaling_factor + shift_factor
out.<stage> channels first; out.image [3,8h,8w] before the clamp; out.u8 [8h,8w,3] as the pipeline's picture
"""
import numpy as np

from common import fill, randn, torch, write

from diffusers import AutoencoderKL
from diffusers.image_processor import VaeImageProcessor

CASES = {
    "l1": dict(channels=[8, 16, 16, 24], lpb=1, hw=(5, 7), seed=31),
    "l2": dict(channels=[8, 8, 16, 16], lpb=2, hw=(3, 4), seed=32),
}


def build(c):
    config = dict(
        in_channels=3, out_channels=3, down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4, block_out_channels=c["channels"], layers_per_block=c["lpb"],
        act_fn="silu", latent_channels=16, norm_num_groups=8, sample_size=64, scaling_factor=0.3611,
        shift_factor=0.1159, force_upcast=False, use_quant_conv=False, use_post_quant_conv=False,
        mid_block_add_attention=True,
    )
    return fill(AutoencoderKL(**config), c["seed"]), dict(config, _class_name="AutoencoderKL")


def main():
    for name, c in CASES.items():
        vae, config = build(c)
        got, hooks = {}, []

        def keep(key):
            def hook(_m, _i, o):
                got["out." + key] = o[0].clone()
            return hook

        dec = vae.decoder
        hooks.append(dec.conv_in.register_forward_hook(keep("conv_in")))
        hooks.append(dec.mid_block.register_forward_hook(keep("mid_block")))
        hooks.append(dec.mid_block.attentions[0].register_forward_hook(keep("mid_block.attentions.0")))
        for i, b in enumerate(dec.up_blocks[:3]):
            if c["hw"][0] * c["hw"][1] * 4 ** (i + 1) * config["block_out_channels"][3 - i] < 14000:
                hooks.append(b.register_forward_hook(keep(f"up_blocks.{i}")))
        gen = torch.Generator("cpu").manual_seed(3000 + c["seed"])
        latent = randn(gen, 16, *c["hw"])
        with torch.no_grad():
            z = latent / vae.config.scaling_factor + vae.config.shift_factor
            image = vae.decode(z[None], return_dict=False)[0]
        pil = VaeImageProcessor(vae_scale_factor=16).postprocess(image, output_type="pil")[0]
        u8 = torch.from_numpy(np.array(pil))
        want = np.round(np.clip(image[0].numpy() * np.float32(0.5) + np.float32(0.5), 0, 1) * np.float32(255))
        assert (want.transpose(1, 2, 0).astype(np.uint8) == u8.numpy()).all()
        state = {"weights." + k: v for k, v in vae.state_dict().items() if k.startswith("decoder.")}
        print(" ", name, {k: round(float(v.std()), 2) for k, v in got.items()}, "image", float(image.std()),
              "clipped", float((image.abs() > 1).float().mean()))
        write(f"vae_{name}", {**state, "in.latent": latent, "in.z": z, **got, "out.image": image[0], "out.u8": u8},
              config, "AutoencoderKL decoder in f32, diffusers names")


if __name__ == "__main__":
    main()
