from __future__ import annotations

import itertools
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perf.report.metrics import THROUGHPUT, plain, shown
from perf.report.plots.panels import RUN, panels
from perf.report.points import points
from perf.report.rendering import write_renderings
from perf.report.schema import Load, Measurement
from tests.unit.perf.report import example_runs


def measured(*loads: Load) -> list[Measurement]:
    drawn = random.Random(0)
    return [example_runs.measured(load, 0, drawn) for load in loads]


def loads(target: str, endpoint: str = "http-infer", **settings: str | int) -> list[Load]:
    return [Load(target, endpoint, concurrency=n, settings=settings) for n in (1, 2, 4)]


def test_each_target_has_a_panel_and_each_endpoint_a_line() -> None:
    of_each = [loads(t, e) for t in ("a", "b") for e in ("http-infer", "grpc-infer")]
    found = panels("sweep", points(measured(*itertools.chain(*of_each))))
    assert [panel.title for panel in found] == ["a", "b"]
    assert [line.label for line in found[0].lines] == ["http-infer", "grpc-infer"]


def test_targets_with_one_line_each_stand_together() -> None:
    found = panels("sweep", points(measured(*loads("a"), *loads("b"))))
    assert [[line.label for line in panel.lines] for panel in found] == [["a", "b"]]


def test_baselines_are_compared_within_what_they_share() -> None:
    of_each = [loads(t, dtype=d) for t in ("ours", "vllm") for d in ("float32", "bfloat16")]
    found = panels("baselines", points(measured(*itertools.chain(*of_each))))
    assert [panel.title for panel in found] == ["dtype float32", "dtype bfloat16"]
    assert [line.label for line in found[0].lines] == ["ours", "vllm"]


def test_two_runs_are_lines_of_one_panel() -> None:
    both = [*measured(*loads("a", **{RUN[1]: "A"})), *measured(*loads("a", **{RUN[1]: "B"}))]
    found = panels("comparison", points(both))
    assert [[line.label for line in panel.lines] for panel in found] == [["A", "B"]]


def test_the_axis_is_the_number_that_varies() -> None:
    prompts = [Load("a", "x", concurrency=8, prompt_tokens=str(n)) for n in (16, 64, 256)]
    (panel,) = panels("sweep", points(measured(*prompts)))
    assert panel.axis == ("load", "prompt_tokens")
    assert len(panel.lines) == 1


def test_repeats_are_one_point_in_whatever_order_settings_stand() -> None:
    first = Load("a", "x", concurrency=1, settings={"m": 1, "n": 2})
    second = replace(first, settings={"n": 2, "m": 1})
    (point,) = points(measured(first, second))
    assert len(point.repeats) == 2
    spread = point.spread(THROUGHPUT)
    assert spread is not None
    assert spread.least <= spread.middle <= spread.most


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        (0.0, "0"),
        (0.00001, "1.0e-05"),
        (0.12345, "0.123"),
        (9.9999, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (12, "12"),
    ],
)
def test_numbers_have_as_many_digits_as_mean_something(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_ticks_have_no_needless_digits() -> None:
    assert [plain(value) for value in (0.5, 20.0, 1500.0, 2.5e6)] == ["0.5", "20", "1,500", "2.5M"]


def test_without_matplotlib_the_page_says_how_to_get_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example_runs.write(tmp_path, example_runs.sweep(("demo",), ("http-infer",), (1, 2), 1))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_renderings(tmp_path)
    text = (tmp_path / "run.html").read_text()
    assert "pip install &#39;matplotlib&gt;=3.10,&lt;4&#39;" in text
    assert "All numbers" in text


def test_what_sends_no_requests_has_no_throughput(tmp_path: Path) -> None:
    grown = Measurement(Load("validate", ""), 0, "2026", 1.0, 0, 0, 0.0, machine={"cpu_s": 2.0})
    example_runs.write(tmp_path, iter([grown]))
    write_renderings(tmp_path)
    assert "throughput" not in (tmp_path / "run.md").read_text()
