"""A Python environment made of what this interpreter has and of wheels, without pip or network.

The embedded server's Python needs numpy 1 and a few packages that a machine for training may lack,
while torch with its gigabytes is there. So: an empty virtual environment, wheels unpacked into it,
and links to the packages of this interpreter that the engines need and no wheel brings. Standard
library only.
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

NEEDED = (
    "torch",
    "transformers",
    "accelerate",
    "numpy",
    "psutil",
    "safetensors",
    "tokenizers",
    "sentencepiece",
    "tqdm",
    "aiohttp",
    "jinja2",
    "pyyaml",
    "huggingface-hub",
    "tritonclient",
    "protobuf",
    "grpcio",
    "python-rapidjson",
)
"""With what these require: nothing else that is installed is seen, such as a scikit-learn that was
compiled for another numpy."""
SERVER = "nvidia-pytriton"
_SERVER_PROGRAM = "pytriton/tritonserver/bin/tritonserver"
_STUBS = "pytriton/tritonserver/python_backend_stubs"


class WheelError(Exception):
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
            tags = re.findall(r"^Tag: (\S+)", wheel.read(info).decode(), re.MULTILINE)
    except FileNotFoundError:
        raise WheelError(f"{path}: no such file") from None
    except (OSError, zipfile.BadZipFile, StopIteration, UnicodeDecodeError) as error:
        why = str(error) or "no .dist-info/WHEEL in it"
        raise WheelError(f"{path} is not a wheel: {why}") from error
    if not any(_fits(tag) for tag in tags):
        here = f"Python {sys.version_info.major}.{sys.version_info.minor}, {_here()}"
        raise WheelError(f"{path} is for {', '.join(tags)}; this is {here}")
    name = normal(info.partition("-")[0])
    if name == SERVER:
        _check_server(path, names)
    return name


def _check_server(path: Path, names: list[str]) -> None:
    stub = f"{_STUBS}/3.{sys.version_info.minor}/triton_python_backend_stub"
    for needed in (_SERVER_PROGRAM, stub):
        if needed not in names:
            raise WheelError(f"{path} has no {needed}")


def _fits(tag: str) -> bool:
    """Whether a wheel of this tag runs here: https://packaging.python.org/specifications/
    platform-compatibility-tags. Compressed ones stand for several.
    """
    pythons, abis, platforms = (part.split(".") for part in tag.rsplit("-", 2))
    minor = sys.version_info.minor
    is_abi3 = "abi3" in abis and any(_minor(python) <= minor for python in pythons)
    is_python = is_abi3 or any(
        python in ("py3", f"py3{minor}", f"cp3{minor}") for python in pythons
    )
    return is_python and any(_is_platform(name) for name in platforms)


def _minor(python: str) -> int:
    return int(python[3:]) if re.fullmatch(r"cp3\d+", python) else 99


def _is_platform(name: str) -> bool:
    if name == "any":
        return True
    old = {
        "manylinux1": (2, 5),
        "manylinux2010": (2, 12),
        "manylinux2014": (2, 17),
        "linux": (2, 5),
    }
    machine = platform.machine()
    if sys.platform != "linux" or not name.endswith(f"_{machine}"):
        return False
    kind = name.removesuffix(f"_{machine}")
    version = re.fullmatch(r"manylinux_(\d+)_(\d+)", kind)
    needed = (int(version[1]), int(version[2])) if version else old.get(kind)
    return needed is not None and needed <= _glibc()


def _glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")[:2]) if name == "glibc" else (0,)


def _here() -> str:
    return f"{sys.platform} {platform.machine()} with glibc {'.'.join(map(str, _glibc()))}"


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
        for entry in wheel.infolist():
            parts = Path(entry.filename).parts
            is_aside = parts[0].endswith(".data") and len(parts) > 2
            if is_aside and parts[1] not in ("purelib", "platlib"):
                continue
            target = site.joinpath(*(parts[2:] if is_aside else parts))
            if entry.is_dir() or ".." in parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(entry) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
            if (entry.external_attr >> 16) & 0o111 or parts[-1] in (
                "tritonserver",
                "triton_python_backend_stub",
            ):
                target.chmod(0o755)


def _closure(roots: Iterable[str], brought: set[str]) -> list[str]:
    """The roots and what they require, of what is installed here and comes by no wheel."""
    found: list[str] = []
    waiting = [normal(name) for name in roots]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name == SERVER:  # the server itself needs none of pytriton's own
            continue
        seen.add(name)
        if name not in brought:
            found.append(name)
        waiting += _requirements(name)
    return found


def _of_cuda() -> list[str]:
    """CUDA's own distributions: some torches require them as extras of one that is empty."""
    names = [normal(distribution.name) for distribution in metadata.distributions()]
    return [name for name in names if name.startswith(("nvidia-", "cuda-"))]


def _requirements(name: str) -> list[str]:
    """Names of what an installed distribution requires, without its extras; markers are not read:
    what is not installed is left out anyway.
    """
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    plain = [line for line in required if "extra ==" not in line]
    names = [re.match(r"[A-Za-z0-9._-]+", line) for line in plain]
    return [normal(found[0]) for found in names if found]


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
    generator/server_binary.py knows that the wheel brings one.
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
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
