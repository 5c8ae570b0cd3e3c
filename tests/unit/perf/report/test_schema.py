from __future__ import annotations

import json
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


def test_what_was_written_is_read(tmp_path: Path) -> None:
    schema.write_run(tmp_path, run())
    schema.append(tmp_path, measurement(0))
    schema.append(tmp_path, measurement(1))
    assert schema.read_run(tmp_path) == run()
    assert schema.read_measurements(tmp_path) == [measurement(0), measurement(1)]


def test_an_unfinished_line_is_cut_off_before_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / schema.MEASUREMENTS_FILE
    schema.append(tmp_path, measurement(0))
    with file.open("ab") as opened:
        opened.write(b'{"load": {"target": "' + b"x" * 100_000)
    assert schema.read_measurements(tmp_path) == [measurement(0)]
    schema.append(tmp_path, measurement(1))
    assert schema.read_measurements(tmp_path) == [measurement(0), measurement(1)]


@pytest.mark.parametrize(
    "line, said",
    [
        (b"nonsense", "malformed"),
        (b"[" * 100_000, "Expected `object`"),
        (b"{}", "missing required field `load`"),
        (b'{"load": {"target": 3, "endpoint": "x"}}', "`$.load.target`"),
    ],
)
def test_a_broken_line_is_named_and_the_rest_is_read(
    tmp_path: Path, line: bytes, said: str
) -> None:
    schema.append(tmp_path, measurement(0))
    with (tmp_path / schema.MEASUREMENTS_FILE).open("ab") as opened:
        opened.write(line + b"\n")
    schema.append(tmp_path, measurement(1))
    found, problems = schema.readable_measurements(tmp_path)
    assert found == [measurement(0), measurement(1)]
    (problem,) = problems
    assert f"{schema.MEASUREMENTS_FILE}:2: not a measurement: " in problem
    assert said in problem
    with pytest.raises(ValueError, match=r"jsonl:2:.* not a measurement:"):
        schema.read_measurements(tmp_path)


def test_keys_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    schema.append(tmp_path, measurement())
    file = tmp_path / schema.MEASUREMENTS_FILE
    values = json.loads(file.read_text()) | {"new": 1}
    file.write_text(json.dumps(values) + "\n")
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
    for name in (schema.RUN_FILE, schema.REPORT_FILE):
        (tmp_path / name).write_text(text)
        with pytest.raises(PerfError, match=rf"{name}: ") as caught:
            read_results(tmp_path if name == schema.RUN_FILE else tmp_path / name)
        assert said in str(caught.value)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match=r"not a run: it has no run\.json"):
        read_results(tmp_path)
    with pytest.raises(PerfError, match="not found; expected a folder"):
        read_results(tmp_path / "nothing")
