"""Finds the tritonserver to run: the one on PATH, else that inside the nvidia-pytriton wheel. Run
as a module with a server's arguments, it becomes that of the wheel, as in a container.

NVIDIA's containers have it on PATH. The wheel carries the same program without its surroundings:
what it needs to serve a plain model repository (a backend folder, library paths) is put together
here. Knows nothing of models, ports or processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from generator.errors import ServerError
from hf_triton.python_env.find_environment import NUMPY_VARIABLE
from hf_triton.runtime.disk_cache import cache_folder, is_made_private
from hf_triton.tritonserver.guard import give_deep_stacks
from hf_triton.version import pip_install

# 24.10 only: no later release of the wheel, or another, carries a server.
_WHEEL = "nvidia-pytriton"
_INSTALL = pip_install("serve")
# 24.10 only: its stub was built for numpy 1.
_NUMPY_BELOW = "2"


@dataclass(frozen=True)
class Binary:
    """A tritonserver that can be run: the start of its command line, what its environment adds."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """The environment to start it in. Python stubs write UTF-8, unbuffered."""
        return {**os.environ, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", **self.environment}


def numpy_below() -> str:
    """The first major version of numpy whose arrays crash the Python stub of the server that
    ``find`` finds; empty where there is none.
    """
    return "" if shutil.which("tritonserver") else _NUMPY_BELOW


def find(scratch: str = "") -> Binary:
    """The tritonserver to use. Raises ServerError where there is none that can run. ``scratch`` is
    a folder that goes with the server, for what the user's cache has no room for.
    """
    on_path = shutil.which("tritonserver")
    if on_path:
        return Binary((on_path,), _python_environment())
    return embedded(scratch)


def embedded(scratch: str = "") -> Binary:
    """The wheel's tritonserver. Raises ServerError where it is missing or can't run here."""
    try:
        wheel = metadata.distribution(_WHEEL)
    except metadata.PackageNotFoundError:
        raise ServerError(
            "no tritonserver found: none on PATH, and the Python package nvidia-pytriton, which "
            f"carries one, is not installed; {_INSTALL} (Linux x86-64); or run in NVIDIA's Triton "
            "container"
        ) from None
    home = Path(str(wheel.locate_file("pytriton/tritonserver")))
    server = home / "bin" / "tritonserver"
    if not server.is_file():
        raise ServerError(f"{_WHEEL} is installed without its server ({server}); {_INSTALL}")
    libraries = home.parent.parent / "nvidia_pytriton.libs"
    backends = _backends_folder(home, scratch)
    flags = (f"--backend-directory={backends}", f"--cache-directory={home / 'caches'}")
    paths = [*libpython_folder(libraries), str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        **_python_environment(),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        NUMPY_VARIABLE: _NUMPY_BELOW,
    }
    return Binary((str(server), *flags), environment)


# An embedded Python looks for ``python3`` on PATH to find out where it is installed, and reads the
# ``pyvenv.cfg`` beside it (https://docs.python.org/3/library/sys_path_init.html). PYTHONPATH would
# do too, but it would also reach models with an environment of their own.
def _python_environment() -> dict[str, str]:
    """Makes the Python inside the stubs take this interpreter's packages as its own."""
    folder = str(Path(sys.executable).parent)
    environment = {"PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    return environment


def libpython_folder(libraries: Path) -> list[str]:
    """The folder of this interpreter's shared library, which the stub is linked against.

    For Python 3.13 the wheel brings the library along, under a name of its own.
    """
    minor = sys.version_info.minor
    if list(libraries.glob(f"libpython3-*.{minor}.so*")):
        return []
    name = f"libpython3.{minor}.so.1.0"
    known = [sysconfig.get_config_var(key) for key in ("LIBDIR", "LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    folders = [*filter(None, known), f"{sys.base_prefix}/lib", f"/usr/lib/{multiarch}"]
    for folder in folders:
        if (Path(folder) / name).exists():
            return [str(folder)]
    raise ServerError(
        f"the shared library of this Python, {name}, is not installed (looked in "
        f"{', '.join(dict.fromkeys(folders))}); on Debian it is the package libpython3.{minor}, "
        "with pyenv build with PYTHON_CONFIGURE_OPTS=--enable-shared"
    )


def _backends_folder(home: Path, scratch: str) -> Path:
    """A backend directory of links to the Python backend and this interpreter's stub, which the
    wheel keeps apart. It is kept in the user's cache, one for each wheel and version; where that
    can't be written, or can be by others, in ``scratch`` or a new temporary folder.
    """
    version = f"3.{sys.version_info.minor}"
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        names = (path.name for path in stub.parent.parent.iterdir())
        have = ", ".join(sorted(names, key=lambda name: (len(name), name)))
        raise ServerError(f"{_WHEEL} can't serve models on Python {version}; it can on {have}")
    parts = {path.name: path for path in (home / "backends" / "python").iterdir() if path.is_file()}
    parts[stub.name] = stub
    digest = hashlib.sha256(f"{home} {version}".encode()).hexdigest()[:16]
    with contextlib.suppress(OSError, RuntimeError):  # not writable, or a user without a home
        folder = cache_folder("backends", digest)
        if is_made_private(folder):  # else others could change what tritonserver starts
            link_all(parts, folder / "python")
            return folder
    folder = Path(scratch or tempfile.mkdtemp(prefix="hf-triton-"), "backends")
    link_all(parts, folder / "python")
    return folder


def link_all(files: Mapping[str, Path], folder: Path) -> None:
    """Makes ``folder`` hold these links; safe beside others that do the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        link = folder / name
        if link.is_symlink() and link.resolve() == file.resolve():
            continue
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.symlink_to(file)
        fresh.replace(link)


if __name__ == "__main__":
    try:
        found = embedded()
    except ServerError as error:
        sys.exit(f"tritonserver: {error}")
    give_deep_stacks()
    command = [*found.command, *sys.argv[1:]]
    os.execve(command[0], command, found.full_environment())  # noqa: S606
