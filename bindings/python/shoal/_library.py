"""libshoal by ctypes: where it is, what its header declares, and how it fails.

For the package's own modules: nothing here is meant for users but Error, Status and the constants.
"""

from __future__ import annotations

import ctypes
import enum
import operator
import os
import weakref
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32
from ctypes import c_size_t, c_uint8, c_uint64, c_void_p
from typing import Any, Callable, Iterable

# Structures change from version to version, and ctypes checks none of them.
VERSION = "0.1.0"
AUTO = -1
UNLIMITED = 2**64 - 1

Status = enum.IntEnum(
    "Status",
    "OK INVALID MEMORY BUDGET IO FORMAT UNSUPPORTED MISSING NUMERIC DEVICE CANCELLED", start=0)

# Names of enumerators, at the places of their values.
PHASES = ("text", "context", "steps", "decode", "encode")
CHOICES = {
    "buffer": ("auto", "single", "double"),
    "wire": ("auto", "raw", "packed"),
    "host_format": ("storage", "compute"),
    "pin": ("on", "staging", "off"),
    "vae_strips": ("auto", "off", "on"),
}


class Error(Exception):
    """A failure that the library reports: `status` says of what kind, str() is its sentence."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status

    def __str__(self) -> str:
        return self.args[1]


class Struct(ctypes.Structure):
    """A structure of the header; `c_name` is its tag there. tests/test_structs.py compares them."""

    c_name: str

    def values(self, *names: str) -> dict[str, Any]:
        """The members of these names."""
        return {name: getattr(self, name) for name in names}


class ErrorStruct(Struct):
    c_name = "shoal_error"
    _fields_ = [("status", c_int), ("line", c_int), ("file", c_char_p), ("text", c_char * 1000)]


class ModelPaths(Struct):
    c_name = "shoal_model_paths"
    _fields_ = [("model", c_char_p), ("dit", c_char_p), ("text_encoder", c_char_p),
                ("vae", c_char_p), ("tokenizer", c_char_p), ("disk_cache", c_char_p),
                ("expect_copies", c_bool), ("ram_bytes", c_uint64),
                ("second_tokenizer", c_char_p)]


class LoraStruct(Struct):
    c_name = "shoal_lora"
    _fields_ = [("path", c_char_p), ("strength", c_float)]


class Request(Struct):
    c_name = "shoal_request"
    _fields_ = [("prompt", c_char_p), ("negative_prompt", c_char_p), ("sampler", c_char_p),
                ("width", c_int32), ("height", c_int32), ("steps", c_int32), ("count", c_int32),
                ("cfg", c_float), ("shift", c_float), ("seed", c_uint64),
                ("vram_bytes", c_uint64), ("ram_bytes", c_uint64), ("resident_blocks", c_int32),
                ("prefetch_slots", c_int32), ("buffer", c_int), ("wire", c_int),
                ("host_format", c_int), ("pin", c_int),
                ("lanes", c_int32), ("vae_strips", c_int), ("device", c_char_p),
                ("threads", c_int32), ("trace", c_bool), ("rates_path", c_char_p),
                ("on", c_char_p), ("schedule", c_char_p), ("init", c_char_p),
                ("strength", c_float), ("loras", POINTER(LoraStruct)), ("lora_count", c_size_t),
                ("more_prompts", POINTER(c_char_p)), ("more_prompt_count", c_int32)]


class PlanSummaryStruct(Struct):
    c_name = "shoal_plan_summary"
    _fields_ = [("fits", c_bool), ("packs", c_bool), ("vram_bytes", c_uint64),
                ("peak_vram_bytes", c_uint64), ("least_vram_bytes", c_uint64),
                ("full_vram_bytes", c_uint64), ("ram_bytes", c_uint64),
                ("least_ram_bytes", c_uint64), ("dit_weight_bytes", c_uint64),
                ("step_copy_bytes", c_uint64), ("step_disk_bytes", c_uint64),
                ("step_operations", c_uint64), ("blocks", c_int32), ("resident_blocks", c_int32),
                ("packed_blocks", c_int32), ("disk_blocks", c_int32), ("prefetch_slots", c_int32),
                ("lanes", c_int32), ("strip_blocks", c_int32), ("widened_blocks", c_int32),
                ("patched_blocks", c_int32), ("lora_bytes", c_uint64),
                ("lora_read_bytes", c_uint64), ("rates_threads", c_int32),
                ("step_seconds", c_double), ("first_step_seconds", c_double),
                ("seconds", c_double), ("width", c_int32), ("height", c_int32), ("calls", c_int32)]


class ProgressStruct(Struct):
    c_name = "shoal_progress"
    _fields_ = [("phase", c_int), ("step", c_int32), ("steps", c_int32), ("block", c_int32),
                ("blocks", c_int32), ("seconds", c_double), ("step_seconds", c_double),
                ("step_bytes", c_uint64)]


ON_PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, POINTER(ProgressStruct))
ON_CANCELLED = ctypes.CFUNCTYPE(c_bool, c_void_p)


class Callbacks(Struct):
    c_name = "shoal_callbacks"
    _fields_ = [("user", c_void_p), ("progress", ON_PROGRESS), ("cancelled", ON_CANCELLED)]


class ReportStruct(Struct):
    c_name = "shoal_report"
    _fields_ = [("peak_vram_bytes", c_uint64), ("driver_vram_bytes", c_uint64),
                ("copied_bytes", c_uint64), ("read_bytes", c_uint64), ("step_bytes", c_uint64),
                ("step_read_bytes", c_uint64), ("seconds", c_double), ("wait_seconds", c_double),
                ("phase_seconds", c_double * len(PHASES)), ("first_step_seconds", c_double),
                ("step_seconds", c_double), ("mean_step_seconds", c_double),
                ("reader", c_char * 64), ("pinned_bytes", c_uint64), ("replanned", c_bool),
                ("note", c_char * 400)]


class Image(Struct):
    c_name = "shoal_image"
    _fields_ = [("width", c_int32), ("height", c_int32), ("rgb", POINTER(c_uint8)),
                ("latents", POINTER(c_float)), ("latent_count", c_size_t), ("seed", c_uint64),
                ("prompt", c_char_p)]


class StoreTensor(Struct):
    c_name = "shoal_store_tensor"
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("bytes", c_uint64), ("data", c_void_p),
                ("path", c_char_p), ("offset", c_uint64)]


class StoreBlock(Struct):
    c_name = "shoal_store_block"
    _fields_ = [("name", c_char_p), ("tensors", POINTER(StoreTensor)), ("tensor_count", c_int32)]


class StoreRequest(Struct):
    c_name = "shoal_store_request"
    _fields_ = [("vram_bytes", c_uint64), ("ram_bytes", c_uint64), ("resident_blocks", c_int32),
                ("prefetch_slots", c_int32), ("buffer", c_int), ("wire", c_int), ("pin", c_int),
                ("device", c_char_p), ("threads", c_int32), ("block_seconds", c_double),
                ("rates_path", c_char_p), ("trace", c_bool)]


class StoreStatsStruct(Struct):
    c_name = "shoal_store_stats"
    _fields_ = [("device_bytes", c_uint64), ("host_bytes", c_uint64), ("pinned_bytes", c_uint64),
                ("weight_bytes", c_uint64), ("walk_copied_bytes", c_uint64),
                ("copied_bytes", c_uint64), ("read_bytes", c_uint64), ("wait_seconds", c_double),
                ("blocks", c_int32), ("resident_blocks", c_int32), ("packed_blocks", c_int32),
                ("disk_blocks", c_int32), ("prefetch_slots", c_int32)]


_HANDLE, _ERROR, _TEXT = POINTER(c_void_p), POINTER(ErrorStruct), POINTER(c_char_p)

# name: (what it returns, what it takes). Those that take an error last return a status.
ENGINE = {
    "shoal_version": (c_char_p, []),
    "shoal_parse_size": (c_int, [c_char_p, POINTER(c_uint64), _ERROR]),
    "shoal_text_free": (None, [_TEXT]),
    "shoal_inspect": (c_int, [c_char_p, c_bool, _TEXT, POINTER(c_bool), _ERROR]),
    "shoal_devices": (c_int, [c_bool, _TEXT, _ERROR]),
    "shoal_samplers": (c_int, [c_bool, _TEXT, _ERROR]),
    "shoal_model_open": (c_int, [POINTER(ModelPaths), _HANDLE, _ERROR]),
    "shoal_model_close": (None, [_HANDLE]),
    "shoal_model_name": (c_char_p, [c_void_p]),
    "shoal_request_init": (None, [POINTER(Request), c_void_p]),
    "shoal_plan_create": (c_int, [c_void_p, POINTER(Request), _HANDLE, _ERROR]),
    "shoal_plan_destroy": (None, [_HANDLE]),
    "shoal_plan_summarise": (None, [c_void_p, POINTER(PlanSummaryStruct)]),
    "shoal_plan_text": (c_char_p, [c_void_p]),
    "shoal_plan_json": (c_char_p, [c_void_p]),
    "shoal_plan_refusal": (c_char_p, [c_void_p]),
    "shoal_run": (c_int, [c_void_p, POINTER(Callbacks), _HANDLE, _ERROR]),
    "shoal_result_destroy": (None, [_HANDLE]),
    "shoal_result_report": (None, [c_void_p, POINTER(ReportStruct)]),
    "shoal_result_count": (c_int32, [c_void_p]),
    "shoal_result_image": (None, [c_void_p, c_int32, POINTER(Image)]),
    "shoal_result_write_png": (c_int, [c_void_p, c_int32, c_char_p, _ERROR]),
    "shoal_result_write_trace": (c_int, [c_void_p, c_char_p, _ERROR]),
}
STORES = {
    "shoal_store_request_init": (None, [POINTER(StoreRequest)]),
    "shoal_store_create": (
        c_int, [POINTER(StoreBlock), c_int32, POINTER(StoreRequest), _HANDLE, _ERROR]),
    "shoal_store_destroy": (None, [_HANDLE]),
    "shoal_store_text": (c_char_p, [c_void_p]),
    "shoal_store_json": (c_char_p, [c_void_p]),
    "shoal_store_device_bytes": (c_uint64, [c_void_p]),
    "shoal_store_resume": (c_int, [c_void_p, c_uint64, _ERROR]),
    "shoal_store_acquire": (c_int, [c_void_p, c_int32, c_void_p, POINTER(c_uint64), _ERROR]),
    "shoal_store_release": (c_int, [c_void_p, c_int32, _ERROR]),
    "shoal_store_suspend": (c_int, [c_void_p, _ERROR]),
    "shoal_store_loaded": (c_bool, [c_void_p]),
    "shoal_store_write_trace": (c_int, [c_void_p, c_char_p, _ERROR]),
    "shoal_store_stats": (None, [c_void_p, POINTER(StoreStatsStruct)]),
}


def _find() -> Iterable[str]:
    chosen = os.environ.get("SHOAL_LIBRARY")
    if chosen:
        return [chosen]
    inside = os.path.join(os.path.dirname(__file__), "lib", "libshoal.so")
    return [inside] if os.path.exists(inside) else ["libshoal.so.0", "libshoal.so"]


def _load() -> ctypes.CDLL:
    failures = []
    for path in _find():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
    raise ImportError("libshoal cannot be loaded: set SHOAL_LIBRARY to its file, or install it "
                      f"({'; '.join(failures)})")


def declare(functions: dict[str, tuple]) -> None:
    """Gives the library's functions their types. AttributeError if it lacks one of them."""
    for name, (returned, taken) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, taken


library = _load()
try:
    declare({"shoal_version": ENGINE["shoal_version"]})
except AttributeError:
    raise ImportError(f"{library._name} is not libshoal: set SHOAL_LIBRARY to that, or to "
                      "nothing") from None
__version__ = library.shoal_version().decode()
if __version__ != VERSION:
    raise ImportError(f"this package is for libshoal {VERSION}, but {library._name} is "
                      f"{__version__}: install both of one version")
declare(ENGINE)


def check(function: Any, *arguments: Any) -> None:
    """Calls a function that takes an error last, and raises what it reports."""
    error = ErrorStruct()
    status = function(*arguments, ctypes.byref(error))
    if status:
        raise Error(Status(status), error.text.decode("utf-8", "replace"))


def take_text(write: Callable[[Any], None]) -> str:
    """What `write` has the library make for its caller, who frees it."""
    text = c_char_p()
    write(ctypes.byref(text))
    try:
        return text.value.decode()
    finally:
        library.shoal_text_free(ctypes.byref(text))


def _end(destroy: Any, pointer: c_void_p, _kept: Any) -> None:
    destroy(ctypes.byref(pointer))


class Owner:
    """Something of the library's with an end: close(), the end of a with block, or collection.

    What it needs is kept until then, in whatever order Python collects things.
    """

    _noun = "object"

    def __init__(self, pointer: c_void_p, destroy: Any, kept: Any = None) -> None:
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, _end, destroy, pointer, kept)

    def close(self) -> None:
        """Frees it. May be called again; any other use is a ValueError from now on."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def _open(self) -> c_void_p:
        if self.closed:
            raise ValueError(f"the {self._noun} is closed")
        return self._pointer

    def __enter__(self) -> Any:
        self._open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def text_bytes(name: str, value: str | bytes | os.PathLike) -> bytes:
    """A string as C gets it: UTF-8, or a path's own bytes."""
    data = value.encode() if isinstance(value, str) else os.fsencode(value)
    if b"\0" in data:
        raise ValueError(f"{name} holds a NUL character")
    return data


def size_bytes(name: str, value: int | str) -> int:
    """"3GiB", or a number of bytes."""
    if not isinstance(value, str):
        return integer(name, value, c_uint64)
    size = c_uint64()
    check(library.shoal_parse_size, text_bytes(name, value), ctypes.byref(size))
    return size.value


def integer(name: str, value: int, kind: Any) -> int:
    """An integer that the C type can hold: ctypes would cut it off."""
    value = operator.index(value)
    if kind(value).value != value:
        raise ValueError(f"{name} is out of range: {value}")
    return value


# Options whose members have units in their names.
_MEMBERS = {"vram": "vram_bytes", "ram": "ram_bytes", "rates": "rates_path"}


def _convert(name: str, value: Any, kind: Any) -> Any:
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}: give one of {', '.join(CHOICES[name])}")
        return CHOICES[name].index(value)
    if name in ("vram", "ram"):
        return size_bytes(name, value)
    if kind is c_char_p:
        return text_bytes(name, value)
    if kind in (c_float, c_double):
        return float(value)
    return integer(name, value, kind)


def fill(struct: Struct, **options: Any) -> None:
    """Sets members by options; those that are None stay as they are."""
    kinds = dict(struct._fields_)
    for name, value in options.items():
        member = _MEMBERS.get(name, name)
        if value is not None:
            setattr(struct, member, _convert(name, value, kinds[member]))
