"""Stores: bytes reach the device as they are."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import unittest
from typing import Iterable

import shoal
from shoal._library import library

try:
    import torch
except ImportError:
    torch = None

# Where torch's stores are tried: on a card too, if both can use one.
DEVICES = ["cpu"]
if torch and torch.cuda.is_available():
    DEVICES += [device["name"] for device in shoal.devices()["devices"]
                if device["usable"] and device["name"].startswith("cuda")]
HAS_STORES = hasattr(library, "shoal_store_create")
SIZES = (4096, 70000, 1, 300000)
BLOCKS = 5


class Case(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="shoal-python-")
        self.addCleanup(holder.cleanup)
        self.bytes = [[os.urandom(size) for size in SIZES] for _ in range(BLOCKS)]
        self.path = os.path.join(holder.name, "weights")
        with open(self.path, "wb") as file:
            file.write(b"".join(data for block in self.bytes for data in block))

    def in_memory(self) -> list:
        return [(f"block {i}", [shoal.Tensor(f"t{t}", "U8", len(data), data=data)
                                for t, data in enumerate(block)])
                for i, block in enumerate(self.bytes)]

    def in_file(self) -> list:
        blocks, offset = [], 0
        for i, block in enumerate(self.bytes):
            tensors = []
            for t, data in enumerate(block):
                tensors.append(shoal.Tensor(f"t{t}", "U8", len(data), path=self.path,
                                            offset=offset))
                offset += len(data)
            blocks.append((f"block {i}", tensors))
        return blocks

    def walk(self, store: shoal.Store) -> None:
        for i, block in enumerate(self.bytes):
            with store.block(i) as addresses:
                found = [ctypes.string_at(at, len(data)) for at, data in zip(addresses, block)]
            self.assertEqual(found, block, f"block {i}")


@unittest.skipUnless(HAS_STORES, "the library has no stores")
class Stores(Case):
    def test_bytes_arrive_as_they_are(self) -> None:
        for blocks in (self.in_memory(), self.in_file()):
            for options in ({}, {"resident_blocks": shoal.AUTO}, {"resident_blocks": 2},
                            {"buffer": "single"}, {"wire": "raw", "prefetch_slots": 3}):
                with self.subTest(options=options), \
                        shoal.Store(blocks, device="cpu", **options) as store:
                    store.resume()
                    for _ in range(3):
                        self.walk(store)
                    store.suspend()
                    store.resume()
                    self.walk(store)

    def test_device_memory_can_be_the_caller_s(self) -> None:
        with shoal.Store(self.in_memory(), device="cpu") as store:
            memory = mmap.mmap(-1, store.device_bytes)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            store.resume(start, owner=memory)
            with store.block(0) as addresses:
                for address in addresses:
                    self.assertTrue(start <= address < start + len(memory))
            store.suspend()
            self.assertEqual(store.stats.device_bytes, 0)

    def test_budgets_hold(self) -> None:
        with shoal.Store(self.in_file(), device="cpu") as store:
            least = store.device_bytes
        with shoal.Store(self.in_file(), device="cpu", vram=least) as store:
            store.resume()
            self.walk(store)
            stats = store.stats
            self.assertLessEqual(stats.device_bytes, least)
            self.assertEqual((stats.blocks, stats.resident_blocks), (BLOCKS, 0))
            self.assertGreater(stats.read_bytes, 0)
            self.assertTrue(store.text)
            self.assertIsInstance(store.json(), dict)
        with self.assertRaises(shoal.Error) as raised:
            shoal.Store(self.in_file(), device="cpu", vram=4096)
        self.assertEqual(raised.exception.status, shoal.Status.BUDGET)

    def test_what_cannot_be_shipped_is_refused(self) -> None:
        short = shoal.Tensor("t", "U8", 5, data=b"four")
        neither = shoal.Tensor("t", "U8", 5)
        both = shoal.Tensor("t", "U8", 4, data=b"four", path=self.path)
        for tensor in (short, neither, both):
            with self.assertRaisesRegex(ValueError, "tensor t"):
                shoal.Store([("block", [tensor])], device="cpu")
        beyond = shoal.Tensor("t", "U8", 5, path=self.path, offset=os.path.getsize(self.path))
        with self.assertRaises(shoal.Error):
            shoal.Store([("block", [beyond])], device="cpu")
        with self.assertRaises(shoal.Error):
            shoal.Store([], device="cpu")

    def test_memory_is_let_go_when_loaded(self) -> None:
        data = bytearray(self.bytes[0][0])
        blocks = [("block", [shoal.Tensor("t", "U8", len(data), data=data)])]
        with shoal.Store(blocks, device="cpu", ram="1GiB") as store:
            with self.assertRaises(BufferError):
                data.append(0)
            store.resume()
            with store.block(0):
                pass
            if store.loaded:
                data.append(0)
        data.append(0)

    def test_nothing_is_used_after_its_end(self) -> None:
        store = shoal.Store(self.in_memory(), device="cpu")
        store.resume()
        for index in (-1, BLOCKS):
            with self.assertRaises(IndexError):
                store.acquire(index)
        store.close()
        store.close()
        for call in (store.resume, lambda: store.acquire(0), lambda: store.release(0),
                     store.suspend, lambda: store.stats, lambda: store.text, store.json,
                     lambda: store.loaded, lambda: store.device_bytes):
            with self.assertRaisesRegex(ValueError, "the store is closed"):
                call()


@unittest.skipUnless(HAS_STORES and torch, "torch, or the library's stores, are not there")
class TorchStores(Case):
    def test_tensors_arrive_with_dtype_and_shape(self) -> None:
        import shoal.torch

        weights = [{"w": torch.randn(16, 24).to(torch.bfloat16), "b": torch.randn(16),
                    "n": torch.tensor(3)} for _ in range(BLOCKS)]
        if "F8_E4M3" in shoal.torch.DTYPES:
            for block in weights:
                block["f"] = torch.randn(8, 4).to(torch.float8_e4m3fn)
        blocks = [(str(i), [shoal.torch.tensor(name, value) for name, value in block.items()])
                  for i, block in enumerate(weights)]
        for device in DEVICES:
            with self.subTest(device=device), \
                    shoal.torch.Store(blocks, device=device) as store:
                for _ in range(2):
                    store.resume()
                    for i, block in enumerate(weights):
                        with store.block(i) as tensors:
                            self.same(tensors, block.values())
                    store.suspend()

    def same(self, found: list, expected: Iterable) -> None:
        for one, other in zip(found, expected):
            self.assertEqual((one.dtype, one.shape), (other.dtype, other.shape))
            self.assertTrue(torch.equal(one.cpu().float(), other.float()))

    def test_others_are_refused(self) -> None:
        import shoal.torch

        for source in (torch.zeros(4, 4).t()[1:], torch.zeros(4, device="meta"),
                       torch.zeros(4, dtype=torch.complex64)):
            with self.assertRaisesRegex(ValueError, "tensor w"):
                shoal.torch.tensor("w", source)
        with self.assertRaisesRegex(ValueError, "torch has no Q4_0"):
            shoal.torch.Store([("b", [shoal.Tensor("w", "Q4_0", 4, data=b"four")])], device="cpu")


@unittest.skipIf(HAS_STORES, "the library has stores")
class WithoutStores(Case):
    def test_that_is_an_error(self) -> None:
        with self.assertRaisesRegex(shoal.Error, "has no stores") as raised:
            shoal.Store(self.in_memory(), device="cpu")
        self.assertEqual(raised.exception.status, shoal.Status.UNSUPPORTED)


if __name__ == "__main__":
    unittest.main()
