"""A process that holds an engine without a server, and runs one level of its load at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from perf.load.level import ROOT
from perf.load.level_process import LevelArguments
from perf.load.measure import Record


class ResidentError(Exception):
    """The process ended by itself."""


class Resident:
    """A running one: it is told a level as a line of JSON, and answers with a line per request and
    an empty one.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def records_of(
        self, arguments: LevelArguments, on_answer: Callable[[int], object]
    ) -> list[Record]:
        """Runs one level, calling ``on_answer`` with the number of answers so far.

        Raises ``ResidentError``, ``BrokenPipeError``.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments.command_line()) + "\n")
        self._process.stdin.flush()
        records = list[Record]()
        for line in self.lines():
            records.append(Record(**json.loads(line)))
            on_answer(len(records))
        return records

    def lines(self) -> Iterator[str]:
        """What it prints until an empty line. Raises ``ResidentError`` when it ends before that."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.strip():
                return
            yield line
        raise ResidentError(f"the engine's process ended: exit code {self._process.wait()}")


@contextmanager
def resident(module: str, arguments: Sequence[str]) -> Iterator[Resident]:
    """The process of ``module``, loaded. Raises ``ResidentError``."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "model_templates")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for its parent, which ends it
    ) as process:
        engine = Resident(process)
        try:
            list(engine.lines())
            yield engine
        finally:
            process.kill()
