"""A whole ComfyUI without a window, driven as its page does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
PACK = os.path.dirname(os.path.dirname(HERE))
START_SECONDS = 300


class Server:
    """Started with our nodes and those of a file beside this one; stop() it in the end.

    Reads COMFYUI_DIR, COMFYUI_PYTHON and SHOAL_COMFY_FLAGS.
    """

    def __init__(self, nodes: str, models: Optional[str] = None) -> None:
        self._base = tempfile.mkdtemp(prefix="shoal-comfy-")
        custom = os.path.join(self._base, "custom_nodes")
        os.mkdir(custom)
        os.symlink(PACK, os.path.join(custom, "shoal-nodes"))
        os.symlink(os.path.join(HERE, nodes), os.path.join(custom, nodes))
        if models:
            os.mkdir(os.path.join(self._base, "models"))
            os.symlink(models, os.path.join(self._base, "models", "diffusion_models"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._log = open(os.path.join(self._base, "log"), "w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [os.environ["COMFYUI_PYTHON"], os.path.join(os.environ["COMFYUI_DIR"], "main.py"),
             "--base-directory", self._base, "--port", str(port), "--disable-auto-launch",
             *os.environ["SHOAL_COMFY_FLAGS"].split()],
            env={**os.environ, "SHOAL_COMFY_TESTS": HERE}, stdout=self._log,
            stderr=subprocess.STDOUT)
        try:
            self.nodes = self._wait("/object_info", START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._base)

    def rss(self) -> int:
        """Of its process, in bytes."""
        with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def said(self) -> str:
        self._log.flush()
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, path: str, data: Optional[Any] = None) -> Any:
        text = self.get(path, None if data is None else json.dumps(data).encode())
        return json.loads(text) if text else None

    def get(self, path: str, body: Optional[bytes] = None) -> bytes:
        request = urllib.request.Request(self._url + path, body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def _wait(self, path: str, seconds: float) -> Any:
        """For an answer that holds something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                found = self.ask(path)
                if found:
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.1)
        raise AssertionError(f"no answer to {path}:\n{self.said()[-3000:]}")

    def run(self, prompt: Dict[str, Any], seconds: float = START_SECONDS) -> Dict[str, Any]:
        """What the workflow gave, or how it failed."""
        number = self.ask("/prompt", {"prompt": prompt})["prompt_id"]
        return self._wait(f"/history/{number}", seconds)[number]

    def text(self, prompt: Dict[str, Any], node: str, seconds: float = START_SECONDS) -> str:
        """What a node showed in the end; AssertionError if the workflow failed."""
        done = self.run(prompt, seconds)
        if done["status"]["status_str"] != "success":
            raise AssertionError("; ".join(failures(done)) or str(done["status"])[-500:])
        return done["outputs"][node]["text"][0]


def failures(done: Dict[str, Any]) -> Sequence[str]:
    """What was wrong with a workflow that failed."""
    return [message["exception_message"].strip() for kind, message in done["status"]["messages"]
            if kind == "execution_error"]
