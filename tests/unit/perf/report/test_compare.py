"""Runs are kept in files, and two of them are compared with their noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from generator.errors import PerfError
from hf_triton.cli import main as cli
from perf.report import schema
from perf.report.compare import compare, difference, failures, to_markdown
from perf.report.schema import Load, Measurement, Percentiles, Run, read_run
from tests.unit.perf.report import example_runs


def measurement(repeat: int = 0) -> Measurement:
    latency = Percentiles(1.0, 1.0, 2.0, 3.0, 4.0)
    load = Load("demo", "http-infer", concurrency=4, settings={"dtype": "float32"})
    started = "2026-01-01T00:00:00Z"
    return Measurement(load, repeat, started, 5.0, 50, 0, 10.0, latency=latency)


def run() -> Run:
    return Run("sweep", "2026-01-01T00:00:00Z", "hf-triton perf sweep", "abc", {}, {}, notes=["a"])


def test_a_repeat_that_is_measured_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    schema.write_run(tmp_path, run())
    schema.append(tmp_path, replace(measurement(0), num_requests=0, first_error="full"))
    schema.append(tmp_path, measurement(0))
    assert schema.read_measurements(tmp_path) == [measurement(0)]


def test_keys_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    schema.write_run(tmp_path, run())
    schema.append(tmp_path, measurement())
    file = tmp_path / schema.REPORT_FILE
    values = json.loads(file.read_text())
    values["measurements"][0] |= {"new": 1}
    file.write_text(json.dumps(values | {"new": 1}))
    assert schema.read_measurements(tmp_path) == [measurement()]


@pytest.mark.parametrize(
    "text, said",
    [
        ("[]", "not a run: "),
        ("{}", "missing required field `schema_version`"),
        ('{"schema_version": 99}', "got 99, expected at most 1; a newer hf-triton wrote it"),
        ('{"schema_version": 1}', "missing required field `kind`"),
        ("{", "truncated"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / schema.REPORT_FILE).write_text(text)
    for path in (tmp_path, tmp_path / schema.REPORT_FILE):
        with pytest.raises(PerfError, match=r"report\.json: ") as caught:
            read_run(path)
        assert said in str(caught.value)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(PerfError, match=r"not found; expected a folder with report\.json"):
            read_run(path)


RUN = example_runs.RUN


def results(slower: float = 1.0, seed: int = 0, run: Run = RUN, **more: Any) -> Run:
    return replace(run, measurements=list(sweep(slower=slower, seed=seed, **more)))


def sweep(models: Sequence[str] = ("demo",), **more: Any) -> Iterator[Measurement]:
    more = {"endpoints": ("http-infer", "grpc-infer"), "concurrencies": (1, 8, 64), **more}
    return example_runs.sweep(models, **more)


def test_a_difference_is_judged_by_the_scatter_of_the_repeats() -> None:
    near = difference([100, 101, 99], [110, 111, 109])
    far = difference([100, 130, 80], [110, 140, 85])
    assert near is not None
    assert far is not None
    assert near.ratio == pytest.approx(1.1, abs=0.001)
    assert not near.is_noise
    assert far.is_noise


def test_the_same_server_measured_twice_is_not_slower() -> None:
    assert [failures(compare(results(seed=n), results(seed=n + 50)), 0.05) for n in range(10)] == [
        []
    ] * 10


def test_a_slower_server_is_found() -> None:
    found = compare(results(), results(1.2, seed=1))
    slow = failures(found, 0.05)
    for name in ("throughput", "latency p50"):
        assert any(line.startswith(f"slower: all loads together: {name}: ") for line in slow)
    assert failures(compare(results(1.2), results(seed=1)), 0.05) == []
    assert failures(found, 0.5) == []


def test_what_differs_stands_before_the_ratios() -> None:
    other = replace(RUN, commit="fedcba", hardware={**RUN.hardware, "cores": 4, "load_average": 9})
    text = to_markdown(compare(results(), results(run=other, concurrencies=(1, 128))))
    top = text.partition("B/A")[0]
    assert "commit: 0123456789ab in A, fedcba in B" in top
    assert "hardware: cores: 2 in A, 4 in B" in top
    assert "average" not in top
    assert "only in A: demo, http-infer, concurrency 64" in top
    assert "only in B: demo, http-infer, concurrency 128" in top


def test_loads_can_be_matched_across_targets() -> None:
    a, b = results(), results(models=("other",))
    with pytest.raises(PerfError, match=r"no load is in both runs; .*--ignore target"):
        compare(a, b)
    assert len(compare(a, b, ("target",)).pairs) == len(compare(a, a).pairs)
    with pytest.raises(PerfError, match="--ignore concurrency makes loads of A equal"):
        compare(a, b, ("concurrency",))


def run_cli(*arguments: object) -> int:
    return cli.main(["perf", *map(str, arguments)])


def test_the_exit_code_says_whether_b_is_too_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = example_runs.write(tmp_path / "a", sweep())
    b = example_runs.write(tmp_path / "b", sweep(slower=1.3, seed=1))
    single = example_runs.write(tmp_path / "single", sweep(repeats=1))
    assert run_cli("compare", a, b) == 0
    assert run_cli("compare", a, b, "--fail-above", "5%") == 1
    assert "slower: all loads together: throughput: 0.7" in capsys.readouterr().err
    assert run_cli("compare", b, a, "--fail-above", "0.05") == 0
    assert run_cli("compare", a, single, "--fail-above", "5%") == 1
    assert "can't tell a difference from noise" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run_cli("compare", a, b, "--fail-above", "5")


def test_requests_that_fail_in_b_only_are_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = example_runs.write(tmp_path / "a", sweep())
    failing = (replace(each, num_errors=1) for each in sweep())
    b = example_runs.write(tmp_path / "b", failing)
    assert run_cli("compare", a, b, "--fail-above", "5%") == 1
    assert "fails in B only: demo, http-infer, concurrency 1" in capsys.readouterr().err
