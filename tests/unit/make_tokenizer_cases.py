#!/usr/bin/env python3
"""Writes tokenizer_cases.json: what the `tokenizers` package gives for many kinds of tokenizer.json.

    python3 tests/unit/make_tokenizer_cases.py     # needs: pip install tokenizers

Each case is members that take the place of the base tokenizer's, texts, and the ids they give. The
unit test test_tokenizer_cases reads the file; nothing else needs this program.
"""
import copy
import json
import pathlib
import random

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def base():
    symbols = byte_alphabet()
    vocab = {symbols[b]: b for b in range(256)}
    merges = []

    def merge(left, right):
        vocab[left + right] = len(vocab)
        merges.append([left, right])

    for left, right in ["ab", "ba", "lo", "ow", "ed", "er", "in", "th", "Ġa", "Ġt", "11", "ss", "  "]:
        merge(left.replace(" ", "Ġ"), right.replace(" ", "Ġ"))
    for pair in ["ab ab", "abab abab", "lo w", "r ed", "Ġt h", "Ġth e", "a bab", "low er", "Ġa b", "ĠĠ ĠĠ",
                 "Ã ©", "Ì ģ", "e Ìģ", "in g"]:
        left, right = pair.split()
        if left + right not in vocab:
            merge(left, right)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": BYTES, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocab, "merges": merges}}


def byte_level(regex=False, space=False):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


BYTES = byte_level()
CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = CASELESS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CASELESS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CASELESS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()


def token(content, **flags):
    return {"id": None, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


def number(tokens, vocab):
    """Gives each added token the id that the package gives it: the vocabulary's, or the next one."""
    end = len(vocab)
    for entry in tokens:
        entry["id"] = vocab.get(entry["content"], end)
        end = max(end, entry["id"] + 1)


PLAIN = [token("<|im_start|>", special=True), token("<|im_end|>", special=True), token("<|im_"), token("red")]
FLAGS = [token("<s>", lstrip=True, special=True), token("</s>", rstrip=True, special=True),
         token("low", single_word=True), token("Café", normalized=True),
         token("ab", normalized=True, single_word=True, rstrip=True), token(" x", lstrip=True, rstrip=True),
         token("<s")]

# Characters at which versions of Unicode, or libraries, differ.
NEW = [0x897, 0xC3C, 0x1715, 0x180E, 0x1C89, 0x1C8A, 0x1ABF, 0x32FF, 0xA7CB, 0xA7DC, 0xA7F4, 0x105C9, 0x105D2,
       0x10781, 0x10D50, 0x10D70, 0x10EFD, 0x113B8, 0x113D1, 0x11930, 0x11935, 0x11938, 0x1171E, 0x11F50, 0x13440,
       0x16121, 0x1611E, 0x16D67, 0x16EA0, 0x1CCF0, 0x1E030, 0x1E08F, 0x1E4EC, 0x1F16C, 0x1FBF3, 0x1FAE8, 0x2EBF0,
       0x323AF]
WORDS = ["abababab", "lower", " the", "red", "Café", "Cafe\u0301", "don't", "WE'LL", "'\u017f", " x", "<s>", "</s>",
         "<|im_start|>", "<|im_end|>", "<|im_", "ab", "low", "1111", "\u0130", "\u1e9e", "\u03a3", "\ufb01", "\u212b",
         "\uac00", "\u1100\u1161\u11a8", "a\u0345\u0323\u0301", "\u4e2d\u6587", "\U0001f34e", "e\u0301", "Ss"]
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u180e"]


def texts(generator, count):
    def piece():
        kind = generator.random()
        if kind < 0.5:
            return generator.choice(WORDS)
        if kind < 0.75:
            return generator.choice(SPACES)
        if kind < 0.9:
            return chr(generator.choice(NEW))
        return chr(generator.choice([generator.randrange(1, 128), generator.randrange(0x80, 0x3000),
                                     generator.randrange(0x300, 0x370), generator.randrange(0x10000, 0x20000)]))

    return ["".join(piece() for _ in range(generator.choice([1, 2, 4, 8, 16]))) for _ in range(count)]


def cases():
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]:
        yield form, {"normalizer": {"type": form}}, 40
    yield "normalizers", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Lowercase"}, {"type": "Sequence", "normalizers": [{"type": "NFKD"}]}, {"type": "NFC"}]}}, 30
    yield "qwen", {"pre_tokenizer": sequence(split(QWEN), BYTES), "normalizer": {"type": "NFC"}}, 60
    yield "llama", {"pre_tokenizer": sequence(split(LLAMA), BYTES)}, 40
    yield "o200k", {"pre_tokenizer": sequence(split(O200K), BYTES)}, 40
    yield "gpt2", {"pre_tokenizer": byte_level(regex=True)}, 40
    yield "gpt2 space", {"pre_tokenizer": byte_level(regex=True, space=True)}, 30
    yield "space", {"pre_tokenizer": sequence(split(r"\s+", "Removed"), byte_level(space=True))}, 20
    yield "nested", {"pre_tokenizer": sequence(sequence(split("b")), sequence(split("a", "Removed"), BYTES))}, 20
    yield "words only", {"pre_tokenizer": sequence(split(r"\p{L}+|\p{N}", "Removed", True), BYTES)}, 20
    yield "inverted", {"pre_tokenizer": sequence(split(r"\d+", "Isolated", True), BYTES)}, 10
    yield "literal", {"pre_tokenizer": sequence(split("a.b", kind="String"), split("(", "Removed", kind="String"),
                                                BYTES)}, 10
    yield "empty matches", {"pre_tokenizer": sequence(split(r"b*"), BYTES)}, 20
    yield "empty pattern", {"pre_tokenizer": sequence(split("", kind="String"), BYTES)}, 10
    yield "looking around", {"pre_tokenizer": sequence(split(r"(?<=[a-z])(?=[A-Z])|(?<!\s)\S|^.$"), BYTES)}, 20
    yield "atomic", {"pre_tokenizer": sequence(split(r"(?>\s+)|\S++|\D*?b"), BYTES)}, 10
    for category in CATEGORIES:
        yield category, {"pre_tokenizer": sequence(split(rf"\p{{{category}}}+", "Removed"), BYTES)}, 8
    yield "added", {"added_tokens": PLAIN, "pre_tokenizer": sequence(split(QWEN), BYTES)}, 40
    yield "added flags", {"added_tokens": FLAGS, "normalizer": {"type": "NFC"}}, 60
    yield "added, lower case", {"added_tokens": FLAGS, "normalizer": {"type": "Lowercase"},
                                "pre_tokenizer": sequence(split(QWEN), BYTES)}, 40
    yield "whole words", {"model": {"ignore_merges": True}, "pre_tokenizer": byte_level(regex=True)}, 20
    yield "merge lines", {"model": {"merges": ["#version: 0.2", "l o", "lo w", "a b", "b a", "ab ab", "a b"]}}, 20
    yield "processors", {"post_processor": {"type": "Sequence", "processors": [byte_level(), {
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {}}]}}, 5
    yield "no effect", {"model": {"dropout": 0.0, "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
                                  "continuing_subword_prefix": "", "end_of_word_suffix": ""}}, 10


def main():
    generator = random.Random(20)
    root = base()
    out = []
    for name, change, count in cases():
        whole = copy.deepcopy(root)
        number(change.get("added_tokens", []), root["model"]["vocab"])
        for key, value in change.items():
            if key == "model":
                whole[key].update(value)
            else:
                whole[key] = value
        reference = Tokenizer.from_str(json.dumps(whole))
        chosen = texts(generator, count)
        if len(name) == 2:
            chosen.append("".join(map(chr, NEW)))
        out.append({"name": name, "change": change, "texts": chosen,
                    "ids": [reference.encode(text).ids for text in chosen]})
    with open(HERE / "tokenizer_cases.json", "w") as file:
        json.dump({"base": root, "cases": out}, file, separators=(",", ":"))
        file.write("\n")


main()
