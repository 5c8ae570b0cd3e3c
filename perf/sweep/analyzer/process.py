"""Runs perf_analyzer to its end, or ends it: its time is over, the server is silent, or we are
asked to stop. Nothing of it is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.errors import mask_tokens
from perf.orphans import end, ends_with_us
from perf.sweep.analyzer.finding import Analyzer

_POLL_S = 0.1
_MOST_SAID = 400
_UNSTABLE = "Failed to obtain stable measurement"
_NOTHING_DONE = "No valid requests recorded"
_EMPTY_PHRASES = ("Failed to retrieve results", "WARNING", "Usage:", "perf_analyzer: ")
_THREAD = re.compile(r"^Thread \[\d+\] had error: ")


@dataclass(frozen=True)
class Ended:
    """How it ended. ``said`` is its standard error; ``given_up`` why we ended it, if we did."""

    code: int
    said: str
    given_up: str = ""

    @property
    def is_unstable(self) -> bool:
        """Its windows did not agree, which is all that was wrong."""
        return self.code != 0 and not self.given_up and _UNSTABLE in self.said

    @property
    def has_nothing(self) -> bool:
        """No request ended within a window."""
        return self.code != 0 and _NOTHING_DONE in self.said

    def reason(self) -> str:
        """One line of what went wrong."""
        if self.given_up:
            return self.given_up
        lines = [line.strip() for line in self.said.splitlines()]
        telling = [line for line in lines if line and not line.startswith(_EMPTY_PHRASES)]
        line = _THREAD.sub("", telling[0]) if telling else f"ended with exit code {self.code}"
        return mask_tokens(line)[:_MOST_SAID]


def run(
    analyzer: Analyzer,
    command: Sequence[str],
    folder: Path,
    timeout_s: float,
    give_up: Callable[[], str],
) -> Ended:
    """Runs a command line of commands.py in ``folder``; ``give_up`` says why not to wait any
    longer, and nothing while there is none.

    Raises OSError where it can't be started.
    """
    deadline = time.monotonic() + timeout_s
    process = subprocess.Popen(
        [analyzer.path, *command[1:]],
        cwd=folder,
        env={**os.environ, **analyzer.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C of the terminal is ours
        preexec_fn=ends_with_us(signal.SIGKILL),
    )
    with process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=_POLL_S)
                    return Ended(process.returncode, said)
                why = give_up()
                if not why and time.monotonic() > deadline:
                    why = f"not done after {timeout_s:.0f} s; see timeout_s in the scenario"
                if why:
                    return Ended(-1, "", why)
        finally:
            end(process, 0.0)
