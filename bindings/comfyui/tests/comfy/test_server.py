"""Boots a whole ComfyUI without a window and drives it as its page does. Started by run.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
PACK = os.path.dirname(os.path.dirname(HERE))
FAMILIES = ("MiniTrainDIT", "Wan", "Z-Image", "FLUX", "Qwen-Image")
PATIENCE_SECONDS = 300


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


class Server(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.base = tempfile.mkdtemp(prefix="shoal-comfy-")
        nodes = os.path.join(cls.base, "custom_nodes")
        os.mkdir(nodes)
        os.symlink(PACK, os.path.join(nodes, "shoal-nodes"))
        os.symlink(os.path.join(HERE, "tiny_nodes.py"), os.path.join(nodes, "tiny_nodes.py"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cls.url = f"http://127.0.0.1:{port}"
        cls.log = open(os.path.join(cls.base, "log"), "w+", encoding="utf-8")
        cls.process = subprocess.Popen(
            [os.environ["COMFYUI_PYTHON"], os.path.join(os.environ["COMFYUI_DIR"], "main.py"),
             "--base-directory", cls.base, "--port", str(port), "--disable-auto-launch",
             *os.environ["SHOAL_COMFY_FLAGS"].split()],
            env={**os.environ, "SHOAL_TINY_MODELS": HERE}, stdout=cls.log,
            stderr=subprocess.STDOUT)
        try:
            cls.known = cls.wait("/object_info")
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls) -> None:
        cls.process.terminate()
        cls.process.wait()
        cls.log.close()
        shutil.rmtree(cls.base)

    @classmethod
    def said(cls) -> str:
        cls.log.flush()
        with open(cls.log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    @classmethod
    def ask(cls, path: str, data: Optional[Any] = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(cls.url + path, body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    @classmethod
    def wait(cls, path: str) -> Any:
        """For an answer that holds something."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and cls.process.poll() is None:
            try:
                found = cls.ask(path)
                if found:
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"no answer to {path}:\n{cls.said()[-3000:]}")

    def run_prompt(self, prompt: Dict[str, Any]) -> Dict[str, Any]:
        number = self.ask("/prompt", {"prompt": prompt})["prompt_id"]
        return self.wait(f"/history/{number}")[number]

    def digest(self, prompt: Dict[str, Any]) -> str:
        done = self.run_prompt(prompt)
        self.assertEqual(done["status"]["status_str"], "success", done["status"])
        return done["outputs"]["digest"]["text"][0]

    def test_the_nodes_are_there(self) -> None:
        self.assertNotIn("Cannot import", self.said())
        for name in ("ShoalLayerStreaming", "ShoalBlockSwap", "ShoalMemoryReport"):
            self.assertIn(name, self.known)

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

    def test_the_report_is_shown(self) -> None:
        prompt = workflow("Wan", {"shoal": shoal("ShoalLayerStreaming", auto_config=False)}, "shoal")
        prompt["report"] = shoal("ShoalMemoryReport", "shoal", after=["sampler", 0])
        done = self.run_prompt(prompt)
        self.assertIn("5 of 5 blocks streamed", done["outputs"]["report"]["text"][0])

    def test_what_is_refused_is_said(self) -> None:
        nodes = {"one": shoal("ShoalBlockSwap", blocks_to_swap=2),
                 "two": shoal("ShoalBlockSwap", "one", blocks_to_swap=2)}
        done = self.run_prompt(workflow("Wan", nodes, "two"))
        self.assertEqual(done["status"]["status_str"], "error")
        self.assertIn("already runs through a shoal node", json.dumps(done["status"]))


if __name__ == "__main__":
    unittest.main()
