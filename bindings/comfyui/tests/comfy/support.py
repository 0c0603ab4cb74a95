"""A ComfyUI without a window or a server, the nodes, and what cases that run in it share.

For the inside*.py beside it, in ComfyUI's Python.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import sys
import unittest
from typing import Any, Callable, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
PACK = os.path.dirname(os.path.dirname(HERE))
ARGUMENTS = sys.argv[1:]
sys.argv = [sys.argv[0], *os.environ["SHOAL_COMFY_FLAGS"].split()]
sys.path[:0] = [os.environ["COMFYUI_DIR"], os.path.join(PACK, "..", "python", "tests"), HERE]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.cli_args  # noqa: E402

# ComfyUI's dynamic VRAM, which main.py turns on before anything else: NVIDIA cards only.
DYNAMIC = comfy.cli_args.enables_dynamic_vram()
if DYNAMIC:
    import comfy_aimdo.control

    comfy_aimdo.control.init()

import comfy.model_management as management  # noqa: E402
import comfy.sample  # noqa: E402
import torch  # noqa: E402
from run import TapResult  # noqa: E402
from tiny_models import FAMILIES, Model  # noqa: E402

SEED = 7
if DYNAMIC:
    comfy_aimdo.control.init_devices(one.index for one in management.get_all_torch_devices())
torch.set_num_threads(1)  # tiny models: threads would wait for each other most of the time


def load_pack() -> Any:
    """As ComfyUI does it: a folder with any name."""
    spec = importlib.util.spec_from_file_location(
        "shoal_pack", os.path.join(PACK, "__init__.py"), submodule_search_locations=[PACK])
    module = importlib.util.module_from_spec(spec)
    sys.modules["shoal_pack"] = module
    spec.loader.exec_module(module)
    return module


async def list_nodes() -> Dict[str, Any]:
    extension = await load_pack().comfy_entrypoint()
    return {node.GET_SCHEMA().node_id: node for node in await extension.get_node_list()}


NODES = asyncio.run(list_nodes())


def build(family: Model) -> Any:
    return family.build(DYNAMIC)


def sample(patcher: Any, family: Model, steps: int = 3,
           callback: Optional[Callable[..., None]] = None, cfg: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(family.latent, generator=generator)
    with torch.inference_mode():
        return comfy.sample.sample(
            patcher, noise, steps, cfg, "euler", "simple", family.conditioning(1),
            family.conditioning(2), torch.zeros(family.latent), seed=SEED,
            callback=callback, disable_pbar=True)


def lora(patcher: Any, family: Model, seed: int) -> Any:
    """A low-rank patch on every matrix, within the streamed blocks and outside of them; and one
    on weights that lie beside other modules in a block, which ComfyUI does not patch."""
    patched = patcher.clone()
    generator = torch.Generator().manual_seed(seed)
    patches = {}
    for key, value in patcher.model.state_dict().items():
        if key.endswith(".weight") and value.ndim == 2:
            up = torch.randn(value.shape[0], 4, generator=generator) * 0.1
            down = torch.randn(4, value.shape[1], generator=generator) * 0.1
            patches[key] = ("diff", ((up @ down),))
        elif key.endswith((".modulation", ".scale_shift_table")):
            patches[key] = ("diff", (torch.ones(value.shape),))
    assert patched.add_patches(patches, 0.5)
    return patched


def stream(patcher: Any, **inputs: Any) -> Any:
    """All blocks, unless it is said otherwise: tiny models fit on any card."""
    return NODES["ShoalLayerStreaming"].execute(
        patcher, **{"auto_config": False, **inputs}).result[0]


def swap(patcher: Any, blocks: int) -> Any:
    return NODES["ShoalBlockSwap"].execute(patcher, blocks).result[0]


def report(patcher: Any) -> str:
    return NODES["ShoalMemoryReport"].execute(patcher).result[0]


def weights(patcher: Any) -> Dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in patcher.model.state_dict().items()}


def part(name: str) -> Any:
    """A module of the pack."""
    return importlib.import_module(f"shoal_pack.{name}")


def blocks_of(patcher: Any, family: Model) -> List[torch.nn.Module]:
    """Of a model that is not loaded: a streamed one hides them."""
    management.unload_all_models()
    return [block for one in family.lists
            for block in getattr(patcher.model.diffusion_model, one)]


class Case(unittest.TestCase):
    def tearDown(self) -> None:
        management.unload_all_models()
        gc.collect()

    def same(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.assertTrue(bool(torch.isfinite(one).all()), "it is a number")
        self.assertTrue(torch.equal(one, other), "latents are the same bit for bit")

    def untouched(self, patcher: Any, before: Dict[str, torch.Tensor]) -> None:
        """No parameter points into a slot, and none has changed."""
        for key, value in patcher.model.state_dict().items():
            self.assertTrue(torch.equal(value.cpu(), before[key].cpu()), key)


def each_family(test: Callable[..., None]) -> Callable[[Case], None]:
    def run(self: Case) -> None:
        for name, family in FAMILIES.items():
            with self.subTest(family=name):
                test(self, family)
    run.__name__ = test.__name__
    return run


def main(module: str) -> int:
    loader = unittest.TestLoader()
    if ARGUMENTS:
        loader.testNamePatterns = [f"*{ARGUMENTS[0]}*"]
    suite = loader.loadTestsFromModule(sys.modules[module])
    print(f"1..{suite.countTestCases()}")
    return 0 if suite.run(TapResult()).wasSuccessful() else 1
