"""Scenario files and what is told of mistakes, and the requests that they ask for."""

from __future__ import annotations

import json
import random
from math import gcd
from pathlib import Path

import pytest

from generator.errors import PerfError, SpecError
from generator.render.model_config import from_dict
from perf.sweep.requests import Target, counter, requests_of, texts_of
from perf.sweep.scenario import Addresses, Inputs, Lengths, Measuring, address, read_sweep
from tests.unit.perf.sweep.fake_triton import config

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


DEMO = Path(__file__).parents[4] / "demo"
NOWHERE = Path("/nowhere")


def target(endpoint: str = "http-infer") -> Target:
    return Target("demo", endpoint, "demo", from_dict(config()))


@pytest.mark.parametrize("model", ["model", "embedding", "seeing", "translate"])
def test_texts_have_the_length_in_tokens_that_was_asked_for(model: str) -> None:
    count, lengths = counter(DEMO / model / "tokenizer.json"), (3, 17, 64, 301)
    assert [*map(count, texts_of(lengths, random.Random(0), count))] == [*lengths]


def test_without_a_tokenizer_words_are_counted_and_said() -> None:
    (found,) = requests_of(target(), Inputs(prompt_tokens=(Lengths((5,)),)), NOWHERE, 0)
    assert {len(entry["text_input"][0].split()) for entry in found.entries} == {5}
    assert found.prompt == "5 words"
    assert "counted in words" in found.note


def test_a_model_of_sounds_gets_its_sample_and_no_text() -> None:
    names = {"audio": "TYPE_STRING", "prompt": "TYPE_STRING", "max_tokens": "TYPE_INT32"}
    inputs = [
        {"name": name, "data_type": kind, "dims": [1], "optional": True}
        for name, kind in names.items()
    ]
    speech = Target("s", "http-infer", "s", from_dict({**config(), "input": inputs}))
    sound = {"audio": "UklGRg=="}
    (found,) = requests_of(
        speech, Inputs(output_tokens=(Lengths((8,)),), tensors=sound), NOWHERE, 0
    )
    assert list(found.entries) == [{"audio": ["UklGRg=="], "max_tokens": [8]}]
    with pytest.raises(PerfError, match="'s' takes no text, so prompts have no length"):
        requests_of(speech, Inputs(prompt_tokens=(Lengths((5,)),), tensors=sound), NOWHERE, 0)


def test_lengths_are_mixed_evenly_and_every_caller_meets_all() -> None:
    inputs = Inputs(prompt_tokens=(Lengths((4,)),), output_tokens=(Lengths((8, 16)),))
    (found,) = requests_of(target("grpc-stream"), inputs, NOWHERE, 0)
    asked = [entry["max_tokens"][0] for entry in found.entries]
    assert abs(asked.count(8) - asked.count(16)) <= 1
    assert {gcd(len(asked), callers) for callers in range(1, 127)} == {1}
    assert found.entries[0]["stream"] == [True]
    assert found.output == "8/16"


def test_flat_json_has_single_values(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    entry = {"text_input": {"content": ["hi"], "shape": [1]}, "max_tokens": [3]}
    file.write_text(json.dumps({"data": [entry]}))
    (found,) = requests_of(target("http-generate"), Inputs(file=str(file)), NOWHERE, 0)
    (sent,) = json.loads(found.content("http-generate"))["data"]
    assert sent == {"payload": [{"text_input": "hi", "max_tokens": 3}]}
    assert json.loads(found.content("http-infer"))["data"] == [entry]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"data": []}', '{"data": [3]}'])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(PerfError, match="expected perf_analyzer's form"):
        requests_of(target(), Inputs(file=str(tmp_path / "f.json")), NOWHERE, 0)
