#!/usr/bin/env python3
"""Writes the package as a wheel, with a build's libshoal and the libraries that it needs inside.

    bindings/python/make_wheel.py BUILD OUT

Standard library only. It is also what pip calls, by pyproject.toml; the build is then `build`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, Optional

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def value(name: str, path: Path, sign: str) -> str:
    """Of a setting in a file, which is the first line of that name."""
    return re.search(rf"^ *{name}{sign} ['\"](.*)['\"]", path.read_text(), re.M)[1]


def library_files(build: Path, info: str) -> Dict[str, bytes]:
    """The libraries and their licences, by their names in the wheel."""
    if not (build / "libshoal_core.a").exists():
        raise SystemExit(f"make_wheel: {build} holds no build of shoal: run make first")
    with tempfile.TemporaryDirectory() as folder:
        libraries, licences = Path(folder, "lib"), Path(folder, "licences")
        libraries.mkdir()
        licences.mkdir()
        subprocess.run([ROOT / "tools" / "bundle_library.sh", build, libraries, licences],
                       check=True)
        files = {f"{info}/licenses/{path.name}": path.read_bytes() for path in licences.iterdir()}
        for path in libraries.iterdir():
            # There are no links in a wheel: one name, which the package looks for.
            name = "libshoal.so" if path.name.startswith("libshoal.so") else path.name
            files[f"shoal/lib/{name}"] = path.read_bytes()
    return files


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def make(build: Path, out: Path) -> str:
    """Writes the wheel into the folder `out`, and returns its name."""
    project = HERE / "pyproject.toml"
    version = value("version", ROOT / "meson.build", ":")
    info, tag = f"shoal-{version}.dist-info", f"py3-none-linux_{os.uname().machine}"
    files = {f"shoal/{path.name}": path.read_bytes()
             for path in (HERE / "shoal").iterdir() if path.is_file()}
    files.update(library_files(build, info))
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: shoal\nVersion: {version}\n"
        f"Summary: {value('description', project, ' =')}\n"
        f"Requires-Python: {value('requires-python', project, ' =')}\nLicense: MIT\n"
        "Provides-Extra: numpy\nRequires-Dist: numpy; extra == \"numpy\"\n"
        f"Description-Content-Type: text/markdown\n\n").encode() + (HERE / "README.md").read_bytes()
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: make_wheel\n"
                              f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    record = "".join(record_line(name, files[name]) for name in sorted(files))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    name = f"shoal-{version}-{tag}.whl"
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / f"{name}.part", "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(files):
            entry = zipfile.ZipInfo(file)  # of 1980: the same files give the same wheel
            entry.external_attr = (0o755 if ".so" in file else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[file])
    os.replace(out / f"{name}.part", out / name)
    return name


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None,
                metadata_directory: Optional[str] = None) -> str:
    """What pip calls."""
    return make(ROOT / "build", Path(wheel_directory))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out_folder = Path(sys.argv[2])
    made = make(Path(sys.argv[1]), out_folder)
    print(f"{out_folder / made}: {(out_folder / made).stat().st_size / 1e6:.1f} MB")
