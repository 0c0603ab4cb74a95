"""Models, plans, runs and results: what paints pictures."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import threading
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Sequence, Union

from . import _library as c
from ._library import library

if TYPE_CHECKING:
    import numpy

Path = Union[str, bytes, os.PathLike]
Size = Union[int, str]  # bytes, or with a unit: "3GiB"


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


@dataclasses.dataclass(frozen=True)
class PlanSummary:
    """A plan's figures. Bytes and operations are exact, seconds predicted."""

    fits: bool
    packs: bool  # blocks are packed while they are read
    vram_bytes: int  # the budget; a card's free memory, if that is less
    peak_vram_bytes: int  # of the run, exactly; 0 if it does not fit
    least_vram_bytes: int  # the least budget that works with the same options
    full_vram_bytes: int  # from this budget on nothing streams
    ram_bytes: int  # host memory at its peak, the device's apart
    least_ram_bytes: int  # the least `ram` under this `vram`; UNLIMITED if there is none
    dit_weight_bytes: int
    step_copy_bytes: int  # to the device, a step
    step_disk_bytes: int  # from files, a step after the first
    step_operations: int  # floating-point operations a step
    blocks: int
    resident_blocks: int
    packed_blocks: int
    disk_blocks: int
    prefetch_slots: int
    lanes: int
    strip_blocks: int  # of the VAE, that work in strips
    widened_blocks: int  # that cross as BF16, and are FP8 in files
    patched_blocks: int  # that adapters change
    lora_bytes: int  # host memory of adapters, within ram_bytes
    lora_read_bytes: int  # read from their files for this plan: 0 if all were there
    rates_threads: int  # that the rates were measured with; 0: not said
    step_seconds: float
    first_step_seconds: float
    seconds: float
    width: int  # of the pictures
    height: int
    calls: int  # of the DiT for each picture: what a step is, here, in progress and in reports


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is. Steps and blocks are those that are done."""

    phase: str  # "text", "context", "encode", "steps" or "decode"
    step: int
    steps: int  # in phases other than "steps": pictures or prompts
    block: int
    blocks: int
    seconds: float  # since the phase began
    step_seconds: float  # of the last finished step; 0 before the first
    step_bytes: int  # copied to the device for it


@dataclasses.dataclass(frozen=True)
class Report:
    """What a run took. Steps' figures leave out the first, which reads the weights."""

    peak_vram_bytes: int
    driver_vram_bytes: int  # of the process on the card, by the driver; 0: not said
    copied_bytes: int  # weights to the device
    read_bytes: int  # weights from files
    step_bytes: int
    step_read_bytes: int
    seconds: float
    wait_seconds: float  # computing stood still because weights were not there
    phase_seconds: dict[str, float]
    first_step_seconds: float
    step_seconds: float  # the best
    mean_step_seconds: float
    reader: str  # how files were read
    pinned_bytes: int  # of host memory, at most
    replanned: bool  # another plan than this was run; `note` says why
    note: str


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ImportError("images and latents are numpy arrays, and numpy is not installed: "
                          "install it, or write pictures with save()") from None
    return numpy


class Model(c.Owner):
    """A model's files, opened: headers and tokenizer are read, no weights.

    `model` is a folder, or a file that holds the DiT; the other files each take the place of a
    part. `disk_cache` is a folder of packed copies: those that are there are used. `ram` caps the
    host memory that headers and tokenizer take, in bytes.
    """

    _noun = "model"

    def __init__(self, model: Optional[Path] = None, *, dit: Optional[Path] = None,
                 text_encoder: Optional[Path] = None, vae: Optional[Path] = None,
                 tokenizer: Optional[Path] = None,
                 second_tokenizer: Optional[Path] = None, disk_cache: Optional[Path] = None,
                 ram: Optional[Size] = None) -> None:
        paths, pointer = c.ModelPaths(), ctypes.c_void_p()
        c.fill(paths, model=model, dit=dit, text_encoder=text_encoder, vae=vae,
               tokenizer=tokenizer, second_tokenizer=second_tokenizer, disk_cache=disk_cache,
               ram=ram)
        if ram is not None:  # to C, 0 is no limit
            paths.ram_bytes = max(paths.ram_bytes, 1)
        c.check(library.shoal_model_open, byref(paths), byref(pointer))
        super().__init__(pointer, library.shoal_model_close)
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The folder's or the file's own name."""
        return library.shoal_model_name(self._open()).decode()

    def plan(self, prompt: Union[str, Sequence[str]], *, negative_prompt: Optional[str] = None,
             width: Optional[int] = None, height: Optional[int] = None,
             steps: Optional[int] = None, count: Optional[int] = None,
             cfg: Optional[float] = None, shift: Optional[float] = None,
             seed: Optional[int] = None, sampler: Optional[str] = None,
             schedule: Optional[str] = None,
             init: Optional[Path] = None, strength: Optional[float] = None,
             loras: Optional[Sequence[Union[Path, tuple[Path, float]]]] = None,
             vram: Optional[Size] = None, ram: Optional[Size] = None,
             resident_blocks: Optional[int] = None, prefetch_slots: Optional[int] = None,
             buffer: Optional[str] = None, wire: Optional[str] = None,
             host_format: Optional[str] = None, pin: Optional[str] = None,
             lanes: Optional[int] = None, vae_strips: Optional[str] = None,
             device: Optional[str] = None, threads: Optional[int] = None,
             trace: Optional[bool] = None, rates: Optional[Path] = None,
             on: Optional[str] = None) -> Plan:
        """Works out what would run, without running it.

        What is None is the model's default, or for the plan to decide; memory is unlimited.

        prompt           one, or several: the pictures of the first, then those of the next
        width, height    pixels, multiples of 16
        count            pictures of each prompt, 1..64 in all; a prompt's picture i has seed + i
        cfg              ComfyUI's scale, where 1 is off
        sampler          see samplers(); as a step counts each call of the model
        schedule         of noise levels: see samplers()
        init             a PNG to begin with, whose size the picture has
        strength         how much of it is painted anew, above 0 up to 1: ComfyUI's denoise
        loras            adapters, added in this order: paths, or (path, strength)
        vram             hard cap on device memory: bytes, or "3GiB"
        ram              hard cap on the library's host memory, the interpreter's own apart
        resident_blocks  DiT blocks kept on the device
        prefetch_slots   2..6 blocks in the weight ring
        buffer           "auto", "single" or "double"
        wire             how weights cross the link: "auto", "raw" or "packed"
        host_format      how weights in FP8 wait in host memory: "storage" or "compute"
        pin              host memory that is pinned: "on", "staging" or "off"
        lanes            branches and pictures that share one pass
        vae_strips       "auto", "off" or "on"
        device           "cpu", "cuda", "cuda:1"; else $SHOAL_DEVICE, the first card, or the CPU
        threads          of the CPU
        trace            record what happens when, for Result.write_trace
        rates            a file of this machine's measured rates
        on               plan for another machine: a card's name or a file of rates

        A budget that is too small still gives a plan: its summary says that it does not fit, its
        `refusal` what would.
        """
        if strength is not None and init is None:
            raise ValueError("strength has no effect without init")
        request, pointer = c.Request(), ctypes.c_void_p()
        library.shoal_request_init(byref(request), self._open())
        if init is not None and width is None and height is None:
            width = height = 0
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            raise ValueError("prompt is an empty list")
        c.fill(request, prompt=prompts[0], negative_prompt=negative_prompt, width=width,
               height=height, steps=steps, count=count, cfg=cfg, shift=shift, seed=seed,
               sampler=sampler, schedule=schedule, init=init, strength=strength, vram=vram, ram=ram,
               resident_blocks=resident_blocks, prefetch_slots=prefetch_slots, buffer=buffer,
               wire=wire, host_format=host_format, pin=pin, lanes=lanes, vae_strips=vae_strips,
               device=device, threads=threads, trace=trace, rates=rates, on=on)
        more = [c.text_bytes("prompt", one) for one in prompts[1:]]
        if more:
            request.more_prompts = (ctypes.c_char_p * len(more))(*more)
            request.more_prompt_count = len(more)
        adapters = [one if isinstance(one, tuple) else (one, 1.0) for one in loras or ()]
        structs = (c.LoraStruct * len(adapters))()
        for struct, (path, amount) in zip(structs, adapters):
            c.fill(struct, path=path, strength=amount)
        if adapters:
            request.loras, request.lora_count = structs, len(adapters)
        c.check(library.shoal_plan_create, self._open(), byref(request), byref(pointer))
        plan = Plan(pointer, library.shoal_plan_destroy, kept=self)
        self._plans.add(plan)
        return plan

    def close(self) -> None:
        """Closes the model and its plans. Results stay."""
        for plan in list(self._plans):
            plan.close()
        super().close()


class Plan(c.Owner):
    """What would run, exactly; made by Model.plan. str(plan) is a table for a person."""

    _noun = "plan"
    _running = False

    @property
    def summary(self) -> PlanSummary:
        summary = c.PlanSummaryStruct()
        library.shoal_plan_summarise(self._open(), byref(summary))
        return PlanSummary(**summary.values(*_names(PlanSummary)))

    @property
    def refusal(self) -> Optional[str]:
        """Why the plan does not fit, and what would: one sentence. None if it fits."""
        text = library.shoal_plan_refusal(self._open())
        return None if text is None else text.decode()

    def json(self) -> dict[str, Any]:
        """All of the plan, as `shoal plan --json` says it."""
        return json.loads(library.shoal_plan_json(self._open()))

    def __str__(self) -> str:
        return library.shoal_plan_text(self._open()).decode()

    def run(self, progress: Optional[Callable[[Progress], Any]] = None,
            cancelled: Optional[Callable[[], bool]] = None) -> Result:
        """Paints. Error with Status.BUDGET if the plan does not fit.

        Both are called on this thread after every block. The run ends at the next block, with
        Status.CANCELLED, when `cancelled` returns True. What either raises ends it too, and is
        raised here; so does Ctrl-C, as KeyboardInterrupt. The plan can be run again.
        """
        pointer = self._open()
        if self._running:
            raise RuntimeError("the plan is running")
        self._running = True
        try:
            return Result(_run(pointer, progress, cancelled), library.shoal_result_destroy)
        finally:
            self._running = False

    def close(self) -> None:
        """Frees the plan and its device. RuntimeError while it is running."""
        if self._running:
            raise RuntimeError("the plan is running: it is closed when that has ended")
        super().close()


@contextlib.contextmanager
def _interrupts() -> Iterator[List[bool]]:
    """Ctrl-C as a flag: raised where C calls Python it would be printed, and forgotten."""
    caught: List[bool] = []
    if threading.current_thread() is not threading.main_thread() \
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield caught  # somebody else's, whom it does not reach on this thread or who wants it
        return
    signal.signal(signal.SIGINT, lambda *_: caught.append(True))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(plan: ctypes.c_void_p, progress: Optional[Callable[[Progress], Any]],
         cancelled: Optional[Callable[[], bool]]) -> ctypes.c_void_p:
    raised: List[BaseException] = []  # in callbacks, through which nothing may be raised

    def on_progress(_user: Any, at: Any) -> None:
        try:
            if not raised:
                values = at.contents.values(*_names(Progress))
                progress(Progress(**{**values, "phase": c.PHASES[at.contents.phase]}))
        except BaseException as error:
            raised.append(error)

    def on_cancelled(_user: Any) -> bool:
        try:
            return bool(raised or caught or (cancelled and cancelled()))
        except BaseException as error:
            raised.append(error)
            return True

    result = ctypes.c_void_p()
    callbacks = c.Callbacks(None, c.ON_PROGRESS(on_progress) if progress else c.ON_PROGRESS(),
                            c.ON_CANCELLED(on_cancelled))
    try:
        with _interrupts() as caught:
            c.check(library.shoal_run, plan, byref(callbacks), byref(result))
    except c.Error as error:
        if error.status != c.Status.CANCELLED or not (raised or caught):
            raise
    if raised or caught:  # the last block may have been behind it
        library.shoal_result_destroy(byref(result))
        raise raised[0] if raised else KeyboardInterrupt
    return result


class Result(c.Owner):
    """What a run painted. It outlives plan and model; len() is the number of pictures."""

    _noun = "result"

    def __len__(self) -> int:
        return library.shoal_result_count(self._open())

    def _image(self, index: int) -> c.Image:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no picture {index}: there are {len(self)}")
        image = c.Image()
        library.shoal_result_image(self._open(), index, byref(image))
        return image

    def _all(self) -> list[c.Image]:
        return [self._image(index) for index in range(len(self))]

    @property
    def images(self) -> list[numpy.ndarray]:
        """The pictures: uint8 [height, width, 3]. Copies, made at each access."""
        images, view = self._all(), _numpy().ctypeslib.as_array
        return [view(image.rgb, (image.height, image.width, 3)).copy() for image in images]

    @property
    def latents(self) -> list[numpy.ndarray]:
        """The final latents: float32 [channels, height / 8, width / 8]. Copies, as images are."""
        images, view = self._all(), _numpy().ctypeslib.as_array
        return [view(image.latents, (image.latent_count,)).reshape(
            -1, image.height // 8, image.width // 8).copy() for image in images]

    @property
    def seeds(self) -> list[int]:
        return [image.seed for image in self._all()]

    @property
    def prompts(self) -> list[str]:
        """Of each picture."""
        return [image.prompt.decode() for image in self._all()]

    @property
    def report(self) -> Report:
        report = c.ReportStruct()
        library.shoal_result_report(self._open(), byref(report))
        values = report.values(*_names(Report))
        values["phase_seconds"] = dict(zip(c.PHASES, report.phase_seconds))
        values.update(reader=report.reader.decode(), note=report.note.decode())
        return Report(**values)

    def save(self, path: Path, index: int = 0) -> None:
        """Writes a picture as a PNG whose text chunks hold prompt, seed and settings."""
        self._image(index)
        c.check(library.shoal_result_write_png, self._open(), index, c.text_bytes("path", path))

    def write_trace(self, path: Path) -> None:
        """Writes what happened when, if the plan was made with trace=True: Chrome's format."""
        c.check(library.shoal_result_write_trace, self._open(), c.text_bytes("path", path))


def generate(model: Path, prompt: Union[str, Sequence[str]], *,
             progress: Optional[Callable[[Progress], Any]] = None,
             cancelled: Optional[Callable[[], bool]] = None, **options: Any) -> Result:
    """Opens a model, plans and runs, in one call. The options are those of Model.plan."""
    with Model(model, ram=options.get("ram")) as opened:
        return opened.plan(prompt, **options).run(progress, cancelled)


def inspect(path: Path) -> dict[str, Any]:
    """What the files at `path` (a file or a folder) are, as `shoal inspect --json` says it."""
    name = c.text_bytes("path", path)
    return json.loads(c.take_text(
        lambda text: c.check(library.shoal_inspect, name, True, text, None)))


def samplers() -> dict[str, Any]:
    """The samplers and schedules there are, as `shoal samplers --json` says it."""
    return json.loads(c.take_text(lambda text: c.check(library.shoal_samplers, True, text)))


def devices() -> dict[str, Any]:
    """What this build and this machine can compute on, as `shoal devices --json` says it."""
    return json.loads(c.take_text(lambda text: c.check(library.shoal_devices, True, text)))
