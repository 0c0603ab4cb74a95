"""Golden Wan VAE for single frames: small random models of diffusers' AutoencoderKLQwenImage and AutoencoderKLWan.

wan_vae_d* are decoders: in.latent [z,h,w] as the pipeline's last step leaves it; out.image [3,f h,f w] before the clamp.
wan_vae_e* are encoders: in.image [3,f h,f w] in -1..1; out.latent = (mean - latents_mean) / latents_std.
out.<stage> channels first. Weights are rounded to bfloat16: case 1 has diffusers' names, case 2 those of the original.

With the path of a ComfyUI tree, its WanVAE with the original names must give the same.
"""
import re
import sys

from common import fill, randn, torch, write

from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan

CASES = {
    "1": dict(kind=AutoencoderKLQwenImage, base=3, mult=[1, 2, 4, 4], blocks=1, z=16, hw=(3, 4), seed=51),
    "2": dict(kind=AutoencoderKLWan, base=5, mult=[1, 2], blocks=2, z=4, hw=(13, 9), seed=52),
}


def build(c):
    config = dict(base_dim=c["base"], z_dim=c["z"], dim_mult=c["mult"], num_res_blocks=c["blocks"], attn_scales=[],
                  temperal_downsample=[False, True, True][3 - len(c["mult"]) + 1:], dropout=0.0)
    gen = torch.Generator("cpu").manual_seed(5000 + c["seed"])
    if c["z"] != 16:  # else the published ones
        config["latents_mean"] = [round(float(v), 4) for v in randn(gen, c["z"])]
        config["latents_std"] = [round(1 + abs(float(v)), 4) for v in randn(gen, c["z"])]
    if c["kind"] is AutoencoderKLWan:
        config["scale_factor_spatial"] = 2 ** (len(c["mult"]) - 1)
    vae = fill(c["kind"](**config), c["seed"], bf16=True)
    with torch.no_grad():
        for name, p in sorted(vae.named_parameters()):
            if name.endswith("gamma"):
                p.copy_((1 + 0.2 * randn(gen, *p.shape)).bfloat16().float())
    return vae, dict(config, _class_name=c["kind"].__name__)


def original(name, c):
    """The name that the original files give to diffusers' tensor."""
    steps = c["blocks"] + 2  # of a level of the decoder: its resnets and the upsampler
    name = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", lambda m: f"upsamples.{int(m[1]) * steps + int(m[2])}", name)
    name = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"upsamples.{int(m[1]) * steps + steps - 1}", name)
    for a, b in [("post_quant_conv.", "conv2."), ("quant_conv.", "conv1."), ("down_blocks.", "downsamples."),
                 ("mid_block.attentions.0.", "middle.1."), ("mid_block.resnets.0.", "middle.0."),
                 ("mid_block.resnets.1.", "middle.2.")]:
        name = name.replace(a, b)
    for a, b in [("norm1", "residual.0"), ("conv1", "residual.2"), ("norm2", "residual.3"), ("conv2", "residual.6"),
                 ("conv_shortcut", "shortcut")]:
        name = re.sub(rf"((?:samples|middle)\.\d+)\.{a}\.", rf"\1.{b}.", name)
    for a, b in [("conv_in.", "conv1."), ("norm_out.", "head.0."), ("conv_out.", "head.2.")]:
        name = name.replace(a, b)
    return name


def check(vae, c, latent, image, z, mean):
    """ComfyUI's model against diffusers' results."""
    import comfy.options

    comfy.options.enable_args_parsing()
    from comfy.ldm.wan.vae import WanVAE
    from comfy.latent_formats import Wan21

    comfy = WanVAE(dim=c["base"], z_dim=c["z"], dim_mult=c["mult"], num_res_blocks=c["blocks"],
                   temperal_downsample=vae.config.temperal_downsample).eval()
    comfy.load_state_dict({original(k, c): v for k, v in vae.state_dict().items()}, strict=True)
    got = comfy.decode(z[None, :, None])[0, :, 0], comfy.encode(image["in"][None, :, None])[0, :, 0]
    for a, b in zip(got, (image["out"], mean)):
        assert float((a - b).abs().max()) < 1e-4 * float(b.abs().max()), float((a - b).abs().max())
    if c["z"] == 16:
        assert torch.allclose(Wan21().process_out(latent[None, :, None])[0, :, 0], z, atol=1e-6)
    print("  ComfyUI agrees")


@torch.no_grad()
def main():
    comfy = sys.argv[1:]
    sys.path[:0] = comfy
    sys.argv = sys.argv[:1] + ["--cpu"]  # for ComfyUI
    for name, c in CASES.items():
        vae, config = build(c)
        factor = 2 ** (len(c["mult"]) - 1)
        stages = {"decoder": {}, "encoder": {}}

        def keep(side, key):
            def hook(_m, _i, o):
                stages[side]["out." + key] = o[0, :, 0].clone()
            return hook

        for side in stages:
            part = getattr(vae, side)
            part.conv_in.register_forward_hook(keep(side, "conv_in"))
            part.mid_block.register_forward_hook(keep(side, "mid_block"))
        vae.decoder.mid_block.attentions[0].register_forward_hook(keep("decoder", "attention"))
        vae.decoder.up_blocks[0].register_forward_hook(keep("decoder", "level_0"))
        vae.encoder.down_blocks[c["blocks"]].register_forward_hook(keep("encoder", "level_0"))
        gen = torch.Generator("cpu").manual_seed(6000 + c["seed"])
        latent = randn(gen, c["z"], *c["hw"])
        image = torch.rand(3, *[factor * n for n in c["hw"]], generator=gen) * 2 - 1
        mu = torch.tensor(vae.config.latents_mean).view(-1, 1, 1)
        std = torch.tensor(vae.config.latents_std).view(-1, 1, 1)
        z = latent * std + mu
        mean = vae.encode(image[None, :, None]).latent_dist.mode()[0, :, 0]
        clamped = vae.decode(z[None, :, None], return_dict=False)[0][0, :, 0]
        vae.clear_cache()
        out = vae.decoder(vae.post_quant_conv(z[None, :, None]), feat_cache=vae._feat_map, feat_idx=[0])[0, :, 0]
        assert torch.equal(out.clamp(-1, 1), clamped)
        assert stages["encoder"]["out.conv_in"].shape[0] == c["base"]
        print(" ", name, "image", float(out.std()), "latent", float(((mean - mu) / std).std()))
        if comfy:
            check(vae, c, latent, {"in": image, "out": out}, z, mean)
        rename = (lambda k: "vae." + original(k, c)) if name == "2" else (lambda k: "weights." + k)
        weights = {k: v.bfloat16() for k, v in vae.state_dict().items()}
        for side, own, data in [
                ("decoder", "post_quant_conv.", {"in.latent": latent, "out.image": out}),
                ("encoder", "quant_conv.", {"in.image": image, "out.latent": (mean - mu) / std})]:
            state = {rename(k): v for k, v in weights.items() if k.startswith((side + ".", own))}
            write(f"wan_vae_{side[0]}{name}", {**state, **data, **stages[side]}, config,
                  f"{config['_class_name']}, {side} in f32, of one frame")


if __name__ == "__main__":
    main()
