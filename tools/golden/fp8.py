"""Golden values of 8-bit codes: all 256 of each type, under several scales, as torch dequantises them.

fp8.safetensors: TYPE.N.weight, its scale TYPE.N.weight_scale (a 0-d tensor, or of shape [1]), and TYPE.N.want in BF16,
which is the code in F32 times the scale, rounded. `python fp8.py check` compares that with torch's BF16 times an F32
scale of no dimensions, on the CPU.
"""
import sys

import torch
from common import OUT, save

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALES = [1.0, 2.0 ** -10, 0.0371, 0.0012345678, 3.3333333, 1e-30, 1e-38]


def main():
    tensors = {}
    for name, kind in TYPES.items():
        codes = torch.arange(256, dtype=torch.uint8).view(kind)
        for i, number in enumerate(SCALES):
            scale = torch.tensor(number, dtype=torch.float32)
            want = (codes.float() * scale).to(torch.bfloat16)
            if "check" in sys.argv:
                again = codes.to(torch.bfloat16) * scale
                assert torch.equal(want.isnan(), again.isnan())
                assert torch.equal(want.nan_to_num(), again.nan_to_num()), (name, number)
            tensors[f"{name}.{i}.weight"] = codes
            tensors[f"{name}.{i}.weight_scale"] = scale.reshape(1) if i % 2 else scale
            tensors[f"{name}.{i}.want"] = want
    path = OUT / "fp8.safetensors"
    save(path, tensors, {"about": "8-bit codes, scales and what they mean", "torch": torch.__version__.split("+")[0]})
    print(f"{path.name}: {path.stat().st_size} bytes, {len(tensors)} tensors")


main()
