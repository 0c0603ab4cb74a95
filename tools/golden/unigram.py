"""Golden token ids of the unigram model: the sentencepiece and tokenizers libraries, on models trained here.

unigram.model         as T5's: rules of NFKC (a part of them, so that the file is small) and of white space, spaces
                      folded and one put before a text, user-defined pieces
unigram_bytes.model   no rules, spaces kept and one put after a text, unknown characters become bytes
unigram.gguf          the first as llama.cpp's converter puts it into a text encoder's metadata
unigram.json          what transformers' T5 converter makes of the first
unigram_ids.json      "models": ids by sentencepiece; "files": ids by tokenizers, of unigram.json with the members of
                      "patch" put over its own (those of "model" over the model's). "end" is what the template adds
"""
import io
import json
import tempfile
import unicodedata
from pathlib import Path

import gguf
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import T5Converter

from common import OUT, write_json
from tokenizer import texts as bpe_texts

EXTRA = 3
USER_DEFINED = ["<sep>", "<sep>>", "blue house"]
SENTENCES = """a red apple on a wooden table, soft light
The quick brown fox jumps over the lazy dog.
a photo of a cat sitting on a wooden table; 3 pears, 42 plums and 1,000 grapes
the green tree and the blue house by the river, at sunset
"Don't you see?" he said: it's a large dog with a small cat!
portrait of an old man, dramatic lighting, highly detailed, 35mm photograph
\u00e9t\u00e9 \u00e0 la plage, caf\u00e9 cr\u00e8me, na\u00efve fa\u00e7ade, \u00fcber stra\u00dfe
\u4e00\u4e2a\u7ea2\u8272\u7684\u82f9\u679c \u4e2d\u6587 \u3053\u3093\u306b\u3061\u306f\u4e16\u754c
\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440 \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5""".splitlines()


def rules():
    """What NFKC makes of some ranges, of some pairs, and white space and controls as nmt_nfkc has them."""
    ranges = ((0xa0, 0x180), (0x1c4, 0x1f5), (0x2460, 0x2474), (0x2100, 0x2140), (0x3300, 0x3310), (0xf900, 0xf910),
              (0xfb00, 0xfb07), (0xfdfa, 0xfdfb), (0xff01, 0xff9f), (0x1d400, 0x1d410))
    table = {chr(c): unicodedata.normalize("NFKC", chr(c)) for low, high in ranges for c in range(low, high)}
    table |= {a + b: unicodedata.normalize("NFKC", a + b) for a in "aeiouAEIOUcny" for b in "\u0300\u0301\u0302\u0303\u0308\u0327"}
    table |= {a + b: unicodedata.normalize("NFKC", a + b) for a in "\uff76\uff77\uff8a" for b in "\uff9e\uff9f"}
    table["e\u0323\u0302"] = "\u1ec7"
    table = {a: b for a, b in table.items() if a != b}
    table |= {chr(c): " " for c in (9, 10, 12, 13, 0x85, 0xa0, 0x1680, *range(0x2000, 0x2010), 0x2028, 0x2029, 0x202f, 0x205f,
                                    0x2581, 0x3000, 0xfeff)}
    table |= {chr(c): "" for c in (*range(1, 9), 11, *range(14, 32), 0x7f, 0xad)}
    return "".join("\t".join(" ".join(f"{ord(c):X}" for c in s) for s in pair) + "\n" for pair in sorted(table.items()))


def train(**options):
    model = io.BytesIO()
    lines = SENTENCES * 3 + [word for line in SENTENCES for word in line.split()]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        num_threads=1, minloglevel=2, hard_vocab_limit=False, **options)
    return model.getvalue()


def write_models():
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as table:
        table.write(rules())
        table.flush()
        first = train(vocab_size=340, character_coverage=0.98, normalization_rule_tsv=table.name,
                      user_defined_symbols=USER_DEFINED)
    second = train(vocab_size=600, normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False,
                   treat_whitespace_as_suffix=True)
    for name, content in {"unigram.model": first, "unigram_bytes.model": second}.items():
        (OUT / name).write_bytes(content)
        print(f"{name}: {len(content)} bytes")


def write_gguf():
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((OUT / "unigram.model").read_bytes())
    rules = model.normalizer_spec
    writer = gguf.GGUFWriter(OUT / "unigram.gguf", "t5encoder")
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([p.piece.encode() for p in model.pieces] + [b"[PAD0]", b"[PAD1]"])
    writer.add_token_scores([p.score for p in model.pieces] + [-10000.0] * 2)
    writer.add_token_types([p.type for p in model.pieces] + [gguf.TokenType.UNUSED] * 2)
    writer.add_add_space_prefix(rules.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(rules.remove_extra_whitespaces)
    writer.add_precompiled_charsmap(rules.precompiled_charsmap)
    writer.add_eos_token_id(model.trainer_spec.eos_id)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    print("unigram.gguf:", (OUT / "unigram.gguf").stat().st_size, "bytes")


class Slow:
    """As much of a slow tokenizer as the converter looks at."""

    vocab_file = str(OUT / "unigram.model")
    _extra_ids = EXTRA

    def convert_tokens_to_ids(self, token):
        return {"</s>": 1}[token]


def converted():
    tok = T5Converter(Slow()).converted()
    tok.add_special_tokens([f"<extra_id_{i}>" for i in range(EXTRA)])
    return json.loads(tok.to_str())


def patches(base):
    """unigram.json in the forms that other versions wrote it, and with what else is read."""
    charsmap = next(n for n in base["normalizer"]["normalizers"] if n["type"] == "Precompiled")
    space = {"type": "Metaspace", "replacement": "\u2581"}
    pieces = [[f"<0x{b:02X}>", -20.0] for b in range(256)]

    def steps(*list_of):
        return {"type": "Sequence", "pretokenizers": list(list_of)}

    yield {}
    yield {"normalizer": charsmap, "pre_tokenizer": steps({"type": "WhitespaceSplit"}, {**space, "add_prefix_space": True})}
    yield {"pre_tokenizer": {**space, "add_prefix_space": True, "prepend_scheme": "first"}}
    yield {"pre_tokenizer": {**space, "prepend_scheme": "never", "split": False}}
    yield {"pre_tokenizer": {**space, "add_prefix_space": False, "prepend_scheme": "never"}, "normalizer": None}
    yield {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": [
        charsmap, {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Replace", "pattern": {"Regex": " +"}, "content": "\u2581"},
        {"type": "Replace", "pattern": {"String": "cat"}, "content": "dog"}]}}
    # Of two pieces of one text the last counts; a low lowest score; a run of unknown characters that is a piece.
    yield {"model": {"byte_fallback": True, "vocab": base["model"]["vocab"] + [["\u2581the", -30.5], ["\u0e2a\u0e27", -80.0]]}}
    yield {"model": {"byte_fallback": True, "vocab": base["model"]["vocab"] + pieces}}


def patched(base, patch):
    root = {**base, **patch}
    root["model"] = {**base["model"], **patch.get("model", {})}
    return Tokenizer.from_str(json.dumps(root))


def texts():
    own = [
        "</s>", "a</s>b", "</s> a", "<pad>", "<unk>", "a <unk> b", "<extra_id_0>", " <extra_id_2> cat ", "a <extra_id_1>", "<extra_id_9>",
        "<sep>", "<sep>>", "a<sep>b", "the blue house", "blue  house", "<0x41>", "\u2581", "\u2581a", "a\u2581b", "\u2581 \u2581", " \u2581a", "a \u2581",
        "\u00bd\u0897", "\u00bd\u0301", "\uff21\u0301", "\uff76\uff9e\uff77", "\u3300\u3301", "\ufdfa", "e\u0323\u0302", "e\u0301x", "\r\n", "a\r\nb",
        "\u00ad", "\x01", "a\u00ad\x01b", "\u00ad a", " \u00ad ", "\u0e2a\u0e27\u0e31", "x\u0e2a\u0e27y", "\u200b a \u200b", "\u3000\u3000a\u3000",
    ]
    return list(dict.fromkeys(own + [t for t in bpe_texts() if len(t) < 300 and "\0" not in t]))


def main():
    write_models()
    write_gguf()
    base = converted()
    (OUT / "unigram.json").write_text(json.dumps(base, ensure_ascii=True, separators=(",", ":")) + "\n")
    print("unigram.json:", (OUT / "unigram.json").stat().st_size, "bytes")
    models = {name: spm.SentencePieceProcessor(model_file=str(OUT / name)) for name in ("unigram.model", "unigram_bytes.model")}
    files = [(patch, patched(base, patch)) for patch in patches(base)]
    write_json("unigram_ids", {
        "texts": texts(),
        "models": [{"file": name, "vocabulary": m.get_piece_size(), "end": m.eos_id(), "ids": [m.encode(t) for t in texts()]}
                   for name, m in models.items()],
        "files": [{"patch": patch, "vocabulary": tok.get_vocab_size(), "end": 1,
                   "ids": [tok.encode(t, add_special_tokens=False).ids for t in texts()]} for patch, tok in files]})
    for _, tok in files:
        assert all(tok.encode(t).ids == tok.encode(t, add_special_tokens=False).ids + [1] for t in texts())


if __name__ == "__main__":
    main()
