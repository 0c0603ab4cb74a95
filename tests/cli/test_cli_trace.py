#!/usr/bin/env python3
"""Tests of traces as a user meets them: generate --trace, and shoal trace.

    python3 tests/cli/test_cli_trace.py path/to/shoal [part of a case's name]
"""

import json
import os
import re
import xml.etree.ElementTree as xml

from harness import SMALL, case, expect, main, refused, shoal, small_files_only

KINDS = ["phase", "read", "copy", "unpack", "compute", "wait"]


def span(kind, name, begin_us, duration_us, length=0):
    return {"ph": "X", "pid": 1, "tid": 100, "cat": kind, "name": name, "ts": begin_us,
            "dur": duration_us, "args": {"bytes": length}}


def trace(spans, **changes):
    other = {"program": "shoal", "version": "0.1.0", "title": "a model", "spans": len(spans),
             "dropped": 0}
    other.update(changes)
    return {"traceEvents": spans, "displayTimeUnit": "ms", "otherData": other}


def a_run(steps=3, blocks=10):
    """A run as the streamer does it: 10 ms a block, read and copied just before."""
    spans = [span("phase", "steps", 0, steps * blocks * 10000)]
    for step in range(steps):
        start = step * blocks * 10000
        spans.append(span("phase", f"step {step + 1}", start, blocks * 10000))
        for block in range(blocks):
            at = start + block * 10000
            name = f"layers.{block}"
            for piece in range(4):
                spans.append(span("read", name, at + piece * 1000, 2500, 4 << 20))
            spans.append(span("copy", name, at + 2000, 4000, 16 << 20))
            spans.append(span("unpack", name, at + 6000, 500, 24 << 20))
            spans.append(span("wait", name, at, 6500))
            spans.append(span("compute", name, at + 6500, 3500))
    return spans


def write(folder, data, name="t.json"):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        if isinstance(data, str):
            file.write(data)
        else:
            json.dump(data, file)


def draw(folder, data, *args):
    """The texts in the picture."""
    write(folder, data)
    result = shoal("trace", "t.json", *args, folder=folder)
    expect(result.code == 0 and result.out == "picture   t.svg\n" and result.err == "", result)
    return read_picture(folder, "t.svg")


def read_picture(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        data = file.read()
    expect("<script" not in data and "<style" not in data and "href" not in data, data[:500])
    return [element.text for element in xml.fromstring(data).iter()
            if element.tag.endswith(("}text", "}title"))], data


@case
def generate_writes_a_trace(folder):
    for args in ([], ["--json"], ["-o", "-"]):
        result = shoal("generate", "-p", "x", *SMALL, "--steps", "3", "--vram", "1GiB", "--trace",
                       "t.json", *args, folder=folder, text=args != ["-o", "-"])
        expect(result.code == 0, result, args)
        if args == ["--json"]:
            expect(json.loads(result.out)["trace"] == "t.json", result)
        elif not args:
            expect("trace     t.json" in result.out, result)
        with open(os.path.join(folder, "t.json"), encoding="utf-8") as file:
            data = json.load(file)
        spans = [event for event in data["traceEvents"] if event["ph"] == "X"]
        expect({"text", "context", "steps", "decode", "step 1", "step 3", "picture 1"} <=
               {event["name"] for event in spans}, spans)
        expect(all(event["cat"] in KINDS and event["dur"] >= 0 for event in spans), spans)
        expect(min(event["ts"] for event in spans) == 0, spans)
        expect("64 x 64, 3 steps" in data["otherData"]["title"], data["otherData"])
        names = {event["args"]["name"] for event in data["traceEvents"]
                 if event["name"] == "thread_name"}
        expect(names >= {event["cat"] for event in spans}, names)
        result = shoal("trace", "t.json", "--step", "2", folder=folder)
        expect(result.code == 0, result)
        expect("step 2" in read_picture(folder, "t.svg")[0], what="the step's band")
        os.unlink(os.path.join(folder, "t.json"))
    same = [shoal("generate", "-p", "x", "--json", *SMALL, *args, folder=folder)
            for args in ([], ["--trace", "t.json"])]
    hashes = [json.loads(result.out)["pictures"][0]["picture_xxh3_128"] for result in same]
    expect(hashes[0] == hashes[1], hashes, "a trace changes the picture")


@case
def the_trace_is_checked_before_anything_runs(folder):
    for target, words in (("/dev/null", ["/dev/null", "under /dev"]), ("no/t.json", ["no"]),
                          (".", ["folder"]), ("x.png", ["--output", "x.png"])):
        result = shoal("generate", "-p", "x", "-o", "x.png", "--trace", target, "--steps", "1000",
                       folder=folder)
        refused(result, 2, "--trace", *words)
    refused(shoal("plan", "--trace", "t.json"), 2, "--trace")
    expect(os.listdir(folder) == [], os.listdir(folder))
    result = shoal("generate", "-p", "x", *SMALL, "-o", "-", "--trace", "t.json", folder=folder,
                   text=False, before=small_files_only)
    expect(result.code == 1 and os.listdir(folder) == [], os.listdir(folder))


def names(folder):
    return sorted(os.path.join(place, name)[len(folder) + 1:]
                  for place, _, files in os.walk(folder) for name in files)


@case
def a_trace_takes_no_picture_place(folder):
    """Found by a hostile tester: by another name of the same file, the trace replaced the picture."""
    os.mkdir(os.path.join(folder, "d"))
    os.symlink("d", os.path.join(folder, "e"))
    for name in ("a.png", "b.png"):
        write(folder, "", name)
    os.symlink("a.png", os.path.join(folder, "l.png"))
    os.symlink("l.png", os.path.join(folder, "m.png"))
    os.link(os.path.join(folder, "b.png"), os.path.join(folder, "c.png"))
    before = names(folder)
    for output, target in ((["-o", "x.png"], "./x.png"), (["-o", "d/x.png"], "e/x.png"),
                           (["-o", "d/../x.png"], os.path.join(folder, "x.png")),
                           (["-o", "y.png", "--count", "2"], "y-2.png"),
                           (["-o", "y.png", "--count", "12"], "e/../y-12.png"),
                           (["-o", "d"], "d/shoal-0001.png"), (["-o", "e/"], "d/shoal-9999.png"),
                           (["-o", "d"], os.path.join(folder, "e", "shoal-0034.png")),
                           ([], "shoal-0002.png"), (["-o", "a.png"], "l.png"),
                           (["-o", "m.png"], "l.png"), (["-o", "l.png"], "a.png"),
                           (["-o", "b.png"], "c.png")):
        result = shoal("generate", "-p", "x", *output, "--trace", target, "--steps", "1000",
                       folder=folder)
        refused(result, 2, "--trace", "--output", target)
    for args in (["-o", "-"], ["-o", "x.png", "--json"]):
        with open(os.path.join(folder, "out"), "wb") as out:
            result = shoal("generate", "-p", "x", *args, "--trace", "./out", "--steps", "1000",
                           folder=folder, stdout=out)
        refused(result, 2, "--trace", "./out", "standard output")
        os.unlink(os.path.join(folder, "out"))
    expect(names(folder) == before, names(folder))
    for output, target in ((["-o", "y.png", "--count", "2"], "y-3.png"),
                           (["-o", "d"], "shoal-0001.png"), (["-o", "d"], "d/shoal-0000.png"),
                           (["-o", "d"], "d/shoal-001.png"), (["-o", "d"], "d/shoal-00012.png")):
        result = shoal("generate", "-p", "x", *SMALL, *output, "--trace", target, folder=folder)
        expect(result.code == 0, result, target)
        expect(shoal("trace", target, "-o", "t.svg", folder=folder).code == 0, target)
        os.unlink(os.path.join(folder, target))


@case
def a_picture_says_what_happened(folder):
    texts, data = draw(folder, trace(a_run()))
    for text in ("a model", "steps", "step 1", "step 3", "read", "copy", "unpack", "compute",
                 "wait", "300.0 ms", "0 ms", "250 ms"):
        expect(text in texts, texts, text)
    # Reads overlap: 4 at 1 ms intervals, 2.5 ms each, are 5.5 ms of every 10.
    expect(texts.count("55 %") == 1 and "40 %" in texts and "35 %" in texts and "65 %" in texts,
           texts)
    expect(any(re.match(r"layers\.3: 3\.500 ms from 36\.5 ms$", text) for text in texts), texts)
    expect(any(re.match(r"layers\.3: 5\.500 ms from 30\.0 ms, 16\.00 MiB, 3\.05 GB/s, 4 pieces$",
                        text) for text in texts), texts)
    expect("3" in texts, texts, "short names of blocks where they fit")
    again = draw(folder, trace(list(reversed(a_run()))))[1]
    expect(data == again, what="the order of events changes the picture")
    texts = draw(folder, trace([s for s in a_run() if s["cat"] in ("phase", "compute")]))[0]
    expect("compute" in texts and "read" not in texts, texts, "a lane for nothing")
    texts = draw(folder, trace(a_run(), title="<&> \"x\"", dropped=7))[0]
    expect("<&> \"x\"" in texts and any("7 spans are missing" in text for text in texts), texts)


@case
def windows(folder):
    run = trace(a_run())
    texts = draw(folder, run, "--step", "2")[0]
    expect("step 2" in texts and "step 1" not in texts and "3" in texts, texts)
    expect(any(text.startswith("100.0 ms, from 100 ms of 300.0 ms") for text in texts), texts)
    texts = draw(folder, run, "--from", "0.2")[0]
    expect("step 3" in texts and "step 2" not in texts, texts)
    texts = draw(folder, run, "--from", "0.15", "--to", "0.16")[0]
    expect("layers.5" in texts and "55 %" in texts and "35 %" in texts, texts)
    expect("300.0 ms" in draw(folder, run, "--to", "1000")[0], what="past the end")
    for args, words in ((["--step", "4"], ["--step 4", "3 steps"]),
                        (["--step", "0"], ["--step", "1 to 1999"]),
                        (["--step", "1", "--from", "0"], ["--step", "--from"]),
                        (["--from", "2"], ["--from", "0.3 seconds"]),
                        (["--from", "0.2", "--to", "0.1"], ["--to", "--from"]),
                        (["--to", "0"], ["--to"]),
                        (["--from", "x"], ["--from", "not a number"]),
                        (["--json"], ["--json"]),
                        (["--steps", "1"], ["--steps"]),
                        (["u.json"], ["'u.json'"])):
        refused(shoal("trace", "t.json", *args, folder=folder), 2, *words)


@case
def where_pictures_go(folder):
    write(folder, trace(a_run()), "a.b")
    write(folder, trace(a_run()))
    for args, name in ((["a.b"], "a.b.svg"), (["t.json", "-o", "x.svg"], "x.svg")):
        result = shoal("trace", *args, folder=folder)
        expect(result.code == 0 and result.out == f"picture   {name}\n", result, args)
    expect(sorted(os.listdir(folder)) == ["a.b", "a.b.svg", "t.json", "x.svg"], os.listdir(folder))
    picture = read_picture(folder, "x.svg")[1]
    expect(shoal("trace", "t.json", "-o", "-", folder=folder).out == picture, what="-o -")
    os.symlink("x.svg", os.path.join(folder, "link.svg"))
    os.truncate(os.path.join(folder, "x.svg"), 0)
    expect(shoal("trace", "t.json", "-o", "link.svg", folder=folder).code == 0, what="a link")
    expect(os.path.islink(os.path.join(folder, "link.svg")), what="the link is gone")
    expect(read_picture(folder, "x.svg")[1] == picture, what="what the link points to")
    for target, words in (("t.json", ["itself"]), ("no/x.svg", ["no", "make it first"]),
                          ("/dev/stdout", ["under /dev", "-o -"]), ("", ["empty"])):
        refused(shoal("trace", "t.json", "-o", target, folder=folder), 2, "--output", *words)
    before = sorted(os.listdir(folder))
    result = shoal("trace", "t.json", "-o", "y.svg", folder=folder, before=small_files_only)
    refused(result, 1, "y.svg")
    expect(sorted(os.listdir(folder)) == before, os.listdir(folder))
    with open("/dev/full", "wb") as full:
        result = shoal("trace", "t.json", "-o", "-", folder=folder, stdout=full)
    expect(result.code == 1 and "standard output" in result.err, result)


@case
def long_runs_stay_small(folder):
    spans = [span("phase", "steps", 0, 40_000_000)]
    for step in range(1000):
        spans.append(span("phase", f"step {step + 1}", step * 40000, 40000))
        for block in range(40):
            at = step * 40000 + block * 1000
            spans.append(span("read", f"layers.{block}", at, 250, 1000))
            spans.append(span("compute", f"layers.{block}", at, 900))
    texts, data = draw(folder, trace(spans))
    expect(len(data) < 250000, len(data), "the picture of 81 001 spans is large")
    expect("25 %" in texts and "90 %" in texts, [text for text in texts if "%" in text])
    expect(any("short spans" in text for text in texts), texts[:50])


def changed(**changes):
    return trace([dict(span("read", "layers.0", 1, 2, 3), **changes)])


HOSTILE = [
    # what the file holds, words that the error must hold
    ("", ["no valid JSON"]),
    ("hello", ["no valid JSON", "line 1"]),
    ("[" * 100000, ["no valid JSON"]),
    ("{" * 100000, ["no valid JSON"]),
    ("[]", ["no trace of shoal's", "--trace"]),
    ("{}", ["no trace of shoal's"]),
    ({"traceEvents": []}, ["no trace of shoal's"]),
    ({"traceEvents": {}, "otherData": {"program": "shoal"}}, ["no trace of shoal's"]),
    (trace([], program="other"), ["no trace of shoal's"]),
    (trace([]), ["empty"]),
    (trace(a_run(), title=7), ["title"]),
    (trace(a_run(), title="x" * 1000), ["title"]),
    (trace(a_run(), title="\x1b[31m"), ["title"]),
    (trace([7]), ["event 0", "ph"]),
    (trace([None]), ["event 0", "ph"]),
    (trace([span("read", "a", 1, 2), {"ph": "B"}]), ["event 1", "ph"]),
    (changed(cat="nap"), ["event 0", "cat"]),
    (changed(cat=None), ["event 0", "cat"]),
    (changed(name=7), ["event 0", "name"]),
    (changed(name="\x1b[31m"), ["event 0", "name"]),
    (changed(name="x\ny"), ["event 0", "name"]),
    (changed(name="\u202e"), ["event 0", "name"]),
    (changed(name="x" * 65), ["event 0", "name"]),
    (changed(ts=-1), ["event 0", "ts"]),
    (changed(ts="1"), ["event 0", "ts"]),
    (changed(ts=1e300), ["event 0", "ts"]),
    (changed(dur=None), ["event 0", "dur"]),
    (changed(dur=-0.5), ["event 0", "dur"]),
    (changed(args={"bytes": -1}), ["event 0", "bytes"]),
    (changed(args={"bytes": 1.5}), ["event 0", "bytes"]),
    ('{"traceEvents":[],"traceEvents":[],"otherData":{"program":"shoal"}}', ["no valid JSON"]),
]


@case
def other_files_are_refused(folder):
    for data, words in HOSTILE:
        write(folder, data)
        result = shoal("trace", "t.json", folder=folder)
        try:
            refused(result, 1, "t.json", *words)
        except AssertionError as error:
            raise AssertionError(f"{str(data)[:200]}: {error}") from None
        expect("Sanitizer" not in result.err, result)
    os.mkfifo(os.path.join(folder, "fifo"))
    for path in ("fifo", "/dev/zero", "no.json", "."):
        refused(shoal("trace", path, "-o", "x.svg", folder=folder), 1, path)
    refused(shoal("trace"), 2, "trace what")
    refused(shoal("trace", ""), 2, "trace what")
    expect(sorted(os.listdir(folder)) == ["fifo", "t.json"], os.listdir(folder))


@case
def odd_traces_are_drawn(folder):
    for spans in ([span("read", "", 0, 1)],
                  [span("phase", "a", 0, 0), span("compute", "b", 0, 1)],
                  [span("read", "a", 1e12, 1), span("read", "b", 0, 1)],
                  [span("read", "a", 0, 0.001, 1 << 62)],
                  [span("compute", f"x{i % 7}", i % 5, 1 + i % 11, i) for i in range(2000)]):
        texts = draw(folder, trace(spans))[0]
        expect(all("nan" not in text and "inf" not in text for text in texts if text), texts)
    write(folder, trace([span("wait", "a", 0, 0)]))
    result = shoal("trace", "t.json", folder=folder)
    expect(result.code == 2 and "nothing to draw" in result.err, result)


if __name__ == "__main__":
    main()
