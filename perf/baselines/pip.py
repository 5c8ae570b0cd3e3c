"""Runs pip in an environment, tells what it is at, and says in one line why it failed.

Its index is whichever pip is configured with; what could be a password in it is never repeated.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
_STEPS = ("Collecting ", "Downloading ", "Building ", "Installing ")
_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError|"
    r"ConnectTimeoutError|ReadTimeoutError|Connection refused|SSLError"
)
_FULL = "[Errno 28] No space left on device"
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
_NUM_KEPT_LINES = 200


class InstallError(Exception):
    """pip did not install something; its text is one line."""


def install(python: str, words: Sequence[str], show: Callable[[str], object]) -> None:
    """``pip install`` of ``words`` in the environment of ``python``.

    Raises ``InstallError``, and ``OSError`` where there is no such interpreter.
    """
    lines: list[str] = []
    command = [python, "-m", "pip", "install", *_OPTIONS, *words]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines = [*lines[-_NUM_KEPT_LINES:], line.strip()]
                if line.strip().startswith(_STEPS):
                    show(without_credentials(line.strip())[:60])
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise InstallError(reason(lines) or f"pip ended with exit code {process.returncode}")


def reason(lines: Sequence[str]) -> str:
    """Why pip failed, out of what it printed."""
    if any(_FULL in line for line in lines):
        return f"no space is left on the disk: {_FULL}"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = without_credentials(errors[-1] if errors else next(reversed(lines), ""))
    if any(_UNREACHABLE.search(line) for line in lines):
        return f"pip can't reach its package index: {said}"
    return said


def without_credentials(text: str) -> str:
    """``text`` without the user and password of a URL."""
    return _CREDENTIALS.sub(r"\1***@", text)


def run_quietly(command: Sequence[str]) -> None:
    """Raises ``CalledProcessError`` with what it printed, ``OSError`` where it can't be started."""
    subprocess.run(command, check=True, capture_output=True, text=True)
