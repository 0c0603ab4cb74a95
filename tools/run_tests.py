#!/usr/bin/env python3
"""Runs every test in three builds and ends with "N passed, N failed".

build        as users build it
build-asan   AddressSanitizer and UndefinedBehaviorSanitizer: every test again, but those of the
             program that wait for measurements or take long (what they call has tests of its own)
build-tsan   ThreadSanitizer: what starts threads

A test is a cmocka case, a TAP line of a script, or a check of the sources.
"""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
# Lines are enough for a report's stacks, and names of variables take long to compile.
SANITIZED = ["-Dcuda=disabled", "-Db_lundef=false", "-Doptimization=2", "-Dc_args=-g1", "-Dcpp_args=-g1"]
BUILDS = [
    # Compiling kernels takes its time: those for sm_80 run on newer cards too.
    ("build", ["-Dgpu_archs=80"], []),
    ("build-asan", ["-Db_sanitize=address,undefined", *SANITIZED],
     ["--no-suite", "measuring", "--no-suite", "slow"]),
    ("build-tsan", ["-Db_sanitize=thread", *SANITIZED], ["--suite", "thread"]),
]


def run(command, **options):
    return subprocess.run(command, cwd=ROOT, **options)


def count(output, succeeded):
    """Cases passed and failed in one program's output."""
    passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", output))
    failed = sum(int(n) for n in re.findall(r"\[  FAILED  \] (?:\w+: )?(\d+) test", output))
    passed += len(re.findall(r"^ok\b", output, re.M))
    failed += len(re.findall(r"^not ok\b", output, re.M))
    if not succeeded and not failed:
        failed = 1
    if succeeded and not passed and not failed:
        passed = 1
    return passed, failed


def check(name, command):
    result = run(command, capture_output=True, text=True)
    print(f"  {'ok' if result.returncode == 0 else 'FAILED':6} {name}", flush=True)
    if result.returncode:
        print(result.stdout + result.stderr)
    return count("", result.returncode == 0)


def build(folder, setup):
    if not (ROOT / folder / "build.ninja").exists():
        result = run(["meson", "setup", folder, *setup], capture_output=True, text=True)
        if result.returncode:
            print(result.stdout + result.stderr)
            return False
    result = run(["ninja", "-C", folder, "--quiet"], capture_output=True, text=True)
    if result.returncode or "warning:" in result.stdout:
        print(result.stdout + result.stderr)
    return result.returncode == 0


def suite(folder, setup, selection):
    start = time.monotonic()
    print(f"{folder}:", flush=True)
    if not build(folder, setup):
        print("  FAILED to build")
        return 0, 1
    print(f"  built in {time.monotonic() - start:.0f} s", flush=True)
    log = ROOT / folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    # Twice the time limits: they are for what hangs, not for machines that are slow or busy.
    run(["meson", "test", "-C", folder, "--no-rebuild", "--timeout-multiplier", "2", *selection],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    totals = [0, 0]
    for line in log.read_text().splitlines() if log.exists() else []:
        entry = json.loads(line)
        succeeded = entry["result"] in ("OK", "EXPECTEDFAIL")
        output = entry.get("stdout", "") + entry.get("stderr", "")
        if entry["result"] == "SKIP":
            print(f"  skip   {entry['name']}")
            continue
        passed, failed = count(output, succeeded)
        if not succeeded:
            failed = max(failed, 1)
        totals[0] += passed
        totals[1] += failed
        print(f"  {'ok' if succeeded else 'FAILED':6} {entry['name']} ({passed} passed, {failed} failed, "
              f"{entry['duration']:.1f} s)")
        if not succeeded:
            print(output[-6000:])
    if totals == [0, 0]:
        print("  FAILED: no test ran")
        return 0, 1
    return totals


def main():
    totals = [0, 0]
    print("sources:")
    results = [check("layers", ["tools/check_layers.py"]), check("tidy", ["tools/check_tidy.py"])]
    only = sys.argv[1:]
    results += [suite(*b) for b in BUILDS if not only or b[0] in only]
    for passed, failed in results:
        totals[0] += passed
        totals[1] += failed
    print(f"{totals[0]} passed, {totals[1]} failed")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
