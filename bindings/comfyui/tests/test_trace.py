"""What is read from a store's trace: walks, stalls and how long something was under way."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(os.path.dirname(HERE)), HERE]

import made_runs  # noqa: E402
from comfyui import trace  # noqa: E402


def parsed(blocks: int, walks: int, *seconds: float, **more: Any) -> trace.Trace:
    return trace.parse(made_runs.run(blocks, walks, *seconds, **more), made_runs.names(blocks),
                       made_runs.BEGUN_NS)


class Traces(unittest.TestCase):
    def test_times_are_of_the_run(self) -> None:
        seen = parsed(2, 1, 0.5, 1.0, rest=0.0)
        self.assertTrue(seen.complete)
        self.assertEqual([span.name for span in seen.spans["copy"]], ["layers.0", "layers.1"])
        for span, begin, end in zip(seen.spans["compute"], (0.6, 1.6), (1.6, 2.6)):
            self.assertAlmostEqual(span.begin, begin)
            self.assertAlmostEqual(span.end, end)

    def test_a_walk_begins_with_what_came_before(self) -> None:
        for blocks, walks in ((1, 3), (5, 1), (5, 7)):
            seen = parsed(blocks, walks, 0.01, 0.02)
            self.assertEqual(len(seen.walks), walks)
            for walk, after in zip(seen.walks, seen.walks[1:]):
                self.assertEqual(walk.end, after.begin)
            self.assertEqual(seen.walks[-1].end, seen.spans["compute"][-1].end)
        left_out = made_runs.run(5, 4, 0.01, 0.02)
        left_out["traceEvents"] = [event for event in left_out["traceEvents"]
                                   if event["name"] != "layers.0"]
        seen = trace.parse(left_out, made_runs.names(5), made_runs.BEGUN_NS)
        self.assertEqual(len(seen.walks), 4)

    def test_stalls_are_where_a_copy_is_late(self) -> None:
        self.assertEqual(parsed(10, 3, 0.01, 0.02).stalls, [])
        seen = parsed(10, 3, 0.03, 0.02, rest=0.0)
        # Once the slots that were filled ahead are used up, 0.01 before every block.
        late = seen.stalls[-10:]
        for stall in late:
            self.assertAlmostEqual(stall.end - stall.begin, 0.01)
        self.assertAlmostEqual(trace.covered(late, 0.0, 1e9), 0.1)
        at = {span.begin for span in seen.spans["compute"]}
        self.assertTrue(all(min(abs(stall.end - one) for one in at) < 1e-9 for stall in late))

    def test_what_was_not_kept_is_known(self) -> None:
        self.assertFalse(parsed(3, 2, 0.01, 0.02, dropped=1024).complete)
        empty = {"traceEvents": [], "otherData": {"begin_ns": 0, "dropped": 0}}
        seen = trace.parse(empty, [], 0)
        self.assertEqual((seen.walks, seen.stalls), ([], []))

    def test_overlaps_count_once(self) -> None:
        spans = [trace.Span(0, 4), trace.Span(1, 2), trace.Span(3, 5), trace.Span(7, 8)]
        self.assertEqual(trace.covered(spans, 0, 10), 6)
        self.assertEqual(trace.covered(spans, 1.5, 7.5), 4)
        self.assertEqual(trace.covered([], 0, 1), 0)


if __name__ == "__main__":
    unittest.main()
