"""Each mistake of a caller is its own clear 400, opens nothing, and is never logged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from wire import Request, strings

from tests.model.pipeline.conftest import Serve
from tests.support.media_files import FEW_SAMPLES, png, sound_file, tone

Tensors = Mapping[str, str | bytes | list[str | bytes]]
IMAGES, SPEECH, TEXTS = (
    "image-classification",
    "automatic-speech-recognition",
    "text-classification",
)
LABELLED = "zero-shot-image-classification"
NOT_OPENED = "paths and addresses are not opened"


def given(parameters: str) -> Tensors:
    return {"image": png(), "pipeline_parameters": parameters}


CASES: dict[str, tuple[str, Tensors, str]] = {
    "nothing": (
        IMAGES,
        {"pipeline_parameters": "{}"},
        "inputs: missing, the image-classification pipeline",
    ),
    "two inputs": (IMAGES, {"inputs": "x", "image": b"y"}, "inputs and image are both given"),
    "an address": (IMAGES, {"image": "http://127.0.0.1:9/a.png"}, NOT_OPENED),
    "a path of base64's letters": (IMAGES, {"inputs": "/usr/bin"}, "bytes that are not an image"),
    "a text as image": (IMAGES, {"inputs": "a cat, please"}, "got a text that is not base64"),
    "an empty image": (IMAGES, {"image": b""}, "image: empty"),
    "a number as image": (IMAGES, {"inputs": "[1]"}, "inputs[0]: got 1, allowed: an image"),
    "an unknown key": (IMAGES, {"inputs": '{"path": "/etc/passwd"}'}, "has only image"),
    "an empty list": (IMAGES, {"inputs": "[]"}, "inputs: an empty list"),
    "broken JSON": (IMAGES, {"inputs": '{"image": '}, "inputs: not valid JSON at line 1"),
    "audio to images": (IMAGES, {"audio": b"x"}, "audio: the image-classification pipeline takes"),
    "image to texts": (TEXTS, {"image": png()}, "image: the text-classification pipeline takes"),
    "a question": (IMAGES, {"image": png(), "question": "?"}, "question: can't be sent with image"),
    "labels": (IMAGES, {"image": png(), "candidate_labels": ["a"]}, "does not take it"),
    "no labels": (LABELLED, {"image": png()}, "candidate_labels: missing"),
    "many labels": (
        LABELLED,
        {"image": png(), "candidate_labels": ["a"] * 1001},
        "candidate_labels: got 1001 labels, allowed: at most 1000",
    ),
    "empty labels": (LABELLED, {"image": png(), "candidate_labels": ["a", " "]}, "none empty"),
    "labels of numbers": (
        LABELLED,
        given('{"candidate_labels": [1]}'),
        "candidate_labels: must be texts",
    ),
    "labels twice": (
        LABELLED,
        {
            "image": png(),
            "candidate_labels": "a",
            "pipeline_parameters": '{"candidate_labels": ["b"]}',
        },
        "candidate_labels: also given in pipeline_parameters",
    ),
    "parameters that are no JSON": (
        IMAGES,
        given("top_k=3"),
        "pipeline_parameters: not valid JSON at line 1, column 1",
    ),
    "parameters that are a list": (
        IMAGES,
        given("[3]"),
        "pipeline_parameters: got a list, allowed: a JSON object",
    ),
    "an unknown parameter": (
        IMAGES,
        given('{"topk": 3}'),
        "unknown parameter topk of the image-classification pipeline, did you mean top_k?",
    ),
    "a parameter's wrong value": (
        IMAGES,
        given('{"function_to_apply": "cube"}'),
        "the image-classification pipeline: ValueError",
    ),
    "a parameter's wrong type": (
        IMAGES,
        given('{"top_k": "many"}'),
        "the image-classification pipeline: TypeError",
    ),
    "a sound that is none": (SPEECH, {"audio": b"\x00\xff" * 50}, "100 bytes that are not a sound"),
    "silence of no length": (SPEECH, {"audio": sound_file(tone(0.0))}, "has no samples"),
    "too few samples": (SPEECH, {"audio": sound_file(tone(0.0005))}, "8 samples are too few"),
    "a sound's address": (SPEECH, {"inputs": "http://127.0.0.1:9/a.wav"}, NOT_OPENED),
    "samples without a rate": (SPEECH, {"inputs": '{"raw": [0.0]}'}, "sampling_rate must be"),
    "samples of texts": (
        SPEECH,
        {"inputs": '{"raw": ["a"], "sampling_rate": 16000}'},
        "raw must be a list of numbers",
    ),
    "an odd rate": (SPEECH, {"audio": sound_file(tone(rate=44_101), rate=44_101)}, "send 16000 Hz"),
    "code to generate with, deeper": (
        "text-generation",
        {
            "inputs": "a",
            "pipeline_parameters": '{"tokenizer_encode_kwargs": {"trust_remote_code": true}}',
        },
        "tokenizer_encode_kwargs: unknown parameter trust_remote_code",
    ),
    "a nested text": (
        "text-generation",
        {"inputs": "a", "pipeline_parameters": '{"tokenizer_encode_kwargs": "x"}'},
        "tokenizer_encode_kwargs: got a text, allowed: an object",
    ),
    "text that is no UTF-8": (TEXTS, {"inputs": b"caf\xe9"}, "inputs: not valid UTF-8 at byte 3"),
    "an empty text": (TEXTS, {"inputs": " "}, "inputs: empty, a text is required"),
    "a pair without its text": (TEXTS, {"text_pair": "a"}, "inputs: missing"),
    "a list with a number": (TEXTS, {"inputs": '["a", 7]'}, "inputs[1]: got 7, allowed: a text"),
    "a text beyond the model's length": (
        TEXTS,
        {"inputs": "cat " * 200},
        "got 202 tokens, this model takes at most 128; send the parameter",
    ),
    "a length beyond the model's": (
        TEXTS,
        {"inputs": "cat", "pipeline_parameters": '{"truncation": true, "max_length": 999}'},
        "max_length: got 999, this model takes at most 128 tokens",
    ),
}


def tensors(given: Tensors) -> dict[str, Any]:
    return {
        name: strings(*(value if isinstance(value, list) else [value]))
        for name, value in given.items()
    }


@pytest.mark.threat("empty-texts")
@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named(shared: Serve, log_lines: list[str], case: str) -> None:
    name, given, expected = CASES[case]
    server = shared(name)
    log_lines.clear()
    reply = server.infer(Request(tensors(given)))
    assert (reply.status, reply.error.count("\n")) == (400, 0)
    assert expected in reply.error
    assert log_lines == []


@pytest.mark.parametrize("name", [SPEECH, "audio-classification"])
def test_few_samples_are_answered_or_refused_by_their_field(shared: Serve, name: str) -> None:
    for file in FEW_SAMPLES:
        reply = shared(name).infer(Request(tensors({"audio": file})))
        assert reply.ok or (reply.status, reply.error[:5]) == (400, "audio")


def test_a_cut_text_is_answered(shared: Serve) -> None:
    given = {"inputs": "cat " * 200, "pipeline_parameters": '{"truncation": true}'}
    assert shared(TEXTS).infer(Request(tensors(given))).ok


def test_an_unknown_request_parameter_names_the_nearest(shared: Serve) -> None:
    reply = shared(IMAGES).infer(Request(tensors({"image": png()}), {"topk": 3}))
    assert reply.status == 400
    assert reply.error.startswith("topk: unknown parameter, did you mean top_k?")


@pytest.mark.threat("code-by-request")
def test_an_image_that_exists_on_the_server_is_not_read(shared: Serve, tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    Image.new("RGB", (8, 8)).save(path)
    server = shared(IMAGES)
    for given in (
        {"image": str(path)},
        {"inputs": str(path)},
        {"inputs": json.dumps([str(path)])},
        {"inputs": json.dumps({"image": str(path)})},
        {"inputs": f"file://{path}"},
    ):
        reply = server.infer(Request(tensors(given)))
        assert (reply.status, NOT_OPENED in reply.error) == (400, True)


def test_limits_are_those_of_the_options(serve: Serve) -> None:
    small = serve(IMAGES, max_input_mib=0.001, max_image_megapixels=0.001)
    reply = small.infer(Request(tensors({"image": png()})))
    assert reply.error == "got 0.0 MiB of input, at most 0.001 (max_input_mib)"
    server = serve(IMAGES, max_image_megapixels=0.001)
    reply = server.infer(Request(tensors({"image": png()})))
    limit = "at most 0.001 megapixels (max_image_megapixels)"
    assert reply.error == f"image: got an image of 50 x 40 pixels, {limit}"
    short = serve(SPEECH, max_audio_s=0.25)
    reply = short.infer(Request(tensors({"audio": sound_file(tone())})))
    assert reply.error == "audio: got a sound of 0.5 s, at most 0.25 s (max_audio_s)"


def test_a_wrong_item_of_a_list_is_named_by_its_place(shared: Serve) -> None:
    sent = json.dumps(["the cat", "cat " * 200])
    reply = shared(TEXTS).infer(Request(tensors({"inputs": sent})))
    assert (reply.status, reply.error.startswith("input 1: ")) == (400, True)
