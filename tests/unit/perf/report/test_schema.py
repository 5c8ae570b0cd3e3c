from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.report import schema
from perf.report.schema import Load, Measurement, Percentiles, Run, read_results


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
            read_results(path)
        assert said in str(caught.value)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(PerfError, match=r"not found; expected a folder with report\.json"):
            read_results(path)
