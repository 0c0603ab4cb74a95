"""Golden Qwen-Image transformer: small random models of diffusers' QwenImageTransformer2DModel, and a whole sampling loop
of its pipeline.

in.latent [16,H,W], in.t [steps] (sigma), in.cap [n, joint_attention_dim]
out.context: the text stream as it enters the first block
out.[t<i>.]transformer_blocks.<i>.text, .image: both streams after each block
out.[t<i>.]sample [16,H,W]: the model's output, a velocity
of case c: in.uncap, in.sigmas; out.latents [16,H,W]: what QwenImagePipeline makes of in.latent, with guidance

With the path of a ComfyUI tree as an argument, ComfyUI's model is given the same weights, and its gap is printed. (Of odd
numbers of patches it has other positions; such cases are left out.)
"""
import sys

from common import fill, randn, torch, write

from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel

CASES = {
    # three heads of 8, two blocks, 3x5 patches, 7 text tokens; weights bf16-exact, as in all of them
    "a": dict(heads=3, head=8, axes=[2, 2, 4], layers=2, width=20, hw=(6, 10), cap=7, t=[0.25], seed=31),
    # one head of 32 whose axes are in the published proportion, 4x2 patches, 33 text tokens, two steps
    "b": dict(heads=1, head=32, axes=[4, 14, 14], layers=1, width=16, hw=(8, 4), cap=33, t=[0.7, 0.0234375], seed=32),
    # 2x6 patches, one text token; three steps of the pipeline
    "c": dict(heads=2, head=8, axes=[4, 2, 2], layers=1, width=12, hw=(4, 12), cap=1, t=[1.0], seed=33, uncap=5, steps=3),
}

# The published scheduler_config.json of Qwen/Qwen-Image.
SCHEDULER = dict(base_image_seq_len=256, base_shift=0.5, max_image_seq_len=8192, max_shift=0.9, num_train_timesteps=1000,
                 shift=1.0, shift_terminal=0.02, time_shift_type="exponential", use_dynamic_shifting=True)


def build(c):
    config = dict(
        patch_size=2, in_channels=64, out_channels=16, num_layers=c["layers"], attention_head_dim=c["head"],
        num_attention_heads=c["heads"], joint_attention_dim=c["width"], guidance_embeds=False, axes_dims_rope=c["axes"],
    )
    model = fill(QwenImageTransformer2DModel(**config), c["seed"], bf16=True)
    return model, dict(config, _class_name="QwenImageTransformer2DModel")


def pack(latent):
    return QwenImagePipeline._pack_latents(latent[None], 1, *latent.shape)


def unpack(tokens, hw):
    return QwenImagePipeline._unpack_latents(tokens, hw[0] * 8, hw[1] * 8, 8)[0, :, 0]


@torch.no_grad()
def run(model, latent, t, cap):
    """One forward pass, batch of one. Returns {stage: tensor}."""
    got, hooks = {}, []

    def freqs(_m, i):
        got["t_freq"] = i[0].clone()

    def context(_m, _i, o):
        got["context"] = o[0].clone()

    def block(name):
        def hook(_m, _i, o):
            got[name + ".text"], got[name + ".image"] = o[0][0].clone(), o[1][0].clone()
        return hook

    hooks.append(model.time_text_embed.timestep_embedder.register_forward_pre_hook(freqs))
    hooks.append(model.txt_in.register_forward_hook(context))
    for i, mod in enumerate(model.transformer_blocks):
        hooks.append(mod.register_forward_hook(block(f"transformer_blocks.{i}")))
    h, w = latent.shape[1:]
    out = model(hidden_states=pack(latent), encoder_hidden_states=cap[None], timestep=torch.tensor([t]),
                img_shapes=[[(1, h // 2, w // 2)]], return_dict=False)[0]
    for hook in hooks:
        hook.remove()
    got["sample"] = unpack(out, (h, w)).clone()
    return got


def sample(model, c, latent, cap, uncap):
    """The pipeline's own loop, with its default guidance."""
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    pipe = QwenImagePipeline(scheduler=scheduler, vae=None, text_encoder=None, tokenizer=None, transformer=model)
    pipe.set_progress_bar_config(disable=True)
    out = pipe(prompt_embeds=cap[None], negative_prompt_embeds=uncap[None], latents=pack(latent), height=c["hw"][0] * 8,
               width=c["hw"][1] * 8, num_inference_steps=c["steps"], output_type="latent", return_dict=False)[0]
    return unpack(out, c["hw"]), scheduler.sigmas


def comfy_gap(path, model, c, latent, cap, t, sample_):
    sys.path.insert(0, path)
    sys.argv = sys.argv[:1] + ["--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ops
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel as Comfy

    other = Comfy(num_layers=c["layers"], attention_head_dim=c["head"], num_attention_heads=c["heads"],
                  joint_attention_dim=c["width"], axes_dims_rope=tuple(c["axes"]), dtype=torch.float32, device="cpu",
                  operations=comfy.ops.disable_weight_init)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        got = other(latent[None, :, None], torch.tensor([t]), cap[None])[0, :, 0]
    return float((got - sample_).abs().max() / sample_.abs().max())


def main():
    comfy = sys.argv[1] if len(sys.argv) > 1 else None
    for name, c in CASES.items():
        model, config = build(c)
        gen = torch.Generator("cpu").manual_seed(1000 + c["seed"])
        latent, cap = randn(gen, 16, *c["hw"]), randn(gen, c["cap"], c["width"])
        ins = {"in.latent": latent, "in.t": torch.tensor(c["t"]), "in.cap": cap}
        outs = {}
        for i, t in enumerate(c["t"]):
            got = run(model, latent, t, cap)
            outs["out.context"] = got.pop("context")
            p = "out." if len(c["t"]) == 1 else f"out.t{i}."
            outs.update({p + k: v for k, v in got.items()})
            if comfy and all(n % 4 == 0 for n in c["hw"]):
                print("  ComfyUI is off by", comfy_gap(comfy, model, c, latent, cap, t, got["sample"]))
        if "steps" in c:
            ins["in.uncap"] = randn(gen, c["uncap"], c["width"])
            outs["out.latents"], ins["in.sigmas"] = sample(model, c, latent, cap, ins["in.uncap"])
        print(" ", name, {k: round(float(v.pow(2).mean().sqrt()), 2) for k, v in outs.items()})
        write(f"qwen_image_{name}", {**{"weights." + k: v.bfloat16() for k, v in model.state_dict().items()}, **ins, **outs},
              config, "Qwen-Image transformer in f32, diffusers names; weights stored as BF16 (exact), computed in F32")


if __name__ == "__main__":
    main()
