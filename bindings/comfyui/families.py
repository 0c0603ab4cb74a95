"""Which blocks of a diffusion model are walked in order, so that they can be streamed.

Facts about ComfyUI's model classes only; it needs neither torch nor ComfyUI.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

LEAST_BLOCKS = 4  # a shorter list of equal blocks is more likely something else

# Class of the model (or of one that it inherits from): its name for people, and the lists in the
# order in which they run.
_KNOWN = {
    "Anima": ("Anima", ("blocks",)),
    "MiniTrainDIT": ("Cosmos-Predict2", ("blocks",)),
    "WanModel": ("Wan", ("blocks",)),
    "QwenImageTransformer2DModel": ("Qwen-Image", ("transformer_blocks",)),
    "NextDiT": ("Z-Image or Lumina 2", ("context_refiner", "noise_refiner", "layers")),
    "Flux": ("FLUX", ("double_blocks", "single_blocks")),
    "Chroma": ("Chroma", ("double_blocks", "single_blocks")),
    "HunyuanVideo": ("HunyuanVideo", ("double_blocks", "single_blocks")),
    "LTXVModel": ("LTX-Video", ("transformer_blocks",)),
}
_UNETS = ("UNetModel", "StageB", "StageC")


class Unsupported(ValueError):
    """The model cannot be streamed; the sentence says why."""


class Place(NamedTuple):
    """A block, by where it is in the diffusion model."""

    list: str
    index: int

    @property
    def path(self) -> str:
        return f"diffusion_model.{self.list}.{self.index}"


class Family(NamedTuple):
    name: str
    places: Tuple[Place, ...]  # in the order in which they run


def _signature(block: Any) -> Tuple[Any, ...]:
    return (type(block), tuple((name, tuple(parameter.shape))
                               for name, parameter in block.named_parameters()))


def _uniform_lists(model: Any) -> List[str]:
    """Its own lists of equal blocks, in the order in which the model declares them."""
    found = []
    for name, child in model.named_children():
        if type(child).__name__ != "ModuleList" or len(child) < LEAST_BLOCKS:
            continue
        first = _signature(child[0])
        if first[1] and all(_signature(block) == first for block in child):
            found.append(name)
    return found


def find(model: Any) -> Family:
    """The blocks of a diffusion model, or Unsupported."""
    names = [one.__name__ for one in type(model).__mro__]
    own = names[0]
    if any(name in _UNETS for name in names):
        raise Unsupported(f"{own} is a UNet: its blocks differ and feed each other across the "
                          "model, and shoal streams transformers only")
    name, lists = next((_KNOWN[name] for name in names if name in _KNOWN), (own, ()))
    if not lists:
        lists = tuple(_uniform_lists(model))
    places = tuple(Place(one, index) for one in lists
                   for index in range(len(getattr(model, one, None) or ())))
    if not places:
        raise Unsupported(f"{own} has no list of {LEAST_BLOCKS} or more equal blocks, "
                          "which is what shoal streams")
    seen: Dict[int, Place] = {}
    for place in places:
        block = getattr(model, place.list)[place.index]
        if id(block) in seen:
            raise Unsupported(f"{own}: {place.path} is the same block as {seen[id(block)].path}, "
                              "and shoal streams blocks that are used in one place only")
        seen[id(block)] = place
    return Family(name, places)
