#!/usr/bin/env python3
"""What streaming a model costs under several caps on device memory, as a table in Markdown.

    tools/bench_models.py SHOAL MODEL [--vram LIST] [--ram SIZE] [--steps N] [-- OPTION...]

  SHOAL        the program
  MODEL        as tools/make_checkpoint writes it, say; --dit and the like come behind --
  --vram LIST  caps, apart by commas, each a size or "none" (default: none,8GiB,6GiB,4GiB,3GiB)
  --ram SIZE   of each run (default: no cap)
  --steps N    the best of those after the first is what counts (default: 6)
  -- OPTION... for shoal generate: --tokenizer, --lora, --width and the like

Run `shoal bench links` first: the limit is the slower of what is copied at the link's measured rate and
the best step of the run that keeps all blocks resident, where one of the runs does. Peaks are the
driver's own figures; without a driver, as on the CPU, the arena's. Exits with 1 if a run fails or if
two runs paint different pictures. Standard library only.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = ("| --vram | peak, GiB | blocks resident | copied a step, GiB | read a step, GiB | s a step | of its limit "
        "| predicted | all, s |")
GIB = float(1 << 30)


def generate(args, vram, folder):
    """The run's figures, or None with the reason printed."""
    command = [args.shoal, "generate", "-m", args.model, "-p", "a lighthouse at dusk", "--seed", "1", "--steps",
               str(args.steps), "--json", "-o", str(Path(folder) / "picture.png"), *args.options]
    if vram != "none":
        command += ["--vram", vram]
    if args.ram:
        command += ["--ram", args.ram]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{args.shoal}: {error.strerror}")
    if result.returncode == 0:
        return json.loads(result.stdout)
    print(f"--vram {vram}: {result.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return None


def limit_seconds(run, resident):
    """Of a step; None if there is nothing to hold it against."""
    link = run["report"]["step_bytes"] / run["plan"]["link_bytes_per_second"]
    return max(link, resident["report"]["step_seconds"] if resident else 0) or None


def row(vram, run, resident):
    plan, report = run["plan"], run["report"]
    limit = limit_seconds(run, resident)
    packed = " packed" if plan["packed_blocks"] else ""
    return " | ".join([
        f"| {vram}", f"{(report['driver_vram_bytes'] or report['peak_vram_bytes']) / GIB:.2f}",
        f"{plan['resident_blocks']} of {plan['blocks']}", f"{report['step_bytes'] / GIB:.2f}{packed}",
        f"{report['step_read_bytes'] / GIB:.2f}", f"{report['step_seconds']:.4f}",
        f"{report['step_seconds'] / limit:.2f}" if limit else "", f"{plan['step_seconds']:.4f}",
        f"{report['seconds']:.1f} |"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("shoal")
    parser.add_argument("model")
    parser.add_argument("--vram", default="none,8GiB,6GiB,4GiB,3GiB")
    parser.add_argument("--ram")
    parser.add_argument("--steps", type=int, default=6)
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:own])
    args.options = words[own + 1:]
    with tempfile.TemporaryDirectory() as folder:
        runs = {vram: generate(args, vram, folder) for vram in args.vram.split(",")}
    done = {vram: run for vram, run in runs.items() if run}
    resident = next((run for run in done.values() if run["plan"]["resident_blocks"] == run["plan"]["blocks"]), None)
    pictures = {run["pictures"][0]["picture_xxh3_128"] for run in done.values()}
    if done:
        plan = next(iter(done.values()))["plan"]
        print(f"{Path(args.model).name} on {plan['device']}, {plan['width']}x{plan['height']}, {plan['lanes']} lanes, "
              f"link {plan['link_bytes_per_second'] / 1e9:.1f} GB/s ({plan['rates_origin']}); "
              f"picture {', '.join(sorted(pictures))}\n\n{HEAD}\n|---{'|---:' * 8}|")
    for vram, run in done.items():
        print(row(vram, run, resident))
    if len(pictures) > 1:
        print("the pictures differ", file=sys.stderr)
    return 0 if len(done) == len(runs) and len(pictures) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
