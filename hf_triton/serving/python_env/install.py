"""Runs uv or pip for an environment, reports its progress, and says in one line why it failed.

The package index is the one that it is configured with; a password in its URL is never printed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from generator.errors import mask_tokens

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
