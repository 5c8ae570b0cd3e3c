"""One run: the environment, the device, then section after section, each in a process of its own
for as long as it may take, kept as they are finished. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from perf import machine
from perf.gpu import environment, report
from perf.gpu.plan import FAKE, Section
from perf.gpu.results import NOT_FINISHED, SCHEMA_VERSION, Measured, Results, say
from perf.orphans import end, ends_with_us, our_environment

ROOT = Path(__file__).parents[2]
_GRACE_S = 10.0  # for a server that the section started
_MACHINE_LIMIT_S = 180.0  # the first import of torch from a cold disk
_LEAST_SHARE = 1 / 3  # of a section's limit: with less left of the budget it is not begun
_NUMPY_FOR_SERVER = 2  # the embedded server's stub crashes on arrays of numpy 2


class NoDeviceError(PerfError):
    """There is nothing to measure on, or not with; the text is one line for the user."""


@dataclass
class Run:
    """What the command line says; ``folder`` is temporary, no ``device`` means the first GPU, or a
    fake one where there is none.
    """

    device: str
    seed: int
    output: Path
    folder: Path
    budget_s: float
    command: str
    created: str
    again: bool = False
    python: str = sys.executable
    found: dict[str, Any] = field(default_factory=dict)  # the device, torch, what is missing
    has_server: bool = False

    @property
    def path(self) -> Path:
        """Of the results."""
        return self.output.with_name(f"{self.output.name}.json")

    @property
    def is_fake(self) -> bool:
        return self.device == FAKE

    def prepare(self, wheels: Sequence[Path], libpython: Path | None) -> None:
        """Makes the environment where wheels are given, and looks at the device.

        Raises PerfError, OSError, ValueError.
        """
        self._code = machine.code()
        self._begun_s = time.monotonic()
        self.results = Results(SCHEMA_VERSION, machine.hardware(), machine.versions())
        if self.path.exists():
            self.results.sections = Results.read(self.path).sections
        if wheels:
            self.python = str(environment.make(self.folder / "environment", wheels, libpython))
        names = map(environment.check_wheel, wheels)
        self.has_server = on_path() or environment.SERVER in names
        self.has_server = self.has_server or environment.is_installed(environment.SERVER)
        looking = Results(SCHEMA_VERSION, {}, {})
        looked = self._run(looking, self.folder / "machine.json", "machine", _MACHINE_LIMIT_S)
        if looked.state != "done":
            raise NoDeviceError(looked.state.partition(": ")[2] or looked.state)
        self.found = looked.figures[0].row
        self.device = str(self.found.pop("device_name"))
        if self.is_fake:
            say(report.fake_line(self.found))

    def measure(self, sections: Sequence[Section]) -> bool:
        """Measures them in turn, but for what is measured already, and prints the report; returns
        whether none failed and all agrees.
        """
        measured: list[str] = []
        try:
            for section in sections:
                measured.append(section.name)
                if self._is_kept(section.name):
                    say(f"{section.name}: kept, of {self.results.sections[section.name].created}")
                else:
                    self._measure(section)
        finally:
            names = [name for name in measured if name in self.results.sections]
            self._report(names)
        return not any(self.results.sections[name].is_bad for name in names)

    def _is_kept(self, name: str) -> bool:
        """Whether the results have the section whole, of this code, device and versions."""
        found = self.results.sections.get(name)
        if self.again or found is None or found.state != "done":
            return False
        now = self._begun("")
        return (found.commit, found.code, found.device) == (now.commit, now.code, now.device)

    def _measure(self, section: Section) -> None:
        if reason := self._cannot(section):
            self.results.sections[section.name] = self._begun(reason)
            self.results.write(self.path)
            say(f"{section.name}: {reason}")
            return
        limit_s = min(section.limit_s, self._left_s())
        say(f"{section.name}: {section.title}, at most {limit_s:.0f} s")
        measured = self._run(self.results, self.path, section.name, limit_s)
        say(f"{section.name}: {measured.state}, {measured.duration_s:.0f} s")

    def _run(self, results: Results, path: Path, name: str, limit_s: float) -> Measured:
        """Runs one section, which writes ``results`` to ``path``: its figures are on the disk,
        however it ends.
        """
        folder, begun_s, ended = self.folder / name, time.monotonic(), NOT_FINISHED
        results.sections[name] = self._begun(NOT_FINISHED)
        results.write(path)
        try:
            folder.mkdir()
            ended = supervised(self._command(name, path), limit_s)
        except KeyboardInterrupt:
            ended = "cut off: interrupted"
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            measured = results.sections[name] = Results.read(path).sections[name]
            if measured.state == NOT_FINISHED:
                measured.state = ended
            measured.duration_s = time.monotonic() - begun_s
            results.write(path)
        return measured

    def _begun(self, state: str) -> Measured:
        device = {key: value for key, value in self.found.items() if key != "missing_for_serving"}
        commit = machine.commit()
        return Measured(state, self.created, self.command, commit, device, code=self._code)

    def _cannot(self, section: Section) -> str:
        """Why a section is not begun; empty where it is."""
        if (left_s := self._left_s()) < section.limit_s * _LEAST_SHARE:
            return f"not begun: {max(0, left_s):.0f} s were left of --budget-s"
        if not section.serves:
            return ""
        if not self.has_server:
            return "skipped: no tritonserver here: put nvidia-pytriton's wheel in --wheels DIR"
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
        return self.budget_s - (time.monotonic() - self._begun_s)

    def _command(self, name: str, path: Path) -> list[str]:
        values = {
            "--results": path,
            "--device": self.device or "any",
            "--folder": self.folder / name,
            "--seed": self.seed,
        }
        words = [str(word) for pair in values.items() for word in pair]
        return [self.python, "-m", "perf.gpu.section", name, *words]

    def _report(self, names: list[str]) -> None:
        text = report.to_markdown(self.results)
        path = self.output.with_name(f"{self.output.name}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(text, end="")
        for line in report.summary(self.results, names):
            say(line)
        say(f"written: {path} and {self.path.name}")


def supervised(command: Sequence[str], limit_s: float) -> str:
    """Runs a section's process for so many seconds at most; what it says goes to our stderr.
    Returns how it ended, for where it could not say so itself.
    """
    found = our_environment()
    variables = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "model_templates"), found["PYTHONPATH"]]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",  # there is no network, and nothing to fetch
    }
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**found, **variables},
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
        preexec_fn=ends_with_us(signal.SIGTERM),
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"cut off: it took longer than {limit_s:.0f} s"
    finally:
        end(process, _GRACE_S)
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"failed: its process ended: {how}"


def on_path() -> bool:
    """Whether there is a tritonserver of its own, as in NVIDIA's container."""
    return shutil.which("tritonserver") is not None
