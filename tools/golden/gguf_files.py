"""Golden GGUF files, written and dequantised by the reference package (gguf, of llama.cpp). Needs no torch.

quants.gguf          for every type that shoal computes with: `<type>`, random blocks with finite scales, and
                     `<type>.f32`, what gguf.quants.dequantize makes of them; a reshaped tensor; metadata of every type
tokenizer_mini.gguf  the tokenizer of shoal-mini as llama.cpp's converter writes one: metadata only
"""
import json
import os
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GOLDEN_OUT", ROOT / "tests" / "golden"))
ROWS, COLS = 2, 512

# Where each type has its F16 scales.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}


def halves(rng, shape):
    """F16 values of all sizes, subnormal ones and zeros of both signs too, none infinite."""
    bits = rng.integers(0, 0x7C00, shape, dtype=np.uint16) | (rng.integers(0, 2, shape, dtype=np.uint16) << 15)
    bits = np.where(rng.random(shape) < 0.1, bits & 0x83FF, bits)
    return np.where(rng.random(shape) < 0.05, bits & 0x8000, bits).astype(np.uint16)


def blocks(rng, kind):
    elements, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (ROWS, COLS // elements, size), dtype=np.uint8)
    for at in SCALES[kind]:
        data[:, :, at:at + 2] = halves(rng, (ROWS, COLS // elements))[..., None].view(np.uint8)
    return data.reshape(ROWS, -1)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(writer.path.name)


def quants():
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(OUT / "quants.gguf", "test")
    w.add_uint8("of.u8", 200)
    w.add_int8("of.i8", -100)
    w.add_uint16("of.u16", 60000)
    w.add_int16("of.i16", -30000)
    w.add_uint32("of.u32", 4000000000)
    w.add_int32("of.i32", -2000000000)
    w.add_uint64("of.u64", 1 << 62)
    w.add_int64("of.i64", -(1 << 62))
    w.add_float32("of.f32", 1e-6)
    w.add_float64("of.f64", 1e-300)
    w.add_bool("of.bool", True)
    w.add_string("of.string", "caf\u00e9")
    w.add_array("of.strings", ["a", "", "\u4e2d\u6587"])
    w.add_array("of.ints", [3, 8, 8, 8])
    for kind in SCALES:
        data = blocks(rng, kind)
        w.add_tensor(kind.name.lower(), data, raw_dtype=kind)
        w.add_tensor(kind.name.lower() + ".f32", gguf.quants.dequantize(data, kind))
    for kind, name in ((T.F16, "f16"), (T.BF16, "bf16")):
        data = halves(rng, (ROWS, 64))
        raw = data.view(np.float16) if kind == T.F16 else data.view(np.uint8)
        w.add_tensor(name, raw, raw_dtype=kind)
        w.add_tensor(name + ".f32", gguf.quants.dequantize(raw, kind))
    # A 4-D tensor whose rows of 3 could not be quantised, as ComfyUI-GGUF's converter stores it.
    w.add_tensor("kernel", blocks(rng, T.Q8_0), raw_dtype=T.Q8_0)
    w.add_array("comfy.gguf.orig_shape.kernel", [8, 16, 2, 4])
    finish(w)


def tokenizer():
    raw = json.loads((ROOT / "models/shoal-mini/tokenizer/tokenizer.json").read_text())
    added = {t["id"]: t for t in raw["added_tokens"]}
    vocab = {i: t for t, i in raw["model"]["vocab"].items()}
    size = max([*vocab, *added]) + 1
    tokens, types = [], []
    for i in range(size + 3):  # and padding, as where the embedding has more rows than there are tokens
        if i in added:
            tokens.append(added[i]["content"])
            types.append(gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED)
        else:
            tokens.append(vocab.get(i, f"[PAD{i}]"))
            types.append(gguf.TokenType.NORMAL if i in vocab else gguf.TokenType.UNUSED)
    w = gguf.GGUFWriter(OUT / "tokenizer_mini.gguf", "qwen3")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in raw["model"]["merges"]])
    w.add_eos_token_id(0)
    w.add_pad_token_id(0)
    w.add_add_bos_token(False)
    finish(w)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    quants()
    tokenizer()
