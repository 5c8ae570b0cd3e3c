"""Runs one section in a process of its own, for as long as it may take.

The process writes a line of JSON for each figure; what else it has to say goes to our stderr. It
ends when its stdin closes: so nothing of it outlives this process. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_GRACE_S = 10.0  # for a server that the section started


def run(
    command: Sequence[str], limit_s: float, take: Callable[[dict[str, Any]], object]
) -> tuple[str, float]:
    """Hands every line's object to ``take``; returns how it ended, as ``Measured.state``, and how
    long it took in seconds.
    """
    begun_s = time.monotonic()
    said: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def read() -> None:
        for line in process.stdout or ():
            values = json.loads(line)
            if "state" in values:
                said.append(values["state"])
            else:
                take(values)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        process.wait(limit_s)
        reader.join(_GRACE_S)
        state = said[0] if said else f"failed: its process ended: {_how(process.returncode)}"
    except subprocess.TimeoutExpired:
        state = f"cut off: it took longer than {limit_s:.0f} s"
    finally:
        _end(process)
        reader.join(_GRACE_S)
        if process.stdout and not reader.is_alive():
            process.stdout.close()
    return state, time.monotonic() - begun_s


def environment() -> dict[str, str]:
    """What a section's process sees: the checkout's modules, and no progress bars."""
    path = [str(ROOT), str(ROOT / "model_templates"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",  # there is no network, and nothing to fetch
    }


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[str]) -> None:
    """Closes its stdin, at which it ends; kills it where it does not."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
