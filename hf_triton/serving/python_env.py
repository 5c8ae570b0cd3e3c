"""Builds the Python environments that models ask for, by uv or pip, each once on a machine; one
that fails does not stop the others.

An environment is built in its final place, because scripts inside contain that path. A marker is
written last: a folder without one is left from a build that was killed, and is built again. The
package index is the one that pip or uv is configured with; a password in its URL is never printed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from generator.errors import mask_tokens
from generator.repository.staging import write
from generator.repository.writing import locked_file
from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.spec.task_folders import Task, find_tasks
from hf_triton.python_env.find_environment import (
    MARKER,
    BrokenEnvironmentError,
    built_folder,
    check,
    failure_file,
    is_built,
    look_inside,
)
from hf_triton.tritonserver import binary
from hf_triton.tritonserver.log import say

Show = Callable[[str], object]  # gets lines of pip's or uv's progress
# Imports of every task's model.py; a task's engines may need more, which a load then names.
_PACKAGES = ("torch", "transformers")
_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
_STEPS = ("Collecting ", "Downloading ", "Building ", "Installing ")
_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError|"
    r"ConnectTimeoutError|ReadTimeoutError|Connection refused|SSLError|Failed to fetch"
)
_OWN_INDEX = re.compile(r"index|find-links|trusted-host")
_FULL = re.compile(r"No space left on device|os error 28", re.IGNORECASE)
_NUM_KEPT_LINES = 200
_NUM_SHOWN_LINES = 5
_MAX_SHOWN = 100
_MAX_LAST = 240


def ensure_environments(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Models that can't have their environment, each with the reason."""
    failures: dict[str, str] = {}
    for env, users in _users(specs).items():
        progress = _Progress(
            f"{', '.join(one.name for one in users)}: environment of {env.written}"
        )
        began = time.monotonic()
        try:
            built = ensure(env, binary.numpy_below(), progress.show, progress.busy)
        except BrokenEnvironmentError as error:
            failures.update({spec.name: f"python_env: {error}" for spec in users})
            continue
        finally:
            progress.end()
        if built:
            seconds = time.monotonic() - began
            say(f"{progress.title}: built in {seconds:.0f} s, {folder_of(env)}")
        for spec in users:
            missing = _missing_packages(env, find_tasks()[spec.task])
            if missing:
                failures[spec.name] = f"python_env: {missing}"
    return failures


def preview(specs: Iterable[ModelSpec]) -> Iterator[str]:
    for env, users in _users(specs).items():
        folder = folder_of(env)
        state = "is there" if env.folder or is_built(folder) else "to be built"
        names = ", ".join(spec.name for spec in users)
        yield f"{names}: environment of {env.written}: {state}, {folder}"


def _users(specs: Iterable[ModelSpec]) -> dict[PythonEnv, list[ModelSpec]]:
    """The models of each environment, by the first of those that say the same."""
    found: dict[Path, tuple[PythonEnv, list[ModelSpec]]] = {}
    for spec in specs:
        if spec.python_env is not None:
            place = folder_of(spec.python_env)
            found.setdefault(place, (spec.python_env, []))[1].append(spec)
    return dict(found.values())


def _missing_packages(env: PythonEnv, task: Task) -> str:
    """The packages that the task needs and the environment lacks; empty where there are none."""
    if not task.library:
        return ""
    try:
        versions = look_inside(folder_of(env), *_PACKAGES).versions
    except BrokenEnvironmentError as error:
        return str(error)
    missing = [name for name in _PACKAGES if versions[name] is None]
    if not missing:
        return ""
    hint = "" if env.folder else ", or set system_site_packages: true to take the server's"
    return f"{env.written}: lacks {' and '.join(missing)}, which {task.tag} needs: add that{hint}"


class _Progress:
    """Prints what pip does: one line on a terminal, elsewhere a line for what takes long."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._erase = "\r\033[K" if sys.stderr.isatty() else ""

    def show(self, line: str) -> None:
        if self._erase:
            print(f"{self._erase}  {line}", end="", file=sys.stderr, flush=True)
        elif line.startswith("Installing") or "MB)" in line or "GB)" in line:
            say(f"{self.title}: {line}")

    def busy(self, folder: Path) -> None:
        say(f"{self.title}: another hf-triton is building it ({folder}); waiting for that one")

    def end(self) -> None:
        print(self._erase, end="", file=sys.stderr, flush=True)


def folder_of(env: PythonEnv) -> Path:
    """The folder of the environment, also before it is built."""
    if env.folder is not None:
        return env.folder
    return built_folder(env.digest, sys.prefix if env.system_site_packages else "")


def ensure(env: PythonEnv, numpy_below: str, show: Show, on_busy: Callable[[Path], None]) -> bool:
    """Builds the environment unless it is there; returns whether it did. ``on_busy`` is called
    where another process builds it, before that one is waited for.

    Raises:
        BrokenEnvironmentError: it can't be built, or the server's stub can't run in it.
    """
    folder = folder_of(env)
    was_there = env.folder is not None or is_built(folder)
    try:
        if not was_there:
            lock_file = folder.with_name(f".{folder.name}.lock")
            with locked_file(lock_file, partial(on_busy, folder)) as lock:
                was_there = is_built(folder)
                if not was_there:
                    _build(env, folder, numpy_below, show, lock)
        check(folder, numpy_below)
    except (BrokenEnvironmentError, subprocess.CalledProcessError, OSError) as error:
        why = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            why = f"{folder}: {' '.join(str(error.stderr).split()[-40:])}"
        elif isinstance(error, OSError):
            why = f"{error.filename or folder}: {error.strerror}"
        if env.folder is None and not is_built(folder):  # its models say so when they are loaded
            with contextlib.suppress(OSError):
                write(str(failure_file(folder)), " ".join(why.split()).encode())
        raise BrokenEnvironmentError(why) from None
    return not was_there


def _build(env: PythonEnv, folder: Path, numpy_below: str, show: Show, lock: int) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # half a build
    try:
        command = _make_venv(folder, env.system_site_packages)
        constraints = folder / "hf-triton-constraints.txt"
        constraints.write_text(f"numpy<{numpy_below}\n" if numpy_below else "", encoding="utf-8")
        for file, flags in (
            (env.requirements, ("-c", str(constraints))),
            (env.no_deps, ("--no-deps",)),
        ):
            if file is not None:
                _install([*command, *flags, "-r", str(file)], file.parent, show, lock)
        marker = {"written": env.written, "digest": env.digest, "python": sys.version.split()[0]}
        write(str(folder / MARKER), f"{json.dumps(marker, indent=2)}\n".encode())
        failure_file(folder).unlink(missing_ok=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # half of gigabytes is of no use
        raise


def _make_venv(folder: Path, see_below: bool) -> list[str]:
    """Makes an environment without packages; returns the command that installs into it."""
    python = str(folder / "bin" / "python3")
    if find_spec("pip"):  # it need not be installed first, which takes long
        run_quietly([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-I", "-m", "pip", "--python", python]
    else:
        run_quietly([sys.executable, "-I", "-m", "venv", str(folder)])
        pip = [python, "-I", "-m", "pip"]
    if not see_below:
        return installer(pip, python)
    # Venv's own flag reaches below the environment that runs this, not what is in that.
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    below = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    place = folder / "lib" / minor / "site-packages" / "of-hf-triton.pth"
    place.write_text("".join(f"{path}\n" for path in below), encoding="utf-8")
    return [*pip, "install", *_PIP_OPTIONS]  # uv would install again what is below


def installer(pip: Sequence[str], python: str) -> list[str]:
    """The command that installs what follows for ``python``: uv's, where it is on PATH and pip has
    no index configured, which uv does not read; else ``pip``'s.
    """
    uv = shutil.which("uv")
    if uv is None or _OWN_INDEX.search(run_quietly([*pip, "config", "list"])):
        return [*pip, "install", *_PIP_OPTIONS]
    return [uv, "pip", "install", "--python", python]


def _install(command: Sequence[str], folder: Path, show: Show, lock: int) -> None:
    """Runs an installer from ``folder``, where paths of local wheels start. Raises
    BrokenEnvironmentError with pip's last lines.
    """
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        pass_fds=(lock,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                lines = [*lines[-_NUM_KEPT_LINES:], line.strip()]
                if line.strip().startswith(_STEPS):
                    show(mask_tokens(line.strip())[:_MAX_SHOWN])
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        shown = [mask_tokens(line)[:_MAX_LAST] for line in lines if line]
        why = reason(lines) or f"{command[0]} ended with exit code {process.returncode}"
        raise BrokenEnvironmentError("\n    ".join([why, *shown[-_NUM_SHOWN_LINES:]]))


def reason(lines: Sequence[str]) -> str:
    """The reason why pip or uv failed, from what it printed."""
    if any(_FULL.search(line) for line in lines):
        return "no space is left on the disk"
    errors = [line.partition(": ")[2] for line in lines if line.lower().startswith("error: ")]
    causes = [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")]
    said = mask_tokens(": ".join([*errors[-1:], *causes[:1]]) or next(reversed(lines), ""))
    if any(_UNREACHABLE.search(line) for line in lines):
        return f"the package index can't be reached: {said}"
    return said


def run_quietly(command: Sequence[str]) -> str:
    """Returns what it printed. Raises CalledProcessError with that, OSError."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
