#!/usr/bin/env python3
"""What changing adapters between two pictures of an opened model costs, as a table in Markdown.

    SHOAL_LIBRARY=build/libshoal.so PYTHONPATH=bindings/python tools/bench_lora.py MODEL LORA OTHER \\
        [--vram SIZE] [--ram SIZE] [--host-format storage|compute] [--steps N] [--side PIXELS] \\
        [--tokenizer FILE] [--tokenizer-2 FILE]

tools/make_lora.py makes adapters for random weights. Each row is a picture. "plan" holds what a change
costs before anything runs: reading adapters that are not there yet, and planning. Rows of the same
adapters must give the same picture, and others another: it exits with 1 if not.
"""
import argparse
import sys
import time

import shoal

HEAD = ("| adapters | read for them, MiB | plan, s | first step, s | step, s | all, s | picture |\n"
        "|---|---:|---:|---:|---:|---:|---|")


def paint(model, args, adapters):
    start = time.monotonic()
    plan = model.plan("a lighthouse at dusk", seed=1, steps=args.steps, loras=adapters, vram=args.vram, ram=args.ram,
                      host_format=args.host_format, width=args.side, height=args.side)
    planned = time.monotonic()
    result = plan.run()
    report = result.report
    return {"read": plan.summary.lora_read_bytes, "plan": planned - start, "first": report.first_step_seconds,
            "step": report.step_seconds, "all": time.monotonic() - start, "picture": result.latents[0].tobytes()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("model", "lora", "other"):
        parser.add_argument(name)
    for name in ("--vram", "--ram", "--host-format", "--tokenizer", "--tokenizer-2"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--side", type=int)
    args = parser.parse_args()
    one, weak, other = (args.lora, 1.0), (args.lora, 0.5), (args.other, 1.0)
    rows = [("none", []), ("none, again", []), ("one", [one]), ("one, again", [one]), ("one, weaker", [weak]),
            ("another", [other]), ("both", [one, other]), ("one", [one]), ("none", [])]
    pictures = {}
    print(HEAD)
    with shoal.Model(args.model, tokenizer=args.tokenizer, second_tokenizer=args.tokenizer_2) as model:
        for name, adapters in rows:
            run = paint(model, args, adapters)
            known = pictures.setdefault(tuple(adapters), run["picture"])
            print(f"| {name} | {run['read'] / (1 << 20):.1f} | {run['plan']:.3f} | {run['first']:.3f} | {run['step']:.4f} "
                  f"| {run['all']:.2f} | {list(pictures).index(tuple(adapters)) + 1} |", flush=True)
            if known != run["picture"]:
                sys.exit(f"{name}: the picture is not that of the same adapters before")
    if len(set(pictures.values())) != len(pictures):
        sys.exit("other adapters gave the same picture")


if __name__ == "__main__":
    main()
