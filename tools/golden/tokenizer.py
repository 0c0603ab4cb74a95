"""Golden token ids: the tokenizers library on two byte-level BPE tokenizers.

tokenizer_mini.json       ids for a given tokenizer.json (--mini PATH; its sha256 is recorded); the file itself is
                          not kept here. Skipped when the path is not given.
tokenizer_synth.json      ids for tests/golden/synth_tokenizer.json, trained here: NFC + Lowercase, the Qwen2 regex
"chat": the same texts inside the template that the Z-Image pipeline applies.
"""
import argparse
import hashlib
import json
from pathlib import Path

from common import OUT, write_json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def texts():
    t = [
        "", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", " \n ", "a", " a", "a ", "  a", "   a  b",
        "a red apple", "A Red Apple", "a photo of a cat sitting on a wooden table, soft light",
        "hello world", "Hello, World!", "hello  world", "hello   world   ", "hello\tworld", "hello\t\tworld\t",
        "line one\nline two", "line one\r\nline two\r\n", "a\n\n\nb", "a \n b", "a\n  b", "a  \n\n  b", "x\r\ry",
        "I'm", "I'M", "don't", "DON'T", "we've we'll they're he'd it's", "WE'VE WE'LL THEY'RE HE'D IT'S", "'s", "'S",
        "'tis", "rock'n'roll", "'", "''s", "o'clock's'", "\u2019s don\u2019t", "'\u017f", "it'\u017f", "'\u212a", "'\u017fx", "a'\u017ftop", "'Sx", "'LLx'llx", "'REX",
        "0", "7", "42", "1234567890", "3.14159", "1,000,000.00", "-5", "1e-9", "v2.0b3", "12abc34", "abc12 34",
        "\u00bd \u00b2 \u2167 \u0664\u0662 \u09ea\u09e8", "\u4e00\u4e8c\u4e09", "\u2460\u2461",
        "!", "!!!", "?!...", "...and then", "(parenthesis) [bracket] {brace}", "a+b=c", "a_b-c/d\\e", "$100 #tag @user",
        "foo(bar, baz);\n", "if (x) {\n    return y;\n}\n", "http://example.com/a?b=c&d=e#f", "!\n", "! \n", "!\r\n\r\nx",
        "\u4e00\u4e2a\u7ea2\u8272\u7684\u82f9\u679c", "\u4e2d\u6587 and English \u6df7\u5408", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3002",
        "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645",
        "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5", "caf\u00e9", "cafe\u0301",
        "\u00c5ngstr\u00f6m", "A\u030angstro\u0308m", "\u212b", "\u2126", "\u1e9b\u0323", "q\u0307\u0323", "q\u0323\u0307", "\u0344", "\u0958", "\u2adc", "e\u0301\u0323\u0302",
        "\ufb01 ligature \ufb03", "\uff21\uff22\uff23 full width", "\u2460", "\u0130stanbul", "\u0130", "\u0131", "STRASSE stra\u00dfe \u1e9e", "\u039f\u0394\u039f\u03a3",
        "\u03a3", "\u03a3\u03a3", "\u0391\u03a3 \u0391\u03a3\u0391", "\u01c5\u01c8", "\u1f88\u1fbc", "\u00c9COLE", "E\u0301COLE", "\U00010400\U00010428", "\ua64a",
        "\U0001f600", "a\U0001f600b", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "1\ufe0f\u20e3",
        "\u00a0", " \u00a0 x", "a\u3000\u3000b\n", "\u0301a", "\u2167a", "\u180ex", "a\u00a0b", "a\u00a0\u00a0b", "\u2003em\u2003space", "\u3000\u4e2d", "\u200b", "a\u200bb", "\ufeffbom", "\u2028", "a\u2028b\u2029c", "\u0085", "\x0b\x0c", "\x1c\x1f x",
        "\x00", "a\x00b", "\x7f\x1b[0m", "\ud7ff\ue000", "\ufffd", "\uffff", "\U00010000", "\U0010ffff", "\u0378", "\u00ad",
        "<|im_start|>", "<|im_end|>", "<|endoftext|>", "a<|im_end|>b", " <|im_start|> x", "<|im_start|>user\nhi<|im_end|>\n",
        "<|im_start|><|im_start|>", "<|im_start", "<|IM_START|>", "<|im_start |>", "<think>\n\n</think>\n\n", "<|im_end|>\n\n", "  <|im_end|>  ",
        "The quick brown fox jumps over the lazy dog.", "the the the the", "aaaaaaaaaaaaaaaaaaaaaaaa", "antidisestablishmentarianism",
        "xX_dragon_Xx 99", "    four spaces", "\t\ttabs", "trailing   ", "trailing\n", "a" * 64, " " * 33, "\n" * 9, "-" * 40, "=*" * 21,
    ]
    base = "A red apple on a table, 3 pears; \u00e9t\u00e9 \u82f9\u679c \U0001f34e don't\n "
    t.append((base * 60)[:2000])
    t.append("ab" * 1000)
    assert len(t) == len(set(t)) or [x for x in t if t.count(x) > 1]
    return list(dict.fromkeys(t))


def synth():
    """A small tokenizer with the two normalizers that matter; trained on the texts themselves."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    special = [AddedToken(s, normalized=False, special=True) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    corpus = [x for x in texts() if "<|" not in x] * 2 + [
        "a red apple on a wooden table", "the green tree and the blue house", "user assistant system", "a large dog with a small cat",
    ] * 4
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False, min_frequency=2))
    return tok


def cases(tok):
    def ids(s):
        return tok.encode(s, add_special_tokens=True).ids

    return [{"text": s, "ids": ids(s), "chat": ids(CHAT.format(s))} if len(s) < 200 else {"text": s, "ids": ids(s)}
            for s in texts()]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--mini", help="tokenizer.json of the small trained model")
    args = ap.parse_args()
    path = OUT / "synth_tokenizer.json"
    path.write_text(json.dumps(json.loads(synth().to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")
    jobs = [("tokenizer_synth", path, "tests/golden/synth_tokenizer.json")]
    if args.mini:
        jobs.append(("tokenizer_mini", Path(args.mini), "tokenizer/tokenizer.json of shoal-mini"))
    for name, file, said in jobs:
        raw = file.read_bytes()
        write_json(name, dict(tokenizer=said, sha256=hashlib.sha256(raw).hexdigest(), chat_template=CHAT,
                              cases=cases(Tokenizer.from_str(raw.decode()))))


if __name__ == "__main__":
    main()
