"""Builds the environment that requirements ask for, by uv or pip, once on a machine.

It is built in its final place, because scripts inside contain that path. A marker is written last:
a folder without one is left from a build that was killed, and is built again. The package index is
the one that pip or uv is configured with; a password in its URL is never printed. Knows no models.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from generator.errors import mask_tokens
from generator.spec.python_env import PythonEnv
from generator.spec.runtime_rules import (
    MARKER,
    BrokenEnvironmentError,
    built_folder,
    check,
    failure_file,
    is_built,
)

Show = Callable[[str], object]  # is told what pip is at
_OTHER_PYTHON = (22, 3)  # from that version on pip can install for another interpreter
_CONSTRAINTS = "hf-triton-constraints.txt"
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
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


class BuildError(Exception):
    """An environment can't be built; the text says why, with pip's last lines."""


def folder_of(env: PythonEnv) -> Path:
    """Where the environment is, or will be once it is built."""
    if env.folder is not None:
        return env.folder
    return built_folder(env.digest, sys.prefix if env.system_site_packages else "")


def ensure(env: PythonEnv, numpy_below: str, show: Show, on_busy: Callable[[Path], None]) -> bool:
    """Builds the environment unless it is there; whether that was to be done. ``on_busy`` hears of
    another process that builds it, which is waited for.

    Raises:
        BuildError: it can't be built, or is not one that the server's stub can run in.
    """
    folder = folder_of(env)
    try:
        return _ensure(env, folder, numpy_below, show, on_busy)
    except BuildError as error:
        if env.folder is None and not is_built(folder):  # its models say so when they are loaded
            with contextlib.suppress(OSError):
                _write(failure_file(folder), " ".join(str(error).split()))
        raise


def _ensure(
    env: PythonEnv, folder: Path, numpy_below: str, show: Show, on_busy: Callable[[Path], None]
) -> bool:
    try:
        was_there = env.folder is not None or is_built(folder)
        if not was_there:
            with _locked(folder, on_busy) as lock:
                was_there = is_built(folder)
                if not was_there:
                    _build(env, folder, numpy_below, partial(install, show=show, keep_open=lock))
        check(folder, numpy_below)
    except BrokenEnvironmentError as error:
        raise BuildError(str(error)) from None
    except InstallError as error:
        raise BuildError("\n    ".join([str(error), *error.last_lines])) from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{folder}: {' '.join(str(error.stderr).split()[-40:])}") from None
    except OSError as error:
        raise BuildError(f"{error.filename or folder}: {error.strerror}") from None
    return not was_there


@contextlib.contextmanager
def _locked(folder: Path, on_busy: Callable[[Path], None]) -> Iterator[int]:
    """One process at a time builds what is in ``folder``; a child that is given the descriptor
    keeps others out even when it outlives us. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks, such as some NFS mounts
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_busy(folder)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _build(
    env: PythonEnv,
    folder: Path,
    numpy_below: str,
    run: Callable[[list[str], list[str], Path], None],
) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # half a build
    try:
        command = _make_venv(folder, env.system_site_packages)
        constraints = folder / _CONSTRAINTS
        constraints.write_text(f"numpy<{numpy_below}\n" if numpy_below else "", encoding="utf-8")
        if env.requirements is not None:
            words = ["-c", str(constraints), "-r", str(env.requirements)]
            run(command, words, env.requirements.parent)
        if env.no_deps is not None:
            run(command, ["--no-deps", "-r", str(env.no_deps)], env.no_deps.parent)
        marker = {"written": env.written, "digest": env.digest, "python": sys.version.split()[0]}
        _write(folder / MARKER, json.dumps(marker, indent=2) + "\n")
        failure_file(folder).unlink(missing_ok=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # half of gigabytes is of no use
        raise


def _make_venv(folder: Path, see_below: bool) -> list[str]:
    """An environment without packages; the command that installs into it."""
    flags = ["--system-site-packages"] if see_below and _sees_system() else []
    python = str(folder / "bin" / "python3")
    if _pip_version() >= _OTHER_PYTHON:  # pip need not be installed first, which takes long
        run_quietly([sys.executable, "-I", "-m", "venv", "--without-pip", *flags, str(folder)])
        pip = [sys.executable, "-I", "-m", "pip", "--python", python]
    else:
        run_quietly([sys.executable, "-I", "-m", "venv", *flags, str(folder)])
        pip = [python, "-I", "-m", "pip"]
    if see_below and sys.prefix != sys.base_prefix:
        _show_our_packages(folder)
    # uv would install again what is below.
    return [*pip, "install", *PIP_OPTIONS] if see_below else installer(pip, python)


def _sees_system() -> bool:
    """Whether this Python has the packages of its installation: it is no environment, or one that
    has what is below it.
    """
    if sys.prefix == sys.base_prefix:
        return True
    settings = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8").lower()
    return re.search(r"^include-system-site-packages\s*=\s*true", settings, re.M) is not None


def _show_our_packages(folder: Path) -> None:
    """Venv's own flag reaches below the environment that runs this, not what is in that."""
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    ours = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    place = folder / "lib" / minor / "site-packages" / "of-hf-triton.pth"
    place.write_text("".join(f"{path}\n" for path in ours), encoding="utf-8")


def _pip_version() -> tuple[int, ...]:
    try:
        parts = metadata.version("pip").split(".")
    except metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(part) for part in parts[:2] if part.isdigit())


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


class InstallError(Exception):
    """Something was not installed: one line on why, ``last_lines`` what was printed last."""

    def __init__(self, text: str, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.last_lines = last_lines


def installer(pip: Sequence[str], python: str) -> list[str]:
    """The command that installs what follows for ``python``: uv's, where it is on PATH and pip has
    no index configured, which uv does not read; else ``pip``'s.
    """
    uv = shutil.which("uv")
    if uv is None or _OWN_INDEX.search(run_quietly([*pip, "config", "list"])):
        return [*pip, "install", *PIP_OPTIONS]
    return [uv, "pip", "install", "--python", python]


def install(
    command: Sequence[str],
    words: Sequence[str],
    folder: Path | None,
    *,
    show: Callable[[str], object],
    keep_open: int | None = None,
) -> None:
    """Runs an installer's command with ``words`` from ``folder``, where paths of local wheels
    start; it has a file of ours open. Raises InstallError, and OSError where it can't be started.
    """
    lines: list[str] = []
    with subprocess.Popen(
        [*command, *words],
        cwd=folder,
        pass_fds=() if keep_open is None else (keep_open,),
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
        raise InstallError(why, tuple(shown[-_NUM_SHOWN_LINES:]))


def reason(lines: Sequence[str]) -> str:
    """Why pip or uv failed, out of what it printed."""
    if any(_FULL.search(line) for line in lines):
        return "no space is left on the disk"
    errors = [line.partition(": ")[2] for line in lines if line.lower().startswith("error: ")]
    causes = [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")]
    said = mask_tokens(": ".join([*errors[-1:], *causes[:1]]) or next(reversed(lines), ""))
    if any(_UNREACHABLE.search(line) for line in lines):
        return f"the package index can't be reached: {said}"
    return said


def run_quietly(command: Sequence[str]) -> str:
    """Returns what it printed. Raises ``CalledProcessError`` with that, ``OSError`` where it can't
    be started.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
