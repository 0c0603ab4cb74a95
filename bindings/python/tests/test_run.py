"""The runner itself: what fails says so on its line."""

from __future__ import annotations

import contextlib
import io
import unittest

from run import TapResult


class Runner(unittest.TestCase):
    def test_a_failing_subtest_fails_its_line(self) -> None:
        class Inner(unittest.TestCase):
            def test_parts(self) -> None:
                for part in range(3):
                    with self.subTest(part=part):
                        self.assertNotEqual(part, 1)

        result, said = TapResult(), io.StringIO()
        with contextlib.redirect_stdout(said):
            Inner("test_parts").run(result)
        self.assertFalse(result.wasSuccessful())
        self.assertTrue(said.getvalue().startswith("not ok 1 - "), said.getvalue())


if __name__ == "__main__":
    unittest.main()
