"""A sweep from its beginning to its end, over a fake server and a fake perf_analyzer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.errors import PerfError, RepositoryError
from perf.report.schema import read_measurements, read_run
from perf.run_folder import locked_folder
from perf.sweep import analyzer as analyzers
from perf.sweep import measuring, sweeping
from perf.sweep.sweeping import Options
from tests.unit.perf.sweep.conftest import FakeAnalyzer
from tests.unit.perf.sweep.fake_triton import FakeTriton

MakeOptions = Callable[[str], Options]
SCENARIO = """\
measurement: {warm_up_requests: 0}
scenarios:
  - {name: a, models: demo, endpoints: http-infer, concurrency: [1, 2], input: {prompt_tokens: 4}}
"""


def test_every_load_becomes_a_measurement(options: MakeOptions) -> None:
    given = options(SCENARIO)

    assert sweeping.run(given) == 0

    found = read_measurements(given.folder)
    assert [one.load.concurrency for one in found] == [1, 2]
    assert {(one.num_requests, one.duration_s, one.requests_per_s) for one in found} == {(2, 1, 2)}
    assert found[0].output_tokens_per_s == 10
    assert found[0].latency
    assert found[0].latency.p99_ms == 200
    assert found[0].load.prompt_tokens == "4 words"
    assert "cpu_share" in found[0].machine
    run = read_run(given.folder)
    assert (run.kind, run.versions["perf_analyzer"]) == ("sweep", "2.51.0")
    assert (given.folder / "run.html").is_file()


def test_the_same_command_measures_only_what_is_missing(
    options: MakeOptions, analyzer: FakeAnalyzer
) -> None:
    given = options(SCENARIO)
    sweeping.run(given)
    file = given.folder / "report.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"measurements": values["measurements"][:1]}))

    assert sweeping.run(given) == 0

    assert [("range 1 " in call, "range 2 " in call) for call in analyzer.calls()] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert len(read_measurements(given.folder)) == 2


def test_a_failed_load_is_kept_with_its_error_and_tried_again(
    options: MakeOptions, analyzer: FakeAnalyzer
) -> None:
    given = options(SCENARIO)
    analyzer.go_wrong("fail the queue is full")
    assert sweeping.run(given) == 1
    assert {one.first_error for one in read_measurements(given.folder)} == {"the queue is full"}
    analyzer.go_wrong("")

    assert sweeping.run(given) == 0

    assert {one.first_error for one in read_measurements(given.folder)} == {None}
    assert len(read_measurements(given.folder)) == 2


@pytest.mark.parametrize(
    "how, then",
    [
        ("unstable", "--stability-percentage 999999"),
        ("nothing No valid requests recorded within time interval.", "count_windows"),
        ("nothing failed to find the requested model version", "count_windows"),
    ],
)
def test_windows_that_are_of_no_use_are_measured_again_and_marked(
    options: MakeOptions, analyzer: FakeAnalyzer, how: str, then: str
) -> None:
    given = options(SCENARIO.replace("[1, 2]", "1"))
    analyzer.go_wrong(how)

    assert sweeping.run(given) == 0

    (found,) = read_measurements(given.folder)
    assert not found.stable
    assert then in found.command


def test_a_load_whose_export_is_empty_is_measured_once_more(
    options: MakeOptions, analyzer: FakeAnalyzer
) -> None:
    given = options(SCENARIO.replace("[1, 2]", "1"))
    analyzer.go_wrong("empty")
    assert sweeping.run(given) == 0
    assert len(analyzer.calls()) == 2
    (found,) = read_measurements(given.folder)
    assert (found.num_requests, found.stable) == (2, True)


def test_another_scenario_does_not_overwrite_what_is_there(options: MakeOptions) -> None:
    sweeping.run(options(SCENARIO))
    other = options(SCENARIO.replace("[1, 2]", "[1, 2, 4]"))

    with pytest.raises(PerfError, match=r"another run \(different: scenarios\); .*--output, or"):
        sweeping.run(other)
    assert len(read_measurements(other.folder)) == 2


def test_a_server_that_dies_keeps_what_is_measured(
    options: MakeOptions,
    analyzer: FakeAnalyzer,
    fake_triton: FakeTriton,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = options(SCENARIO)
    monkeypatch.setattr(measuring, "RECOVERY_S", 0.0)
    analyzer.go_wrong("kill")

    with pytest.raises(
        PerfError, match=r"no longer answers \(the connection broke\); .* continues"
    ):
        sweeping.run(given)

    assert [one.load.concurrency for one in read_measurements(given.folder)] == [1]
    assert (given.folder / "run.html").is_file()
    fake_triton.is_up = True
    analyzer.go_wrong("")
    assert sweeping.run(given) == 0
    assert [one.load.concurrency for one in read_measurements(given.folder)] == [1, 2]


def test_two_sweeps_do_not_write_in_one_folder(options: MakeOptions) -> None:
    given = options(SCENARIO)
    with (
        locked_folder(given.folder),
        pytest.raises(RepositoryError, match=r"process .* is writing to it"),
    ):
        sweeping.run(given)
    assert not given.folder.exists()
    assert sweeping.run(given) == 0


def test_a_server_that_is_down_is_told_with_the_command_that_starts_it(
    options: MakeOptions, fake_triton: FakeTriton
) -> None:
    fake_triton.is_up = False
    with pytest.raises(PerfError, match="start it with `hf-triton serve --config"):
        sweeping.run(options(SCENARIO))


def test_mistakes_that_only_the_server_shows_are_told_all_at_once(options: MakeOptions) -> None:
    text = """\
scenarios:
  - {name: a, models: [dmeo], endpoints: [http-infer]}
  - {name: b, models: demo_stream, endpoints: [grpc-infer]}
  - {name: c, models: demo, endpoints: http-infer, batch_sizes: [1, 8]}
  - {name: d, models: demo, endpoints: http-infer, input: {tensors: {temprature: 1}}}
"""
    given = options(text)
    (given.repository / "demo").mkdir(parents=True)
    (given.repository / "demo" / "config.pbtxt").touch()
    with pytest.raises(PerfError) as caught:
        sweeping.run(given)
    told = str(caught.value).splitlines()
    assert told[:3] == [
        "scenario 'a': models: there is no model 'dmeo'; did you mean 'demo'?",
        "scenario 'b': endpoints: model 'demo_stream' answers only streams: grpc-stream",
        "scenario 'c': batch_sizes: model 'demo' takes at most 1 in a batch",
    ]
    assert told[3].startswith("scenario 'd': input: model 'demo' has no input temprature; it has: ")


def test_without_perf_analyzer_what_to_do_is_told(
    options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(analyzers, "installed_file", lambda *_: None)
    with pytest.raises(PerfError, match=r"no perf_analyzer runs here:\n(.*\n)+.*--dry-run prints"):
        sweeping.run(options(SCENARIO))


def test_a_dry_run_writes_what_is_sent_and_prints_the_commands(
    options: MakeOptions, analyzer: FakeAnalyzer, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(SCENARIO)
    assert sweeping.dry_run(given) == 0
    said = capsys.readouterr().out
    assert said.count("perf_analyzer -m demo") == 2
    (sent,) = (given.folder / "inputs").iterdir()
    assert said.count(f"--input-data inputs/{sent.name}") == 2
    assert not analyzer.calls()


def test_one_that_does_not_run_is_passed_over_for_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "perf_analyzer"
    broken.write_text("#!/bin/sh\necho cannot open shared object file\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if analyzers.installed_file("tritonclient", "bin/perf_analyzer") is None:
        pytest.skip("tritonclient's wheel has no perf_analyzer here")
    found = analyzers.find()
    assert found.version == "2.51.0"
    assert "tritonclient" in found.origin

    libraries = tmp_path / "cache" / "hf-triton" / "libraries" / "perf_analyzer"
    if found.environment:  # the system has none of the libraries
        assert sorted(path.name for path in libraries.iterdir())
        libraries.chmod(0o777)
        with pytest.raises(PerfError, match="no perf_analyzer runs here"):
            analyzers.find()
