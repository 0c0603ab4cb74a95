"""The wheel, installed into a folder, works from there and needs nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

from support import BUILD, ENVIRONMENT, MODEL, SOURCE, program

SCRIPT = """
import shoal, sys
result = shoal.generate(sys.argv[1], "a red apple")
result.save("python.png")
print(shoal.__file__)
print(open("/proc/self/maps").read())
"""


@unittest.skipUnless(os.path.exists("/usr/share/doc/libjansson-dev/copyright"),
                     "wheels are made on Debian or Ubuntu")
class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="shoal-python-")
        self.addCleanup(holder.cleanup)
        self.folder = os.path.realpath(holder.name)
        subprocess.run(
            [sys.executable, os.path.join(SOURCE, "bindings", "python", "make_wheel.py"), BUILD,
             self.folder], check=True, stdout=subprocess.DEVNULL)
        names = [name for name in os.listdir(self.folder) if name.endswith(".whl")]
        self.assertRegex(names[0], r"^shoal-[\d.]+-py3-none-linux_\w+\.whl$")
        self.wheel = os.path.join(self.folder, names[0])
        self.target = os.path.join(self.folder, "target")

    def install(self) -> None:
        if importlib.util.find_spec("pip"):
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index",
                            "--no-deps", "--target", self.target, self.wheel],
                           check=True, capture_output=True)
        else:
            with zipfile.ZipFile(self.wheel) as wheel:
                wheel.extractall(self.target)

    def test_it_works_where_it_is_installed(self) -> None:
        self.install()
        env = {**ENVIRONMENT, "PYTHONPATH": self.target}
        del env["SHOAL_LIBRARY"]
        done = subprocess.run([sys.executable, "-c", SCRIPT, MODEL], cwd=self.folder, env=env,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(self.target), done.stdout)
        for library in ("libshoal", "libjansson", "libpcre2", "libpng", "libutf8proc"):
            paths = {line.split()[-1] for line in done.stdout.splitlines() if library in line}
            self.assertEqual({os.path.dirname(path) for path in paths},
                             {os.path.join(self.target, "shoal", "lib")}, library)
        program("generate", "-p", "a red apple", "-m", MODEL, "-o", "program.png",
                folder=self.folder)
        with open(os.path.join(self.folder, "python.png"), "rb") as mine, \
                open(os.path.join(self.folder, "program.png"), "rb") as its:
            self.assertEqual(mine.read(), its.read())

    def test_it_says_what_is_in_it(self) -> None:
        with zipfile.ZipFile(self.wheel) as wheel:
            record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
            listed = [line.split(",")[0] for line in wheel.read(record).decode().splitlines()]
            self.assertEqual(sorted(listed), sorted(wheel.namelist()))
            self.assertIn("shoal/py.typed", listed)
            metadata = next(name for name in listed if name.endswith("/METADATA"))
            self.assertIn('\nProvides-Extra: numpy\nRequires-Dist: numpy; extra == "numpy"\n',
                          wheel.read(metadata).decode().split("\n\n")[0] + "\n")
            self.assertTrue(any(name.endswith("licenses/libpng-dev.txt") for name in listed))


if __name__ == "__main__":
    unittest.main()
