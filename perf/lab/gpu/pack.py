"""Packs what a bare GPU machine lacks into a folder that travels with a checkout: wheels, and for
``serve`` nvidia-pytriton's tritonserver, cut down to the Python backend and one stub, with the
packages of its Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from generator.errors import PerfError

WHEELS = ("transformers==5.23.0", "torchao==0.18.0", "psutil")
_SERVER = "nvidia-pytriton==0.7.0"
_SERVED = (  # numpy 1: the stub crashes on arrays of numpy 2
    *("numpy==1.26.4", "transformers==5.23.0", "msgspec", "httptools", "hpack", "psutil"),
    *("tritonclient==2.51.0", "protobuf==4.25.9", "python-rapidjson", "llguidance"),
)
_PURE = ("tritonclient", "transformers")  # tritonclient's other wheel carries perf_analyzer
_GLIBC = (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_TAGS = (*(f"manylinux_2_{n}_x86_64" for n in _GLIBC), "manylinux2014_x86_64", "any")
_UNPACK = """\
# source this in the checkout's root: a tritonserver and its Python's packages, before the machine's
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p /tmp/triton && tar -C /tmp/triton -xf "$here/site.tar.xz"
export PYTHONPATH="/tmp/triton:$PWD${PYTHONPATH:+:$PYTHONPATH}"
"""


def pack(folder: Path, python: str, *, server: bool) -> None:
    """Fills ``folder/wheels`` for a Python of this version, and with ``server`` writes
    ``site.tar.xz`` and ``unpack.sh``. Raises PerfError where pip does not find something.
    """
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    _download(WHEELS, python, wheels)
    if server:
        with tempfile.TemporaryDirectory() as work:
            _pack_server(folder / "site.tar.xz", python, Path(work))
        (folder / "unpack.sh").write_text(_UNPACK, encoding="utf-8")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size / 2**20:6.1f} MiB  {path}")


def installed(wheels: Path, to: Path) -> Path:
    """The wheels of a folder, unpacked. Raises PerfError."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise PerfError(
            f"--wheels {wheels}: {'no *.whl in it' if wheels.is_dir() else 'no folder'}"
        )
    _pip("--wheels", "install", "--no-index", "--no-compile", "--target", str(to), *found)
    return to


def _download(names: Iterable[str], python: str, to: Path) -> None:
    words = ["download", "--only-binary=:all:", "--python-version", python]
    words += ["--implementation", "cp", "-d", str(to)]
    for name in names:
        tags = ("any",) if name.startswith(_PURE) else _TAGS
        flags = [word for tag in tags for word in ("--platform", tag)]
        _pip(name, *words, *flags, name)


def _pip(what: str, verb: str, *words: str) -> None:
    """Raises PerfError, which names ``what``."""
    command = [sys.executable, "-m", "pip", verb, "-q", "--no-deps", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PerfError(f"{what}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")


def _pack_server(archive: Path, python: str, work: Path) -> None:
    whole, kept, wheels = work / "whole", work / "kept", work / "wheels"
    _download((_SERVER,), python, work)
    _unzip(work, whole)
    for path in _server_files(whole, python):
        target = kept / path.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        target.chmod(0o755)
    for info in whole.glob("nvidia_pytriton*.dist-info"):
        shutil.copytree(info, kept / info.name)
    _download(_SERVED, python, wheels)
    _unzip(wheels, kept)
    for tests in [path for path in (kept / "numpy").rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for path in sorted(kept.iterdir()):
            tar.add(path, arcname=path.name)


def _unzip(folder: Path, to: Path) -> None:
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(to)


def _server_files(whole: Path, python: str) -> Iterator[Path]:
    """The server, the Python backend with one stub, the cache, and what they load of the wheel's
    own libraries.
    """
    home, libraries = whole / "pytriton" / "tritonserver", whole / "nvidia_pytriton.libs"
    stub = home / "python_backend_stubs" / python / "triton_python_backend_stub"
    backend = [path for path in (home / "backends" / "python").iterdir() if path.is_file()]
    queue = [home / "bin" / "tritonserver", stub, *backend, *home.glob("caches/**/*.so*")]
    found = set(queue)
    yield from queue
    while queue:
        said = subprocess.run(["readelf", "-d", queue.pop()], capture_output=True, text=True)
        needed = [line for line in said.stdout.splitlines() if "NEEDED" in line]
        for path in (libraries / line.split("[")[1].split("]")[0] for line in needed):
            if path.is_file() and path not in found:
                found.add(path)
                queue.append(path)
                yield path
