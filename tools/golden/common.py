"""Shared helpers of the golden-file makers: paths, deterministic weights, and the file writer.

A golden file is a safetensors file with
  weights.<name>   the model's parameters, under the reference implementation's own names
  in.<name>        inputs
  out.<name>       what the reference implementation returned (and intermediate stages)
  __metadata__     "config": the model's config as JSON; "about": one line; "versions": JSON
"""
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GOLDEN_OUT", ROOT / "tests" / "golden"))

torch.set_num_threads(1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)


def versions():
    import diffusers
    import safetensors
    import tokenizers
    import transformers

    return {
        "torch": torch.__version__.split("+")[0],
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def randn(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float32)


@torch.no_grad()
def fill(model, seed, bf16=False):
    """Random weights that keep activations near 1, with nothing left at a neutral value.

    Matrices and kernels: normal / sqrt(fan_in). Norm weights: 1 + 0.2 normal. Biases: 0.2 normal.
    Embeddings and pad tokens: normal. With bf16 every value is rounded to bfloat16 (and stays F32 here).
    """
    gen = torch.Generator("cpu").manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if "pad_token" in name or "embed_tokens" in name:
            v = randn(gen, *p.shape)
        elif name.endswith("bias"):
            v = 0.2 * randn(gen, *p.shape)
        elif p.ndim == 1:
            v = 1.0 + 0.2 * randn(gen, *p.shape)
        else:
            v = randn(gen, *p.shape) / (p[0].numel() ** 0.5)
        if bf16:
            v = v.bfloat16().float()
        p.copy_(v)
    return model.float().eval()


DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.uint8: "U8",
          torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}


def save(path, tensors, meta):
    """safetensors, with a header that does not depend on hash order: the same input gives the same bytes."""
    header, blobs, at = {"__metadata__": meta}, [], 0
    for k in sorted(tensors, key=lambda k: (-tensors[k].element_size(), k)):
        v = tensors[k].detach().contiguous()
        blob = v.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[k] = {"dtype": DTYPES[v.dtype], "shape": list(v.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write(name, tensors, config, about):
    """Write OUT/<name>.safetensors; says the size."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.safetensors"
    clean = {k: torch.as_tensor(v) for k, v in tensors.items()}
    for k, v in clean.items():
        assert not v.is_floating_point() or torch.isfinite(v.float()).all(), k
    save(path, clean, {
        "config": json.dumps(config, sort_keys=True),
        "about": about,
        "versions": json.dumps(versions(), sort_keys=True),
    })
    print(f"{path.name}: {path.stat().st_size} bytes, {len(clean)} tensors")


def write_json(name, obj):
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(obj, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")
