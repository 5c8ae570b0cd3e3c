"""One run: the environment, the device, then section after section, kept as they are finished."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import machine
from perf.gpu import environment, report, supervise
from perf.gpu.plan import Section
from perf.gpu.results import Measured, Results, figure_of

_MACHINE_LIMIT_S = 180.0  # the first import of torch from a cold disk
_LEAST_S = 15.0  # with less left of the budget no section is begun
_NUMPY_FOR_SERVER = 2  # the embedded server's stub crashes on arrays of numpy 2


class NoDeviceError(Exception):
    """There is nothing to measure on, or not with; the text is one line for the user."""


@dataclass
class Run:
    """What the command line says; ``folder`` is temporary."""

    device: str
    tiny: bool
    seed: int
    output: Path
    folder: Path
    budget_s: float | None
    command: str
    created: str
    python: str = sys.executable
    found: dict[str, Any] = field(default_factory=dict)  # the device, torch, what is missing
    has_server: bool = False

    def prepare(self, wheels: Sequence[Path], libpython: Path | None) -> None:
        """Makes the environment where wheels are given, and looks at the device.

        Raises NoDeviceError, WheelError, OSError.
        """
        self._begun_s = time.monotonic()
        path = self.output.with_name(f"{self.output.name}.json")
        self.results = Results(path, machine.hardware(), machine.versions())
        self.results.keep()
        if wheels:
            self.python = str(environment.make(self.folder / "environment", wheels, libpython))
        names = map(environment.check_wheel, wheels)
        self.has_server = on_path() or environment.SERVER in names
        self.has_server = self.has_server or environment.is_installed(environment.SERVER)
        taken: list[dict[str, Any]] = []
        state, _ = supervise.run(self._command("machine"), _MACHINE_LIMIT_S, taken.append)
        if state != "done":
            raise NoDeviceError(state.partition(": ")[2] or state)
        self.found = figure_of(taken[0]).row

    def measure(self, sections: Sequence[Section]) -> bool:
        """Measures them in turn and prints the report; returns whether none failed."""
        measured: list[str] = []
        try:
            for section in sections:
                measured.append(section.name)
                self._measure(section)
        finally:
            names = [name for name in measured if name in self.results.sections]
            self._report(names)
        return not any(self.results.sections[name].is_bad for name in names)

    def _measure(self, section: Section) -> None:
        """One section; every figure is on the disk before the next is measured."""
        device = {key: value for key, value in self.found.items() if key != "missing_for_serving"}
        measured = Measured("not finished", self.created, self.command, machine.commit(), device)
        if reason := self._cannot(section):
            measured.state = reason
            self.results.put(section.name, measured)
            say(f"{section.name}: {reason}")
            return

        def take(values: dict[str, Any]) -> None:
            measured.figures.append(figure_of(values))
            self.results.put(section.name, measured)
            say(report.one_line(section.name, measured.figures[-1]))

        limit_s = min(section.limit_s, self._left_s())
        folder = self.folder / section.name
        try:
            folder.mkdir()
            say(f"{section.name}: {section.title}, at most {limit_s:.0f} s")
            command = self._command(section.name)
            measured.state, measured.duration_s = supervise.run(command, limit_s, take)
        except KeyboardInterrupt:
            measured.state = "cut off: interrupted"
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self.results.put(section.name, measured)
        say(f"{section.name}: {measured.state}, {measured.duration_s:.0f} s")

    def _cannot(self, section: Section) -> str:
        """Why a section is not begun; empty where it is."""
        if self._left_s() < _LEAST_S:
            return "cut off: nothing was left of --budget-s"
        if not section.serves:
            return ""
        if not self.has_server:
            return "skipped: no tritonserver here: --pytriton-wheel PATH"
        if missing := self.found["missing_for_serving"]:
            return f"failed: these can't be imported: {missing}; put their wheels in --wheels DIR"
        numpy = self.found["numpy"]
        if int(numpy.partition(".")[0]) >= _NUMPY_FOR_SERVER and not on_path():
            return (
                f"failed: the embedded server can't work with numpy {numpy}: put a wheel of numpy "
                "1.26 in --wheels DIR"
            )
        return ""

    def _left_s(self) -> float:
        if self.budget_s is None:
            return float("inf")
        return self.budget_s - (time.monotonic() - self._begun_s)

    def _command(self, name: str) -> list[str]:
        folder = self.folder / name
        words = [name, "--device", self.device, "--folder", str(folder), "--seed", str(self.seed)]
        return [self.python, "-m", "perf.gpu.section", *words, *["--tiny"] * self.tiny]

    def _report(self, names: list[str]) -> None:
        text = report.to_markdown(self.results)
        path = self.output.with_name(f"{self.output.name}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(text)
        for line in report.summary(self.results, names):
            say(line)
        say(f"written: {path} and {self.results.path.name}")


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def on_path() -> bool:
    """Whether there is a tritonserver of its own, as in NVIDIA's container."""
    return shutil.which("tritonserver") is not None
