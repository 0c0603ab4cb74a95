#!/usr/bin/env python3
"""Makes a checkpoint in 8 bits of one in BF16: matrices become F8_E4M3 or F8_E5M2, all else stays.

    tools/make_fp8.py IN.safetensors OUT.safetensors [OPTION]...

  --type e4m3|e5m2
  --keys none|comfy|metadata|legacy   none: unscaled. Else each matrix has a scale (absmax / the largest
                       code), which is told of as ComfyUI does: by a "comfy_quant" beside each, by the
                       header's "_quantization_metadata", or by the names of old ("scaled_fp8")
  --wide               BF16 again, of the values that the codes mean: what pictures are compared with

Standard library only, for tests and demos; models of billions of weights take their time.
"""
import argparse
import array
import bisect
import json
import struct
import sys

MOST = {"e4m3": 448.0, "e5m2": 57344.0}
DTYPES = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}
FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def from_bf16(half):
    return struct.unpack("<f", struct.pack("<I", half << 16))[0]


def to_bf16(value):
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff


def magnitudes(kind):
    """Of the codes without a sign that are finite, in order."""
    mantissa, bias = (3, 7) if kind == "e4m3" else (2, 15)
    values = []
    for code in range(0x7f if kind == "e4m3" else 0x7c):
        exponent, rest = code >> mantissa, code & (1 << mantissa) - 1
        if exponent:
            values.append(2.0 ** (exponent - bias) * (1 + rest / (1 << mantissa)))
        else:
            values.append(2.0 ** (1 - bias) * rest / (1 << mantissa))
    return values


def code_of(half, values, scale):
    """The code of a BF16 number over `scale`: the nearest one, the even of two as near."""
    value = f32(abs(from_bf16(half & 0x7fff)) / scale)
    high = min(bisect.bisect_left(values, value), len(values) - 1)
    low = max(high - 1, 0)
    up, down = values[high] - value, value - values[low]
    return (high if up < down or (up == down and high % 2 == 0) else low) | half >> 8 & 0x80


def quantise(data, kind, scaled):
    """Codes and the scale. What a tensor has many of is worked out once."""
    halves = array.array("H", data)
    distinct = set(halves)
    values, scale = magnitudes(kind), 1.0
    if scaled:
        scale = f32(from_bf16(max(half & 0x7fff for half in distinct)) / MOST[kind]) or 1.0
    codes = {half: code_of(half, values, scale) for half in distinct}
    return bytes(map(codes.__getitem__, halves)), scale


def widen(stored, kind, scale):
    """What codes mean, in BF16."""
    values = magnitudes(kind)
    means = [to_bf16(f32((values[c & 0x7f] if c & 0x7f < len(values) else 0.0) * scale)) | (c & 0x80) << 8
             for c in range(256)]
    wide = bytearray(2 * len(stored))
    wide[0::2] = stored.translate(bytes(mean & 0xff for mean in means))
    wide[1::2] = stored.translate(bytes(mean >> 8 for mean in means))
    return bytes(wide)


def read_header(file):
    """Of safetensors; what follows it in the file is the data."""
    length, = struct.unpack("<Q", file.read(8))
    return json.loads(file.read(length))


def header_bytes(header):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read(path):
    with open(path, "rb") as file:
        header, data = read_header(file), file.read()
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (at["dtype"], at["shape"], data[slice(*at["data_offsets"])])
                      for name, at in header.items()}


def write(path, metadata, tensors):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    with open(path, "wb") as file:
        file.write(header_bytes(header))
        for _, (_, _, data) in sorted(tensors.items()):
            file.write(data)


def describe(keys, layer, kind, scale, tensors, layers):
    """Adds what a file says of a layer: its scale, and that it has one."""
    if keys == "none":
        return
    said = {"format": FORMATS[kind]}
    name = ".scale_weight" if keys == "legacy" else ".weight_scale"
    tensors[layer + name] = ("F32", [1] if keys == "legacy" else [], struct.pack("<f", scale))
    if keys == "legacy":
        tensors[layer + ".scale_input"] = ("F32", [1], struct.pack("<f", 1.0))
    elif keys == "comfy":
        text = json.dumps({**said, "full_precision_matrix_mult": True}).encode()
        tensors[layer + ".comfy_quant"] = ("U8", [len(text)], text)
    else:
        layers[layer] = said


def convert(metadata, tensors, kind, keys, wide):
    made, layers = {}, {}
    for name, (dtype, shape, data) in tensors.items():
        matrix = dtype == "BF16" and len(shape) == 2 and name.endswith(".weight")
        if not matrix:
            made[name] = (dtype, shape, data)
            continue
        codes, scale = quantise(data, kind, keys != "none")
        if wide:
            made[name] = (dtype, shape, widen(codes, kind, scale))
            continue
        made[name] = (DTYPES[kind], shape, codes)
        describe(keys, name[:-len(".weight")], kind, scale, made, layers)
    if layers:
        metadata = {**metadata, "_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    if keys == "legacy" and not wide:
        made["scaled_fp8"] = (DTYPES[kind], [0], b"")
    return metadata, made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--type", choices=MOST, default="e4m3")
    parser.add_argument("--keys", choices=["none", "comfy", "metadata", "legacy"], default="comfy")
    parser.add_argument("--wide", action="store_true")
    args = parser.parse_args()
    write(args.output, *convert(*read(args.input), args.type, args.keys, args.wide))
    return 0


if __name__ == "__main__":
    sys.exit(main())
