"""Turns 1,464 emoji into a training set that teaches composition.

A model trained on bare emoji learns 1,464 pictures by heart and nothing else. So they are recoloured,
put on backgrounds, side by side and on top of each other, given hats, counted and restyled, each with a
few prompts that say so. The compositions named in the HELD_OUT lists never enter the training set in
any form; `held_out_tests` renders them, so that what the model makes of them can be measured.

All prompts are lower case: the tokenizer lowercases its input.
"""

import io
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

SIZE = 128
CHUNK = 256  # pictures handled at once

HUES = {
    "red": 0, "orange": 28, "yellow": 52, "green": 120, "turquoise": 175, "blue": 222, "purple": 275, "pink": 330,
}  # fmt: skip
COLOURS = [*HUES, "black", "white", "gray", "brown"]
BACKGROUNDS = {
    "red": (225, 60, 55), "orange": (250, 150, 40), "yellow": (255, 220, 70), "green": (70, 170, 80),
    "blue": (65, 120, 225), "purple": (140, 80, 200), "pink": (250, 160, 195), "black": (15, 15, 18),
    "gray": (150, 150, 155), "light blue": (170, 215, 250), "brown": (120, 80, 50),
}  # fmt: skip
BACKGROUND_SIZES = [112, 104, 120, 96]
COLOUR_WORD = re.compile(r"^(light |dark )?(red|orange|yellow|green|blue|purple|brown|black|white|pink) ")

# "a cat" shall mean one picture. Unicode has both a cat's face and a whole cat; the face takes the plain
# noun (hats fit on it), and the whole animal is called "a standing cat".
FACE_NOUNS = {"cat face": ["cat", "cat", "cat", "cat face", "kitten"], "dog face": ["dog", "dog", "dog", "dog face", "puppy"]}
BODY_NOUNS = {"cat": ["standing cat", "walking cat", "whole cat"], "dog": ["standing dog", "walking dog", "whole dog"]}

ALIASES = {
    "automobile": ["car"], "red apple": ["apple"], "red heart": ["heart"], "jack-o-lantern": ["pumpkin"],
    "face with tears of joy": ["laughing face"], "smiling face with sunglasses": ["cool face"],
    "deciduous tree": ["tree"], "house": ["home"], "hot beverage": ["coffee", "cup of coffee"],
    "sun": ["the sun"], "crescent moon": ["moon"], "soccer ball": ["football"], "delivery truck": ["truck"],
    "sailboat": ["boat"], "pile of poo": ["poop"], "locomotive": ["train"], "laptop": ["computer"],
    "hamburger": ["burger"], "mobile phone": ["phone", "smartphone"], "snowman without snow": ["snowman"],
    "airplane": ["plane"], "woman's hat": ["sun hat"], "billed cap": ["cap"], "baby bottle": ["bottle"],
}  # fmt: skip

HAT_WEARERS = [
    "dog face", "cat face", "wolf", "fox", "lion", "tiger face", "horse face", "cow face", "pig face", "mouse face",
    "hamster", "rabbit face", "bear", "polar bear", "koala", "panda", "frog", "monkey face", "unicorn", "raccoon",
    "penguin", "dragon face", "ghost", "robot", "alien", "jack-o-lantern", "pile of poo", "skull", "moose",
    "new moon face", "full moon face", "sun with face", "owl", "hatching chick", "front-facing baby chick",
    "clown face", "snowman without snow", "chicken",
]  # fmt: skip
HATLESS_FACES = ("smiling face with halo", "upside-down face", "melting face", "face in clouds")
HAT_FACE_SUBGROUPS = ("face-smiling", "face-affection", "face-tongue", "face-neutral-skeptical", "cat-face")
# hat -> (what prompts call it, its size in pixels on a 96-pixel head)
HATS = {
    "top hat": (["a hat", "a top hat", "a black hat"], 60),
    "crown": (["a crown", "a golden crown"], 52),
    "graduation cap": (["a graduation cap", "a student hat"], 62),
    "woman's hat": (["a straw hat", "a sun hat"], 62),
    "rescue worker's helmet": (["a helmet", "a rescue helmet"], 62),
    "ribbon": (["a bow", "a ribbon"], 46),
    "billed cap": (["a cap", "a baseball cap"], 62),
    "military helmet": (["a military helmet"], 62),
}

# ---- compositions that are never trained on
HELD_OUT_COLOURS = {  # any picture of this stem in this colour
    ("apple", "blue"), ("banana", "purple"), ("automobile", "green"), ("elephant", "pink"), ("dog face", "blue"),
    ("dog", "blue"), ("rocket", "green"), ("strawberry", "blue"), ("rose", "blue"), ("snail", "purple"),
}  # fmt: skip
HELD_OUT_HATS = {("cat face", "top hat"), ("panda", "crown"), ("fox", "graduation cap"), ("frog", "crown")}
HELD_OUT_BACKGROUNDS = {
    ("cat face", "blue"), ("rocket", "purple"), ("pizza", "green"), ("unicorn", "yellow"), ("tropical fish", "orange"),
}  # fmt: skip
HELD_OUT_PAIRS = [  # in either order and any colour
    ("dog face", "pizza"), ("cat face", "rocket"), ("banana", "red apple"), ("sun", "cactus"),
    ("strawberry", "banana"), ("cat face", "automobile"), ("bird", "house"), ("elephant", "airplane"),
    ("tulip", "guitar"),
]  # fmt: skip


@dataclass
class Item:
    """One thing in a picture: which emoji, and recoloured to what (None: as it is)."""

    index: int
    colour: str | None = None


@dataclass
class Pool:
    """The training set: pictures, how often each is drawn, and what each may be called."""

    pictures: list = field(default_factory=list)  # chunks of u8 [n, 3, 128, 128]
    weights: list = field(default_factory=list)
    prompts: list = field(default_factory=list)  # a list of prompts a picture
    kinds: list = field(default_factory=list)
    sources: list = field(default_factory=list)  # the first emoji's index

    def add(self, kind, pictures, prompts, sources, weights=None):
        self.pictures.append(to_u8(pictures))
        self.weights += weights or [1.0] * len(prompts)
        self.prompts += prompts
        self.kinds += [kind] * len(prompts)
        self.sources += sources


# how often each kind is drawn
KIND_SHARE = {
    "plain": 0.40, "colour": 0.17, "background": 0.07, "colour background": 0.05, "pair": 0.08, "colour pair": 0.09,
    "hat": 0.05, "style": 0.07, "count": 0.02,
}  # fmt: skip


# ---------------------------------------------------------------- pictures


def load_emoji(path, device):
    """(u8 [n, 4, 128, 128], entries) as prepare.py wrote them."""
    data = np.load(path)
    offsets, blob = data["offsets"], data["blob"].tobytes()
    entries = json.loads(str(data["entries"]))
    pictures = [
        np.array(Image.open(io.BytesIO(blob[offsets[i] : offsets[i + 1]])).convert("RGBA")) for i in range(len(entries))
    ]
    return torch.from_numpy(np.stack(pictures)).to(device).permute(0, 3, 1, 2).contiguous(), entries


def premultiplied(rgba_u8):
    x = rgba_u8.float() / 255
    return torch.cat([x[:, :3] * x[:, 3:], x[:, 3:]], 1)


def over(picture, background=1.0):
    """Premultiplied RGBA over an opaque background: RGB."""
    return picture[:, :3] + (1 - picture[:, 3:]) * background


def to_u8(x):
    return (x.clamp(0, 1) * 255 + 0.5).to(torch.uint8)


def resized(picture, size):
    return F.interpolate(picture, size=(size, size), mode="bilinear", antialias=True, align_corners=False)


def paste(canvas, picture, y, x):
    """Premultiplied `picture` over `canvas`, in place, its corner at (y, x); what sticks out is cut off."""
    height, width = picture.shape[2:]
    y0, x0, y1, x1 = max(y, 0), max(x, 0), min(y + height, SIZE), min(x + width, SIZE)
    piece = picture[:, :, y0 - y : y1 - y, x0 - x : x1 - x]
    canvas[:, :, y0:y1, x0:x1] = piece + (1 - piece[:, 3:]) * canvas[:, :, y0:y1, x0:x1]
    return canvas


def rgb_to_hsv(x):
    high, low = x.amax(1), x.amin(1)
    spread = (high - low).clamp_min(1e-6)
    r, g, b = x[:, 0], x[:, 1], x[:, 2]
    hue = torch.where(high == r, ((g - b) / spread) % 6, torch.where(high == g, (b - r) / spread + 2, (r - g) / spread + 4))
    return hue * 60, (high - low) / high.clamp_min(1e-6), high


def hsv_to_rgb(hue, saturation, value):
    h = (hue % 360) / 60
    channels = []
    for n in (5, 3, 1):
        k = (n + h) % 6
        ramp = torch.minimum(torch.minimum(k, 4 - k), torch.ones_like(k)).clamp_min(0)
        channels.append(value - value * saturation * ramp)
    return torch.stack(channels, 1)


def ramp(x, low, high):
    return ((x - low) / (high - low)).clamp(0, 1)


class Painter:
    """Recolours emoji. How depends on the emoji:

    hue   one hue dominates (an apple): turn that hue, leave the rest (the leaf)
    grey  much of it is grey or white (an elephant, a robot): colour those parts, leave the rest
    tint  many colours: everything but the dark outlines gets the hue
    """

    def __init__(self, emoji):
        self.emoji = emoji
        self.dominant_hue, self.mode = [], []
        for start in range(0, len(emoji), CHUNK):
            self._classify(emoji[start : start + CHUNK].float() / 255)

    def _classify(self, x):
        opaque = x[:, 3] > 0.5
        hue, saturation, value = rgb_to_hsv(x[:, :3])
        area = opaque.flatten(1).sum(1).clamp_min(1)
        colour = saturation * value * (saturation > 0.25) * (value > 0.2) * opaque
        bins = torch.stack([(colour * ((hue / 10).long() == b)).flatten(1).sum(1) for b in range(36)], 1)
        total = bins.sum(1).clamp_min(1e-3)
        peak = sum(torch.roll(bins, k, 1) for k in (-2, -1, 0, 1, 2)).argmax(1)
        centres = torch.arange(36, device=x.device) * 10 + 5.0
        offset = (centres[None] - (peak * 10 + 5.0)[:, None] + 180) % 360 - 180
        near = bins * (offset.abs() <= 30)
        mean_offset = (near * offset).sum(1) / near.sum(1).clamp_min(1e-3)
        concentration = near.sum(1) / total
        coverage = total * concentration / area
        grey = ((saturation < 0.22) & (value > 0.3) & opaque).flatten(1).sum(1) / area
        one_hue = (concentration > 0.6) & (coverage > 0.22)
        self.dominant_hue += ((peak * 10 + 5 + mean_offset) % 360).tolist()
        for h, g in zip(one_hue.tolist(), grey.tolist()):
            self.mode.append("hue" if h and g < 0.5 else "grey" if g > 0.3 else "hue" if h else "tint")

    def paint(self, items):
        """Premultiplied RGBA [n, 4, 128, 128] of the items."""
        indices = torch.tensor([i.index for i in items], device=self.emoji.device)
        x = self.emoji[indices].float() / 255
        hue, saturation, value = rgb_to_hsv(x[:, :3])
        painted = x[:, :3].clone()
        for k, item in enumerate(items):
            if item.colour is not None:
                painted[k] = self._recolour(item, x[k : k + 1, :3], hue[k], saturation[k], value[k])
        return torch.cat([painted * x[:, 3:], x[:, 3:]], 1)

    def _recolour(self, item, rgb, hue, saturation, value):
        mode, colour = self.mode[item.index], item.colour
        offset = (hue - self.dominant_hue[item.index] + 180) % 360 - 180
        if mode == "hue":
            mask = ((62 - offset.abs()) / 16).clamp(0, 1) * ramp(saturation, 0.10, 0.20)
            shade, depth = offset * 0.5, saturation
        else:
            mask = ramp(value, 0.22, 0.38)
            if mode == "grey":
                mask = mask * (1 - ramp(saturation, 0.22, 0.36))
            shade = torch.zeros_like(hue)
            depth = torch.maximum(saturation, 0.80 - 0.25 * ramp(value, 0.6, 1.0))
            value = (value * 1.1 + 0.05).clamp_max(1)
        black, grey = value * 0.30, value * (0.72 if mode == "hue" else 0.62)
        white = 0.55 + 0.42 * value
        if colour == "black":
            new = (torch.zeros_like(hue), saturation * 0.05, black)
        elif colour == "white":
            new = (torch.zeros_like(hue), saturation * 0.04, white)
        elif colour == "gray":
            new = (torch.zeros_like(hue), saturation * 0.05, grey)
        elif colour == "brown":
            new = (torch.full_like(hue, 24.0), depth * 0.75, value * 0.58)
        else:
            new = (HUES[colour] + shade, depth, value)
            if colour == "pink":
                new = (new[0], depth * 0.6, value * 0.6 + 0.4)
            elif colour in ("blue", "purple"):
                new = (new[0], depth, value * 0.92)
            elif colour == "red":
                new = (new[0], (depth * 1.1).clamp_max(1), value * 0.92)
        new = hsv_to_rgb(new[0][None], new[1].clamp(0, 1)[None], new[2].clamp(0, 1)[None])
        return (new * mask + rgb * (1 - mask))[0]


# ---------------------------------------------------------------- words


def with_article(noun):
    if re.match(r"(two|three|four|the|people|\d)\b", noun) or ":" in noun or "," in noun or noun.endswith("hands"):
        return noun
    if noun.endswith("s") and not noun.endswith(("ss", "us")):
        return noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def plural(noun):
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


class Words:
    """Says what is in a picture, in ever different ways but never ambiguously."""

    def __init__(self, entries, rng):
        self.rng = rng
        self.entries = entries
        self.names = [e["name"].lower() for e in entries]
        self.index = {name: i for i, name in enumerate(self.names)}
        known = set(self.names) | {a for words in ALIASES.values() for a in words}
        known |= {n for nouns in (*FACE_NOUNS.values(), *BODY_NOUNS.values()) for n in nouns}
        count = Counter(k.lower() for e in entries for k in e["keywords"])
        # a keyword may stand alone only where it means one emoji ("cat" is a keyword of ten)
        self.lone_keywords = [
            [k.lower() for k in e["keywords"] if count[k.lower()] == 1 and k.lower() not in known] for e in entries
        ]

    def noun(self, i, hat=False):
        name = self.names[i]
        if name in FACE_NOUNS:
            return self.rng.choice(FACE_NOUNS[name])
        if name in BODY_NOUNS:
            return self.rng.choice(BODY_NOUNS[name])
        if hat and name.endswith(" face") and self.entries[i]["group"].startswith("Animals"):
            # nothing else wears hats, so "a tiger wearing a hat" is not ambiguous
            return name if self.rng.random() < 0.25 else name[:-5]
        if name in ALIASES and self.rng.random() < 0.4:
            return self.rng.choice(ALIASES[name])
        return name

    def coloured(self, item, hat=False):
        """The noun with its colour, e.g. "blue apple"."""
        noun = self.noun(item.index, hat)
        if item.colour is None:
            return noun
        noun = COLOUR_WORD.sub("", noun).removeprefix("the ")
        colour = "grey" if item.colour == "gray" and self.rng.random() < 0.3 else item.colour
        return f"{colour} {noun}"

    def phrase(self, noun):
        """A whole prompt about one thing."""
        a = with_article(noun)
        forms = [
            (42, a), (22, noun), (6, f"emoji of {a}"), (4, f"an emoji of {a}"), (5, f"a picture of {a}"),
            (4, f"a drawing of {a}"), (3, f"an icon of {a}"), (4, f"a painting of {a}"), (3, f"{noun} emoji"),
            (2, f"cartoon {noun}"), (2, f"{a} on a white background"), (3, f"an image of {a}"),
        ]  # fmt: skip
        text = self.rng.choices([f for _, f in forms], [w for w, _ in forms])[0]
        return text + "." if self.rng.random() < 0.03 else text

    def plain(self, i):
        keywords = [k.lower() for k in self.entries[i]["keywords"]]
        draw = self.rng.random()
        if self.lone_keywords[i] and draw < 0.05:
            return self.rng.choice(self.lone_keywords[i])
        if keywords and draw < 0.12:
            return ", ".join([self.names[i], *self.rng.sample(keywords, min(len(keywords), self.rng.randint(1, 2)))])
        return self.phrase(self.noun(i))

    def maybe_article(self, noun, chance):
        return with_article(noun) if self.rng.random() < chance else noun


def flippable(entry):
    if entry["group"] in ("Symbols", "Flags"):
        return False
    return not re.search(
        "left|right|clock|calendar|book|receipt|newspaper|keyboard|letter|sign|dollar|yen|euro|pound|card|100|"
        "new button|ATM|music|map|globe|watch|chart|abacus|input|hundred|medal|question|note",
        entry["name"],
    )


# ---------------------------------------------------------------- the training set


class Composer:
    """Draws every kind of picture; used for the training set and for the held-out tests alike."""

    def __init__(self, emoji, entries, seed=0):
        self.emoji, self.entries = emoji, entries
        self.device = emoji.device
        self.rng = random.Random(seed)
        self.words = Words(entries, self.rng)
        self.painter = Painter(emoji)
        self.index = self.words.index
        names = self.words.names
        self.stem = [COLOUR_WORD.sub("", n) for n in names]
        things = ("Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects", "Smileys & Emotion")
        self.nameable = [i for i, e in enumerate(entries) if e["group"] in things and len(names[i].split()) <= 4]
        self.short = [i for i in self.nameable if len(names[i].split()) <= 2]
        self.colourable = [
            i
            for i, e in enumerate(entries)
            if len(names[i].split()) <= 4
            and e["group"] not in ("People & Body", "Flags")
            and (e["group"] != "Symbols" or e["subgroup"] == "geometric")
            # the black cat in red would be another "red cat" than the cat in red
            and (self.stem[i] == names[i] or self.stem[i] not in self.index)
        ]
        self.colourable_set = set(self.colourable)
        index = self.index
        pairs = [(index[a], index[b]) for a, b in HELD_OUT_PAIRS if a in index and b in index]
        self.held_out_pairs = {frozenset(p) for p in pairs}

    def allowed_colour(self, i, colour):
        """False for held-out colours and where the name would mean another emoji (black cat, green book)."""
        if (self.stem[i], colour) in HELD_OUT_COLOURS:
            return False
        nouns = FACE_NOUNS.get(self.words.names[i], [self.stem[i]])
        return not any(self.index.get(f"{colour} {n}", i) != i for n in nouns)

    def random_item(self, chance_of_colour):
        i = self.rng.choice(self.short)
        if i not in self.colourable_set or self.rng.random() >= chance_of_colour:
            return Item(i)
        colour = self.rng.choice(COLOURS)
        return Item(i, colour if self.allowed_colour(i, colour) else None)

    # ---- drawing

    def blank(self, n):
        return torch.zeros(n, 4, SIZE, SIZE, device=self.device)

    def background_picture(self, items, colours, size):
        corner = (SIZE - size) // 2
        canvas = paste(self.blank(len(items)), resized(self.painter.paint(items), size), corner, corner)
        rgb = torch.tensor([BACKGROUNDS[c] for c in colours], device=self.device).float()[:, :, None, None] / 255
        return over(canvas, rgb)

    def pair_picture(self, firsts, seconds, beside):
        a, b = (resized(self.painter.paint(items), 62) for items in (firsts, seconds))
        canvas = self.blank(len(firsts))
        paste(canvas, a, *((33, 1) if beside else (1, 33)))
        paste(canvas, b, *((33, 65) if beside else (65, 33)))
        return over(canvas)

    def hat_picture(self, item, hat):
        size = 104 if hat == "ribbon" else 96
        head = resized(self.painter.paint([item]), size)
        cap = resized(premultiplied(self.emoji[self.index[hat]][None]), HATS[hat][1])
        crown_rows = (head[0, 3, :, size // 2 - 14 : size // 2 + 14] > 0.5).any(1).nonzero()
        top = int(crown_rows[0]) if len(crown_rows) else 0
        brim = int((cap[0, 3] > 0.5).any(1).nonzero()[-1])
        canvas = paste(self.blank(1), head, SIZE - size, (SIZE - size) // 2)
        paste(canvas, cap, SIZE - size + top + int(0.13 * size) - brim, (SIZE - HATS[hat][1]) // 2)
        return over(canvas)

    def count_picture(self, items, count):
        small = resized(self.painter.paint(items), 62)
        canvas = self.blank(len(items))
        for y, x in {2: [(33, 1), (33, 65)], 3: [(1, 33), (65, 1), (65, 65)], 4: [(1, 1), (1, 65), (65, 1), (65, 65)]}[count]:
            paste(canvas, small, y, x)
        return over(canvas)

    # ---- the kinds

    def chunks(self, jobs):
        for start in range(0, len(jobs), CHUNK):
            yield jobs[start : start + CHUNK]

    def add_plain(self, pool):
        def weight(entry):
            minor = entry["group"] == "People & Body" and not re.match("body|hand", entry["subgroup"])
            minor |= entry["group"] == "Symbols" and entry["subgroup"] != "heart"
            return 0.6 if minor else 1.0

        for chunk in self.chunks(range(len(self.entries))):
            weights = [weight(self.entries[i]) * (0.72 if flippable(self.entries[i]) else 1) for i in chunk]
            prompts = [[self.words.plain(i) for _ in range(24)] for i in chunk]
            pool.add("plain", over(premultiplied(self.emoji[list(chunk)])), prompts, list(chunk), weights)
        mirrored = [i for i, e in enumerate(self.entries) if flippable(e)]
        for chunk in self.chunks(mirrored):
            weights = [weight(self.entries[i]) * 0.28 for i in chunk]
            prompts = [[self.words.plain(i) for _ in range(16)] for i in chunk]
            pool.add("plain", over(premultiplied(self.emoji[chunk])).flip(3), prompts, chunk, weights)

    def add_colours(self, pool):
        items = [Item(i, c) for i in self.colourable for c in COLOURS if self.allowed_colour(i, c)]
        for chunk in self.chunks(items):
            flips = [flippable(self.entries[j.index]) and self.rng.random() < 0.25 for j in chunk]
            pictures = self.painter.paint(chunk)
            flips = torch.tensor(flips, device=self.device)[:, None, None, None]
            pictures = torch.where(flips, pictures.flip(3), pictures)
            prompts = [[self.words.phrase(self.words.coloured(j)) for _ in range(4)] for j in chunk]
            pool.add("colour", over(pictures), prompts, [j.index for j in chunk])

    def background_prompt(self, item, colour):
        noun = self.words.maybe_article(self.words.coloured(item), 0.75)
        form = self.rng.choice(
            ["{} on {a} background", "{} on {c} background", "{} with {a} background", "{}, {c} background"]
        )
        return form.format(noun, a=with_article(colour), c=colour)

    def add_backgrounds(self, pool, coloured):
        jobs = []
        for i in self.nameable:
            for colour in BACKGROUNDS:
                if (self.words.names[i], colour) in HELD_OUT_BACKGROUNDS:
                    continue
                if not coloured:
                    jobs.append((Item(i), colour))
                    continue
                own = self.rng.choice(COLOURS)
                if own != colour and i in self.colourable_set and self.allowed_colour(i, own):
                    jobs.append((Item(i, own), colour))
        if coloured:
            jobs = self.rng.sample(jobs, min(len(jobs), 7000))
        for chunk in self.chunks(jobs):
            size = self.rng.choice(BACKGROUND_SIZES)
            pictures = self.background_picture([j for j, _ in chunk], [c for _, c in chunk], size)
            prompts = [[self.background_prompt(*job) for _ in range(4)] for job in chunk]
            kind = "colour background" if coloured else "background"
            pool.add(kind, pictures, prompts, [j.index for j, _ in chunk])

    def pair_prompt(self, first, second, beside):
        articles = 0.85 if self.rng.random() < 0.8 else 0
        a, b = (self.words.maybe_article(self.words.coloured(item), articles) for item in (first, second))
        if beside:
            return self.rng.choice(["{} and {}", "{} and {}", "{} next to {}", "{} beside {}"]).format(a, b)
        if self.rng.random() < 0.3:
            return f"{b} below {a}"
        return self.rng.choice(["{} above {}", "{} over {}", "{} on top of {}"]).format(a, b)

    def add_pairs(self, pool, count, coloured, beside):
        jobs = []
        while len(jobs) < count:
            first = self.random_item(0.75 if coloured else 0)
            if coloured and self.rng.random() < 0.15:  # the same thing in two colours teaches binding best
                second = Item(first.index, self.rng.choice(COLOURS))
                if first.index not in self.colourable_set or not self.allowed_colour(second.index, second.colour):
                    continue
            else:
                second = self.random_item(0.75 if coloured else 0)
            if first == second or frozenset((first.index, second.index)) in self.held_out_pairs:
                continue
            if not coloured and first.index == second.index:
                continue
            jobs.append((first, second))
        for chunk in self.chunks(jobs):
            pictures = self.pair_picture([a for a, _ in chunk], [b for _, b in chunk], beside)
            prompts = [[self.pair_prompt(a, b, beside) for _ in range(3)] for a, b in chunk]
            pool.add("colour pair" if coloured else "pair", pictures, prompts, [a.index for a, _ in chunk])

    def hat_prompt(self, item, hat):
        noun = self.words.maybe_article(self.words.coloured(item, hat=True), 0.75)
        return f"{noun} {self.rng.choice(['wearing', 'wearing', 'with'])} {self.rng.choice(HATS[hat][0])}"

    def add_hats(self, pool):
        wearers = [self.index[n] for n in HAT_WEARERS if n in self.index]
        wearers += [
            i
            for i, e in enumerate(self.entries)
            if e["subgroup"] in HAT_FACE_SUBGROUPS and e["name"] not in HATLESS_FACES
        ]
        for i in dict.fromkeys(wearers):
            for hat in HATS:
                if hat not in self.index or (self.words.names[i], hat) in HELD_OUT_HATS:
                    continue
                colours = [None, *self.rng.sample(COLOURS, 3)]
                for colour in colours:
                    if colour is not None and not self.allowed_colour(i, colour):
                        continue
                    item = Item(i, colour)
                    prompts = [[self.hat_prompt(item, hat) for _ in range(8 if colour is None else 4)]]
                    pool.add("hat", self.hat_picture(item, hat), prompts, [i], [1.0 if colour is None else 0.4])

    def add_counts(self, pool):
        countable = [i for i in self.short if not self.words.names[i].endswith("s")]
        countable_set = set(countable)
        for count, word in ((2, "two"), (3, "three"), (4, "four")):
            jobs = [Item(i) for i in countable]
            if count < 4:
                jobs += [j for j in (self.random_item(1) for _ in range(1500)) if j.colour and j.index in countable_set]
            for chunk in self.chunks(jobs):
                prompts = [[f"{word} {plural(self.words.coloured(j).removeprefix('the '))}" for _ in range(3)] for j in chunk]
                pool.add("count", self.count_picture(chunk, count), prompts, [j.index for j in chunk])

    def add_styles(self, pool):
        luma = torch.tensor([0.3, 0.59, 0.11], device=self.device)[None, :, None, None]

        def grey(p):
            return (over(p) * luma).sum(1, keepdim=True)

        def sketch(p):
            y = F.avg_pool2d(F.pad(grey(p), (1,) * 4, mode="replicate"), 3, 1)
            gx, gy = y[:, :, :, 2:] - y[:, :, :, :-2], y[:, :, 2:] - y[:, :, :-2]
            edge = (F.pad(gx, (1, 1, 0, 0)) ** 2 + F.pad(gy, (0, 0, 1, 1)) ** 2).sqrt()
            return (1.05 - 3.2 * edge).clamp(0.1, 1).expand(-1, 3, -1, -1)

        def pixels(p):
            return F.interpolate(F.interpolate(over(p), size=(16, 16), mode="area"), size=(SIZE, SIZE), mode="nearest")

        def small(p):
            return over(paste(torch.zeros_like(p), resized(p, 52), 38, 38))

        # style -> (how to draw it, prompts with an article {a} or without {n})
        styles = {
            "grey": (lambda p: grey(p).expand(-1, 3, -1, -1), ["black and white {n}", "{a} in black and white"]),
            "pixels": (pixels, ["pixel art of {a}", "{a}, pixel art", "pixelated {n}"]),
            "silhouette": (lambda p: 1 - p[:, 3:].expand(-1, 3, -1, -1) * 0.92, ["silhouette of {a}", "the shadow of {a}"]),
            "sketch": (sketch, ["a sketch of {a}", "a pencil sketch of {a}", "line drawing of {a}"]),
            "small": (small, ["a small {n}", "a tiny {n}", "a little {n}"]),
            "upside down": (lambda p: over(p).flip(2), ["an upside-down {n}", "{a} upside down"]),
        }
        nameable = set(self.nameable)
        named = [i for i, e in enumerate(self.entries) if i in nameable or e["group"] == "People & Body"]
        named = [i for i in named if len(self.words.names[i].split()) <= 4]
        for style, (draw, forms) in styles.items():
            chosen = self.short if style == "upside down" else named
            for chunk in self.chunks(chosen):
                prompts = []
                for i in chunk:
                    nouns = [self.words.noun(i) for _ in range(4)]
                    prompts.append([self.rng.choice(forms).format(a=with_article(n), n=n) for n in nouns])
                pool.add("style", draw(premultiplied(self.emoji[chunk])), prompts, chunk)

    def build(self, scale=1.0):
        """The whole training set; `scale` < 1 draws fewer pairs, for tests."""
        pool = Pool()
        self.add_plain(pool)
        self.add_colours(pool)
        for coloured in (False, True):
            self.add_backgrounds(pool, coloured)
            self.add_pairs(pool, int((13000, 15000)[coloured] * scale), coloured, beside=True)
            self.add_pairs(pool, int((5000, 5000)[coloured] * scale), coloured, beside=False)
        self.add_hats(pool)
        self.add_counts(pool)
        self.add_styles(pool)
        totals = Counter()
        for weight, kind in zip(pool.weights, pool.kinds):
            totals[kind] += weight
        pool.weights = [w * KIND_SHARE[k] / totals[k] for w, k in zip(pool.weights, pool.kinds)]
        return pool

    # ---- what is never trained on

    def held_out_tests(self):
        """[(kind, prompt, u8 pictures [n, 3, 128, 128])] of compositions that the training set lacks.

        Where the prompt leaves something open (how large a thing on a background is), n pictures are right."""
        item = lambda name, colour=None: Item(self.index[name], colour)  # noqa: E731
        tests = []
        for name, noun, colour in [
            ("red apple", "apple", "blue"), ("banana", "banana", "purple"), ("automobile", "car", "green"),
            ("elephant", "elephant", "pink"), ("dog face", "dog", "blue"), ("rocket", "rocket", "green"),
            ("strawberry", "strawberry", "blue"), ("rose", "rose", "blue"), ("snail", "snail", "purple"),
        ]:  # fmt: skip
            tests.append(("colour", f"a {colour} {noun}", over(self.painter.paint([item(name, colour)]))))
        for name, noun, hat, words in [
            ("cat face", "cat", "top hat", "a hat"), ("panda", "panda", "crown", "a crown"),
            ("fox", "fox", "graduation cap", "a graduation cap"), ("frog", "frog", "crown", "a crown"),
        ]:  # fmt: skip
            tests.append(("hat", f"a {noun} wearing {words}", self.hat_picture(item(name), hat)))
        for name, noun, colour in [
            ("cat face", "a cat", "blue"), ("rocket", "a rocket", "purple"), ("pizza", "a pizza", "green"),
            ("unicorn", "a unicorn", "yellow"), ("tropical fish", "a tropical fish", "orange"),
        ]:  # fmt: skip
            pictures = [self.background_picture([item(name)], [colour], size) for size in BACKGROUND_SIZES]
            tests.append(("background", f"{noun} on {with_article(colour)} background", torch.cat(pictures)))
        for a, b, beside, prompt in [
            (item("dog face"), item("pizza"), True, "a dog and a pizza"),
            (item("cat face"), item("rocket"), True, "a cat next to a rocket"),
            (item("banana"), item("red apple"), True, "a banana and a red apple"),
            (item("sun"), item("cactus"), False, "a sun above a cactus"),
            (item("strawberry"), item("banana"), True, "a strawberry and a banana"),
        ]:
            tests.append(("pair", prompt, self.pair_picture([a], [b], beside)))
        for a, b, prompt in [
            (item("cat face", "blue"), item("automobile", "yellow"), "a blue cat and a yellow car"),
            (item("bird", "purple"), item("house", "green"), "a purple bird and a green house"),
            (item("elephant", "green"), item("airplane", "red"), "a green elephant and a red airplane"),
            (item("tulip", "blue"), item("guitar", "pink"), "a blue tulip and a pink guitar"),
            (item("strawberry", "green"), item("banana", "pink"), "a green strawberry and a pink banana"),
        ]:
            tests.append(("colour pair", prompt, self.pair_picture([a], [b], True)))
        return [(kind, prompt, to_u8(pictures).cpu()) for kind, prompt, pictures in tests]


def contact_sheet(pool, path, seed=1, columns=14):
    """A picture of what the training set looks like, one row a kind; prints the prompts."""
    rng = random.Random(seed)
    pictures = torch.cat(pool.pictures)
    rows = []
    for kind in KIND_SHARE:
        chosen = rng.sample([i for i, k in enumerate(pool.kinds) if k == kind], columns)
        print(f"{kind}:", " | ".join(pool.prompts[i][0] for i in chosen))
        rows.append(torch.cat(list(pictures[chosen].cpu()), 2))
    Image.fromarray(torch.cat(rows, 1).permute(1, 2, 0).numpy()).save(path)
