#!/usr/bin/env python3
"""Checks what reviewers should not have to: file and line lengths, opening comments, stray #ifdefs,
forbidden calls, and (where clang-format is installed) formatting."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES, MAX_COLUMNS = 800, 100
# The library never prints, exits or aborts on input, and allocates through base/memory.h.
FORBIDDEN = re.compile(
    r"(?<![\w.>])(printf|puts|putchar|perror|exit|abort|malloc|calloc|realloc|free|strcat|sprintf)\s*\("
)
CONDITIONAL = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif)\b(?!.*_H\b)(?!.*__cplusplus)")


def sources():
    """Those in C, which clang-format knows, and the packages' in Python."""
    for pattern in ("include/**/*.h", "src/**/*.[ch]", "src/**/*.cu", "src/**/*.cuh", "programs/**/*.[ch]",
                    "examples/*.c", "tests/**/*.[ch]", "tests/**/*.cc", "tools/*.c",
                    "bindings/*/**/*.py"):
        yield from sorted(ROOT.glob(pattern))


def check(path):
    name = path.relative_to(ROOT)
    text = path.read_text()
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines; at most {MAX_LINES}"
    if not re.match(r'(#!.*\n)?"""' if path.suffix == ".py" else r"/\*", text):
        yield f"{name}:1: open with a comment that says what the file is"
    if not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    library = name.parts[0] == "src"
    portable = library and name.parts[1] not in ("base", "device", "wire")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns; at most {MAX_COLUMNS}"
        if line != line.rstrip() or "\t" in line:
            yield f"{name}:{number}: tab or trailing space"
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        if library and name.parts[1:] != ("base", "memory.c") and FORBIDDEN.search(code) \
                and not code.lstrip().startswith(("*", "/*", "//")):
            yield f"{name}:{number}: the library does not call this: {line.strip()}"
        if portable and CONDITIONAL.match(line):
            yield f"{name}:{number}: conditional compilation belongs in src/base, src/device and src/wire"


def main():
    files = list(sources())
    bad = [message for path in files for message in check(path)]
    if shutil.which("clang-format"):
        result = subprocess.run(["clang-format", "--dry-run", "-Werror",
                                 *(str(path) for path in files if path.suffix != ".py")],
                                capture_output=True, text=True, cwd=ROOT)
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
        # Other versions format a few things otherwise; only one can be the judge.
        if result.returncode and " 14." in version:
            bad += sorted({m[1] + ": run clang-format" for m in
                           re.finditer(r"^(\S+?):\d+:\d+: error: code should be", result.stderr, re.M)})
    print("\n".join(bad) if bad else f"{len(files)} files are tidy")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
