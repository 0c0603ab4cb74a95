"""What of the node pack needs neither torch nor ComfyUI: families, options, the automatic raise."""

from __future__ import annotations

import ast
import json
import os
import sys
import unittest
from typing import Any, Dict, Iterator, List, Tuple

PACK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(PACK))

from comfyui import families, options  # noqa: E402

MIB = 1 << 20


class Parameter:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Block:
    def __init__(self, *shape: int) -> None:
        self._shape = shape

    def named_parameters(self) -> List[Tuple[str, Parameter]]:
        return [("weight", Parameter(*self._shape))]


class ModuleList(list):
    pass


def model(name: str, lists: Dict[str, Any], base: type = object) -> Any:
    """A fake of a class of this name, with these attributes."""
    made = type(name, (base,), {"named_children": lambda self: list(lists.items())})()
    for key, value in lists.items():
        setattr(made, key, value)
    return made


def blocks(count: int, *shape: int) -> ModuleList:
    return ModuleList(Block(*(shape or (4, 4))) for _ in range(count))


class Families(unittest.TestCase):
    def found(self, made: Any) -> Tuple[str, List[str]]:
        family = families.find(made)
        return family.name, [f"{place.list}.{place.index}" for place in family.places]

    def test_known_ones_run_in_their_order(self) -> None:
        flux = model("Flux", {"single_blocks": blocks(2), "double_blocks": blocks(1, 8)})
        self.assertEqual(self.found(flux), (
            "FLUX", ["double_blocks.0", "single_blocks.0", "single_blocks.1"]))
        lumina = model("NextDiT", {"layers": blocks(2), "noise_refiner": blocks(1),
                                   "context_refiner": blocks(1)})
        self.assertEqual(self.found(lumina)[1], ["context_refiner.0", "noise_refiner.0",
                                                 "layers.0", "layers.1"])
        for name, attribute in (("MiniTrainDIT", "blocks"), ("WanModel", "blocks"),
                                ("QwenImageTransformer2DModel", "transformer_blocks"),
                                ("LTXVModel", "transformer_blocks")):
            self.assertEqual(self.found(model(name, {attribute: blocks(2)}))[1],
                             [f"{attribute}.0", f"{attribute}.1"])

    def test_what_inherits_from_one_is_one(self) -> None:
        made = model("VaceWanModel", {"blocks": blocks(2), "vace_blocks": blocks(8)},
                     type("WanModel", (), {}))
        self.assertEqual(self.found(made), ("Wan", ["blocks.0", "blocks.1"]))
        lacking = model("NextDiT", {"layers": blocks(2)})
        lacking.context_refiner = None
        self.assertEqual(self.found(lacking)[1], ["layers.0", "layers.1"])

    def test_others_are_detected_by_equal_blocks(self) -> None:
        uneven = ModuleList([Block(4, 4), Block(4, 4), Block(4, 4), Block(4, 5)])
        made = model("Novel", {"few": blocks(3), "uneven": uneven, "many": blocks(4),
                               "other": Block(1)})
        self.assertEqual(self.found(made), ("Novel", [f"many.{i}" for i in range(4)]))
        with self.assertRaisesRegex(families.Unsupported, "Novel has no list of 4"):
            families.find(model("Novel", {"few": blocks(3), "uneven": uneven}))

    def test_unets_are_refused_by_name(self) -> None:
        made = model("UNetModel", {"blocks": blocks(8)})
        with self.assertRaisesRegex(families.Unsupported, "UNetModel is a UNet"):
            families.find(made)

    def test_a_place_is_a_path(self) -> None:
        self.assertEqual(families.Place("blocks", 3).path, "diffusion_model.blocks.3")


class Checks(unittest.TestCase):
    def test_defaults_can_be_done(self) -> None:
        options.Options().check()
        first = next(options.Options().attempts())
        self.assertEqual(first, {"wire": "auto", "pin": "on", "buffer": "double",
                                 "prefetch_slots": 3})

    def test_what_cannot_be_done_is_refused_by_name(self) -> None:
        for name, value in (("buffer_mode", "triple"), ("wire", "zip"), ("tiering", "tape"),
                            ("resident_mode", "some"), ("host_format", "zip"),
                            ("prefetch_slots", 1), ("prefetch_slots", 7), ("sage_pv_fp16", True),
                            ("disk_cache", "/x"), ("resident_blocks", -1)):
            with self.subTest(name=name, value=value), \
                    self.assertRaisesRegex(options.Refused, name):
                options.Options(**{name: value}).check()

    def test_disk_cache_is_for_blocks_that_are_read_again(self) -> None:
        options.Options(disk_cache="/x", tiering="ram_disk", ram_budget_gb=1.0).check()
        for given, words in (({"ram_budget_gb": 1.0}, "tiering 'ram_disk'"),
                             ({"tiering": "ram_disk"}, "ram_budget_gb")):
            with self.assertRaisesRegex(options.Refused, words):
                options.Options(disk_cache="/x", **given).check()

    def test_auto_config_asks_for_less_and_less(self) -> None:
        asked = [(one["buffer"], one.get("prefetch_slots")) for one in
                 options.Options(prefetch_slots=4, vram_budget_gb=1.5).attempts()]
        self.assertEqual(asked, [("double", 4), ("double", 3), ("double", 2), ("single", None)])
        exact = list(options.Options(auto_config=False, vram_budget_gb=1.5,
                                     ram_budget_gb=2, pin_memory=False).attempts())
        self.assertEqual(exact, [{"wire": "auto", "pin": "off", "vram": 3 << 29, "ram": 2 << 30,
                                  "buffer": "double", "prefetch_slots": 3}])
        single = list(options.Options(buffer_mode="single", auto_config=False).attempts())
        self.assertEqual([one["buffer"] for one in single], ["single"])

    def test_residents(self) -> None:
        self.assertEqual(options.residents(8, 0, "spread"), [])
        self.assertEqual(options.residents(8, 2, "first"), [0, 1])
        self.assertEqual(options.residents(8, 2, "last"), [6, 7])
        self.assertEqual(options.residents(8, 2, "spread"), [2, 6])
        for count in range(2, 40):
            for wanted in range(count):
                kept = options.residents(count, wanted, "spread")
                self.assertEqual(len(set(kept)), wanted)
                self.assertTrue(all(0 <= index < count for index in kept))
        with self.assertRaisesRegex(options.Refused, "nothing would be streamed"):
            options.residents(8, 8, "first")


class Raise(unittest.TestCase):
    SIZES = [100 * MIB] * 10
    WHOLE = 1200 * MIB  # 200 MiB beside the blocks

    RING = 300 * MIB

    def raised(self, least: int, room: Any) -> int:
        other = self.WHOLE - sum(self.SIZES)
        return options.stream_count(least, self.SIZES, other, self.RING, room)

    def test_nothing_is_raised_that_fits(self) -> None:
        # 5 left: 200 + 500, and what streaming takes, 300.
        self.assertEqual(self.raised(5, 1000 * MIB), 5)
        self.assertEqual(self.raised(5, 1000 * MIB - 1), 6)

    def test_nothing_is_streamed_if_all_fits(self) -> None:
        self.assertEqual(self.raised(0, 1200 * MIB), 0)
        self.assertEqual(self.raised(0, 1200 * MIB - 1), 4)

    def test_it_is_raised_until_it_fits_or_all_are_streamed(self) -> None:
        self.assertEqual(self.raised(0, 700 * MIB), 8)
        self.assertEqual(self.raised(3, 10 * MIB), 10)

    def test_all_are_streamed_if_there_is_no_room(self) -> None:
        self.assertEqual(self.raised(2, -1.0), 10)
        self.assertEqual(self.raised(1000, 1e12), 10)

    def test_comfyui_says_a_limit_or_none(self) -> None:
        self.assertTrue(all(options.is_limit(budget) for budget in (0.1, 1.0, 1e12)))
        self.assertFalse(any(options.is_limit(budget) for budget in (0, 1e32)))

    def test_however_many_are_streamed_they_lie_evenly(self) -> None:
        for count in range(1, 70):
            order = options.spread_order(count)
            self.assertEqual(sorted(order), list(range(count)))
            for chosen in range(1, count + 1):
                at = sorted(order[:chosen])
                gaps = [b - a for a, b in zip(at, at[1:] + [at[0] + count])]
                self.assertLessEqual(max(gaps), 2.62 * count / chosen + 1)


class Files(unittest.TestCase):
    """Schema, locales, README and the example name the same inputs."""

    def schemas(self) -> Dict[str, Dict[str, Any]]:
        """Of each node, read off its source: ComfyUI is not needed for it."""
        with open(os.path.join(PACK, "nodes.py"), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        made = {node.name: node.body[-1].value for node in tree.body
                if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return)}
        found: Dict[str, Dict[str, Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "io.Schema":
                named = {one.arg: one.value for one in node.keywords}
                found[named["node_id"].value] = {
                    "display_name": named["display_name"].value,
                    "inputs": dict(self.slot(one, made) for one in named["inputs"].elts),
                    "outputs": {str(at): self.slot(one, made)[1]
                                for at, one in enumerate(named["outputs"].elts)}}
        return found

    def slot(self, call: ast.Call, made: Dict[str, Any]) -> Tuple[str, bool]:
        """An input's name, or "" of an output; and whether it has a tooltip."""
        inner = made.get(call.func.id) if isinstance(call.func, ast.Name) else call
        first = (call.args or inner.args or [ast.Constant("")])[0]
        return first.value, any(one.arg == "tooltip" for one in inner.keywords)

    def inputs(self) -> Dict[str, List[str]]:
        return {node: list(one["inputs"]) for node, one in self.schemas().items()}

    def locale(self, language: str) -> Dict[str, Any]:
        path = os.path.join(PACK, "locales", language, "nodeDefs.json")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def texts(self, value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        else:
            for one in value.values():
                yield from self.texts(one)

    def test_locales_know_every_input_output_and_tooltip(self) -> None:
        schemas = self.schemas()
        for language in ("en", "zh"):
            known = self.locale(language)
            self.assertEqual(list(known), list(schemas))
            for node, schema in schemas.items():
                with self.subTest(language=language, node=node):
                    self.assertTrue(known[node]["description"])
                    for side in ("inputs", "outputs"):
                        self.assertEqual(
                            {name: "tooltip" in one for name, one in known[node][side].items()},
                            schema[side])
                        self.assertTrue(all(one["name"] for one in known[node][side].values()))
        for node, schema in schemas.items():
            self.assertEqual(self.locale("en")[node]["display_name"], schema["display_name"])
            self.assertTrue(all(schema["inputs"].values()) and all(schema["outputs"].values()))

    def test_locales_are_in_their_language(self) -> None:
        for text in self.texts(self.locale("en")):
            self.assertTrue(text.isascii(), text)
        for text in self.texts(self.locale("zh")):
            self.assertTrue(any("\u4e00" <= letter <= "\u9fff" for letter in text), text)

    def test_examples_have_a_value_for_every_input(self) -> None:
        folder = os.path.join(PACK, "example_workflows")
        for name, own in (("layer_streaming", "ShoalLayerStreaming"),
                          ("block_swap", "ShoalBlockSwap")):
            with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
                workflow = json.load(file)
            nodes = {one["type"]: one for one in workflow["nodes"]}
            for node in (own, "ShoalMemoryReport"):
                linked = [one["name"] for one in nodes[node]["inputs"]]
                self.assertEqual(len(nodes[node]["widgets_values"]) + len(linked),
                                 len(self.inputs()[node]))
            report, numbers = nodes["ShoalMemoryReport"], {one["id"]: one["type"]
                                                           for one in workflow["nodes"]}
            self.assertEqual([(link[2], numbers[link[3]]) for link in workflow["links"]
                              if link[1] == report["id"]],
                             [(0, "PreviewAny"), (1, "PreviewImage")])
            # ComfyUI's browser of templates shows it.
            picture = os.path.join(folder, f"{name}.jpg")
            self.assertLess(os.path.getsize(picture), 150_000)

    def test_the_readme_tells_of_every_input(self) -> None:
        with open(os.path.join(PACK, "README.md"), encoding="utf-8") as file:
            text = file.read()
        for names in self.inputs().values():
            for name in names:
                if name != "model":
                    self.assertIn(f"`{name}`", text)


if __name__ == "__main__":
    unittest.main()
