"""Golden patched weights: adapters in every format, and what ComfyUI and peft merge them to.

Like samplers.py it needs a ComfyUI tree, and what that needs:
    lora.py PATH_OF_COMFYUI

lora_base.safetensors: a made-up model of two layouts; lora_NAME.safetensors: adapters of it, and lora_peft as peft
writes it.
lora_merged.safetensors, for every adapter and weight:
    NAME/WEIGHT        the bits of docs/formats.md, "Patched weights", worked out here with exact fused multiply-adds
    NAME~/WEIGHT       F32: what ComfyUI's comfy.lora makes of the F32 weight (of lora_peft, peft's merge_and_unload)
"""
import json
import sys

sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[:1] + ["--cpu"]
import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
import comfy.lora  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import OUT, randn, save  # noqa: E402

STRENGTH = {"kohya": 0.75, "diffusers": -1.25, "peft": 1.0, "diff": 0.6, "loha": 0.9, "lokr": 1.1, "both": 1.0}
GEN = torch.Generator("cpu").manual_seed(20)

# The model: name, shape, type. Fused as ComfyUI has it.
BASE = {
    "blocks.0.attn.qkv.weight": ((32, 24), torch.bfloat16),
    "blocks.0.attn.q_norm.weight": ((8,), torch.float32),
    "blocks.0.ff.w1.weight": ((40, 24), torch.float16),
    "blocks.0.ff.w1.bias": ((40,), torch.float32),
    "blocks.0.conv.weight": ((6, 4, 3, 3), torch.float32),
    "blocks.0.f8.weight": ((16, 24), torch.float8_e4m3fn),
}
F8_SCALE = 0.0371
QKV = "blocks.0.attn.qkv.weight"
PARTS = {"to_q": (0, 16), "to_k": (16, 8), "to_v": (24, 8)}


def base():
    tensors = {}
    for name, (shape, dtype) in BASE.items():
        values = randn(GEN, *shape)
        tensors[name] = (values / F8_SCALE if dtype == torch.float8_e4m3fn else values).to(dtype)
    tensors["blocks.0.f8.weight_scale"] = torch.tensor(F8_SCALE)
    return tensors


def widened(tensors, name):
    """F32; of codes the BF16 that they mean."""
    if name != "blocks.0.f8.weight":
        return tensors[name].float().clone()
    return (tensors[name].float() * tensors[name + "_scale"]).to(torch.bfloat16).float()


def low(m, n, r, dtype=torch.float32):
    return (randn(GEN, m, r) / 4).to(dtype), (randn(GEN, r, n) / 4).to(dtype)


def adapters():
    """NAME: tensors as the file has them."""
    files = {}
    out = files["kohya"] = {}
    for key, m, n, r, alpha, dtype in (("attn_to_q", 16, 24, 4, 2.0, torch.bfloat16),
                                       ("attn_to_v", 8, 24, 3, 3.0, torch.float16),
                                       ("ff_w1", 40, 24, 37, 8.0, torch.float32), ("f8", 16, 24, 5, 1.0, torch.float16)):
        up, down = low(m, n, r, dtype)
        stem = f"lora_unet_blocks_0_{key}"
        out |= {f"{stem}.lora_up.weight": up, f"{stem}.lora_down.weight": down, f"{stem}.alpha": torch.tensor(alpha)}
    out |= {"lora_unet_blocks_0_conv.lora_up.weight": randn(GEN, 6, 2, 1, 1),
            "lora_unet_blocks_0_conv.lora_down.weight": randn(GEN, 2, 4, 3, 3),
            "lora_unet_blocks_0_conv.alpha": torch.tensor(1.0).to(torch.float16)}

    out = files["diffusers"] = {}
    for key, m, n, r in (("attn.to_k", 8, 24, 4), ("ff.w1", 40, 24, 2), ("f8", 16, 24, 6)):
        up, down = low(m, n, r, torch.bfloat16)
        out |= {f"transformer.blocks.0.{key}.lora_B.weight": up, f"transformer.blocks.0.{key}.lora_A.weight": down}

    out = files["peft"] = {}  # of the fused matrix; alpha is said in adapter_config.json
    for key, m, n in (("attn.qkv", 32, 24), ("ff.w1", 40, 24)):
        up, down = low(m, n, 4)
        stem = f"base_model.model.blocks.0.{key}"
        out |= {f"{stem}.lora_B.default.weight": up, f"{stem}.lora_A.default.weight": down}

    stem = "diffusion_model.blocks.0."
    files["diff"] = {stem + "ff.w1.diff": randn(GEN, 40, 24), stem + "ff.w1.diff_b": randn(GEN, 40).to(torch.bfloat16),
                     stem + "attn.q_norm.diff": randn(GEN, 8), stem + "attn.qkv.diff": randn(GEN, 32, 24)}

    out = files["loha"] = {}
    for key, m, n, r in (("attn.qkv", 32, 24, 4), ("conv", 6, 36, 2)):
        for half in "12":
            a, b = low(m, n, r)
            out |= {f"{stem}{key}.hada_w{half}_a": a, f"{stem}{key}.hada_w{half}_b": b}
        out[f"{stem}{key}.alpha"] = torch.tensor(float(r) / 2)

    whole, (w1_a, w1_b), (w2_a, w2_b) = randn(GEN, 4, 3), low(4, 6, 2), low(10, 4, 3)
    files["lokr"] = {
        # Both whole: alpha has no say. Then each decomposed, both, and a kernel.
        stem + "attn.qkv.lokr_w1": whole, stem + "attn.qkv.lokr_w2": randn(GEN, 8, 8),
        stem + "attn.qkv.alpha": torch.tensor(5.0),
        stem + "ff.w1.lokr_w1_a": w1_a, stem + "ff.w1.lokr_w1_b": w1_b, stem + "ff.w1.lokr_w2_a": w2_a,
        stem + "ff.w1.lokr_w2_b": w2_b, stem + "ff.w1.alpha": torch.tensor(2.0),
        stem + "f8.lokr_w1_a": randn(GEN, 2, 1), stem + "f8.lokr_w1_b": randn(GEN, 1, 4),
        stem + "f8.lokr_w2": randn(GEN, 8, 6), stem + "f8.alpha": torch.tensor(0.5),
        stem + "conv.lokr_w1": randn(GEN, 2, 2), stem + "conv.lokr_w2": randn(GEN, 3, 2, 3, 3)}
    return files


# ---- the definition, to the bit ----


def fma(a, b, c):
    """a b + c of F32, rounded once: the product is exact in F64, the sum is rounded to odd there."""
    p, c = np.float64(a) * np.float64(b), np.float64(c)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = np.atleast_1d(s).view(np.int64)
    even = (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (np.atleast_1d(s) > 0), 1, -1)
    return np.where(even, bits + step, bits).view(np.float64).reshape(np.shape(s)).astype(np.float32)


def chain(b, a):
    total = np.zeros((b.shape[0], a.shape[1]), np.float32)
    for k in range(a.shape[0]):
        total = fma(b[:, k:k + 1], a[k:k + 1], total)
    return total


def matrix(t):
    t = t.float().numpy()
    return t.reshape(t.shape[0], -1) if t.ndim > 1 else t.reshape(1, -1)


def difference(file, stem):
    """The module's difference and alpha / rank."""
    def get(name):
        for ending in (name, name.replace("lora_up", "lora_B"), name.replace("lora_down", "lora_A"),
                       name.replace("lora_up", "lora_B.default"), name.replace("lora_down", "lora_A.default")):
            if stem + ending in file:
                return matrix(file[stem + ending])
        return None

    def factor(name):
        return (get(name), 0) if get(name) is not None else (chain(get(name + "_a"), get(name + "_b")), get(name + "_b").shape[0])

    alpha = file.get(stem + ".alpha")
    if get(".diff") is not None:
        return get(".diff"), 1.0
    if get(".hada_w1_a") is not None:
        made = chain(get(".hada_w1_a"), get(".hada_w1_b")) * chain(get(".hada_w2_a"), get(".hada_w2_b"))
        rank = get(".hada_w1_b").shape[0]
    elif stem + ".lokr_w1" in file or stem + ".lokr_w1_a" in file:
        (w1, first), (w2, second) = factor(".lokr_w1"), factor(".lokr_w2")
        made, rank = np.kron(w1, w2), second or first
        return made, float(alpha) / rank if rank and alpha is not None else 1.0
    else:
        up, down = get(".lora_up.weight"), get(".lora_down.weight")
        if up is None:
            return None, 1.0
        made, rank = chain(up, down), down.shape[0]
    return made, float(alpha) / rank if alpha is not None else 1.0


def stems(file, module):
    yield f"lora_unet_{module.replace('.', '_')}"
    for prefix in ("transformer.", "diffusion_model.", "base_model.model."):
        yield prefix + module


def add(value, rows, file, name, strength, scale):
    """Adds a file's difference of the parameter `name` to those rows of value [m, n]."""
    module, kind = name.rsplit(".", 1)
    for stem in stems(file, module):
        if kind == "bias":
            made, ratio = (matrix(file[stem + ".diff_b"]), 1.0) if stem + ".diff_b" in file else (None, 1.0)
        else:
            made, ratio = difference(file, stem)
        if made is not None:
            s = np.float32(float(np.float32(strength)) * (ratio * scale))
            value[rows] = fma(s, made.reshape(value[rows].shape), value[rows])
            return True
    return False


def patched(tensors, name, uses):
    value = matrix(widened(tensors, name)).copy()
    touched = False
    for key, file in uses:
        scale = 2.0 if key == "peft" else 1.0  # lora_alpha 8, r 4
        touched |= add(value, slice(None), file, name, STRENGTH[key], scale)
        if name == QKV:
            for part, (first, count) in PARTS.items():
                touched |= add(value, slice(first, first + count), file, f"blocks.0.attn.{part}.weight", STRENGTH[key], scale)
    if not touched:
        return None
    dtype = tensors[name].dtype
    to = dtype if dtype in (torch.float32, torch.float16) else torch.bfloat16
    return torch.from_numpy(value).to(to)


# ---- the references ----


def by_comfy(tensors, key, file):
    keys = {}
    for name in tensors:
        module = name.rsplit(".", 1)[0]
        if name.endswith(".weight"):
            keys |= {stem: name for stem in stems(file, module)}
    for part, (first, count) in PARTS.items():
        keys |= {stem: (QKV, (0, first, count)) for stem in stems(file, f"blocks.0.attn.{part}")}
    merged = {}
    loaded = comfy.lora.load_lora(file, keys, log_missing=False)
    for target, value in loaded.items():
        name = target if isinstance(target, str) else target[0]
        if name not in merged:
            merged[name] = widened(tensors, name)
        rows = merged[name] if isinstance(target, str) else merged[name].narrow(*target[1])
        rows.copy_(comfy.lora.calculate_weight([(STRENGTH[key], value, 1.0, None, None)], rows.clone(), name))
    return merged


def by_peft(tensors, file):
    import peft

    block = torch.nn.Module()
    for name in (QKV, "blocks.0.ff.w1.weight"):
        at = block
        *path, last = name.rsplit(".", 1)[0].split(".")
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        linear = torch.nn.Linear(24, BASE[name][0][0], bias=False)
        linear.weight.data.copy_(widened(tensors, name))
        at.add_module(last, linear)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["qkv", "w1"])
    model = peft.get_peft_model(block, config)
    missing = model.load_state_dict(file, strict=False)
    assert not missing.unexpected_keys
    return {k: v for k, v in model.merge_and_unload().state_dict().items()}


def main():
    tensors, files = base(), adapters()
    save(OUT / "lora_base.safetensors", tensors, {"about": "a made-up model"})
    merged = {}
    for key, file in files.items():
        path = OUT / ("lora_peft/adapter_model.safetensors" if key == "peft" else f"lora_{key}.safetensors")
        path.parent.mkdir(exist_ok=True)
        save(path, file, {"about": f"an adapter: {key}"})
        for name, value in (by_peft(tensors, file) if key == "peft" else by_comfy(tensors, key, file)).items():
            merged[f"{key}~/{name}"] = value.contiguous()
    for key, uses in [*((k, [k]) for k in files), ("both", ["kohya", "diffusers", "loha"])]:
        for name in BASE:
            value = patched(tensors, name, [(k, files[k]) for k in uses])
            if value is not None:
                merged[f"{key}/{name}"] = value.reshape(tensors[name].shape)
    for name, value in merged.items():
        if "~" in name:
            ours = merged[name.replace("~", "")].float()
            off = float((ours - value).abs().max() / value.abs().max())
            assert off < (1e-6 if tensors[name.split("/")[1]].dtype == torch.float32 else 6e-3), (name, off)
    save(OUT / "lora_merged.safetensors", merged,
         {"about": "patched weights", "config": json.dumps({"strengths": STRENGTH})})
    (OUT / "lora_peft" / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "peft_type": "LORA"}) + "\n")
    print(f"lora: {len(files)} adapters, {len(merged)} weights, "
          f"{sum(p.stat().st_size for p in OUT.rglob('*') if 'lora_' in str(p.relative_to(OUT)))} bytes")


main()
