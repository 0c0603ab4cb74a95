"""Workflows through the page's interface of a whole ComfyUI. Started by run.py."""

from __future__ import annotations

import unittest
import urllib.parse
from typing import Any, Dict

from server import Server, failures

FAMILIES = ("MiniTrainDIT", "Wan", "Z-Image", "FLUX", "Qwen-Image")


def workflow(family: str, nodes: Dict[str, Dict[str, Any]], model: str) -> Dict[str, Any]:
    """Samples what the node `model` gives, and hashes the latent."""
    return {
        "tiny": {"class_type": "TestTiny", "inputs": {"family": family}}, **nodes,
        "sampler": {"class_type": "KSampler", "inputs": {
            "model": [model, 0], "positive": ["tiny", 1], "negative": ["tiny", 1],
            "latent_image": ["tiny", 2], "seed": 5, "steps": 2, "cfg": 2.0,
            "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "digest": {"class_type": "TestDigest", "inputs": {"latent": ["sampler", 0]}},
    }


def shoal(name: str, source: str = "tiny", **inputs: Any) -> Dict[str, Any]:
    return {"class_type": name, "inputs": {"model": [source, 0], **inputs}}


class Workflows(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("tiny_nodes.py")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def digest(self, prompt: Dict[str, Any]) -> str:
        return self.server.text(prompt, "digest")

    def test_the_nodes_are_there(self) -> None:
        for name in ("ShoalLayerStreaming", "ShoalBlockSwap", "ShoalMemoryReport"):
            self.assertTrue(name in self.server.nodes, f"there is no {name}")

    def test_pictures_are_the_same(self) -> None:
        for family in FAMILIES:
            with self.subTest(family=family):
                plain = self.digest(workflow(family, {}, "tiny"))
                for node in (shoal("ShoalLayerStreaming", auto_config=False),
                             shoal("ShoalLayerStreaming", resident_blocks=1, wire="packed",
                                   auto_config=False),
                             shoal("ShoalBlockSwap", blocks_to_swap=2, pin_memory=True)):
                    nodes = {"shoal": node}
                    self.assertEqual(self.digest(workflow(family, nodes, "shoal")), plain)

    def test_a_run_after_one_that_failed_is_right(self) -> None:
        """Out of memory, ComfyUI unloads all models; interrupted, none."""
        plain = self.digest(workflow("Wan", {}, "tiny"))
        for interrupt, slots in ((False, 4), (True, 5)):
            nodes = {"shoal": shoal("ShoalLayerStreaming", auto_config=False,
                                    prefetch_slots=slots)}
            failing = {**nodes, "failing": {"class_type": "TestFailing", "inputs": {
                "model": ["shoal", 0], "interrupt": interrupt}}}
            done = self.server.run(workflow("Wan", failing, "failing"))
            self.assertEqual(done["status"]["status_str"], "error")
            self.assertIn("Got an OOM, unloading all loaded models", self.server.said())
            self.assertEqual(self.digest(workflow("Wan", nodes, "shoal")), plain)

    def test_the_report_is_shown(self) -> None:
        nodes = {"shoal": shoal("ShoalLayerStreaming", auto_config=False)}
        prompt = workflow("Wan", nodes, "shoal")
        prompt["report"] = shoal("ShoalMemoryReport", "shoal", after=["sampler", 0])
        prompt["picture"] = {"class_type": "PreviewImage", "inputs": {"images": ["report", 1]}}
        done = self.server.run(prompt)
        self.assertEqual(failures(done), [])
        self.assertIn("5 of 5 blocks streamed", done["outputs"]["report"]["text"][0])
        shown = urllib.parse.urlencode(done["outputs"]["picture"]["images"][0])
        self.assertEqual(self.server.get(f"/view?{shown}")[:4], b"\x89PNG")

    def test_examples_are_in_the_browser_of_templates(self) -> None:
        names = ["block_swap", "layer_streaming"]
        self.assertEqual(sorted(self.server.ask("/workflow_templates")["shoal-nodes"]), names)
        for name in names:
            path = f"/api/workflow_templates/shoal-nodes/{name}"
            for one in self.server.ask(f"{path}.json")["nodes"]:
                self.assertTrue(one["type"] in self.server.nodes, f"there is no {one['type']}")
            self.assertEqual(self.server.get(f"{path}.jpg")[:2], b"\xff\xd8")

    def test_what_is_refused_is_said(self) -> None:
        nodes = {"one": shoal("ShoalBlockSwap", blocks_to_swap=2),
                 "two": shoal("ShoalBlockSwap", "one", blocks_to_swap=2)}
        said = failures(self.server.run(workflow("Wan", nodes, "two")))
        self.assertIn("already runs through a shoal node", " ".join(said))


if __name__ == "__main__":
    unittest.main()
