"""Finds a perf_analyzer that runs here: the one on PATH, else the one in tritonclient's wheel.

The wheel's wants two libraries that no system has under these names by default; nvidia-pytriton's
wheel carries both under names of its own. They are linked into a folder of the user's cache.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perf.baselines.servers.environments import cache_folder
from perf.sweep.analyzer.wheels import WheelError, downloaded_file, installed_file

# The last whose perf_analyzer runs with a glibc before 2.38.
CLIENT = "tritonclient==2.51.0"
_LIBRARIES = {
    "libb64.so.0d": "nvidia_pytriton.libs/libb64-*.so.0d",
    "libcudart.so.12": "nvidia_pytriton.libs/libcudart-*.so.12*",
}
_CARRIER = "nvidia-pytriton==0.7.0"
_VERSION = re.compile(r"Perf Analyzer Version (\S+)")
_START_TIMEOUT_S = 30.0


class AnalyzerMissingError(Exception):
    """None runs here; why, a line for each that was tried."""


@dataclass(frozen=True)
class Analyzer:
    """One that runs: its path, its version, where it comes from, what its environment adds."""

    path: str
    version: str
    origin: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


def find(given: str | None = None) -> Analyzer:
    """``given``, where that is a path, and nothing else; else the one on PATH, that of the
    installed tritonclient, that of the pinned one, downloaded. Raises AnalyzerMissingError.
    """
    if given is not None:
        return _started(given, "--perf-analyzer")
    on_path = shutil.which("perf_analyzer")
    try:
        if on_path:
            return _started(on_path, "PATH")
        reason = "there is none on PATH"
    except AnalyzerMissingError as error:
        reason = str(error)
    try:
        if not sys.platform.startswith("linux"):
            raise WheelError(f"tritonclient's wheel has one for Linux only, not {sys.platform}")
        installed = installed_file("tritonclient", "bin/perf_analyzer")
        if installed is not None:  # of another version, it may need a newer system
            with contextlib.suppress(AnalyzerMissingError):
                return _started(str(installed), "the installed tritonclient")
        path = downloaded_file(CLIENT, "*/perf_analyzer", "perf_analyzer")
        return _started(str(path), f"the wheel {CLIENT}")
    except (AnalyzerMissingError, WheelError) as error:
        raise AnalyzerMissingError(f"{reason}\n{error}") from error


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
    """An LD_LIBRARY_PATH on which both are found. Raises WheelError."""
    folder = cache_folder() / "libraries"
    folder.mkdir(parents=True, exist_ok=True)
    for name, pattern in _LIBRARIES.items():
        found = installed_file("nvidia-pytriton", pattern)
        _link(folder / name, found or downloaded_file(_CARRIER, pattern, name))
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path)}


def _link(link: Path, target: Path) -> None:
    """Safe beside others that do the same."""
    if link.is_symlink() and link.resolve() == target.resolve():
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)
