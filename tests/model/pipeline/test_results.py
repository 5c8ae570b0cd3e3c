"""A served pipeline answers as transformers' own pipeline does."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_server import StubServer
from wire import Request, strings

from hf_triton.pipeline.items import ELSEWHERE, KINDS
from hf_triton.pipeline.pipeline_loading import kind_of_pipeline
from hf_triton.runtime.errors import LoadError
from tests.model.pipeline.conftest import Serve
from tests.support.media_files import base64_text, picture, png, sound_file, tone

Own = Callable[[str], Any]


def answers(server: StubServer, **tensors: Any) -> list[Any]:
    """The parsed outputs of a request whose inputs are texts, bytes, or lists of them."""
    arrays = {
        name: strings(*(value if isinstance(value, list) else [value]))
        for name, value in tensors.items()
    }
    reply = server.infer(Request(arrays))
    assert reply.ok, reply.error
    return [json.loads(text) for text in reply.texts("output")]


def near(expected: Any) -> Any:
    """``expected`` as JSON has it, with every number within 1e-4."""
    if isinstance(expected, dict):
        return {key: near(value) for key, value in expected.items()}
    if isinstance(expected, list | tuple):
        return [near(value) for value in expected]
    if isinstance(expected, np.ndarray | np.generic):
        return near(expected.tolist())
    return pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected


@dataclass(frozen=True)
class Case:
    """A request, and what transformers' pipeline is called with for the same: one call for each
    answer. ``parameters`` are sent, and given to each call.
    """

    pipeline: str
    sent: dict[str, Any]
    calls: list[Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)  # given to each call alone


IMAGES, SOUNDS = "image-classification", "audio-classification"
TEXTS, SPEECH = "text-classification", "automatic-speech-recognition"
PACKED, SECOND = base64_text(png()), base64_text(png(1))
LABELS = {"candidate_labels": ["a cat", "the mat"]}
PAIR = {"text": "the cat", "text_pair": "a dog"}
CHAT = [{"role": "user", "content": "the cat"}]
BOXES = [["Anna", [0, 0, 9, 9]], ["lives", [10, 0, 19, 9]], ["in", [20, 0, 25, 9]]]
DOCUMENT = {"question": "who lives in Paris ?", "word_boxes": BOXES}
TWO = ["the cat sat", "a dog ran to the house"]
FOUND = {"threshold": 0, "top_k": 2}
SHORT: dict[str, Any] = {"max_new_tokens": 4}
GREEDY = {**SHORT, "do_sample": False}
SEEN = "<image> the cat"
CASES = {
    "an image's bytes": Case(IMAGES, {"image": png()}, [picture()]),
    "an image's base64": Case(IMAGES, {"image": PACKED}, [picture()]),
    "an image as inputs": Case(IMAGES, {"inputs": PACKED}, [picture()]),
    "an image in JSON": Case(IMAGES, {"inputs": json.dumps({"image": PACKED})}, [picture()]),
    "images": Case(
        *(IMAGES, {"image": [png(n) for n in range(3)]}, [picture(n) for n in range(3)]),
        {"top_k": 1},
    ),
    "a JSON list": Case(
        IMAGES, {"inputs": json.dumps([PACKED, SECOND])}, [[picture(0), picture(1)]]
    ),
    "an image's labels": Case(
        "zero-shot-image-classification",
        {"image": png(), **LABELS, "hypothesis_template": "this is {} ."},
        [picture()],
        named={**LABELS, "hypothesis_template": "this is {} ."},
    ),
    "labels as a parameter": Case(
        "zero-shot-image-classification",
        {"image": png(), "pipeline_parameters": '{"candidate_labels": "a cat, the mat"}'},
        [picture()],
        named=LABELS,
    ),
    "speech": Case(SPEECH, {"audio": sound_file(tone())}, [tone()]),
    "times of speech": Case(
        SPEECH, {"audio": sound_file(tone())}, [tone()], {"return_timestamps": "char"}
    ),
    "chunks of speech": Case(
        *(SPEECH, {"audio": sound_file(tone(3.0))}, [tone(3.0)]),
        {"chunk_length_s": 1.0, "stride_length_s": 0.2},
    ),
    "two channels": Case(
        SOUNDS,
        {"audio": sound_file(np.stack([tone(hertz=300), tone(hertz=900)], axis=1))},
        [(tone(hertz=300) + tone(hertz=900)) / 2],
    ),
    "numbers": Case(
        SOUNDS,
        {"inputs": json.dumps({"raw": tone().tolist(), "sampling_rate": 16_000})},
        [tone()],
    ),
    "a text": Case(TEXTS, {"inputs": TWO[0]}, [TWO[:1]]),
    "a pair": Case(TEXTS, {"text_input": "the cat", "text_pair": "a dog"}, [PAIR]),
    "a pair in JSON": Case(TEXTS, {"inputs": json.dumps(PAIR)}, [PAIR]),
    # https://github.com/SeldonIO/MLServer, runtimes/huggingface: its inputs' names
    "MLServer's": Case(TEXTS, {"args": TWO[0]}, [TWO[:1]]),
    "MLServer's array": Case(TEXTS, {"array_inputs": TWO}, [[text] for text in TWO]),
    "a text like JSON": Case(
        "fill-mask", {"inputs": "[MASK] sat on the mat"}, ["[MASK] sat on the mat"]
    ),
    "JSON as a text": Case("feature-extraction", {"text_input": '["a", "b"]'}, ['["a", "b"]']),
    "a text by labels": Case(
        "zero-shot-classification", {"inputs": TWO[0], **LABELS}, [TWO[0]], named=LABELS
    ),
    "tags": Case(
        "token-classification",
        {"inputs": "Anna lives in Paris"},
        ["Anna lives in Paris"],
        {"aggregation_strategy": "simple"},
    ),
    "a chat": Case("text-generation", {"inputs": json.dumps(CHAT)}, [CHAT], GREEDY),
    "an image and a text": Case(
        "image-text-to-text",
        {"image": png(), "text_input": SEEN},
        [{"images": picture(), "text": SEEN}],
        SHORT,
    ),
    "both in JSON": Case(
        "image-text-to-text",
        {"inputs": json.dumps({"images": PACKED, "text": SEEN})},
        [{"images": picture(), "text": SEEN}],
        SHORT,
    ),
    "objects by labels": Case(
        *("zero-shot-object-detection", {"image": png(), **LABELS}, [picture()]),
        *(FOUND, LABELS),
    ),
    "objects by labels in JSON": Case(
        "zero-shot-object-detection",
        {"inputs": json.dumps({"image": PACKED, **LABELS})},
        *([picture()], FOUND, LABELS),
    ),
    "a document": Case(
        "document-question-answering", {"inputs": json.dumps(DOCUMENT)}, [[DOCUMENT]]
    ),
    "features of an image": Case("image-feature-extraction", {"image": png()}, [picture()]),
}
# Requests whose answer the pipeline wraps in a list although there was one input.
ONE_OF_A_LIST = ("a text", "MLServer's", "MLServer's array", "a document")


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_that_of_transformers_pipeline(
    name: str, shared: Serve, own_pipeline: Own
) -> None:
    case = CASES[name]
    sent = dict(case.sent)
    if case.parameters:
        sent["pipeline_parameters"] = json.dumps(case.parameters)
    found = answers(shared(case.pipeline), **sent)
    own, given = own_pipeline(case.pipeline), {**case.parameters, **case.named}
    calls = [
        own(**one, **given) if isinstance(one, dict) and "images" in one else own(one, **given)
        for one in case.calls
    ]
    expected = [one[0] for one in calls] if name in ONE_OF_A_LIST else calls
    assert expected
    assert expected[0]
    assert found == near(expected)


def test_a_chat_with_an_image_is_one_input(shared: Serve, own_pipeline: Own) -> None:
    words = {"type": "text", "text": "the cat"}

    def chat(image: object) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image", "image": image}, words]}]

    [[expected]] = [own_pipeline("image-text-to-text")(chat(picture()), **SHORT)]
    sent = {"inputs": json.dumps(chat(PACKED)), "pipeline_parameters": json.dumps(SHORT)}
    [[found]] = answers(shared("image-text-to-text"), **sent)
    assert found["generated_text"][-1] == expected["generated_text"][-1]
    assert found["input_text"] == [{"role": "user", "content": [{"type": "image"}, words]}]


def pixels(answered: str) -> Any:
    prefix, packed = answered.split(",")
    assert prefix == "data:image/png;base64"
    return np.array(Image.open(io.BytesIO(base64.b64decode(packed)))).astype(int)


def test_images_are_answered_as_pngs(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("depth-estimation"), image=png(size=(64, 64)))
    expected = own_pipeline("depth-estimation")(picture(size=(64, 64)))
    assert np.abs(pixels(found["depth"]) - np.array(expected["depth"]).astype(int)).max() <= 1
    np.testing.assert_allclose(
        found["predicted_depth"], expected["predicted_depth"].numpy(), atol=1e-4
    )


def test_a_client_batch_is_answered_row_by_row(serve: Serve, own_pipeline: Own) -> None:
    server = serve(TEXTS, max_batch_size=4)
    reply = server.infer(Request({"inputs": strings(*TWO).reshape(2, 1)}))
    assert reply.outputs["output"].shape == (2, 1)
    assert [json.loads(text) for text in reply.texts("output")] == near(own_pipeline(TEXTS)(TWO))


def test_flat_json_asks_as_hugging_faces_own_api_is_asked(shared: Serve, own_pipeline: Own) -> None:
    """A request's parameters for the server are none of the call."""
    expected = near(own_pipeline(IMAGES)(picture(), top_k=2))
    told = {"id": "r-7", "user": "ann", "cache_salt": "a salt", "hf-triton-caller": "a caller"}
    for body in ({"parameters": {"top_k": 2}}, {"top_k": 2, **told}):
        status, answer = shared(IMAGES).generate({"inputs": PACKED, **body})
        assert status == 200, answer
        assert json.loads(answer["output"]) == expected


def test_every_pipeline_of_transformers_has_a_kind() -> None:
    from transformers.pipelines import SUPPORTED_TASKS

    assert set(SUPPORTED_TASKS) <= {*KINDS, *ELSEWHERE}


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hf_triton.pipeline.pipeline_loading.importlib.util.find_spec", lambda name: None
    )
    with pytest.raises(LoadError, match="image-classification pipeline needs pillow: pip install"):
        kind_of_pipeline(IMAGES)
