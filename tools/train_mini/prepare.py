"""Collects the raw material: emoji pictures with their names and keywords.

Reads the 128-pixel bitmaps inside the Noto Color Emoji font (CBDT table), the list of emoji names
(Unicode's emoji-test.txt) and keywords (CLDR annotations), and writes one emoji.npz that augment.py
reads. Needs numpy, Pillow and fontTools, no GPU; takes about 15 seconds.

    python prepare.py --out work/emoji.npz
"""

import argparse
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import numpy as np
from fontTools.ttLib import TTFont
from PIL import Image

VARIATION_SELECTOR = 0xFE0F
BITMAP_SHAPE = (128, 136, 4)  # the font's strike; 4 empty columns on either side are cut off


class EmojiFont:
    """Finds the bitmap of a code point sequence: a glyph of its own or a ligature."""

    def __init__(self, path):
        font = TTFont(path)
        self.cmap = font.getBestCmap()
        self.strike = font["CBDT"].strikeData[0]
        self.ligatures = {}
        for lookup in font["GSUB"].table.LookupList.Lookup:
            for table in lookup.SubTable:
                if table.LookupType == 7:  # an extension wraps the real subtable
                    table = table.ExtSubTable
                if table.LookupType != 4:
                    continue
                for first, ligatures in table.ligatures.items():
                    for ligature in ligatures:
                        self.ligatures[(first, *ligature.Component)] = ligature.LigGlyph

    def bitmap(self, code_points):
        """The PNG bytes of the sequence, or None."""
        for sequence in (code_points, [c for c in code_points if c != VARIATION_SELECTOR]):
            if any(c not in self.cmap for c in sequence):
                continue
            glyphs = tuple(self.cmap[c] for c in sequence)
            glyph = glyphs[0] if len(glyphs) == 1 else self.ligatures.get(glyphs)
            if glyph in self.strike:
                return bytes(self.strike[glyph].imageData)
        return None


def read_keywords(paths):
    """CLDR annotations: emoji -> list of keywords."""
    keywords = {}
    for path in paths:
        for note in ElementTree.parse(path).getroot().iter("annotation"):
            if note.get("type") == "tts" or not note.text:
                continue
            emoji = note.get("cp").replace("\ufe0f", "")
            keywords.setdefault(emoji, []).extend(word.strip() for word in note.text.split("|"))
    return keywords


def unwanted(name, subgroup):
    """Why an emoji is left out: near-duplicates, flags and pictures that are only letters."""
    if "skin tone" in name:
        return "skin tone"
    if subgroup in ("country-flag", "subdivision-flag", "keycap", "alphanum", "av-symbol", "gender", "currency"):
        return subgroup
    if subgroup == "family" and ":" in name:
        return "family"
    if subgroup == "time" and ("-thirty" in name or "o’clock" in name):
        return "clock"
    if subgroup == "geometric" and re.search("small|medium", name):
        return "small shape"
    return None


def read_emoji_test(path):
    """Yields (code points, characters, name, group, subgroup) of every fully qualified emoji."""
    group = subgroup = ""
    for line in open(path, encoding="utf8"):
        if line.startswith("# group:"):
            group = line.split(":", 1)[1].strip()
        elif line.startswith("# subgroup:"):
            subgroup = line.split(":", 1)[1].strip()
        elif match := re.match(r"([0-9A-F ]+?)\s*; fully-qualified\s*# (\S+) E[\d.]+ (.+)", line):
            code_points = [int(x, 16) for x in match[1].split()]
            yield code_points, match[2], match[3].strip(), group, subgroup


def plain_quotes(text):
    return text.replace("’", "'").replace("“", "").replace("”", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--font", default="/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
    parser.add_argument("--names", default="/usr/share/unicode/emoji/emoji-test.txt")
    parser.add_argument(
        "--keywords",
        nargs="*",
        default=[
            "/usr/share/unicode/cldr/common/annotations/en.xml",
            "/usr/share/unicode/cldr/common/annotationsDerived/en.xml",
        ],
    )
    parser.add_argument("--out", default="work/emoji.npz")
    args = parser.parse_args()

    font = EmojiFont(args.font)
    keywords = read_keywords(args.keywords)
    entries, pngs, seen, skipped = [], [], set(), Counter()
    for code_points, characters, name, group, subgroup in read_emoji_test(args.names):
        if reason := unwanted(name, subgroup):
            skipped[reason] += 1
            continue
        png = font.bitmap(code_points)
        if png is None or png in seen:
            skipped["no bitmap" if png is None else "same bitmap"] += 1
            continue
        seen.add(png)
        picture = Image.open(io.BytesIO(png)).convert("RGBA")
        if np.array(picture).shape != BITMAP_SHAPE:
            skipped["odd size"] += 1
            continue
        buffer = io.BytesIO()
        picture.crop((4, 0, 132, 128)).save(buffer, "PNG", optimize=True)
        pngs.append(buffer.getvalue())
        words = [plain_quotes(w) for w in dict.fromkeys(keywords.get(characters.replace("\ufe0f", ""), []))]
        entries.append(
            dict(
                name=plain_quotes(name),
                group=group,
                subgroup=subgroup,
                keywords=[w for w in words if w.lower() != name.lower() and re.fullmatch(r"[A-Za-z '\-]+", w)],
            )
        )
    offsets = np.cumsum([0] + [len(p) for p in pngs])
    blob = np.frombuffer(b"".join(pngs), np.uint8)
    np.savez(args.out, blob=blob, offsets=offsets, entries=json.dumps(entries))
    print(f"{len(entries)} pictures, {offsets[-1] / 1e6:.1f} MB, skipped {dict(skipped)}")


if __name__ == "__main__":
    main()
