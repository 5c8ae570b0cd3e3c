"""Runs one level in a process of its own, reads its answers as they come, and sums them up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from perf.load.level_process import LevelArguments
from perf.load.measure import Level, Record, summarize
from perf.load.targets import Target

ROOT = Path(__file__).parents[2]
LOAD_NICENESS = "5"  # the load generator gives way to the server


def http_command(target: Target, port: int, model: str | None = None) -> list[str]:
    """The load generator against a server on ``port`` of this machine; ``model`` is the target's
    name there.
    """
    named = ["--target", target.name, "--model", model or target.name]
    return load_generator("perf.load.http_load", *named, "--port", str(port))


def stream_command(transport: str, port: int, model: str) -> list[str]:
    """The load generator that reads streams, over ``sse`` or ``grpc``."""
    return load_generator(
        "perf.load.stream_load", "--transport", transport, "--model", model, "--port", str(port)
    )


def load_generator(module: str, *arguments: str) -> list[str]:
    """The command line of one, with a lower priority than the servers'."""
    return ["nice", "-n", LOAD_NICENESS, sys.executable, "-m", module, *arguments]


def in_process_command(model_folder: Path) -> list[str]:
    """The engine and its load in one process."""
    module = [sys.executable, "-m", "perf.load.in_process"]
    path = f"PYTHONPATH={ROOT / 'model_templates'}"
    return ["env", path, *module, "--folder", str(model_folder)]


def measure(
    command: Sequence[str], arguments: LevelArguments, on_answer: Callable[[int], object]
) -> Level:
    """Run ``command`` for one level and sum it up; as ``records_of``."""
    return summarize(records_of(command, arguments, on_answer), arguments.clients)


def records_of(
    command: Sequence[str], arguments: LevelArguments, on_answer: Callable[[int], object]
) -> list[Record]:
    """Run ``command`` for one level, calling ``on_answer`` with the number of answers so far.

    Raises ``subprocess.CalledProcessError`` when it fails; its messages go to our stderr.
    """
    records = []
    command = [*command, *arguments.command_line()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            records.append(Record(**json.loads(line)))
            on_answer(len(records))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return records
