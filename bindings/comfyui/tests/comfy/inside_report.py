"""As inside.py: what Shoal Memory Report says and draws of runs. Started by run.py."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Iterator, List, Tuple
from unittest import mock

from support import FAMILIES, NODES, PACK, Case, build, main, management, sample, stream, torch

sys.path.append(os.path.join(PACK, "tests"))

import made_runs  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402

Box = Tuple[float, float, float, float]


def module(name: str) -> Any:
    return importlib.import_module(f"shoal_pack.{name}")


def report(patcher: Any) -> Tuple[str, torch.Tensor]:
    return NODES["ShoalMemoryReport"].execute(patcher).result


def colours(picture: Image.Image) -> set:
    return {colour for _, colour in picture.getcolors(1 << 24)}


def rgb(name: str) -> Tuple[int, ...]:
    return tuple(int(name[at:at + 2], 16) for at in (1, 3, 5))


class Reports(Case):
    def test_it_is_of_the_last_run_alone(self) -> None:
        family = FAMILIES["Wan"]
        streamed = stream(build(family))
        runs = []
        for steps in (6, 2):
            sample(streamed, family, steps=steps)
            text, _ = report(streamed)
            runs.append(streamed.get_attachment("shoal").host.last_run)
            self.assertIn(f"{runs[-1].walks} (calls of the model)", text)
        self.assertEqual(runs[0].walks, 3 * runs[1].walks)
        self.assertGreater(runs[0].copied_bytes, 2 * runs[1].copied_bytes)
        self.assertGreater(runs[0].read_bytes, 0)
        self.assertEqual(runs[1].read_bytes, 0)
        stats = streamed.get_attachment("shoal").host.store.stats
        self.assertEqual(sum(run.copied_bytes for run in runs), stats.copied_bytes)
        for run in runs:
            self.assertGreater(run.seconds, 0)

    def test_peaks_are_of_the_device_that_there_is(self) -> None:
        family = FAMILIES["MiniTrainDIT"]
        streamed = stream(build(family), wire="packed")
        sample(streamed, family)
        text, _ = report(streamed)
        run = streamed.get_attachment("shoal").host.last_run
        for words in ("for streamed blocks (double buffer, 3 slots)", "of it pinned",
                      "packed: a walk copies", "of them)"):
            self.assertIn(words, text)
        if management.get_torch_device().type == "cuda":
            self.assertGreaterEqual(run.torch_bytes, streamed.get_attachment(
                "shoal").host.store.device_bytes)
            self.assertLessEqual(run.used_bytes, run.card_bytes)
            self.assertIn("torch's allocator", text)
        else:
            self.assertIsNone(run.used_bytes)
            self.assertNotIn("torch's allocator", text)

    def test_of_a_card_the_most_is_kept(self) -> None:
        stats = mock.Mock(copied_bytes=0, read_bytes=0, wait_seconds=0.0)
        gib = 1 << 30
        with mock.patch.multiple(
                torch.cuda, reset_peak_memory_stats=mock.DEFAULT,
                max_memory_allocated=mock.Mock(return_value=3 * gib),
                mem_get_info=mock.Mock(side_effect=[
                    (free * gib, 24 * gib) for free in (20, 15, 18)] + [RuntimeError("lost")])):
            run = module("measures").Run(mock.Mock(stats=stats), torch.device("cuda", 0))
            torch.cuda.reset_peak_memory_stats.assert_called_once_with(run._device)
            for index in (0, 1, 2, 0, 2):  # a block may be left out
                run.use(index)
            self.assertEqual(run.walks, 2)
            run.ends()
            self.assertEqual((run.used_bytes, run.card_bytes, run.torch_bytes),
                             (9 * gib, 24 * gib, 3 * gib))
            run.ends()  # of a card that failed
        with mock.patch.object(torch.cuda, "reset_peak_memory_stats", side_effect=RuntimeError):
            other = module("measures").Run(mock.Mock(stats=stats), torch.device("cuda", 0))
        with mock.patch.object(torch.cuda, "mem_get_info", return_value=(gib, 2 * gib)):
            other.ends()
        self.assertIsNone(other.torch_bytes)
        self.assertEqual(len(module("report")._card_rows(other)), 1)
        rows = " ".join(text for _, text in module("report")._card_rows(run))
        self.assertIn("3.00 GiB given out by torch's allocator", rows)
        self.assertIn("9.00 GiB of the card's 24.00 GiB", rows)

    def test_the_trace_has_the_walks_that_were(self) -> None:
        family = FAMILIES["MiniTrainDIT"]
        streamed = stream(build(family))
        for steps in (3, 5):
            sample(streamed, family, steps=steps)
            host = streamed.get_attachment("shoal").host
            seen = module("report")._trace(host)
            self.assertEqual(len(seen.walks), host.last_run.walks)
            self.assertEqual(len(seen.spans["compute"]), host.last_run.walks * len(host.names))
            self.assertGreater(seen.spans["compute"][0].begin, 0)
            self.assertLess(seen.walks[-1].end, host.last_run.seconds)

    def test_long_names_are_whole_in_the_trace(self) -> None:
        family = FAMILIES["Qwen-Image"]
        streamed = stream(build(family))
        sample(streamed, family)
        seen = module("report")._trace(streamed.get_attachment("shoal").host)
        self.assertEqual({span.name for span in seen.spans["copy"]},
                         {f"transformer_blocks.{index}" for index in range(5)})

    def test_what_did_not_run_is_a_small_picture(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        text, none = report(patcher)
        self.assertIn("does not run through shoal", text)
        streamed = stream(patcher)
        text, before = report(streamed)
        self.assertIn("has not run", text)
        sample(streamed, family)
        _, after = report(streamed)
        for image in (none, before, after):
            self.assertEqual((image.dtype, image.ndim, image.shape[0], image.shape[3]),
                             (torch.float32, 4, 1, 3))
            self.assertTrue(0 <= float(image.min()) < float(image.max()) <= 1)
        self.assertLess(before.shape[1], after.shape[1] / 3)

    def test_what_fits_is_said(self) -> None:
        streamed = stream(build(FAMILIES["Wan"]))
        streamed.get_attachment("shoal").session._stream(0)
        text, _ = report(streamed)
        self.assertIn("0 of 5 blocks streamed", text)
        self.assertIn("the model fits", text)

    def test_an_interrupted_run_is_told_of(self) -> None:
        family = FAMILIES["Wan"]
        streamed = stream(build(family))

        def interrupt(step: int, *_: Any) -> None:
            if step == 1:
                raise management.InterruptProcessingException()

        with self.assertRaises(management.InterruptProcessingException):
            sample(streamed, family, steps=5, callback=interrupt)
        text, _ = report(streamed)
        self.assertIn("2 (calls of the model)", text)


class Pictures(Case):
    def draw(self, blocks: int, walks: int, *seconds: float, **more: Any) -> Image.Image:
        """While no text may lie on another or outside of the picture."""
        trace, timeline = module("trace"), module("timeline")
        seen = trace.parse(made_runs.run(blocks, walks, *seconds, **more),
                           made_runs.names(blocks), made_runs.BEGUN_NS)
        boxes: List[Tuple[Box, str]] = []
        text = ImageDraw.ImageDraw.text

        def record(draw: Any, xy: Any, words: str, *rest: Any, **named: Any) -> None:
            boxes.append((draw.textbbox(xy, words, font=named["font"], anchor=named["anchor"]),
                          words))
            text(draw, xy, words, *rest, **named)

        with mock.patch.object(ImageDraw.ImageDraw, "text", record):
            picture = timeline.draw("A family with a long name: 60 of 60 blocks streamed",
                                    "facts " * 40, seen, walks + 3, seen.walks[-1].end + 0.1)
        for (box, words) in boxes:
            self.assertTrue(box[0] >= 0 and box[1] >= 0 and box[2] <= picture.width and
                            box[3] <= picture.height, f"{words} at {box}")
        self.assertEqual(list(self.overlaps(boxes)), [])
        return picture

    def overlaps(self, boxes: List[Tuple[Box, str]]) -> Iterator[Tuple[str, str]]:
        for at, (one, words) in enumerate(boxes):
            for other, more in boxes[:at]:
                if max(one[0], other[0]) < min(one[2], other[2]) and \
                        max(one[1], other[1]) < min(one[3], other[3]):
                    yield words, more

    def test_runs_of_every_kind_are_drawn(self) -> None:
        self.draw(1, 1, 0.001, 0.001)
        for blocks, walks in ((1, 200), (5, 3), (30, 9), (60, 50), (500, 2)):
            for copy, use in ((0.01, 0.03), (0.03, 0.01), (1e-7, 1e-6), (3.0, 20.0)):
                with self.subTest(blocks=blocks, walks=walks, copy=copy, use=use):
                    self.draw(blocks, walks, copy, use, read=copy, unpack=use / 9, dropped=1024)

    def test_colours_are_of_what_was(self) -> None:
        timeline = module("timeline")
        lanes = {lane.kind: rgb(lane.colours[0]) for lane in timeline.LANES}
        smooth = colours(self.draw(6, 3, 0.01, 0.03))
        self.assertLessEqual({lanes["copy"], lanes["compute"]}, smooth)
        self.assertNotIn(lanes["read"], smooth)
        self.assertNotIn(lanes["unpack"], smooth)
        packed = self.draw(6, 3, 0.01, 0.03, read=0.01, unpack=0.01)
        self.assertLessEqual(set(lanes.values()), colours(packed))
        self.assertGreater(packed.height, self.draw(6, 3, 0.01, 0.03).height)

        def stalled(picture: Image.Image) -> int:
            return sum(count for count, colour in picture.getcolors(1 << 24)
                       if colour == rgb(timeline.STALLED))
        late = stalled(self.draw(6, 3, 0.03, 0.01))
        self.assertGreater(late, 20 * stalled(self.draw(6, 3, 0.01, 0.03)))

    def test_the_last_walks_are_shown_and_no_more_than_are_legible(self) -> None:
        trace, timeline = module("trace"), module("timeline")
        for blocks, walks, shown, more in ((5, 3, (0, 3), {}), (5, 9, (5, 9), {}),
                                           (30, 9, (5, 9), {}), (60, 50, (48, 50), {}),
                                           (500, 3, (2, 3), {}), (5, 3, (1, 3), {"read": 1.0})):
            seen = trace.parse(made_runs.run(blocks, walks, 0.01, 0.02, **more),
                               made_runs.names(blocks), made_runs.BEGUN_NS)
            self.assertEqual(timeline.shown_walks(seen), shown)


if __name__ == "__main__":
    sys.exit(main(__name__))
