"""Golden VAE encoder: small random models of diffusers' AutoencoderKL, encoder weights only, rounded to bfloat16.

in.image [3,H,W] in -1..1; out.<stage> channels first; out.latent [16,h,w] = (mean - shift_factor) * scaling_factor
"""
from common import fill, torch, write

from diffusers import AutoencoderKL

CASES = {
    "e1": dict(channels=[8, 8, 16, 16], lpb=1, quant=False, hw=(24, 40), seed=41),
    "e2": dict(channels=[8, 16], lpb=2, quant=True, hw=(36, 26), seed=42),
}


def build(c):
    levels = len(c["channels"])
    config = dict(
        in_channels=3, out_channels=3, down_block_types=["DownEncoderBlock2D"] * levels,
        up_block_types=["UpDecoderBlock2D"] * levels, block_out_channels=c["channels"], layers_per_block=c["lpb"],
        act_fn="silu", latent_channels=16 if levels == 4 else 4, norm_num_groups=8, sample_size=64, scaling_factor=0.3611,
        shift_factor=0.1159, force_upcast=False, use_quant_conv=c["quant"], use_post_quant_conv=c["quant"],
        mid_block_add_attention=True,
    )
    return fill(AutoencoderKL(**config), c["seed"], bf16=True), dict(config, _class_name="AutoencoderKL")


def main():
    for name, c in CASES.items():
        vae, config = build(c)
        got = {}

        def keep(key):
            def hook(_m, _i, o):
                got["out." + key] = o[0].clone()
            return hook

        enc = vae.encoder
        enc.down_blocks[0].register_forward_hook(keep("down_blocks.0"))
        enc.mid_block.register_forward_hook(keep("mid_block"))
        gen = torch.Generator("cpu").manual_seed(4000 + c["seed"])
        image = torch.rand(3, *c["hw"], generator=gen) * 2 - 1
        with torch.no_grad():
            mean = vae.encode(image[None]).latent_dist.mode()[0]
        latent = (mean - vae.config.shift_factor) * vae.config.scaling_factor
        state = {"weights." + k: v.bfloat16() for k, v in vae.state_dict().items()
                 if k.startswith(("encoder.", "quant_conv."))}
        print(" ", name, {k: round(float(v.std()), 2) for k, v in got.items()}, "latent", float(latent.std()))
        write(f"vae_{name}", {**state, "in.image": image, **got, "out.latent": latent}, config,
              "AutoencoderKL encoder in f32, diffusers names")


if __name__ == "__main__":
    main()
