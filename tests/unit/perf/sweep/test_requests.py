"""Requests of a sweep: texts of exact lengths, and a form for each endpoint."""

from __future__ import annotations

import json
import random
from math import gcd
from pathlib import Path

import pytest

from generator.errors import PerfError
from generator.render.model_config import from_dict
from perf.sweep.requests import Target, counter, requests_of, texts_of
from perf.sweep.scenario import Inputs, Lengths
from tests.unit.perf.sweep.fake_triton import config

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
