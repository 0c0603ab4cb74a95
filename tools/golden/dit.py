"""Golden Z-Image transformer: four small random models of diffusers' ZImageTransformer2DModel, one of them in FP8 too.

in.latent [16,H,W], in.t [steps] (1 - sigma, as the pipeline passes it), in.cap [n, cap_feat_dim]
out.sample (or out.t<i>.sample): the model's own output, before the pipeline negates it
out.[t<i>.]<stage>: hidden states after each stage, tokens x dim, pad tokens included
"""
from common import fill, randn, torch, write

from diffusers import ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import TimestepEmbedder

# The t embedder's middle layer is 1024 wide in the reference (1 MB by itself); the small models have it narrower.
MID = 32

CASES = {
    # two heads of 32, 3x5 image tokens (padded to 32), 7 caption tokens (padded to 32); weights bf16-exact
    "a": dict(dim=64, heads=2, axes=[8, 12, 12], layers=2, refiners=1, cap_dim=24, hw=(6, 10), cap=7, t=[0.25],
              seed=11, bf16=True),
    # one head of 128 as the real model has, 5x3=15 image tokens, 33 caption tokens (padded to 64); no refiners
    "b": dict(dim=128, heads=1, axes=[32, 48, 48], layers=1, refiners=0, cap_dim=16, hw=(10, 6), cap=33, t=[0.7],
              seed=12, bf16=True),
    # 4x8=32 image tokens and 32 caption tokens: nothing is padded
    "c": dict(dim=32, heads=2, axes=[4, 6, 6], layers=1, refiners=1, cap_dim=20, hw=(8, 16), cap=32, t=[0.0],
              seed=13, bf16=False),
    # two refiner layers of each kind, two timesteps, 2x1 image tokens, 1 caption token
    "d": dict(dim=24, heads=1, axes=[8, 8, 8], layers=1, refiners=2, cap_dim=12, hw=(4, 2), cap=1,
              t=[0.125, 0.953125], seed=14, bf16=False),
}


def build(c):
    config = dict(
        all_patch_size=[2], all_f_patch_size=[1], in_channels=16, dim=c["dim"], n_layers=c["layers"],
        n_refiner_layers=c["refiners"], n_heads=c["heads"], n_kv_heads=c["heads"], norm_eps=1e-5, qk_norm=True,
        cap_feat_dim=c["cap_dim"], siglip_feat_dim=None, rope_theta=256.0, t_scale=1000.0, axes_dims=c["axes"],
        axes_lens=[256, 64, 64],
    )
    model = ZImageTransformer2DModel(**config)
    model.t_embedder = TimestepEmbedder(min(c["dim"], 256), mid_size=MID)
    fill(model, c["seed"], c["bf16"])
    return model, dict(config, _class_name="ZImageTransformer2DModel")


@torch.no_grad()
def run(model, latent, t, cap):
    """One forward pass, batch of one. Returns {stage: tensor}."""
    got, hooks = {}, []

    def keep(name):
        def hook(_m, _i, o):
            got[name] = o.reshape(-1, o.shape[-1]).clone()
        return hook

    def freqs(_m, i):
        got["t_freq"] = i[0].clone()

    hooks.append(model.t_embedder.mlp.register_forward_pre_hook(freqs))
    for name, mod in [("t_embedder", model.t_embedder), ("x_embedder", model.all_x_embedder["2-1"]),
                      ("cap_embedder", model.cap_embedder), ("final_layer", model.all_final_layer["2-1"])]:
        hooks.append(mod.register_forward_hook(keep(name)))
    for group in ("noise_refiner", "context_refiner", "layers"):
        for i, mod in enumerate(getattr(model, group)):
            hooks.append(mod.register_forward_hook(keep(f"{group}.{i}")))
    out = model([latent[:, None]], torch.tensor([t], dtype=torch.float32), [cap], return_dict=False)[0][0]
    for h in hooks:
        h.remove()
    got["sample"] = out[:, 0].clone()
    return got


def inputs(c):
    gen = torch.Generator("cpu").manual_seed(1000 + c["seed"])
    return randn(gen, 16, *c["hw"]), randn(gen, c["cap"], c["cap_dim"])


def to_single_file(state, n_prefix="model.diffusion_model."):
    """diffusers' names and tensors -> the names of the single-file checkpoints that ComfyUI reads."""
    out = {}
    for k, v in state.items():
        if k.endswith("attention.to_q.weight"):
            p = k[: -len("to_q.weight")]
            out[n_prefix + p + "qkv.weight"] = torch.cat(
                [state[p + "to_q.weight"], state[p + "to_k.weight"], state[p + "to_v.weight"]], 0)
            continue
        if k.endswith(("attention.to_k.weight", "attention.to_v.weight")):
            continue
        for a, b in ((".attention.norm_q.", ".attention.q_norm."), (".attention.norm_k.", ".attention.k_norm."),
                     (".attention.to_out.0.", ".attention.out."), ("all_x_embedder.2-1.", "x_embedder."),
                     ("all_final_layer.2-1.", "final_layer.")):
            k = k.replace(a, b)
        out[n_prefix + k] = v
    return out


def batch_check(model, c):
    """A batch of two with captions of different lengths (mask) against two batches of one."""
    gen = torch.Generator("cpu").manual_seed(5)
    lat = randn(gen, 16, *c["hw"])
    caps = [randn(gen, 70, c["cap_dim"]), randn(gen, 5, c["cap_dim"])]
    t = torch.tensor([0.4, 0.4])
    with torch.no_grad():
        both = model([lat[:, None]] * 2, t, caps, return_dict=False)[0]
        one = [model([lat[:, None]], t[:1], [k], return_dict=False)[0][0] for k in caps]
    return max(float((a - b).abs().max()) for a, b in zip(both, one))


def to_fp8(state):
    """Matrices as E4M3 codes, a scale each and what ComfyUI's files say of them; and what they mean."""
    stored, means = {}, {}
    for k, v in state.items():
        stored[k] = means[k] = v
        if v.ndim != 2 or not k.endswith(".weight"):
            continue
        scale = v.abs().max() / 448
        stored[k] = (v / scale).to(torch.float8_e4m3fn)
        stored[k + "_scale"] = scale
        stored[k[:-len("weight")] + "comfy_quant"] = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
        means[k] = (stored[k].float() * scale).bfloat16().float()
    return stored, means


def fp8(c):
    """Case d again, of the dequantised weights."""
    model, config = build(c)
    latent, cap = inputs(c)
    stored, means = to_fp8(model.state_dict())
    model.load_state_dict(means)
    outs = {}
    for i, t in enumerate(c["t"]):
        outs.update({f"out.t{i}.{k}": v for k, v in run(model, latent, t, cap).items()})
    ins = {"in.latent": latent, "in.t": torch.tensor(c["t"]), "in.cap": cap}
    write("dit_d_fp8", {**{"weights." + k: v for k, v in stored.items()}, **ins, **outs}, config,
          "dit_d with its matrices in scaled E4M3, computed in f32 with their BF16 values")


def main():
    fp8(CASES["d"])
    for name, c in CASES.items():
        model, config = build(c)
        latent, cap = inputs(c)
        store = (lambda v: v.bfloat16()) if c["bf16"] else (lambda v: v)
        state = model.state_dict()
        outs = {}
        for i, t in enumerate(c["t"]):
            p = "out." if len(c["t"]) == 1 else f"out.t{i}."
            outs.update({p + k: v for k, v in run(model, latent, t, cap).items()})
        ins = {"in.latent": latent, "in.t": torch.tensor(c["t"]), "in.cap": cap}
        if name == "b":  # a large file already
            outs = {k: v for k, v in outs.items() if not k.endswith(("x_embedder", "cap_embedder"))}
        rms = {k: round(float(v.pow(2).mean().sqrt()), 2) for k, v in outs.items()}
        print(" ", name, rms, "batch of two against one:", batch_check(model, c))
        note = "; weights stored as BF16 (exact), computed in F32" if c["bf16"] else ""
        write(f"dit_{name}", {**{"weights." + k: store(v) for k, v in state.items()}, **ins, **outs}, config,
              "Z-Image transformer in f32, diffusers names" + note)
        if name == "a":
            only = {k: v for k, v in outs.items() if k == "out.sample"}
            write("dit_a_single_file", {**{k: store(v) for k, v in to_single_file(state).items()}, **ins, **only},
                  config, "the weights of dit_a under the names of the single-file checkpoints (no weights. prefix)")


if __name__ == "__main__":
    main()
