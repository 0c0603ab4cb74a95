#!/usr/bin/env python3
"""Writes the seed corpora of the fuzz targets: small valid files and every hostile case we know.

    tests/fuzz/make_corpus.py    # rewrites tests/fuzz/corpus/{safetensors,gguf,index,tokenizer,wire,scales,adapter}

The files are committed; tests/unit/test_fuzz_corpus.c replays them. What a fuzzer finds is added by
hand, under a name that says what it was.
"""
import base64
import json
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def pack(header, data=b"", length=None):
    if isinstance(header, (dict, list)):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype="F32", shape=(2,), begin=0, end=8, **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


def raw(dtype='"F32"', shape="[2]", offsets="[0,8]"):
    return '{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)


DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
          "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


def every_dtype():
    header, at = {}, 0
    for name, size in DTYPES.items():
        header[name.lower()] = tensor(name, (3,), at, at + 3 * size)
        at += 3 * size
    for name, bits in {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}.items():
        header[name.lower()] = tensor(name, (4,), at, at + bits // 2)
        at += bits // 2
    return pack(header, bytes(at))


def safetensors():
    good = pack({"a": tensor()}, bytes(8))
    yield "good_one", good
    yield "good_none", pack({})
    yield "good_dtypes", every_dtype()
    yield "good_scalar", pack({"a": tensor(shape=(), end=4)}, bytes(4))
    yield "good_empty_tensor", pack({"a": tensor(shape=(0, 5), end=0), "b": tensor()}, bytes(8))
    yield "good_order", pack({"b": tensor(), "a": tensor(begin=8, end=16)}, bytes(16))
    yield "good_padded", pack(json.dumps({"a": tensor()}) + "   ", bytes(8))
    yield "good_metadata", pack({"__metadata__": {"format": "pt", "": "ä"}, "a": tensor()}, bytes(8))
    yield "good_extra_field", pack({"a": tensor(more=[1, {"x": None}])}, bytes(8))
    yield "good_rank8", pack({"a": tensor(shape=[1] * 7 + [2])}, bytes(8))
    yield "good_unicode_name", pack({"\u00e4\u4e2d\U0001f34e": tensor()}, bytes(8))
    yield "good_40gb", pack({"a": tensor("BF16", (40000000000 // 2 - 42,), 0, 40000000000 - 84)})

    yield "empty", b""
    yield "short_7", good[:7]
    yield "length_only", good[:8]
    yield "length_0", pack("")
    yield "length_beyond", pack({"a": tensor()}, b"", 1000)
    yield "length_over_limit", pack({"a": tensor()}, bytes(8), 100000001)
    yield "length_max", pack({"a": tensor()}, bytes(8), 2**64 - 1)
    yield "length_sign", pack({"a": tensor()}, bytes(8), 2**63)
    yield "other_gguf", b"GGUF\x03\0\0\0" + bytes(16)
    yield "other_zip", b"PK\x03\x04" + bytes(16)
    yield "other_lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield "other_html", b"<!DOCTYPE html><html></html>"

    yield "json_cut", pack('{"a":{"dtype":"F32","sh')
    yield "json_trailing", pack('{} {}')
    yield "json_array", pack("[]")
    yield "json_number", pack("7")
    yield "json_deep", pack("[" * 5000)
    yield "json_deep_object", pack('{"a":' * 5000)
    yield "json_utf8", pack(b'{"\xff\xfe":{}}')
    yield "json_surrogate", pack('{"\\ud800":{}}')
    yield "json_nul", pack('{"a\\u0000b":{}}')
    yield "json_duplicate", pack('{"a":{},"a":{}}')
    yield "json_big_integer", pack(raw(shape="[18446744073709551616]"))
    yield "json_big_real", pack(raw(shape="[1e999]"))
    yield "json_escape_in_name", pack({"\x1b[2J": tensor()}, bytes(8))
    yield "json_escape_in_dtype", pack({"a": tensor("\x1b[2J")}, bytes(8))
    yield "json_long_name", pack({"x" * 3000: tensor("nope")}, bytes(8))

    yield "metadata_number", pack({"__metadata__": 7})
    yield "metadata_value", pack({"__metadata__": {"a": 7}})
    yield "metadata_nested", pack({"__metadata__": {"a": {"b": "c"}}})

    yield "entry_number", pack({"a": 7})
    yield "entry_empty", pack({"a": {}})
    yield "dtype_missing", pack({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8))
    yield "dtype_unknown", pack({"a": tensor("F12")}, bytes(8))
    yield "dtype_number", pack(raw(dtype="32"), bytes(8))
    yield "shape_missing", pack({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8))
    yield "shape_object", pack(raw(shape="{}"), bytes(8))
    yield "shape_negative", pack({"a": tensor(shape=(-2,))}, bytes(8))
    yield "shape_two_negative", pack({"a": tensor(shape=(-1, -2))}, bytes(8))
    yield "shape_real", pack(raw(shape="[2.0]"), bytes(8))
    yield "shape_string", pack(raw(shape='["2"]'), bytes(8))
    yield "shape_overflow", pack({"a": tensor(shape=(2**32, 2**32))}, bytes(8))
    yield "shape_overflow_to_2", pack({"a": tensor(shape=(2**62 + 1, 4, 2))}, bytes(8))
    yield "shape_overflow_bytes", pack({"a": tensor(shape=(2**62,))}, bytes(8))
    yield "shape_rank9", pack({"a": tensor(shape=[1] * 8 + [2])}, bytes(8))
    yield "shape_odd_f4", pack({"a": tensor("F4", (3,), 0, 2)}, bytes(2))
    yield "offsets_missing", pack({"a": {"dtype": "F32", "shape": [2]}}, bytes(8))
    yield "offsets_three", pack(raw(offsets="[0,8,9]"), bytes(8))
    yield "offsets_one", pack(raw(offsets="[0]"), bytes(8))
    yield "offsets_real", pack(raw(offsets="[0,8.0]"), bytes(8))
    yield "offsets_negative", pack(raw(offsets="[-8,0]"), bytes(8))
    yield "offsets_swapped", pack(raw(offsets="[8,0]"), bytes(8))
    yield "offsets_huge", pack(raw(offsets="[9223372036854775799,9223372036854775807]"), bytes(8))
    yield "bytes_mismatch", pack({"a": tensor(shape=(3,))}, bytes(8))
    yield "overlap", pack({"a": tensor(), "b": tensor(begin=4, end=12)}, bytes(12))
    yield "overlap_same", pack({"a": tensor(), "b": tensor()}, bytes(8))
    yield "overlap_empty", pack({"a": tensor(), "b": tensor(shape=(0,), begin=4, end=4)}, bytes(8))
    yield "hole", pack({"a": tensor(), "b": tensor(begin=16, end=24)}, bytes(24))
    yield "hole_first", pack({"a": tensor(begin=8, end=16)}, bytes(16))
    yield "trailing", pack({"a": tensor()}, bytes(9))
    yield "trailing_no_tensors", pack({}, bytes(1))
    yield "truncated", pack({"a": tensor()}, bytes(7))
    yield "truncated_all", pack({"a": tensor()})
    yield from container()


def packed(mark="BF16 4,512 3904 0123456789abcdef", version="1", **more):
    metadata = {"format": "pt", "shoal.wire": version, "shoal.wire.a": mark,
                "shoal.wire.b": "BF16 fedcba9876543210", **more}
    return pack({"__metadata__": metadata, "a": tensor("U8", (4096,), 0, 4096),
                 "b": tensor("BF16", (4,), 4096, 4104)}, bytes(4104))


def container():
    yield "good_packed", packed()
    yield "good_packed_plain", packed("U8 0123456789abcdef")
    yield "packed_plain_dtype", packed("I8 0123456789abcdef")
    yield "packed_version", packed(version="2")
    yield "packed_no_tensor", packed(**{"shoal.wire.c": "F32 0123456789abcdef"})
    yield "packed_dtype", packed("I8 4,512 3904 0123456789abcdef")
    yield "packed_overflow", packed("BF16 4294967296,4294967296 3904 0123456789abcdef")
    yield "packed_bytes", packed("BF16 4,512 4160 0123456789abcdef")
    yield "packed_malformed", packed("BF16 4,,512 3904 0123456789abcdef")
    unmarked = {"__metadata__": {"shoal.wire": "1"}, "a": tensor()}
    yield "packed_unmarked", pack(unmarked, bytes(8))
    yield "packed_marks_only", pack({"__metadata__": {"shoal.wire.a": "F32 0123456789abcdef"}})


U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
Q8_0, Q4_K, IQ4_XS, BF16 = 8, 12, 23, 30
FORMATS = "BbHhIif?__Qqd"


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def value(kind, content):
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        item, items = content
        return struct.pack("<IQ", item, len(items)) + b"".join(value(item, i) for i in items)
    return struct.pack("<" + FORMATS[kind], content)


def pair(key, kind, content):
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def info(name, dims=(4,), kind=0, offset=0):
    return text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack(
        "<IQ", kind, offset)


def gguf_of(pairs=(), tensors=(), data=b"", version=3, counts=None, align=32):
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(pairs))))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


def gguf():
    one = [info("a")]
    yield "good_one", gguf_of(tensors=one, data=bytes(16))
    yield "good_none", gguf_of()
    yield "good_v2", gguf_of(tensors=one, data=bytes(16), version=2)
    yield "good_scalar", gguf_of(tensors=[info("a", ())], data=bytes(4))
    yield "good_types", gguf_of([pair(f"of.{k}", k, 1) for k in range(13) if k not in (STRING, ARRAY)] + [
        pair("s", STRING, "caf\u00e9"), pair("empty", STRING, "")], one, bytes(16))
    yield "good_arrays", gguf_of([pair("a", ARRAY, (STRING, ["x", "", "yz"])), pair("b", ARRAY, (F64, [1.5])),
                                  pair("c", ARRAY, (BOOL, [])), pair("d", ARRAY, (U64, [2**64 - 1]))])
    yield "good_quantised", gguf_of(tensors=[
        info("a", (32, 2), Q8_0), info("b", (256,), Q4_K, 96), info("c", (256,), IQ4_XS, 256),
        info("d", (2,), BF16, 416)], data=bytes(480))
    yield "good_alignment", gguf_of([pair("general.alignment", U32, 64)], [info("a"), info("b", offset=64)],
                                    bytes(128), align=64)
    yield "good_shape", gguf_of([pair("comfy.gguf.orig_shape.a", ARRAY, (I32, [1, 2, 2]))], one, bytes(16))
    yield "good_names", gguf_of(tensors=[info("blk.3.attn_q.weight"), info("token_embd.weight", offset=32),
                                         info("output.weight", offset=64), info("blk.", offset=96),
                                         info("blk.9", offset=128)], data=bytes(160))
    yield "good_trailing", gguf_of(tensors=one, data=bytes(100))
    yield "good_order", gguf_of(tensors=[info("a", offset=32), info("b")], data=bytes(48))
    yield "good_tokenizer", gguf_of([
        pair("general.architecture", STRING, "qwen3"), pair("tokenizer.ggml.model", STRING, "gpt2"),
        pair("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "ab"])),
        pair("tokenizer.ggml.token_type", ARRAY, (I32, [1, 1, 1])),
        pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"]))])

    yield "empty", b""
    yield "magic_only", b"GGUF"
    yield "cut_counts", gguf_of()[:20]
    yield "cut_pair", gguf_of([pair("a", STRING, "abcdef")])[:40]
    yield "cut_info", gguf_of(tensors=one)[:40]
    yield "cut_data", gguf_of(tensors=one, data=bytes(15))
    yield "magic_other", b"GGML" + gguf_of()[4:]
    for version in (0, 1, 4, 99, 2**31):
        yield f"version_{version}", gguf_of(version=version)
    yield "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "counts_tensors", gguf_of(counts=(2**64 - 1, 0))
    yield "counts_pairs", gguf_of(counts=(0, 2**64 - 1))
    yield "counts_few", gguf_of(tensors=one, data=bytes(16), counts=(0, 0))
    yield "key_long", gguf_of([pair("k" * 2000, U8, 1)])
    yield "key_empty", gguf_of([pair("", U8, 1)])
    yield "key_control", gguf_of([pair("a\x1b[2J", U8, 1)])
    yield "key_nul", gguf_of([pair("a\0b", U8, 1)])
    yield "key_utf8", gguf_of([pair(b"\xff", U8, 1)])
    yield "key_twice", gguf_of([pair("a", U8, 1), pair("a", U8, 2)])
    yield "type_unknown", gguf_of([text("a") + struct.pack("<I", 13)])
    yield "bool_2", gguf_of([text("a") + struct.pack("<IB", BOOL, 2)])
    yield "bool_array", gguf_of([text("a") + struct.pack("<IIQ", ARRAY, BOOL, 3) + b"\0\1\7"])
    yield "string_huge", gguf_of([text("a") + struct.pack("<IQ", STRING, 2**64 - 1)])
    yield "string_utf8", gguf_of([pair("a", STRING, b"\xff\xfe"), pair("b", ARRAY, (STRING, [b"\xc0"]))])
    yield "string_nul", gguf_of([pair("a", STRING, "x\0y")])
    yield "number_nan", gguf_of([pair("a", F32, float("nan")), pair("b", F64, float("inf"))])
    yield "array_nested", gguf_of([text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + struct.pack("<IQ", U8, 0)])
    yield "array_huge", gguf_of([text("a") + struct.pack("<IIQ", ARRAY, U64, 2**61)])
    yield "array_overflow", gguf_of([text("a") + struct.pack("<IIQ", ARRAY, U64, 2**61 + 1)])
    yield "array_strings_huge", gguf_of([text("a") + struct.pack("<IIQ", ARRAY, STRING, 2**64 - 1)])
    for alignment in (0, 1, 4, 48, 2**31):
        yield f"alignment_{alignment}", gguf_of([pair("general.alignment", U32, alignment)], one, bytes(16))
    yield "alignment_type", gguf_of([pair("general.alignment", U64, 32)], one, bytes(16))
    yield "split", gguf_of([pair("split.count", U16, 2)])
    yield "name_twice", gguf_of(tensors=[info("a"), info("a", offset=32)], data=bytes(48))
    yield "name_twice_renamed", gguf_of(tensors=[info("output.weight"), info("lm_head.weight", offset=32)],
                                        data=bytes(48))
    yield "name_control", gguf_of(tensors=[info("a\n")], data=bytes(16))
    yield "rank_9", gguf_of(tensors=[info("a", (1,) * 9)], data=bytes(16))
    yield "rank_huge", gguf_of(tensors=[text("a") + struct.pack("<I", 2**32 - 1)])
    yield "dim_0", gguf_of(tensors=[info("a", (4, 0))], data=bytes(16))
    yield "dim_sign", gguf_of(tensors=[info("a", (2**63,))], data=bytes(16))
    yield "dims_overflow", gguf_of(tensors=[info("a", (2**32, 2**32))], data=bytes(16))
    yield "dims_overflow_bytes", gguf_of(tensors=[info("a", (2**62,))], data=bytes(16))
    yield "blocks_cut", gguf_of(tensors=[info("a", (48, 2), Q8_0)], data=bytes(102))
    yield "kind_removed", gguf_of(tensors=[info("a", kind=4)], data=bytes(16))
    yield "kind_unknown", gguf_of(tensors=[info("a", kind=2**32 - 1)], data=bytes(16))
    yield "offset_odd", gguf_of(tensors=[info("a", offset=4)], data=bytes(32))
    yield "offset_huge", gguf_of(tensors=[info("a", offset=2**64 - 32)], data=bytes(32))
    yield "overlap", gguf_of(tensors=[info("a", (16,)), info("b", offset=32)], data=bytes(64))
    yield "overlap_same", gguf_of(tensors=[info("a"), info("b")], data=bytes(32))
    yield "hole", gguf_of(tensors=[info("a"), info("b", offset=64)], data=bytes(96))
    yield "hole_first", gguf_of(tensors=[info("a", offset=32)], data=bytes(64))
    yield "shape_type", gguf_of([pair("comfy.gguf.orig_shape.a", STRING, "[4]")], one, bytes(16))
    yield "shape_count", gguf_of([pair("comfy.gguf.orig_shape.a", ARRAY, (I32, [5]))], one, bytes(16))
    yield "shape_negative", gguf_of([pair("comfy.gguf.orig_shape.a", ARRAY, (I32, [-2, -2]))], one, bytes(16))
    yield "shape_long", gguf_of([pair("comfy.gguf.orig_shape.a", ARRAY, (I32, [1] * 8 + [4]))], one, bytes(16))


def index_of(entries, **more):
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": entries, **more}).encode()


def index():
    yield "good_one", index_of({"a": "model-00001-of-00001.safetensors"})
    yield "good_two", index_of({"b": "2.safetensors", "a": "1.safetensors", "c": "2.safetensors"})
    yield "good_no_metadata", b'{"weight_map":{"a":"1.safetensors"}}'
    yield "empty", b""
    yield "array", b"[]"
    yield "cut", b'{"weight_map":{"a":"1.safe'
    yield "no_map", b"{}"
    yield "map_empty", index_of({})
    yield "map_array", index_of([])
    yield "shard_number", index_of({"a": 7})
    yield "shard_empty", index_of({"a": ""})
    yield "shard_dot", index_of({"a": "."})
    yield "shard_up", index_of({"a": ".."})
    yield "shard_outside", index_of({"a": "../../etc/passwd"})
    yield "shard_absolute", index_of({"a": "/etc/passwd"})
    yield "shard_control", index_of({"a": "a\x1b[2J"})
    yield "name_control", index_of({"a\n": "1.safetensors"})
    yield "duplicate", b'{"weight_map":{"a":"1","a":"2"}}'
    yield "duplicate_map", b'{"weight_map":{"a":"1"},"weight_map":{"a":"1"}}'
    yield "utf8", b'{"weight_map":{"\xff":"1"}}'
    yield "nul", b'{"weight_map":{"a":"1\\u0000"}}'
    yield "deep", b'{"weight_map":' * 5000


def alphabet():
    """The characters that stand for the bytes 0..255 in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


MERGES = [("c", "a"), ("ca", "t"), ("\u0120", "cat"), ("h", "e"), ("t", "he"), ("\u00c3", "\u00a9")]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = {"id": 0, "content": "<|im_end|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}


def split(pattern, kind="Regex", behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
NFC = {"type": "NFC"}


def bpe(text=None, model=None, drop=None, **more):
    """A tokenizer of the 256 bytes and a few merges; then a 0 byte and `text`."""
    words = ["<|im_end|>", *alphabet(), *(a + b for a, b in MERGES)]
    config = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(QWEN), BYTE_LEVEL]},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {w: i for i, w in enumerate(words)},
                  "merges": [" ".join(m) for m in MERGES], **(model or {})},
        **more}
    config.pop(drop, None)
    content = json.dumps(config, separators=(",", ":"), ensure_ascii=False).encode()
    return content if text is None else content + b"\0" + text


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def varint(n):
    return bytes([n % 128 | 128]) + varint(n // 128) if n > 127 else bytes([n])


def message(*fields):
    """A protobuf message: a number, a float or bytes for each key."""
    text = b""
    for key, value in fields:
        if isinstance(value, float):
            text += varint(key << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            text += varint(key << 3) + varint(value)
        else:
            text += varint(key << 3 | 2) + varint(len(value)) + value
    return text


def charsmap(rules):
    """A double array in which each unit has a block of 256 to itself: of rules of one byte or two."""
    values, units, blocks = b"\0", {}, 1
    units[0] = 256 << 10
    for key, value in rules.items():
        at = 256
        for i, byte in enumerate(key):
            unit = at ^ byte
            if unit not in units:
                blocks += 1
                units[unit] = byte | (unit ^ 256 * blocks) << 10
            at = unit ^ (units[unit] >> 10)
            if i == len(key) - 1:
                units[unit] |= 256
                units[at] = 1 << 31 | len(values)
        values += value.encode() + b"\0"
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(256 * (blocks + 1)))
    return struct.pack("<I", len(trie)) + trie + values


RULES = {b"H": "h", "\u00e9".encode(): "e", b"\n": " "}
PIECES = [(b"<unk>", 0.0, 2), (b"</s>", 0.0, 3), ("\u2581".encode(), -2.0, 1), (b"a", -3.0, 1), (b"t", -3.0, 1), (b"at", -4.0, 1),
          ("\u2581the".encode(), -5.0, 1), (b"cat", -5.0, 4), (b"x", -6.0, 5)]
BYTES = [(f"<0x{b:02X}>".encode(), 0.0, 6) for b in range(256)]


def model(pieces=PIECES, trainer=(), rules=()):
    return message(*((1, message((1, text), (2, score), (3, kind))) for text, score, kind in pieces),
                   (2, message(*trainer)), (3, message(*rules)))


def unigram(text=None, changes=None, **more):
    encoded = base64.b64encode(charsmap(RULES)).decode()
    config = {
        "added_tokens": [{**SPECIAL, "id": len(PIECES)}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": encoded},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]},
        "pre_tokenizer": sequence({"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "\u2581"}),
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
                           "special_tokens": {"</s>": {"ids": [1]}}},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[t.decode(), s] for t, s, _ in PIECES], **(changes or {})},
        **more}
    content = json.dumps(config, separators=(",", ":"), ensure_ascii=False).encode()
    return content if text is None else content + b"\0" + text


def unigrams():
    encoded = charsmap(RULES)
    good = model(rules=[(2, encoded)])
    yield "spiece_good", good
    yield "spiece_bytes", model(PIECES + BYTES, [(35, 1)])
    yield "spiece_plain", model(trainer=[(24, 1)], rules=[(3, 1), (4, 0), (5, 0)])
    for cut in (1, 3, 9, 40, len(good) // 2, len(good) - 1):
        yield f"spiece_cut_{cut}", good[:cut]
    yield "spiece_bpe", model(trainer=[(3, 2)])
    yield "spiece_no_unknown", model(PIECES[1:])
    yield "spiece_two_unknown", model(PIECES + PIECES[:1])
    yield "spiece_twice", model(PIECES + PIECES[3:4])
    yield "spiece_nan", model(PIECES + [(b"n", float("nan"), 1)])
    yield "spiece_odd_type", model(PIECES + [(b"n", 0.0, 2**40)])
    yield "spiece_some_bytes", model(PIECES + BYTES[:9], [(35, 1)])
    yield "spiece_long_piece", model(PIECES + [(b"n" * 600, 0.0, 1)])
    yield "spiece_huge_length", good + b"\x0a" + varint(2**62)
    yield "spiece_endless", good + b"\xff" * 20
    yield "map_cut", model(rules=[(2, encoded[:500])])
    yield "map_outside", model(rules=[(2, encoded[:4] + struct.pack("<I", 2**30) + encoded[8:])])
    yield "map_huge_trie", model(rules=[(2, struct.pack("<I", 2**32 - 4) + encoded[4:])])
    yield "map_value_outside", model(rules=[(2, encoded[:-6] + b"\0")])
    yield "map_no_text", model(rules=[(2, encoded.split(b"h\0")[0] + b"\xff\0")])
    yield "unigram_good", unigram()
    yield "unigram_text", unigram("The  cat at\r\n\u00e9 the <|im_end|>x ".encode())
    yield "unigram_bytes", unigram(changes={"byte_fallback": True})
    yield "unigram_no_unknown", unigram(b"cat zzz", changes={"unk_id": None})
    yield "unigram_first", unigram(b"cat at", pre_tokenizer={
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False})
    yield "unigram_no_pre_tokenizer", unigram(b"cat at", pre_tokenizer=None, normalizer=None)
    yield "unigram_grows", unigram(b"a" * 9000, normalizer={
        "type": "Replace", "pattern": {"String": "a"}, "content": "a" * 900})
    yield "unigram_bad_vocabulary", unigram(changes={"vocab": [["a", 0], 7]})


def tokenizer():
    yield from unigrams()
    good = bpe()
    yield "good", good
    yield "good_text", bpe("the cat's 42 cats,\n\n  \u00e9 \u4e2d <|im_end|>x".encode())
    yield "good_empty_text", bpe(b"")
    yield "good_merge_pairs", bpe(b"the cat", model={"merges": [list(m) for m in MERGES]})
    yield "good_nfc_lowercase", bpe("E\u0301COLE CAT \u212b".encode(), normalizer={
        "type": "Sequence", "normalizers": [NFC, {"type": "Lowercase"}]})
    yield "good_byte_level_regex", bpe(b"the cat's", pre_tokenizer={**BYTE_LEVEL, "use_regex": True})
    yield "good_prefix_space", bpe(b"cat", pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True})
    yield "good_no_pre_tokenizer", bpe(b"cat", pre_tokenizer=None)
    yield "good_strips", bpe(b"a <|im_end|> b", added_tokens=[{**SPECIAL, "lstrip": True, "rstrip": True}])
    yield "good_single_word", bpe(b"a<|im_end|>b", added_tokens=[{**SPECIAL, "single_word": True}])
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "split_" + behavior.lower(), bpe(b"a b  c", pre_tokenizer=sequence(
            split(" ", "String", behavior), BYTE_LEVEL))
    yield "split_inverted", bpe(b"a b", pre_tokenizer=sequence(split(" ", invert=True), BYTE_LEVEL))
    yield "split_empty_match", bpe(b"abc", pre_tokenizer=sequence(split("x*"), BYTE_LEVEL))
    yield "split_empty_string", bpe(b"abc", pre_tokenizer=sequence(split("", "String"), BYTE_LEVEL))
    yield "split_bad_regex", bpe(b"abc", pre_tokenizer=sequence(split("(a"), BYTE_LEVEL))
    yield "split_slow_regex", bpe(b"a" * 64, pre_tokenizer=sequence(split("(a+)+$|(a|aa)+b"), BYTE_LEVEL))
    yield "split_deep_regex", bpe(b"a", pre_tokenizer=sequence(split("(" * 600 + "a" + ")" * 600), BYTE_LEVEL))
    yield "split_unknown", bpe(b"a", pre_tokenizer=sequence(split("a", behavior="Odd"), BYTE_LEVEL))

    yield "empty", b""
    yield "text_only", b"\0abc"
    yield "cut", good[:len(good) // 2]
    yield "array", b"[]"
    yield "object", b"{}"
    yield "deep", b'{"a":' * 5000
    yield "utf8", b'{"\xff":1}'
    yield "duplicate", b'{"model":{},"model":{}}'
    yield "text_utf8_cut", bpe(b"abc\xe4\xb8")
    yield "text_utf8_overlong", bpe(b"\xc0\xaf")
    yield "text_utf8_surrogate", bpe(b"\xed\xa0\x80")
    yield "text_utf8_high", bpe(b"\xf4\x90\x80\x80")
    yield "text_long_word", bpe(b"the" * 2000)
    yield "model_missing", bpe(drop="model")
    yield "model_other", bpe(model={"type": "Unigram"})
    yield "model_vocab_array", bpe(model={"vocab": []})
    yield "model_vocab_empty", bpe(b"a", model={"vocab": {}, "merges": []})
    yield "model_id_negative", bpe(model={"vocab": {"a": -1}, "merges": []})
    yield "model_id_huge", bpe(model={"vocab": {"a": 2**31}, "merges": []})
    yield "model_id_real", bpe(model={"vocab": {"a": 1.5}, "merges": []})
    yield "model_id_twice", bpe(b"ab", model={"vocab": {"a": 0, "b": 0}, "merges": []})
    yield "model_id_sparse", bpe(b"a", model={"vocab": {"a": 2**30}, "merges": []})
    yield "model_bytes_missing", bpe(b"xyz", model={"vocab": {"a": 0}, "merges": []})
    yield "merge_unknown", bpe(model={"merges": ["no such"]})
    yield "merge_one", bpe(model={"merges": ["cat"]})
    yield "merge_three", bpe(model={"merges": [["c", "a", "t"]]})
    yield "merge_number", bpe(model={"merges": [7]})
    yield "merge_twice", bpe(b"cat", model={"merges": ["c a", "c a"]})
    yield "merge_result_unknown", bpe(model={"merges": ["x y"]})
    yield "model_dropout", bpe(model={"dropout": 0.5})
    yield "model_fallback", bpe(model={"byte_fallback": True})
    yield "model_suffix", bpe(model={"end_of_word_suffix": "</w>"})
    yield "added_empty", bpe(b"a", added_tokens=[{**SPECIAL, "content": ""}])
    yield "added_huge_id", bpe(b"<|im_end|>", added_tokens=[{**SPECIAL, "id": 2**40}])
    yield "added_number", bpe(added_tokens=[7])
    yield "added_overlap", bpe(b"xyzxy", added_tokens=[{**SPECIAL, "content": c, "id": 300 + i}
                                                       for i, c in enumerate(["xy", "xyz", "yz"])])
    yield "normalizer_unknown", bpe(normalizer={"type": "Odd"})
    yield "normalizer_nested", bpe(b"a", normalizer={"type": "Sequence", "normalizers": [
        {"type": "Sequence", "normalizers": [NFC]}]})
    yield "truncation", bpe(b"a", truncation={"max_length": 1})


# ---- the wire, written from docs/formats.md ----

WIRE_CODES = {"BF16": (1, 2, 0), "F16": (2, 2, 3), "F8_E4M3": (3, 1, 4)}  # code, bytes, P
BF16_TABLE = bytes([0, 255, 254, 1, 253, 252, 2, 251, 250])


def wire_plane(bits):
    number = sum(bit << i for i, bit in enumerate(bits))
    return number.to_bytes(-(-len(bits) // 8), "little")


def wire_tile(kind, table, elements, raw=False, base=None):
    """A record and a part of 1024 elements."""
    size, planes = WIRE_CODES[kind][1:]
    width = 8 * size
    turned = [(e << 1 | e >> (width - 1)) & ((1 << width) - 1) for e in elements]
    high = [t >> (width - 8) for t in turned]
    record = bytes(t & 255 for t in turned) if size == 2 else b""
    if raw:
        cut = 128 * (planes + 2)
        return record + bytes(high[:cut]), bytes(high[cut:])
    symbols = [h >> planes << planes for h in high]
    base = sorted(symbols)[512] if base is None else base
    left = [(s - base) & 255 for s in symbols]
    levels = []
    for level in range(3):
        own = list(table[3 * level:3 * level + 3])
        codes = [own.index(v) if v in own else 3 for v in left]
        levels.append([c & 1 for c in codes] + [c >> 1 for c in codes])
        left = [v for v, c in zip(left, codes) if c == 3]
    record += b"".join(wire_plane([h >> p & 1 for h in high]) for p in range(planes))
    part = bytes([base]) + wire_plane(levels[1] + levels[2]) + bytes(left)
    return record + wire_plane(levels[0]), part + bytes(-len(part) % 4)


def wire_payload(kind="BF16", tiles=(), count=None, table=BF16_TABLE, entries=None, **header):
    """`tiles`: pairs of a record and a part, and whether it is raw."""
    offsets, parts, records = [], b"", b""
    for record, part, raw in tiles:
        offsets.append(len(parts) // 4 | (raw << 31))
        records, parts = records + record, parts + part
    offsets.append(len(parts) // 4)
    body = struct.pack(f"<{len(offsets)}I", *(entries or offsets))
    body += bytes(-len(body) % 64) + records + parts
    body += bytes(64 + -len(body) % 64)
    fields = {"magic": b"shwp", "version": 1, "code": WIRE_CODES[kind][0], "zero": 0,
              "count": 1024 * len(tiles) if count is None else count, "bytes": 64 + len(body), **header}
    return struct.pack("<4sHBBQQ9s31s", *fields.values(), table, b"") + body


def wire():
    bell = [(0x3c00 + (i * i * 7919 >> 3) % 640 + (i % 2 << 15)) & 0xffff for i in range(1024)]
    mixed = [i * 40503 & 0xffff for i in range(1024)]
    lone = [i << 7 & 0x7fff for i in range(1024)]

    def tile(elements=bell, kind="BF16", raw=False, table=BF16_TABLE, **more):
        return *wire_tile(kind, table, elements, raw, **more), raw

    good = wire_payload(tiles=[tile()])
    yield "good", good
    yield "good_none", wire_payload()
    yield "good_short", wire_payload(tiles=[tile(), tile(mixed, raw=True)], count=1025)
    yield "good_many", wire_payload(tiles=[tile(), tile(mixed, raw=True), tile(base=7), tile(lone)] * 3)
    yield "good_lone", wire_payload(tiles=[tile(lone, base=200)])
    yield "good_same_values", wire_payload(tiles=[tile(table=bytes(9))], table=bytes(9))
    for kind, table in {"F16": bytes(i * 8 & 255 for i in range(-4, 5)),
                        "F8_E4M3": bytes(i * 16 & 255 for i in range(-4, 5))}.items():
        low = [e & (0xffff if kind == "F16" else 0xff) for e in bell]
        yield "good_" + kind.lower(), wire_payload(kind, [
            tile(low, kind, table=table), tile(low, kind, raw=True)], table=table)
    yield "elements", struct.pack("<1500H", *(bell + mixed)[:1500])
    yield "elements_few", b"\x80\x3f\x00\x00\x00\x80\xff"

    yield "empty", b""
    yield "header_cut", good[:63]
    yield "header_only", good[:64]
    yield "cut", good[:-64]
    yield "cut_odd", good[:-1]
    yield "long", good + bytes(64)
    yield "magic", wire_payload(tiles=[tile()], magic=b"shwq")
    yield "version", wire_payload(tiles=[tile()], version=2)
    yield "code", wire_payload(tiles=[tile()], code=9)
    yield "code_other", wire_payload(tiles=[tile()], code=2)
    yield "zero", wire_payload(tiles=[tile()], zero=1)
    yield "zeros", good[:63] + b"\1" + good[64:]
    yield "count_0", wire_payload(tiles=[tile()], count=0)
    yield "count_more", wire_payload(tiles=[tile()], count=1025)
    yield "count_huge", wire_payload(tiles=[tile()], count=2**33)
    yield "count_max", wire_payload(tiles=[tile()], count=2**64 - 1)
    yield "bytes_max", wire_payload(tiles=[tile()], bytes=2**64 - 64)
    record, part, _ = tile()
    units = len(part) // 4
    yield "entry_first", wire_payload(tiles=[tile()], entries=[1, units])
    yield "entry_raw", wire_payload(tiles=[tile()], entries=[1 << 31, units])
    yield "entry_coded", wire_payload(tiles=[tile(mixed, raw=True)], entries=[0, 192])
    yield "entry_last_raw", wire_payload(tiles=[tile()], entries=[0, units | 1 << 31])
    yield "entry_falls", wire_payload(tiles=[tile()] * 3, entries=[0, 2 * units, units, 3 * units])
    yield "entry_beyond", wire_payload(tiles=[tile()] * 2, entries=[0, 2**31 - 1, 2 * units])
    yield "entry_shifted", wire_payload(tiles=[tile()] * 2, entries=[0, units - 1, 2 * units])
    yield "codes_all_3", wire_payload(tiles=[(record[:1024] + b"\xff" * 256, part, False)])
    yield "codes_all_0", wire_payload(tiles=[(record[:1024] + bytes(256), part, False)])
    yield "level_2_all_3", wire_payload(tiles=[(record, part[:1] + b"\xff" * (len(part) - 1), False)])
    yield "part_long", wire_payload(tiles=[(record, part + bytes(4), False)])
    yield "part_short", wire_payload(tiles=[(record, part[:-4], False)])
    yield "part_none", wire_payload(tiles=[(record, b"", False)])


def fp8(beside, metadata=None):
    """A layer in 8 bits with what lies beside its weight. What is wrong there no header shows."""
    header, data = {"l.weight": tensor("F8_E4M3", (2, 2), 0, 4)}, b"\x38\x7e\x00\x81"
    for name, value in beside.items():
        dtype = "U8" if name.endswith("quant") else "F8_E4M3" if name == "scaled_fp8" else "F32"
        count = len(value) // (4 if dtype == "F32" else 1)
        header[name] = tensor(dtype, (count,), len(data), len(data) + len(value))
        data += value
    if metadata is not None:
        header["__metadata__"] = {"_quantization_metadata": metadata}
    return pack(header, data)


def scales():
    scale, said = {"l.weight_scale": struct.pack("<f", 0.01)}, {"l.comfy_quant": b'{"format": "float8_e4m3fn"}'}
    layers = '{"layers": {"l": %s}}'
    yield "good_none", fp8({})
    yield "good_scale", fp8(scale)
    yield "good_keys", fp8({**scale, **said})
    yield "good_metadata", fp8(scale, layers % '{"format": "float8_e4m3fn"}')
    yield "good_of_old", fp8({"l.scale_weight": scale["l.weight_scale"], "l.scale_input": b"abcd", "scaled_fp8": b""})
    for name, value in {"zero": 0, "negative": -1, "small": 1e-45, "large": 1e36, "infinite": float("inf"),
                        "nan": float("nan")}.items():
        yield f"scale_{name}", fp8({"l.weight_scale": struct.pack("<f", value)})
    yield "scale_two", fp8({"l.weight_scale": bytes(8)})
    yield "scale_empty", fp8({"l.weight_scale": b""})
    yield "scale_missing", fp8(said)
    yield "scale_of_another_type", fp8({"l.weight_scale.quant": b"a", "l.weight_scale": b"abcd"})
    for name in ("nvfp4", "mxfp8", "int8_tensorwise", "float8_e5m2", "", "\\u0007", "x" * 3000):
        kind = name[:8].strip("\\") or "empty"
        yield f"format_{kind}", fp8({**scale, "l.comfy_quant": b'{"format": "%s"}' % name.encode()})
    for name, text in {"empty": "", "cut": "{", "array": "[]", "number": "7", "null": '{"format": null}',
                       "nothing": "{}", "bytes": "\u00ff", "nul": '{"format": "a\\u0000"}'}.items():
        yield f"json_{name}", fp8({**scale, "l.comfy_quant": text.encode("latin-1")})
        yield f"metadata_{name}", fp8(scale, text)
        yield f"layer_{name}", fp8(scale, layers % text)
    yield "json_long", fp8({**scale, "l.comfy_quant": b" " * 5000})
    yield "metadata_long", fp8(scale, "[" * 5000)
    yield "metadata_heavy", fp8(scale, '{"layers": {%s}}' % ",".join(f'"{i}": {{}}' for i in range(9000)))


def floats(tensors, metadata=None):
    """A file of F32 tensors {name: shape}, all ones."""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, shape in tensors.items():
        count = 1
        for n in shape:
            count *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    return pack(header, struct.pack("<f", 1) * (at // 4))


def adapter():
    key = "lora_unet_l_"
    pair = {key + "qkv.lora_up.weight": [8, 2], key + "qkv.lora_down.weight": [2, 6]}
    yield "good_lora", floats(pair)
    yield "good_alpha", floats({**pair, key + "qkv.alpha": []})
    yield "good_part", floats({"transformer.l.to_k.lora_B.weight": [2, 1], "transformer.l.to_k.lora_A.x.weight": [1, 6]})
    yield "good_diff", floats({"diffusion_model.l.qkv.diff": [8, 6], "diffusion_model.l.norm.diff_b": [6]})
    yield "good_loha", floats({f"l.to_q.hada_w{h}_{s}": n for h in "12" for s, n in (("a", [4, 2]), ("b", [2, 6]))})
    yield "good_lokr", floats({"l.qkv.lokr_w1": [4, 2], "l.qkv.lokr_w2_a": [2, 1], "l.qkv.lokr_w2_b": [1, 3]})
    yield "good_metadata", floats(pair, {"lora_adapter_metadata": '{"transformer.lora_alpha": 3}'})
    yield "metadata_cut", floats(pair, {"lora_adapter_metadata": '{"transformer.lora_alpha"'})
    yield "metadata_dora", floats(pair, {"lora_adapter_metadata": '{"transformer.use_dora": true}'})
    yield "shape_other", floats({**pair, key + "qkv.lora_down.weight": [2, 7]})
    yield "shape_rank", floats({**pair, key + "qkv.lora_down.weight": [3, 6]})
    yield "shape_flat", floats({**pair, key + "qkv.lora_down.weight": [12]})
    yield "shape_empty", floats({**pair, key + "qkv.lora_down.weight": [0, 6]})
    yield "shape_kron", floats({"l.qkv.lokr_w1": [8, 6], "l.qkv.lokr_w2": [2, 2]})
    yield "alone", floats({key + "qkv.lora_up.weight": [8, 2]})
    yield "alpha_two", floats({**pair, key + "qkv.alpha": [2]})
    yield "twice", floats({**pair, "transformer.l.to_v.diff": [2, 6]})
    yield "dora", floats({**pair, key + "qkv.dora_scale": [8]})
    yield "weight", floats({"l.qkv.weight": [8, 6]})
    yield "unmatched", floats({"other.diff": [1]})
    yield "name_dots", floats({"....lora_up.weight": [8, 2], ".": [1], "": [1], ".diff": [1]})
    yield "name_prefixes", floats({"transformer." * 9 + "l.qkv.diff": [8, 6], "text_encoders._____.diff": [1]})
    nan = floats(pair)
    yield "nan", nan[:-4] + struct.pack("<f", float("nan"))
    yield "none", floats({})


def main():
    for cases in (safetensors, gguf, index, tokenizer, wire, scales, adapter):
        folder = CORPUS / cases.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in cases():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
