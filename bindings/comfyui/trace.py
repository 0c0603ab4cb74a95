"""What a store did when, read from the trace that it wrote. Needs neither torch nor ComfyUI."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

KINDS = ("read", "copy", "unpack", "compute", "wait")


class Span(NamedTuple):
    """Seconds, from where the run began."""

    begin: float
    end: float
    name: str = ""


class Trace(NamedTuple):
    spans: Dict[str, List[Span]]  # of each kind, in order
    walks: List[Span]  # one pass over the blocks each, from its first block's wait to the next one
    stalls: List[Span]  # no block ran, and the next one's weights were still on their way
    complete: bool  # else the first spans of a long run were not kept


def covered(spans: Sequence[Span], begin: float, end: float) -> float:
    """Of a time, how much of it is in one of the spans. They are in order of their begin."""
    total, at = 0.0, begin
    for span in spans:
        total += max(0.0, min(span.end, end) - max(span.begin, at))
        at = max(at, span.end)
    return total


def read(path: str, blocks: Sequence[str], begun_ns: int) -> Trace:
    """A trace of a run that began then, over blocks of these names in this order."""
    with open(path, encoding="utf-8") as file:
        return parse(json.load(file), blocks, begun_ns)


def parse(data: Dict[str, Any], blocks: Sequence[str], begun_ns: int) -> Trace:
    other = data["otherData"]
    shift = (other["begin_ns"] - begun_ns) * 1e-9
    spans: Dict[str, List[Span]] = {kind: [] for kind in KINDS}
    for event in data["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in spans:
            begin = shift + event["ts"] * 1e-6
            spans[event["cat"]].append(Span(begin, begin + event["dur"] * 1e-6, event["name"]))
    for kind in KINDS:
        spans[kind].sort()
    stalls = _stalls(spans)
    return Trace(spans, _walks(spans["compute"], stalls, blocks),
                 [stall for stall in stalls if stall.end > stall.begin], not other["dropped"])


def _ready(spans: Dict[str, List[Span]]) -> Iterator[float]:
    """When the weights of each use had arrived, as far as the trace has it."""
    copies, at = spans["copy"], 0
    arrived: Dict[str, float] = {}
    for use in spans["compute"]:
        while at < len(copies) and copies[at].begin < use.begin:
            arrived[copies[at].name] = copies[at].end
            at += 1
        yield arrived.get(use.name, 0.0)


def _stalls(spans: Dict[str, List[Span]]) -> List[Span]:
    """Before each use, the part of the gap after the last one in which its copy was not through.

    What else runs in a gap (blocks that are not streamed, the sampler) is not in a trace: these are
    upper bounds.
    """
    stalls, end = [], None
    for use, ready in zip(spans["compute"], _ready(spans)):
        begin = use.begin if end is None else min(end, use.begin)
        stalls.append(Span(begin, max(begin, min(ready, use.begin)), use.name))
        end = use.end
    return stalls


def _walks(uses: Sequence[Span], stalls: Sequence[Span], blocks: Sequence[str]) -> List[Span]:
    order = {name: at for at, name in enumerate(blocks)}
    begins, last = [], len(blocks)
    for use, stall in zip(uses, stalls):
        index = order.get(use.name, last + 1)
        if index <= last:
            begins.append(stall.begin if stall.end > stall.begin else use.begin)
        last = index
    ends = [*begins[1:], uses[-1].end] if uses else []
    return [Span(begin, end) for begin, end in zip(begins, ends)]
