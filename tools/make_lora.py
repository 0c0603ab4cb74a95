#!/usr/bin/env python3
"""Makes a LoRA with random factors for the matrices of a checkpoint, for benchmarks and tests.

    tools/make_lora.py CHECKPOINT.safetensors OUT.safetensors [--rank N] [--seed N] [--match TEXT] [--prefix TEXT]

  --rank N       of each difference (default: 16); its alpha is as large
  --match TEXT   what a tensor's name holds: every matrix of such a name has a LoRA
                 (default: "blocks." or "layers.", as blocks are called)
  --prefix TEXT  of the LoRA's names (default: "diffusion_model.", as ComfyUI's), in place of what single
                 files begin the checkpoint's with: "net.", "model.diffusion_model."

Factors are in BF16, of either sign and 0.008 to 0.03. Standard library only.
"""
import argparse
import random
import sys

from make_fp8 import header_bytes, read_header


def factors(generator, count):
    """BF16: any bits of a mantissa, below an exponent of -7 or -6, below a sign."""
    bits = bytearray(generator.randbytes(2 * count))
    bits[1::2] = bits[1::2].translate(bytes((code & 0x80) | 0x3c for code in range(256)))
    return bytes(bits)


def planned(header, match, prefix, rank):
    """(name, shape) of every factor."""
    for name in sorted(header.keys() - {"__metadata__"}):
        shape = header[name]["shape"]
        if any(text in name for text in match) and name.endswith(".weight") and len(shape) == 2:
            stem = prefix + name.removeprefix("net.").removeprefix("model.diffusion_model.")[:-len(".weight")]
            yield stem + ".lora_A.weight", [rank, shape[1]]
            yield stem + ".lora_B.weight", [shape[0], rank]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint")
    parser.add_argument("output")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match")
    parser.add_argument("--prefix", default="diffusion_model.")
    args = parser.parse_args()
    match = ["blocks.", "layers."] if args.match is None else [args.match]
    with open(args.checkpoint, "rb") as file:
        model = read_header(file)
    header, at = {}, 0
    for name, shape in planned(model, match, args.prefix, args.rank):
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    if not header:
        texts = "' or '".join(match)
        sys.exit(f"{args.checkpoint}: no matrix of it has a name that holds '{texts}': see --match")
    generator = random.Random(args.seed)
    with open(args.output, "wb") as file:
        file.write(header_bytes(header))
        for tensor in header.values():
            file.write(factors(generator, tensor["shape"][0] * tensor["shape"][1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
