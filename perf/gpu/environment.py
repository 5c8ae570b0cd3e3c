"""A Python environment made of what this interpreter has and of wheels, without pip or network.

The embedded server's Python needs numpy 1 and a few packages that a machine for training may lack,
while torch with its gigabytes is there. So: an empty virtual environment, wheels unpacked into it,
and links to the packages of this interpreter that the engines need and no wheel brings.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from generator.errors import PerfError

NEEDED = (
    *("torch", "transformers", "accelerate", "numpy", "psutil", "safetensors", "tokenizers"),
    *("sentencepiece", "tqdm", "aiohttp", "jinja2", "pyyaml", "huggingface-hub", "tritonclient"),
    *("protobuf", "grpcio", "python-rapidjson", "triton", "kernels", "llguidance", "torchao"),
    *("bitsandbytes", "vllm"),
)
"""With what these require: nothing else that is installed is seen, such as a scikit-learn that was
compiled for another numpy."""
SERVER = "nvidia-pytriton"
_SERVER_PROGRAM = "pytriton/tritonserver/bin/tritonserver"
_PROGRAMS = ("tritonserver", "triton_python_backend_stub")
_STUBS = "pytriton/tritonserver/python_backend_stubs"


class WheelError(PerfError):
    """A wheel is missing, is none, or is for another machine; the text says which and why."""


def wheels_in(folder: Path) -> list[Path]:
    """The wheels of a folder. Raises WheelError where there are none."""
    found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if not found:
        raise WheelError(
            f"--wheels {folder}: {'no *.whl in it' if folder.is_dir() else 'no such folder'}"
        )
    return found


def check_wheel(path: Path) -> str:
    """The name of the distribution in it. Raises WheelError where it can't be used here."""
    try:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            info = next(name for name in names if name.endswith(".dist-info/WHEEL"))
            told = re.findall(r"^Tag: (\S+)", wheel.read(info).decode(), re.MULTILINE)
    except FileNotFoundError:
        raise WheelError(f"{path}: no such file") from None
    except (OSError, zipfile.BadZipFile, StopIteration, UnicodeDecodeError) as error:
        why = str(error) or "no .dist-info/WHEEL in it"
        raise WheelError(f"{path} is not a wheel: {why}") from error
    fitting = set(tags.sys_tags())
    if not any(fitting & tags.parse_tag(tag) for tag in told):
        here = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        system = f"{sys.platform} {platform.machine()} with {' '.join(platform.libc_ver())}"
        raise WheelError(f"{path} is for {', '.join(told)}; this is {here}, {system}")
    name = canonicalize_name(info.partition("-")[0])
    stub = f"{_STUBS}/3.{sys.version_info.minor}/triton_python_backend_stub"
    for needed in (_SERVER_PROGRAM, stub) if name == SERVER else ():
        if needed not in names:
            raise WheelError(f"{path} has no {needed}")
    return name


def make(folder: Path, wheels: Iterable[Path], libpython: Path | None = None) -> Path:
    """Makes the environment in ``folder``; returns its interpreter.

    ``libpython`` is this Python's shared library, where the system has none for the server's stub.
    Raises WheelError, OSError.
    """
    wheels = list(wheels)
    brought = {check_wheel(path) for path in wheels}
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for path in wheels:
        _unpack(path, site)
    for name in _closure([*NEEDED, *brought, *_of_cuda()], brought):
        _link(name, site)
    if libpython is not None:
        _place_libpython(libpython, site)
    return folder / "bin" / "python"


def _unpack(path: Path, site: Path) -> None:
    """What pip would copy into site-packages; programs stay executable."""
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(site)
        for entry in wheel.infolist():
            target = site / entry.filename
            if target.is_file() and (
                (entry.external_attr >> 16) & 0o111 or target.name in _PROGRAMS
            ):
                target.chmod(0o755)
    for libraries in site.glob("*.data/*lib"):  # purelib and platlib
        shutil.copytree(libraries, site, dirs_exist_ok=True)


def _closure(roots: Iterable[str], brought: set[str]) -> list[str]:
    """The roots and what they require, of what is installed here and comes by no wheel."""
    found: dict[str, None] = {}
    waiting = [canonicalize_name(name) for name in roots]
    while waiting:
        name = waiting.pop()
        if name not in found and name != SERVER:  # which itself needs none of pytriton's own
            found[name] = None
            waiting += map(canonicalize_name, _requirements(name))
    return [name for name in found if name not in brought]


def _of_cuda() -> list[str]:
    """CUDA's own distributions: some torches require them as extras of one that is empty."""
    names = [canonicalize_name(distribution.name) for distribution in metadata.distributions()]
    return [name for name in names if name.startswith(("nvidia-", "cuda-"))]


def _requirements(name: str) -> list[str]:
    """Names of what an installed distribution requires, without its extras; markers are not read:
    what is not installed is left out anyway.
    """
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [Requirement(line).name for line in required if "extra ==" not in line]


def _link(name: str, site: Path) -> None:
    """Links an installed distribution's folders and files, where it is installed."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
    tops = {file.parts[0] for file in distribution.files or () if ".." not in file.parts}
    for top in sorted(tops - {"__pycache__", "bin"}):
        source, target = Path(str(distribution.locate_file(top))), site / top
        if source.exists() and not target.exists():
            target.symlink_to(source)


def _place_libpython(libpython: Path, site: Path) -> None:
    """Puts the library where the server's others are, also under the name by which
    generator/server/binary.py knows that the wheel brings one.
    """
    if not libpython.is_file():
        raise WheelError(f"--libpython {libpython}: no such file")
    minor = sys.version_info.minor
    libraries = site / "nvidia_pytriton.libs"
    libraries.mkdir(exist_ok=True)
    for name in (f"libpython3.{minor}.so.1.0", f"libpython3-given.{minor}.so.1.0"):
        shutil.copy(libpython, libraries / name)


def is_installed(name: str) -> bool:
    """Whether this interpreter has a distribution of that name."""
    return any(True for _ in metadata.distributions(name=name))
