#!/usr/bin/env python3
"""Checks that every #include points the way the architecture allows: down, or beside itself."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# layer: the layers that it may include, besides itself and those below them in turn.
LAYERS = {
    "base": [],
    "tensor": ["base"],
    "wire": ["tensor"],
    "checkpoint": ["wire"],
    "device": ["wire"],
    "layers": ["device"],
    "models": ["layers", "checkpoint"],
    "adapter": ["models"],
    "memory": ["adapter", "wire"],
    "plan": ["base"],
    "stream": ["memory"],
    "tokenizer": ["base"],
    "sampling": ["base"],
    "media": ["base"],
    "pipeline": ["stream", "plan", "tokenizer", "sampling", "media"],
}


def reachable(layer):
    found = {layer}
    for below in LAYERS[layer]:
        found |= reachable(below)
    return found


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if match:
            yield number, match[1]


def main():
    bad = []
    for path in sorted(ROOT.glob("src/*/**/*.[ch]")):
        layer = path.relative_to(ROOT / "src").parts[0]
        if layer not in LAYERS:
            bad.append(f"{path.relative_to(ROOT)}: the layer {layer} is not in tools/check_layers.py")
            continue
        allowed = reachable(layer)
        for number, name in includes(path):
            target = name.split("/")[0]
            if name == "shoal/shoal.h" or target in allowed:
                continue
            bad.append(f"{path.relative_to(ROOT)}:{number}: {layer} must not include {name}")
    outside = [*ROOT.glob("programs/**/*.[ch]"), *ROOT.glob("examples/**/*.[ch]")]
    for path in sorted(outside):
        for number, name in includes(path):
            beside = (path.parent / name).exists()
            if name != "shoal/shoal.h" and not beside:
                bad.append(f"{path.relative_to(ROOT)}:{number}: only shoal/shoal.h may be included here")
    for path in sorted(ROOT.glob("include/**/*.h")):
        for number, name in includes(path):
            bad.append(f"{path.relative_to(ROOT)}:{number}: the public header includes nothing of ours")
    print("\n".join(bad) if bad else "every include points down")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
