"""Runs pip for an environment, reports its progress, and says in one line why it failed.

The package index is the one that pip is configured with; a password in its URL is never printed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from generator.errors import mask_tokens
from generator.python_modules import run_module

_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
_STEPS = ("Collecting ", "Downloading ", "Building ", "Installing ")
_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError|"
    r"ConnectTimeoutError|ReadTimeoutError|Connection refused|SSLError"
)
_FULL = "[Errno 28] No space left on device"
_NUM_KEPT_LINES = 200
_NUM_SHOWN_LINES = 5
_MAX_SHOWN = 100
_MAX_LAST = 240


class InstallError(Exception):
    """pip did not install something; its text is one line, ``last_lines`` what pip printed last."""

    def __init__(self, text: str, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.last_lines = last_lines


def install(python: str, words: Sequence[str], show: Callable[[str], object]) -> None:
    """``pip install`` of ``words`` in the environment of ``python``.

    Raises ``InstallError``, and ``OSError`` where there is no such interpreter.
    """
    run_pip(run_module("pip", python=python), words, None, show=show)


def run_pip(
    pip: Sequence[str],
    words: Sequence[str],
    folder: Path | None,
    *,
    show: Callable[[str], object],
    keep_open: int | None = None,
) -> None:
    """As ``install``, from ``folder``, where paths of local wheels start; ``pip`` is how pip is
    called, and has a file of ours open.
    """
    lines: list[str] = []
    with subprocess.Popen(
        [*pip, "install", *_OPTIONS, *words],
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
        why = reason(lines) or f"pip ended with exit code {process.returncode}"
        raise InstallError(why, tuple(shown[-_NUM_SHOWN_LINES:]))


def reason(lines: Sequence[str]) -> str:
    """Why pip failed, out of what it printed."""
    if any(_FULL in line for line in lines):
        return f"no space is left on the disk: {_FULL}"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = mask_tokens(errors[-1] if errors else next(reversed(lines), ""))
    if any(_UNREACHABLE.search(line) for line in lines):
        return f"pip can't reach its package index: {said}"
    return said


def run_quietly(command: Sequence[str]) -> None:
    """Raises ``CalledProcessError`` with what it printed, ``OSError`` where it can't be started."""
    subprocess.run(command, check=True, capture_output=True, text=True)
