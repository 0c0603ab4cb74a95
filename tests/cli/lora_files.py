"""Adapters for shoal-mini, made up: LoRA of both models, and other kinds. Standard library only."""
import array
import json
import random
import struct
from pathlib import Path


def write(path, tensors):
    """A safetensors file of F32: {name: (shape, values, or their bytes)}."""
    header, blobs, at = {}, [], 0
    for name, (shape, values) in tensors.items():
        data = values if isinstance(values, bytes) else array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = {}

    def tensor(self, name, shape, size=0.08):
        count = 1
        for n in shape:
            count *= n
        self.tensors[name] = (shape, [self.random.gauss(0, size) for _ in range(count)])

    def lora(self, stem, rows, cols, rank, up=".lora_up.weight", down=".lora_down.weight", alpha=None):
        self.tensor(stem + up, (rows, rank))
        self.tensor(stem + down, (rank, cols))
        if alpha is not None:
            self.tensors[stem + ".alpha"] = ((), [alpha])


def kohya(path, layers=range(6), seed=1):
    """The DiT's attention as ComfyUI fuses it, its MLPs and embedders; the text encoder's attention."""
    m = Maker(seed)
    for i in layers:
        m.lora(f"lora_unet_layers_{i}_attention_qkv", 576, 192, 4, alpha=2.0)
        m.lora(f"lora_unet_layers_{i}_feed_forward_w2", 192, 512, 3, alpha=3.0)
    m.lora("lora_unet_context_refiner_0_attention_out", 192, 192, 4, alpha=4.0)
    m.lora("lora_unet_cap_embedder_1", 192, 192, 4, alpha=4.0)
    m.lora("lora_unet_final_layer_linear", 64, 192, 2, alpha=2.0)
    m.lora("lora_te_layers_0_self_attn_q_proj", 192, 192, 4, alpha=4.0)
    m.lora("lora_te_layers_1_mlp_down_proj", 192, 384, 4, alpha=4.0)
    write(path, m.tensors)


def diffusers(path, seed=2):
    """As diffusers names it: to_k alone, and a difference of a norm and of a bias."""
    m = Maker(seed)
    for i in (0, 2):
        m.lora(f"transformer.layers.{i}.attention.to_k", 192, 192, 2, ".lora_B.weight", ".lora_A.weight")
    m.tensor("diffusion_model.layers.1.attention.norm_q.diff", (64,))
    m.tensor("diffusion_model.layers.1.adaLN_modulation.0.diff_b", (768,))
    write(path, m.tensors)


def lokr(path, seed=3):
    m = Maker(seed)
    m.tensor("lycoris_layers_0_feed_forward_w1.lokr_w1", (16, 12))
    m.tensor("lycoris_layers_0_feed_forward_w1.lokr_w2_a", (32, 2))
    m.tensor("lycoris_layers_0_feed_forward_w1.lokr_w2_b", (2, 16))
    m.tensors["lycoris_layers_0_feed_forward_w1.alpha"] = ((), [1.0])
    for half in "12":
        m.tensor(f"lycoris_layers_3_feed_forward_w3.hada_w{half}_a", (512, 2), 0.4)
        m.tensor(f"lycoris_layers_3_feed_forward_w3.hada_w{half}_b", (2, 192), 0.4)
    m.lora("lora_unet_of_another_model", 8, 8, 2)
    write(path, m.tensors)


# ---- the model in other types ----


def read(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items()}


def floats(data):
    """BF16 as floats."""
    wide = array.array("I", (half << 16 for half in array.array("H", data)))
    return array.array("f", wide.tobytes())


def q8_0(data):
    """Blocks of 32 values: a scale in F16, and bytes."""
    values, out = floats(data), bytearray()
    for at in range(0, len(values), 32):
        block = values[at:at + 32]
        scale = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127))[0]
        out += struct.pack("<e", scale)
        out += bytes(round(v / scale) & 255 if scale else 0 for v in block)
    return bytes(out)


def to_gguf(source, path, architecture):
    """Matrices in Q8_0, all else in BF16."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    infos, blobs, at = b"", [], 0
    tensors = read(source)
    for name, (_, shape, data) in tensors.items():
        quantised = len(shape) == 2 and shape[1] % 32 == 0 and shape[0] > 1
        blob = q8_0(data) if quantised else data
        infos += text(name) + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", n) for n in reversed(shape)) + struct.pack("<IQ", 8 if quantised else 30, at)
        blob += bytes(-len(blob) % 32)
        blobs.append(blob)
        at += len(blob)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text(architecture) + infos
    Path(path).write_bytes(head + bytes(-len(head) % 32) + b"".join(blobs))


def to_single_file(source, path):
    """The DiT under the names that ComfyUI reads, q, k and v in one matrix."""
    names = {"attention.to_out.0.": "attention.out.", "attention.norm_q.": "attention.q_norm.",
             "attention.norm_k.": "attention.k_norm.", "all_x_embedder.2-1.": "x_embedder.",
             "all_final_layer.2-1.": "final_layer."}
    tensors, out = read(source), {}
    for name, (dtype, shape, data) in tensors.items():
        if ".attention.to_q." in name:
            parts = [tensors[name.replace("to_q", part)] for part in ("to_q", "to_k", "to_v")]
            name = name.replace("to_q", "qkv")
            shape, data = [sum(p[1][0] for p in parts), shape[1]], b"".join(p[2] for p in parts)
        elif ".attention.to_k." in name or ".attention.to_v." in name:
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        out["model.diffusion_model." + name] = (dtype, shape, data)
    header, at = {}, 0
    for name, (dtype, shape, data) in out.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in out.values()))
