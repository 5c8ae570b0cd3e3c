"""Starts the load generator as a process of its own, tells it levels, and reads its records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Record

ROOT = Path(__file__).parents[2]
LOAD_NICENESS = "5"  # the load generator gives way to the server


class LevelError(Exception):
    """A load generator that failed; its text is the last line that it printed."""


def http_command(target: Target | str, port: int, model: str = "") -> list[str]:
    """The load generator against a server on ``port`` of this machine, over one of
    ``targets.TARGETS``; ``model`` is its name there, the target's where empty.
    """
    name = target if isinstance(target, str) else target.name
    named = ["--target", name, "--model", model or name, "--port", str(port)]
    return ["nice", "-n", LOAD_NICENESS, sys.executable, "-m", "perf.load", *named]


def in_process_command(folder: Path) -> list[str]:
    """The engine of the generated model in ``folder``, with its callers and no server."""
    return [sys.executable, "-m", "perf.load.in_process", "--folder", str(folder)]


class Generator:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str], printed: IO[str]) -> None:
        self._process, self._printed = process, printed
        self.pid = process.pid

    def records_of(
        self, arguments: LevelArguments, on_answer: Callable[[int], object] = lambda _: None
    ) -> list[Record]:
        """Run one level, calling ``on_answer`` with the number of answers so far.

        Raises ``LevelError``.
        """
        records = list[Record]()
        for record in self.each(arguments):
            records.append(record)
            on_answer(len(records))
        return records

    def each(self, arguments: LevelArguments) -> Iterator[Record]:
        """Run one level; each record as it comes. Raises ``LevelError``, also after ``stop``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(arguments.to_json() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error() from None
        for line in self.lines():
            yield Record(**json.loads(line))

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()

    def lines(self) -> Iterator[str]:
        """What it prints until an empty line. Raises ``LevelError`` when it ends before that."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.strip():
                return
            yield line
        raise self._error()

    def _error(self) -> LevelError:
        code = self._process.wait()
        self._printed.seek(0)
        printed = self._printed.read().strip().splitlines()
        return LevelError(printed[-1] if printed else f"the load generator ended: exit code {code}")


@contextmanager
def generator(command: Sequence[str]) -> Iterator[Generator]:
    """``command`` running and ready for levels; ended with the block. Raises ``LevelError``."""
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            start_new_session=True,  # Ctrl-C is for its parent, which ends it
        ) as process,
    ):
        running = Generator(process, printed)
        try:
            list(running.lines())
            yield running
        finally:
            process.kill()


def records_of(
    command: Sequence[str],
    arguments: LevelArguments,
    on_answer: Callable[[int], object] = lambda _: None,
) -> list[Record]:
    """Run ``command`` for one level. Raises ``LevelError``."""
    with generator(command) as running:
        return running.records_of(arguments, on_answer)
