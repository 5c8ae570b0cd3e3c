"""A run keeps each point, goes on where it was, and is told of what it could not measure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.growth import command
from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Step
from perf.growth.axes.named import AXES
from perf.growth.command import Asked, run
from perf.in_use import in_use
from perf.report.schema import (
    MEASUREMENTS_FILE,
    Measurement,
    append,
    read_measurements,
    read_run,
    write_run,
)


@dataclass
class FakeAxis:
    """An axis whose costs are computed: linear in time, quadratic in memory. Its session can fail,
    die, or be interrupted at a step.
    """

    name: str = "clients"
    fails_at: int = 0
    interrupted_at: int = 0
    memory_mib: float = 10.0
    needs_gib: dict[int, float] = field(default_factory=dict)
    measured: list[tuple[int, int]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    @property
    def axis(self) -> Axis:
        return Axis(
            name=self.name,
            title="Fakes",
            unit=AXES[self.name].unit,
            points=(1, 2, 4),
            quick_points=(1, 2),
            highest=100,
            targets=AXES[self.name].targets[:1],
            charts=(Chart("Cost", ("latency_p50_s",)), Chart("Memory", ("peak_memory_mib",))),
            session=self.session,
            note="Computed.",
            repeats=2,
            memory_gib=lambda value: self.needs_gib.get(value, 0.0),
        )

    @contextlib.contextmanager
    def session(self, place: Place) -> Iterator[Measure]:
        self.opened += 1
        assert place.folder.is_dir()
        try:
            yield self.costs
        finally:
            self.closed += 1

    def costs(self, step: Step) -> Iterator[Cost]:
        if step.value == self.fails_at:
            raise PerfError("the server died")
        if step.value == self.interrupted_at:
            raise KeyboardInterrupt
        self.measured.append((step.value, step.repeat))
        figures = {
            "latency_p50_s": 0.1 * step.value,
            "peak_memory_mib": self.memory_mib * step.value**2,
        }
        yield Cost(AXES[self.name].targets[0], figures, 1.0, 10)


def asked(folder: Path, fakes: Sequence[FakeAxis], **values: object) -> Asked:
    made = Asked([fake.axis for fake in fakes], {}, False, None, 0, folder, ["perf", "growth"])
    return replace(made, **values)  # type: ignore[arg-type]


def test_every_point_is_measured_before_any_is_repeated(tmp_path: Path) -> None:
    fake = FakeAxis()
    assert run(asked(tmp_path / "run", [fake])) == 0
    assert fake.measured == [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)]
    assert (fake.opened, fake.closed) == (1, 1)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", MEASUREMENTS_FILE, "growth.md", "growth.html", "run.csv"} <= names


def test_a_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    first, second = FakeAxis(interrupted_at=4), FakeAxis()
    assert run(asked(tmp_path, [first])) == 130
    assert first.closed == 1
    assert run(asked(tmp_path, [second])) == 0
    assert second.measured == [(4, 0), (1, 1), (2, 1), (4, 1)]
    assert len(read_measurements(tmp_path)) == 6
    again = FakeAxis()
    assert run(asked(tmp_path, [again])) == 0
    assert (again.measured, again.opened) == ([], 0)


def test_an_axis_that_fails_leaves_the_others(tmp_path: Path) -> None:
    broken, sound = FakeAxis(fails_at=2), FakeAxis("prompts")
    with pytest.raises(PerfError, match="clients: the server died"):
        run(asked(tmp_path, [broken, sound]))
    assert broken.measured == [(1, 0)]
    assert broken.closed == 1
    assert len(sound.measured) == 6
    assert (tmp_path / "growth.html").exists()


def test_points_that_the_memory_is_too_small_for_are_left_out(tmp_path: Path) -> None:
    fake = FakeAxis(needs_gib={4: 1e6})
    with pytest.raises(PerfError, match="not enough memory for 4 clients"):
        run(asked(tmp_path, [fake]))
    assert fake.measured == [(1, 0), (2, 0), (1, 1), (2, 1)]


def test_quick_is_few_points_once(tmp_path: Path) -> None:
    fake = FakeAxis()
    run(asked(tmp_path, [fake], quick=True))
    assert fake.measured == [(1, 0), (2, 0)]
    run(asked(tmp_path, [fake], points={"clients": (2, 8)}, repeats=1))
    assert fake.measured[2:] == [(8, 0)]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "sweep"}, "holds a run of sweep"),
        ({"hardware": {"cpu": "another"}}, "measured on another machine"),
        ({"scenario": {"seed": 7}}, "has another --seed"),
    ],
)
def test_another_run_is_not_gone_on_with(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    run(asked(tmp_path, [FakeAxis()]))
    write_run(tmp_path, replace(read_run(tmp_path), **change))  # type: ignore[arg-type]
    with pytest.raises(PerfError, match=message):
        run(asked(tmp_path, [FakeAxis()], points={"clients": (8,)}))
    assert len(read_measurements(tmp_path)) == 6


def test_another_commit_is_noted(tmp_path: Path) -> None:
    run(asked(tmp_path, [FakeAxis()]))
    write_run(tmp_path, replace(read_run(tmp_path), commit="an-older-one"))
    run(asked(tmp_path, [FakeAxis()]))
    assert read_run(tmp_path).notes[0].startswith("went on at commit ")
    assert "went on at commit" in (tmp_path / "growth.md").read_text()


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PerfError, match=r"file.*Not a directory|file.*File exists"):
        run(asked(tmp_path / "file" / "run", [FakeAxis()]))


def test_a_full_disk_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append_until_full(folder: Path, measurement: Measurement) -> None:
        if len(read_measurements(folder)) == 2:
            raise OSError(28, "No space left on device", str(folder / MEASUREMENTS_FILE))
        append(folder, measurement)

    monkeypatch.setattr(command, "append", append_until_full)
    fake = FakeAxis()
    with pytest.raises(PerfError, match="No space left on device; what is measured is in"):
        run(asked(tmp_path, [fake]))
    assert fake.closed == 1
    assert len(read_measurements(tmp_path)) == 2


def test_the_report_marks_what_is_worse_than_linear_and_asks_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(asked(tmp_path, [FakeAxis()]))
    markdown = (tmp_path / "growth.md").read_text()
    assert "latency p50: grows like n^1.00 (± 0.00) from 1 to 4: linear" in markdown
    assert "**grows like n^2.00 (± 0.00) from 1 to 4: worse than linear" in markdown
    assert "Not explained yet" in markdown
    assert "| 4 | 400 ms |" in markdown
    out = capsys.readouterr().out
    assert "! in-flight engine, peak memory: grows like n^2.00" in out


def test_the_page_needs_no_other_file_and_no_script(tmp_path: Path) -> None:
    run(asked(tmp_path, [FakeAxis()]))
    page = (tmp_path / "growth.html").read_text()
    assert page.count('<svg class="plot"') == 2
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert json.loads((tmp_path / "report.json").read_text())["kind"] == "growth"


def test_what_is_too_little_to_measure_is_told_without_a_plot(tmp_path: Path) -> None:
    fake = FakeAxis(memory_mib=0.0)
    assert run(asked(tmp_path, [fake])) == 0
    page = (tmp_path / "growth.html").read_text()
    assert page.count('<svg class="plot"') == 1
    assert "peak memory: too little to measure" in page


def test_one_run_at_a_time_writes_in_a_folder(tmp_path: Path) -> None:
    with in_use(tmp_path / "run"), pytest.raises(PerfError, match="another measurement"):
        run(asked(tmp_path / "run", [FakeAxis()]))
