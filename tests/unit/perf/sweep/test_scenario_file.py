"""Scenario files: what they may say, and what is told of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import SpecError
from perf.sweep.scenario import Addresses, Measuring, address, read_sweep

EXAMPLE = Path(__file__).parents[4] / "examples" / "perf" / "sweep.yaml"
MISTAKES = """\
titel: x
url: http://user:secret@host:8000
scenarios:
  - name: a
    models: [demo]
    endpoints: [http-infer, http-genrate]
    concurrency: 8:1
    batch_sizes: []
    input: {prompt_tokens: 9-3, output_tokens: {mixed: []}, fil: x}
    measurement: {windows_s: 3, repeats: 0}
  - name: b
    concurrency: 1:8:x1
    request_rate: [0, 1]
"""
TOLD = """\
1:1: titel: unknown key; did you mean 'title'?
2:6: url: got an address with a user or a password, expected HOST:PORT of Triton
6:29: scenarios[0].endpoints[1]: got 'http-genrate', expected one of http-infer, http-generate
7:18: scenarios[0].concurrency: got '8:1', an empty range: its start is above its end
8:18: scenarios[0].batch_sizes: got an empty list, expected a number, a list of numbers
9:28: scenarios[0].input.prompt_tokens: got '9-3', an empty range: its start is above its end
9:48: scenarios[0].input.output_tokens: expected lengths from 1 to 1000000
9:61: scenarios[0].input.fil: unknown key; did you mean 'file'?
10:19: scenarios[0].measurement.windows_s: unknown key; did you mean 'window_s'?
10:42: scenarios[0].measurement.repeats: got 0, expected a whole number from 1 to 100
11:5: scenarios[1]: missing key 'models'
12:18: scenarios[1].concurrency: got '1:8:x1', a range that never ends; expected a factor above 1
13:20: scenarios[1].request_rate[0]: got 0, expected a number above 0, at most 100000
"""


def written(folder: Path, scenario: str, top: str = "") -> Path:
    path = folder / "s.yaml"
    path.write_text(f"{top}\nscenarios:\n  - {{name: a, models: m, {scenario}}}\n")
    return path


def test_all_mistakes_are_told_at_once_and_no_password(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MISTAKES)
    with pytest.raises(SpecError) as caught:
        read_sweep(path)
    told = str(caught.value).splitlines()
    for line, expected in zip(told, TOLD.splitlines(), strict=True):
        assert line.startswith(f"{path}:{expected}")
    assert "secret" not in str(caught.value)


def test_the_example_is_right() -> None:
    sweep = read_sweep(EXAMPLE)
    assert [scenario.name for scenario in sweep.scenarios] == ["chat", "endpoints", "arrivals"]
    assert sweep.scenarios[0].concurrency == [1, 4, 16]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("8", (8,)),
        ("[1, 8]", (1, 8)),
        ("1:4", (1, 2, 3, 4)),
        ("1:16:5", (1, 6, 11, 16)),
        ("1:64:x2", (1, 2, 4, 8, 16, 32, 64)),
        ("1:50:x4", (1, 4, 16)),
    ],
)
def test_ranges(tmp_path: Path, text: str, expected: tuple[int, ...]) -> None:
    sweep = read_sweep(written(tmp_path, f"concurrency: {text}"))
    assert sweep.scenarios[0].concurrency == [*expected]


@pytest.mark.parametrize("text", ["1:4096:x1.5", "1:4000", "1:8:0", "0", "1.5", "true", "[1, 1]"])
def test_ranges_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match=r"scenarios\[0\]\.concurrency(\[\d\])?: got"):
        read_sweep(written(tmp_path, f"concurrency: {text}"))


def test_a_scenarios_measurement_changes_only_what_it_says(tmp_path: Path) -> None:
    top = "measurement: {window_s: 40, repeats: 3}"
    path = written(tmp_path, "measurement: {max_trials: 4}", top)
    found = read_sweep(path).scenarios[0].measurement
    assert found == Measuring(window_s=40, repeats=3, max_trials=4)


@pytest.mark.parametrize(
    "scenario, told",
    [
        ("input: {file: nowhere.json}", "there is no file"),
        ("input: {file: s.yaml, prompt_tokens: 4}", "has 'file' beside other keys"),
        ("endpoints: http-generate, batch_sizes: 4", "carries one request at a time"),
        ("measurement: {window_requests: 5}", "window_requests: is no longer a key: use window_s"),
        ("input: {prompt_words: 4}", "prompt_words: is no longer a key: use prompt_tokens"),
        ("url: 'a:1'", "url: is no longer a key: a sweep has one server"),
        ("endpoints: http-generate-stream", r"3:37: .*use grpc-stream here, or AIPerf or GuideLLM"),
    ],
)
def test_keys_that_contradict_each_other_or_are_gone_are_refused(
    tmp_path: Path, scenario: str, told: str
) -> None:
    with pytest.raises(SpecError, match=told):
        read_sweep(written(tmp_path, scenario))


def test_further_ports_follow_the_first() -> None:
    http = address("http://gpu-box:8000/")
    assert Addresses.of(http, None, "other:9") == Addresses(http, "gpu-box:8001", "other:9")
    with pytest.raises(ValueError, match="got an address with a user") as caught:
        address("user:secret@host:1")
    assert "secret" not in str(caught.value)
