"""Models, plans, runs and results, on the CPU, beside what the program does."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from typing import Any, Iterator
from unittest import mock

import shoal
from support import ENVIRONMENT, MODEL, SMALL, SOURCE, needs_numpy, numpy, program, xxh3_128

PROMPT = "a red apple"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="shoal-python-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.model = shoal.Model(MODEL)
        self.addCleanup(self.model.close)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @contextlib.contextmanager
    def fails(self, status: shoal.Status, *words: str) -> Iterator[None]:
        with self.assertRaises(shoal.Error) as raised:
            yield
        self.assertEqual(raised.exception.status, status)
        for word in words:
            self.assertIn(word, str(raised.exception))


class Pictures(Case):
    @needs_numpy
    def test_they_are_the_program_s(self) -> None:
        said = program("generate", "-p", PROMPT, "-m", MODEL, "--count", "2", "--seed", "7",
                       "-o", "program-%d.png", folder=self.folder)
        with self.model.plan(PROMPT, count=2, seed=7).run() as result:
            self.assertEqual(len(result), 2)
            self.assertEqual(result.seeds, [7, 8])
            pairs = zip(said["pictures"], result.images, result.latents)
            for index, (picture, image, latents) in enumerate(pairs):
                self.assertEqual((image.dtype, image.shape), (numpy.uint8, (128, 128, 3)))
                self.assertEqual((latents.dtype, latents.shape[1:]), (numpy.float32, (16, 16)))
                self.assertEqual(xxh3_128(image.tobytes()), picture["picture_xxh3_128"])
                self.assertEqual(xxh3_128(latents.tobytes()), picture["latents_xxh3_128"])
                result.save(self.path("python.png"), index)
                with open(self.path("python.png"), "rb") as mine, \
                        open(self.path(picture["path"]), "rb") as its:
                    self.assertEqual(mine.read(), its.read())

    @needs_numpy
    def test_several_prompts(self) -> None:
        prompts = [PROMPT, "two dogs"]
        with self.model.plan(prompts, count=2, lanes=3, **SMALL) as plan, plan.run() as result:
            self.assertEqual(plan.json()["pictures"], 4)
            self.assertEqual(result.prompts, [PROMPT, PROMPT, "two dogs", "two dogs"])
            alone = [latents for prompt in prompts
                     for latents in self.model.plan(prompt, count=2, **SMALL).run().latents]
            for mine, other in zip(result.latents, alone):
                self.assertEqual(mine.tobytes(), other.tobytes())
        with self.assertRaisesRegex(ValueError, "empty"):
            self.model.plan([])
        with self.assertRaisesRegex(ValueError, "NUL"):
            self.model.plan([PROMPT, "a\0b"])

    @needs_numpy
    def test_budgets_change_no_bit(self) -> None:
        free = shoal.generate(MODEL, PROMPT, **SMALL)
        plan = self.model.plan(PROMPT, **SMALL)
        least = plan.summary.least_vram_bytes
        tight = self.model.plan(PROMPT, vram=least, ram="64MiB", **SMALL)
        self.assertTrue(tight.summary.fits)
        self.assertLess(tight.summary.resident_blocks, tight.summary.blocks)
        bound = tight.run()
        self.assertEqual(bound.report.peak_vram_bytes, tight.summary.peak_vram_bytes)
        self.assertLessEqual(bound.report.peak_vram_bytes, least)
        self.assertEqual(free.images[0].tobytes(), bound.images[0].tobytes())
        self.assertEqual(free.latents[0].tobytes(), bound.latents[0].tobytes())

    @needs_numpy
    def test_arrays_outlive_the_result(self) -> None:
        result = shoal.generate(MODEL, PROMPT, **SMALL)
        before, after = result.images[0], result.images[0]
        result.close()
        self.assertTrue((before == after).all())

    def test_without_torch_its_module_is_an_import_error(self) -> None:
        with mock.patch.dict(sys.modules, torch=None):
            sys.modules.pop("shoal.torch", None)
            with self.assertRaisesRegex(ImportError, "pip install torch"):
                importlib.import_module("shoal.torch")

    def test_without_numpy_they_are_an_import_error(self) -> None:
        result = shoal.generate(MODEL, PROMPT, **SMALL)
        with mock.patch.dict(sys.modules, numpy=None):
            for attribute in ("images", "latents"):
                with self.assertRaisesRegex(ImportError, "numpy is not installed"):
                    getattr(result, attribute)
            result.save(self.path("apple.png"))
        self.assertTrue(os.path.getsize(self.path("apple.png")))

    def test_there_is_no_picture_beside_them(self) -> None:
        result = shoal.generate(MODEL, PROMPT, **SMALL)
        for index in (-1, 1):
            with self.assertRaises(IndexError):
                result.save(self.path("apple.png"), index)
        with self.fails(shoal.Status.IO, "nowhere"):
            result.save(self.path("nowhere/apple.png"))

    def test_traces_are_written_if_asked_for(self) -> None:
        self.model.plan(PROMPT, trace=True, **SMALL).run().write_trace(self.path("run.json"))
        self.assertTrue(os.path.getsize(self.path("run.json")))
        with self.fails(shoal.Status.INVALID, "trace"):
            self.model.plan(PROMPT, **SMALL).run().write_trace(self.path("other.json"))


class Plans(Case):
    def test_they_say_what_the_program_says(self) -> None:
        said = program("plan", "-p", PROMPT, "-m", MODEL, "--vram", "6MiB", "--wire", "packed",
                       folder=self.folder)
        plan = self.model.plan(PROMPT, vram="6MiB", wire="packed")
        self.assertEqual(plan.json(), said)
        self.assertTrue(str(plan).startswith("plan: shoal-mini on cpu, 128x128"), str(plan))
        self.assertIsNone(plan.refusal)
        self.assertEqual(plan.summary.vram_bytes, 6 << 20)
        for name in ("fits", "peak_vram_bytes", "step_copy_bytes", "blocks", "seconds"):
            self.assertEqual(getattr(plan.summary, name), said[name], name)

    def test_sizes_are_numbers_or_have_units(self) -> None:
        for size in (8 << 20, "8MiB", "8388608"):
            self.assertEqual(self.model.plan(PROMPT, vram=size).summary.vram_bytes, 8 << 20)
        unlimited = self.model.plan(PROMPT, vram="max").summary.vram_bytes
        self.assertEqual(unlimited, shoal.UNLIMITED)
        with self.fails(shoal.Status.INVALID, "8 parsecs"):
            self.model.plan(PROMPT, vram="8 parsecs")

    def test_budgets_that_are_too_small_are_refused(self) -> None:
        plan = self.model.plan(PROMPT, vram="1MiB")
        self.assertFalse(plan.summary.fits)
        self.assertIn("vram", plan.refusal)
        with self.fails(shoal.Status.BUDGET, plan.refusal):
            plan.run()
        with self.fails(shoal.Status.BUDGET):
            shoal.generate(MODEL, PROMPT, vram="1MiB")
        with self.fails(shoal.Status.BUDGET):
            shoal.generate(MODEL, PROMPT, ram=0)

    def test_what_is_no_option_s_value_is_refused(self) -> None:
        with self.fails(shoal.Status.INVALID, "width"):
            self.model.plan(PROMPT, width=100)
        for option in ({"width": 2**32 + 64}, {"seed": -1}, {"vram": 2**64}, {"buffer": "triple"},
                       {"device": "cpu\0"}):
            with self.assertRaisesRegex(ValueError, next(iter(option))):
                self.model.plan(PROMPT, **option)
        for option in ({"width": 64.0}, {"vram": 1.5}, {"cfg": "high"}, {"depth": 3}):
            with self.assertRaises((TypeError, ValueError)):
                self.model.plan(PROMPT, **option)

    def test_options_reach_the_plan(self) -> None:
        said = self.model.plan(PROMPT, negative_prompt="blurred", width=64, height=96, steps=3,
                               count=2, cfg=3.5, shift=2, seed=9, sampler="heun", schedule="karras",
                               lanes=1, resident_blocks=4, prefetch_slots=3, buffer="double",
                               threads=1).json()
        expected = {"width": 64, "height": 96, "steps": 3, "count": 2, "cfg": 3.5, "shift": 2.0,
                    "sampler": "heun", "schedule": "karras", "calls": 5, "lanes": 1,
                    "resident_blocks": 4, "prefetch_slots": 3}
        self.assertEqual({name: said[name] for name in expected}, expected)
        self.assertEqual(self.model.plan(PROMPT, on="rtx4060").json()["device"], "rtx4060")


class Runs(Case):
    def test_progress_is_told_in_order(self) -> None:
        told = []
        self.model.plan(PROMPT, **SMALL).run(told.append)
        phases = list(dict.fromkeys(progress.phase for progress in told))
        self.assertEqual(phases, ["text", "context", "steps", "decode"])
        last = [progress for progress in told if progress.phase == "steps"][-1]
        self.assertEqual((last.step, last.steps), (2, 2))
        self.assertGreater(last.step_seconds, 0)

    def test_a_run_may_begin_with_a_picture(self) -> None:
        first = self.path("first.png")
        self.model.plan(PROMPT, **SMALL).run().save(first)
        plan = self.model.plan(PROMPT, seed=1, steps=2, init=first, strength=0.5)
        self.assertEqual((plan.summary.width, plan.summary.height), (64, 64))
        self.assertEqual(plan.json()["strength"], 0.5)
        result = plan.run()
        self.assertGreater(result.report.phase_seconds["encode"], 0)
        with self.assertRaisesRegex(ValueError, "strength"):
            self.model.plan(PROMPT, strength=0.5)
        with self.fails(shoal.Status.IO, "nowhere.png"):
            self.model.plan(PROMPT, init=self.path("nowhere.png"))

    def test_adapters_are_read_once_whatever_their_strength(self) -> None:
        sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
        import lora_files
        first, second = self.path("first.safetensors"), self.path("second.safetensors")
        lora_files.kohya(first)
        lora_files.diffusers(second)

        def picture(*loras: Any) -> tuple[int, bytes]:
            plan = self.model.plan(PROMPT, loras=loras, **SMALL)
            plan.run().save(self.path("picture.png"))
            with open(self.path("picture.png"), "rb") as file:
                return plan.summary.lora_read_bytes, file.read()

        read, full = picture(first)
        self.assertAlmostEqual(read, os.path.getsize(first), delta=100)
        read, half = picture((first, 0.5))
        self.assertEqual(read, 0)
        self.assertNotEqual(full, half)
        read, both = picture((first, 0.5), (second, -1.0))
        self.assertAlmostEqual(read, os.path.getsize(second), delta=100)
        self.assertNotEqual(both, half)
        self.assertEqual(picture((first, 0.5)), (0, half))
        self.assertEqual(picture(first), (0, full))
        self.assertEqual(picture()[0], 0)  # which gives both up
        read, again = picture(first)
        self.assertGreater(read, 0)
        self.assertEqual(again, full)
        lora_files.kohya(first, seed=7)  # another file at that path
        read, other = picture(first)
        self.assertAlmostEqual(read, os.path.getsize(first), delta=100)
        self.assertNotEqual(other, full)
        with self.fails(shoal.Status.INVALID, "twice"):
            self.model.plan(PROMPT, loras=[first, (first, 2.0)], **SMALL)

    @needs_numpy
    def test_bench_lora_compares_pictures(self) -> None:
        tools, dit = os.path.join(SOURCE, "tools"), os.path.join(MODEL, "transformer")
        loras = [self.path("one.safetensors"), self.path("other.safetensors")]
        for seed, path in enumerate(loras):
            subprocess.run([sys.executable, os.path.join(tools, "make_lora.py"),
                            os.path.join(dit, "diffusion_pytorch_model.safetensors"), path,
                            "--match", "layers.", "--seed", str(seed)], check=True)
        bench = [sys.executable, os.path.join(tools, "bench_lora.py"), MODEL]
        small = ["--steps", "1", "--side", "32"]
        done = subprocess.run([*bench, *loras, *small], env=ENVIRONMENT, capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
        self.assertEqual([row[-1] for row in rows], [f"{n} |" for n in "112234521"])
        self.assertEqual([row[1] != "0.0" for row in rows], [n in "256" for n in "012345678"])
        done = subprocess.run([*bench, loras[0], loras[0], *small], env=ENVIRONMENT,
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)

    def test_a_step_is_a_call_of_the_model(self) -> None:
        told = []
        plan = self.model.plan(PROMPT, sampler="heun", **SMALL)
        plan.run(told.append)
        last = [progress for progress in told if progress.phase == "steps"][-1]
        self.assertEqual((last.step, last.steps), (3, 3))
        self.assertEqual(plan.summary.calls, 3)

    def test_reports_say_what_it_took(self) -> None:
        report = self.model.plan(PROMPT, **SMALL).run().report
        self.assertEqual(list(report.phase_seconds),
                         ["text", "context", "steps", "decode", "encode"])
        self.assertEqual(report.phase_seconds["encode"], 0)
        self.assertLessEqual(sum(report.phase_seconds.values()), report.seconds * 1.01)
        self.assertGreater(report.copied_bytes, 0)
        self.assertIsInstance(report.reader, str)
        self.assertEqual(report.note, "")

    @needs_numpy
    def test_cancelled_runs_can_be_run_again(self) -> None:
        plan = self.model.plan(PROMPT, **SMALL)
        calls = []
        with self.fails(shoal.Status.CANCELLED):
            plan.run(cancelled=lambda: calls.append(0) or len(calls) == 5)
        self.assertEqual(len(calls), 5)
        self.assertEqual(plan.run().images[0].tobytes(),
                         shoal.generate(MODEL, PROMPT, **SMALL).images[0].tobytes())

    def test_what_callbacks_raise_ends_the_run(self) -> None:
        plan = self.model.plan(PROMPT, **SMALL)
        told = []

        def stumble(progress: shoal.Progress) -> None:
            told.append(progress)
            raise LookupError("of mine")

        with self.assertRaisesRegex(LookupError, "of mine"):
            plan.run(stumble)
        self.assertEqual(len(told), 1)
        with self.assertRaises(ZeroDivisionError):
            plan.run(cancelled=lambda: 1 / 0)

    def test_ctrl_c_is_keyboard_interrupt(self) -> None:
        plan = self.model.plan(PROMPT, **SMALL)
        told = []

        def interrupt(progress: shoal.Progress) -> None:
            told.append(progress)
            if len(told) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt):
            plan.run(interrupt)
        self.assertNotIn("decode", [progress.phase for progress in told])
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_ctrl_c_ends_a_script(self) -> None:
        script = ("import signal, shoal, sys\n"
                  "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                  "plan = shoal.Model(sys.argv[1]).plan('a red apple', steps=1000)\n"
                  "print('runs', flush=True)\n"
                  "plan.run()\n")
        child = subprocess.Popen(
            [sys.executable, "-c", script, MODEL], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=ENVIRONMENT)
        self.assertEqual(child.stdout.readline(), "runs\n")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)
        self.assertNotIn("ignored", said)
        self.assertNotEqual(child.returncode, 0)

    def test_plans_that_run_are_not_closed(self) -> None:
        plan = self.model.plan(PROMPT, **SMALL)
        for end in (plan.close, self.model.close, plan.run):
            with self.assertRaisesRegex(RuntimeError, "running"):
                plan.run(lambda _: end())
        self.assertFalse(plan.closed)

    @needs_numpy
    def test_threads_run_plans_of_their_own(self) -> None:
        pictures = {}

        def paint(seed: int) -> None:
            result = shoal.generate(MODEL, PROMPT, seed=seed, threads=1, **SMALL)
            pictures[seed] = result.images[0].tobytes()

        threads = [threading.Thread(target=paint, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed, picture in pictures.items():
            alone = shoal.generate(MODEL, PROMPT, seed=seed, **SMALL)
            self.assertEqual(picture, alone.images[0].tobytes())
        self.assertEqual(len(pictures), 2)


class Lifetimes(Case):
    def test_nothing_is_used_after_its_end(self) -> None:
        plan = self.model.plan(PROMPT, **SMALL)
        result = plan.run()
        self.model.close()
        self.assertTrue(self.model.closed and plan.closed)
        self.assertEqual(len(result), 1)
        result.close()
        result.close()
        uses = {"model": [lambda: self.model.name, lambda: self.model.plan(PROMPT)],
                "plan": [lambda: str(plan), lambda: plan.summary, plan.json, plan.run],
                "result": [lambda: result.images, lambda: result.report, lambda: len(result),
                           lambda: result.save(self.path("apple.png"))]}
        for noun, calls in uses.items():
            for call in calls:
                with self.assertRaisesRegex(ValueError, f"the {noun} is closed"):
                    call()

    def test_with_blocks_close(self) -> None:
        with shoal.Model(MODEL) as model, model.plan(PROMPT, **SMALL) as plan:
            with plan.run() as result:
                pass
        self.assertTrue(model.closed and plan.closed and result.closed)

    def test_collecting_keeps_the_order(self) -> None:
        plan = shoal.Model(MODEL).plan(PROMPT, **SMALL)
        gc.collect()
        self.assertTrue(plan.json()["fits"])
        model = shoal.Model(MODEL)
        model.own = [model.plan(PROMPT, **SMALL), model]  # a cycle, collected as a whole
        del model
        gc.collect()


class Machine(Case):
    def test_files_are_inspected(self) -> None:
        self.assertEqual(shoal.inspect(MODEL), program("inspect", MODEL, folder=self.folder))
        with self.fails(shoal.Status.IO, "nowhere"):
            shoal.inspect(self.path("nowhere"))

    def test_models_that_are_not_there_are_refused(self) -> None:
        with self.fails(shoal.Status.MISSING, "nowhere"):
            shoal.Model(self.path("nowhere"))
        self.assertEqual(self.model.name, "shoal-mini")

    def test_devices_are_listed(self) -> None:
        self.assertEqual(shoal.devices(), program("devices", folder=self.folder))
        self.assertEqual(shoal.devices()["devices"][0]["name"], "cpu")

    def test_samplers_are_listed(self) -> None:
        self.assertEqual(shoal.samplers(), program("samplers", folder=self.folder))
        self.assertEqual(shoal.samplers()["samplers"][0]["name"], "euler")

    def test_the_version_is_the_library_s(self) -> None:
        with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as file:
            version = re.search(r"version: '([\d.]+)'", file.read())[1]
        self.assertEqual(shoal.__version__, version)

    def test_a_library_that_is_not_there_is_an_import_error(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "import shoal"], capture_output=True, text=True, check=False,
            env={**ENVIRONMENT, "SHOAL_LIBRARY": self.path("nowhere.so")})
        self.assertIn("ImportError", done.stderr)
        self.assertIn("nowhere.so", done.stderr)


class Readme(Case):
    @needs_numpy
    def test_its_examples_run(self) -> None:
        with open(os.path.join(SOURCE, "bindings", "python", "README.md"),
                  encoding="utf-8") as file:
            examples = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        package = textwrap.dedent(shoal.__doc__.split("\n\n", 1)[1].rsplit("\n\n", 1)[0])
        os.symlink(os.path.join(SOURCE, "models"), self.path("models"))
        for example in [*examples, package]:
            done = subprocess.run(
                [sys.executable, "-c", example], cwd=self.folder, capture_output=True, text=True,
                check=False, env=ENVIRONMENT)
            self.assertEqual(done.returncode, 0, example + done.stderr)
            self.assertTrue(os.path.getsize(self.path("apple.png")))
            os.unlink(self.path("apple.png"))
        self.assertTrue(examples)


if __name__ == "__main__":
    unittest.main()
