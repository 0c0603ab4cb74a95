#!/usr/bin/env python3
"""Runs the package's tests and prints one TAP line a case.

    python3 bindings/python/tests/run.py BUILD_FOLDER [--folder FOLDER] [part of a case's name]

Those of another folder are tests of another package over this one.
"""

from __future__ import annotations

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class TapResult(unittest.TestResult):
    """One line a case, as meson and tools/run_tests.py count them."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.line, self.details, self.note = "ok", "", ""

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        print(f"{self.line} {self.testsRun} - {test.id()}{self.note}")
        for line in self.details.splitlines():
            print("# " + line)
        sys.stdout.flush()

    def _failed(self, test: unittest.TestCase, error: tuple) -> None:
        self.line, self.details = "not ok", self._exc_info_to_string(error, test)

    def addError(self, test: unittest.TestCase, err: tuple) -> None:
        super().addError(test, err)
        self._failed(test, err)

    def addFailure(self, test: unittest.TestCase, err: tuple) -> None:
        super().addFailure(test, err)
        self._failed(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: tuple) -> None:
        super().addSubTest(test, subtest, err)
        if err:
            self._failed(subtest, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.note = f" # SKIP {reason}"


def main() -> int:
    build, *rest = sys.argv[1:]
    build, folder = os.path.abspath(build), HERE
    if rest[:1] == ["--folder"]:
        folder, rest = rest[1], rest[2:]
    os.environ.setdefault("SHOAL_DEVICE", "cpu")
    os.environ["SHOAL_BUILD"] = build
    os.environ["SHOAL_LIBRARY"] = os.path.join(build, "libshoal.so")
    sys.path[:0] = [os.path.dirname(HERE), HERE]
    loader = unittest.TestLoader()
    if rest:
        loader.testNamePatterns = [f"*{rest[0]}*"]
    suite = loader.discover(folder)
    print(f"1..{suite.countTestCases()}")
    return 0 if suite.run(TapResult()).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
