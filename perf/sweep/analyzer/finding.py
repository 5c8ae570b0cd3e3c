"""Finds a perf_analyzer that runs here: the one on PATH, else the one in tritonclient's wheel.

The wheel's wants two libraries that no system has under these names by default; nvidia-pytriton's
wheel carries both under names of its own. They are linked into a folder of the user's cache. A
wheel that is not installed is downloaded, and nothing installed into this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath

from generator.python_modules import run_module

# The last whose perf_analyzer runs with a glibc before 2.38.
CLIENT = "tritonclient==2.51.0"
_LIBRARIES = {
    "libb64.so.0d": "nvidia_pytriton.libs/libb64-*.so.0d",
    "libcudart.so.12": "nvidia_pytriton.libs/libcudart-*.so.12*",
}
_CARRIER = "nvidia-pytriton==0.7.0"
_VERSION = re.compile(r"Perf Analyzer Version (\S+)")
_START_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S = 30.0, 900.0


class AnalyzerMissingError(Exception):
    """None runs here; why, a line for each that was tried."""


@dataclass(frozen=True)
class Analyzer:
    """One that runs: its path, its version, where it comes from, what its environment adds."""

    path: str
    version: str
    origin: str
    environment: Mapping[str, str] = field(default_factory=dict)


def cache_folder() -> Path:
    """Where programs and libraries that were downloaded are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hf-triton", "perf")


def find(given: str | None = None) -> Analyzer:
    """``given``, where that is a path, and nothing else; else the one on PATH, that of the
    installed tritonclient, that of the pinned one, downloaded. Raises AnalyzerMissingError.
    """
    if given is not None:
        return _started(given, "--perf-analyzer")
    on_path, reason = shutil.which("perf_analyzer"), "there is none on PATH"
    if on_path:
        try:
            return _started(on_path, "PATH")
        except AnalyzerMissingError as error:
            reason = str(error)
    try:
        return _of_wheel()
    except AnalyzerMissingError as error:
        raise AnalyzerMissingError(f"{reason}\n{error}") from error


def _of_wheel() -> Analyzer:
    if not sys.platform.startswith("linux"):
        told = f"tritonclient's wheel has one for Linux only, not {sys.platform}"
        raise AnalyzerMissingError(told)
    installed = installed_file("tritonclient", "bin/perf_analyzer")
    if installed is not None:
        try:
            return _started(str(installed), "the installed tritonclient")
        except AnalyzerMissingError:
            pass  # of another version, it may need a newer system
    path = _downloaded_file(CLIENT, "bin/perf_analyzer")
    return _started(str(path), f"the wheel {CLIENT}")


def _started(path: str, origin: str) -> Analyzer:
    """Asks it for its version, with our copies of its libraries where it does not start without.

    Raises AnalyzerMissingError.
    """
    said = _ask(path, {})
    environment: dict[str, str] = {}
    if any(library in said for library in _LIBRARIES):
        environment = _with_libraries()
        said = _ask(path, environment)
    if not (found := _VERSION.search(said)):
        last = said.strip().splitlines()[-1] if said.strip() else "it says nothing"
        raise AnalyzerMissingError(f"{path} ({origin}) does not run: {last}")
    return Analyzer(str(Path(path).absolute()), found[1], origin, environment)


def _ask(path: str, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout + done.stderr


def _with_libraries() -> dict[str, str]:
    """An LD_LIBRARY_PATH on which both are found. Raises AnalyzerMissingError."""
    folder = cache_folder() / "libraries"
    folder.mkdir(parents=True, exist_ok=True)
    for name, pattern in _LIBRARIES.items():
        installed = installed_file("nvidia-pytriton", pattern)
        target, link = installed or _downloaded_file(_CARRIER, pattern), folder / name
        if not (link.is_symlink() and link.resolve() == target.resolve()):
            fresh = link.with_name(f".{name}.{os.getpid()}")  # others may do the same
            fresh.symlink_to(target)
            fresh.replace(link)
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path)}


def installed_file(distribution: str, pattern: str) -> Path | None:
    """A file of an installed package whose path in its wheel ends like ``pattern``."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate())).resolve()
        if PurePosixPath(str(file)).match(pattern) and path.is_file():
            return path
    return None


def _downloaded_file(requirement: str, pattern: str) -> Path:
    """The same out of a wheel that pip downloads, kept in the user's cache.

    Raises AnalyzerMissingError.
    """
    folder = cache_folder() / "wheels" / requirement
    if not folder.is_dir():
        print(f"hf-triton: downloading {requirement}, once", file=sys.stderr)
        options = ("--quiet", "--no-deps", "--only-binary", ":all:")
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as fresh:
                command = run_module("pip", "install", *options, "--target", f"{fresh}/wheel")
                timeout = _DOWNLOAD_TIMEOUT_S
                subprocess.run(
                    [*command, requirement],
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                )
                Path(fresh, "wheel").rename(folder)
        except (OSError, subprocess.SubprocessError) as error:
            printed = str(getattr(error, "stderr", None) or error).strip().splitlines()
            told = f"{requirement} can't be downloaded: {printed[-1]}"
            raise AnalyzerMissingError(told) from error
    found = next((path for path in folder.rglob("*") if path.match(pattern)), None)
    if found is None:
        raise AnalyzerMissingError(f"{requirement} holds no {pattern}")
    return found
