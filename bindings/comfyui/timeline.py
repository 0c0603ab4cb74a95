"""The picture of a run: all of it in one strip, and below that the last walks, block by block.

Needs Pillow, but neither torch nor ComfyUI.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Iterable, List, NamedTuple, Sequence, Tuple

from PIL import Image, ImageDraw, ImageFont

from .trace import Span, Trace, covered

WIDTH = 1600
MARGIN = 48
LEFT, RIGHT = 214, WIDTH - 132  # of what has a time axis
LANE, GAP, HEAD = 44, 16, 30
LEAST_BLOCK_PIXELS = 9  # of a block on average, in the walks that are shown
MOST_WALKS = 4

PAPER, INK, FAINT, LINE = "#fbfbf9", "#22262b", "#757c85", "#dfe2e5"
STRIP = ("#c9ced4", "#dadee2")
SHOWN = ("#3f9a54", "#68b57a")
STALLED = "#d9552f"
LENS = "#eef3ee"


class Lane(NamedTuple):
    title: str
    note: str
    colours: Tuple[str, str]  # of spans in turn
    kind: str


LANES = (
    Lane("read", "into host memory", ("#3d7cc9", "#6a9edb"), "read"),
    Lane("link", "copies to the device", ("#1f9aa5", "#56b6bf"), "copy"),
    Lane("unpack", "on the device", ("#8b62c4", "#a888d5"), "unpack"),
    Lane("blocks", "in use", SHOWN, "compute"),
)
WAITS = Lane("waits", "for weights", (STALLED, "#eab04d"), "wait")


@functools.lru_cache(maxsize=None)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


class _Axis(NamedTuple):
    begin: float
    end: float

    def x(self, seconds: float) -> float:
        share = (min(max(seconds, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return LEFT + share * (RIGHT - LEFT)

    def ticks(self, most: int) -> List[Tuple[float, str]]:
        rough = (self.end - self.begin) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.begin / step - 1e-9)
        last = math.floor(self.end / step + 1e-9)
        return [(at * step, f"{at * step:.{digits}f}") for at in range(first, last + 1)]


def message(text: str) -> Image.Image:
    """A small picture that says why there is none."""
    image = Image.new("RGB", (WIDTH // 2, 120), PAPER)
    draw, font = ImageDraw.Draw(image), _font(22)
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if draw.textlength(longer, font=font) > image.width - 2 * MARGIN:
            lines.append(line)
            longer = word
        line = longer
    lines.append(line)
    for at, line in enumerate(lines):
        y = image.height / 2 + (at - (len(lines) - 1) / 2) * 32
        draw.text((image.width / 2, y), line, INK, font=font, anchor="mm")
    return image


def shown_walks(trace: Trace) -> Tuple[int, int]:
    """Which walks are drawn block by block, from and to: the last ones, as many as are legible.

    Not the first, if it took so long (for it reads) that the others would be lost beside it.
    """
    count = len(trace.walks)
    each = max(1.0, len(trace.spans["compute"]) / count)
    most = int((RIGHT - LEFT) / (LEAST_BLOCK_PIXELS * each))
    first = max(0, count - min(MOST_WALKS, max(1, most)))
    if first == 0 and count > 1:
        lengths = [walk.end - walk.begin for walk in trace.walks]
        first = int(lengths[0] > 2 * max(lengths[1:]))
    return first, count


def draw(title: str, facts: str, trace: Trace, walks: int, seconds: float) -> Image.Image:
    """Of a run of so many walks and seconds, which used at least one block."""
    return _Picture(title, facts, trace, walks, seconds).image


class _Picture:
    def __init__(self, title: str, facts: str, trace: Trace, walks: int, seconds: float) -> None:
        self.trace, self.walks = trace, walks
        self.first, self.last = shown_walks(trace)
        shown = trace.walks[self.first:self.last]
        self.detail = _Axis(shown[0].begin, max(shown[-1].end, shown[0].begin + 1e-6))
        self.run = _Axis(0.0, max(seconds, trace.walks[-1].end))
        # A kind that never was has no lane; one that was, but not in these walks, an empty one.
        self.lanes = [lane for lane in LANES if trace.spans[lane.kind]]
        self.lanes.append(WAITS)
        head = 238  # of the lanes: which walks they show
        top = head + HEAD + GAP
        bottom = top + len(self.lanes) * (LANE + GAP)
        self.image = Image.new("RGB", (WIDTH, bottom + 118), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.draw.text((MARGIN, 44), title, INK, font=_font(34), anchor="ls")
        size = next(size for size in range(21, 9, -1) if size == 10 or self.draw.textlength(
            facts, font=_font(size)) <= WIDTH - 2 * MARGIN)
        self.draw.text((MARGIN, 80), facts, FAINT, font=_font(size), anchor="ls")
        self._strip(112)
        self._lens(182, head)
        self._heads(head, bottom)
        for at, lane in enumerate(self.lanes):
            self._lane(lane, top + at * (LANE + GAP))
        self._legend(bottom + 84)

    def text(self, x: float, y: float, text: str, size: int = 19, colour: str = INK,
             anchor: str = "lm") -> None:
        self.draw.text((x, y), text, colour, font=_font(size), anchor=anchor)

    def bars(self, axis: _Axis, y: float, height: float, spans: Iterable[Span],
             colours: Sequence[str], labels: bool = False, least: float = 0.0) -> None:
        """Those within the axis, at least a pixel wide, in colours that alternate.

        Not those that would take less than `least` of a pixel.
        """
        font = _font(15)
        edge = LEFT - 1.0
        for at, span in enumerate(spans):
            if span.end <= axis.begin or span.begin >= axis.end or \
                    axis.x(span.end) - axis.x(span.begin) < least:
                continue
            left, right = round(axis.x(span.begin)), round(axis.x(span.end))
            if right <= edge:
                continue  # within the pixel that the one before took
            right = max(right, left + 1)
            # Neighbours of some width have a gap of a pixel between them.
            self.draw.rectangle((left, y, right - (2 if right - left > 5 else 1), y + height - 1),
                                colours[at % len(colours)])
            edge = right
            label = span.name.rsplit(".", 1)[-1]
            if labels and self.draw.textlength(label, font=font) + 6 <= right - left:
                self.draw.text(((left + right - 1) / 2, y + height / 2), label, "white", font=font,
                               anchor="mm")

    def ticks(self, axis: _Axis, y: float, most: int, lines_to: float = 0) -> None:
        for seconds, label in axis.ticks(most):
            x = round(axis.x(seconds))
            if lines_to:
                self.draw.line((x, lines_to, x, y), LINE)
            self.draw.line((x, y, x, y + 6), FAINT)
            self.text(x, y + 19, label, 17, FAINT, "mm")
        self.text(WIDTH - MARGIN, y + 19, "s", 17, FAINT, "rm")

    # ---- the whole run ----

    def _strip(self, y: int) -> None:
        self.text(MARGIN, y + 15, "the run")
        walks = self.trace.walks
        kept = 0.0 if self.trace.complete else walks[0].begin
        if self.run.x(kept) > LEFT + 100:
            self.text((LEFT + self.run.x(kept)) / 2, y + 11, "not kept", 15, FAINT, "mm")
        self.bars(self.run, y, 22, walks[:self.first], STRIP)
        self.bars(self.run, y, 22, walks[self.first:], SHOWN)
        self.bars(self.run, y + 24, 6, self.trace.spans["read"], LANES[0].colours[:1])
        self.bars(self.run, y + 24, 6, self.trace.stalls, (STALLED,))
        self.ticks(self.run, y + 36, 10)
        stalled = covered(self.trace.stalls, kept, self.run.end)
        self.text(WIDTH - MARGIN, y + 8, _percent(stalled, self.run.end - kept), 19,
                  STALLED if stalled > 0.01 * (self.run.end - kept) else INK, "rm")
        self.text(WIDTH - MARGIN, y + 28, "stalled", 15, FAINT, "rm")

    def _lens(self, y: int, to: int) -> None:
        """What of the strip the lanes below are."""
        left, right = self.run.x(self.detail.begin), self.run.x(self.detail.end)
        self.draw.polygon([(left, y), (max(right, left + 1), y), (RIGHT, to), (LEFT, to)], LENS)

    # ---- the walks ----

    def _heads(self, y: int, bottom: int) -> None:
        axis = self.detail
        self.draw.rectangle((LEFT, y, RIGHT, y + HEAD), LENS)
        self.ticks(axis, bottom, 12, y + HEAD)
        before = self.walks - len(self.trace.walks)  # that the trace has forgotten
        for at in range(self.first, self.last):
            walk = self.trace.walks[at]
            left, right = axis.x(walk.begin), axis.x(walk.end)
            if at > self.first:
                self.draw.line((round(left), y, round(left), bottom), "#9aa1a9", 2)
            label = f"walk {before + at + 1} of {self.walks}"
            if self.draw.textlength(label, font=_font(18)) + 12 > right - left:
                label = str(before + at + 1)
            self.text((left + right) / 2, y + HEAD / 2, label, 18, INK, "mm")
        self.text(WIDTH - MARGIN, y + HEAD / 2, "busy", 15, FAINT, "rm")

    def _lane(self, lane: Lane, y: int) -> None:
        axis, trace = self.detail, self.trace
        self.text(MARGIN, y + 13, lane.title, 21)
        self.text(MARGIN, y + 34, lane.note, 15, FAINT)
        if lane is WAITS:
            self.bars(axis, y, LANE, trace.stalls, lane.colours[:1])
            # The host asks before every block, and mostly for nothing.
            self.bars(axis, y + LANE - 14, 14, trace.spans["wait"], lane.colours[1:], least=0.5)
            spans: Sequence[Span] = sorted([*trace.stalls, *trace.spans["wait"]])
        else:
            spans = trace.spans[lane.kind]
            self.bars(axis, y, LANE, spans, lane.colours, labels=lane.kind != "read")
        self.draw.line((LEFT, y + LANE + GAP // 2, RIGHT, y + LANE + GAP // 2), LINE)
        busy = covered(spans, axis.begin, axis.end)
        if not busy:
            self.text((LEFT + RIGHT) / 2, y + LANE / 2, "none in these walks", 15, FAINT, "mm")
        share = _percent(busy, axis.end - axis.begin)
        self.text(WIDTH - MARGIN, y + LANE / 2, share, 19, INK, "rm")

    def _legend(self, y: int) -> None:
        entries: List[Tuple[Sequence[str], str]] = [
            (lane.colours, f"{lane.title}: {lane.note}") for lane in self.lanes[:-1]]
        entries += [((STALLED,), "no block runs: a copy is on its way"),
                    (WAITS.colours[1:], "the host waits for reads")]
        x = float(MARGIN)
        for colours, text in entries:
            for at, colour in enumerate(colours):
                self.draw.rectangle((x + at * 11, y - 7, x + at * 11 + 10, y + 6), colour)
            x += 11 * len(colours) + 8
            self.text(x, y, text, 17, FAINT)
            x += self.draw.textlength(text, font=_font(17)) + 26


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole if whole > 0 else 0.0
    return f"{share:.0f} %" if share >= 9.95 or share == 0 else f"{share:.1f} %"
