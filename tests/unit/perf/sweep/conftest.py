from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf.sweep import server
from perf.sweep.sweeping import Options
from tests.unit.perf.sweep.fake_triton import FakeTriton
from tests.unit.perf.sweep.fake_triton import fake_triton as serving

FAKE = Path(__file__).with_name("fake_perf_analyzer.py")


@pytest.fixture
def fake_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTriton]:
    # A server in this process may be slow on a busy machine; it is never silent.
    monkeypatch.setattr(server, "TIMEOUT_S", 60.0)
    with serving() as fake:
        yield fake


@dataclass
class FakeAnalyzer:
    """The program in a folder of its own."""

    folder: Path

    def go_wrong(self, how: str) -> None:
        (self.folder / "wrong").write_text(how)

    def calls(self) -> list[str]:
        """The arguments of every load, warm-ups left out."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if "--request-count" not in line]


@pytest.fixture
def analyzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAnalyzer:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "perf_analyzer"
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return FakeAnalyzer(folder)


@pytest.fixture
def options(
    tmp_path: Path, fake_triton: FakeTriton, analyzer: FakeAnalyzer
) -> Callable[[str], Options]:
    """The command line over a scenario's text."""

    def make(text: str) -> Options:
        scenario = tmp_path / "s.yaml"
        scenario.write_text(text)
        return Options(
            scenario=scenario,
            config=tmp_path / "models.yaml",
            repository=tmp_path / "model_repository",
            output=tmp_path / "run",
            url=fake_triton.addresses,
        )

    return make
