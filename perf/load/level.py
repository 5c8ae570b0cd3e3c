"""Runs one level in a process of its own, reads its answers as they come, and sums them up."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from perf.load.level_process import LevelArguments
from perf.load.measure import Record
from perf.load.targets import Target

ROOT = Path(__file__).parents[2]
LOAD_NICENESS = "5"  # the load generator gives way to the server


def http_command(target: Target, port: int, model: str | None = None) -> list[str]:
    """The load generator against a server on ``port`` of this machine; ``model`` is the target's
    name there.
    """
    named = ["--target", target.name, "--model", model or target.name]
    return load_generator("perf.load.http_load", *named, "--port", str(port))


def stream_command(transport: str, port: int, model: str = "") -> list[str]:
    """The load generator that reads streams, over one of ``stream_load.TRANSPORTS``."""
    return load_generator(
        "perf.load.stream_load", "--transport", transport, "--model", model, "--port", str(port)
    )


def load_generator(module: str, *arguments: str) -> list[str]:
    """The command line of one, with a lower priority than the servers'."""
    return ["nice", "-n", LOAD_NICENESS, sys.executable, "-m", module, *arguments]


class LevelError(subprocess.CalledProcessError):
    """A load generator that failed; its text is the last line that it printed."""

    def __str__(self) -> str:
        printed = str(self.stderr or "").strip().splitlines()
        return printed[-1] if printed else super().__str__()


def records_of(
    command: Sequence[str], arguments: LevelArguments, on_answer: Callable[[int], object]
) -> list[Record]:
    """Run ``command`` for one level, calling ``on_answer`` with the number of answers so far.

    Raises ``LevelError`` when it fails. It is ended where this process is interrupted.
    """
    records = []
    command = [*command, *arguments.command_line()]
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                records.append(Record(**json.loads(line)))
                on_answer(len(records))
        except BaseException:
            process.kill()
            raise
        if process.wait():
            printed.seek(0)
            raise LevelError(process.returncode, command, stderr=printed.read())
    return records
