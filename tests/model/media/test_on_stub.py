"""Requests with images: answered as transformers' own generate does, or refused by what is wrong
with them, whatever else runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire import Request, strings

from hf_triton.runtime.media import decoding
from hf_triton.runtime.media.images import decode_image
from tests.model.media.conftest import MODELS_YAML, Reference
from tests.scenarios.endpoint import Model, joined
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub
from tests.support.media_files import base64_text, picture, png

PROMPT = "<image>the cat"
TEXT = {"type": "text", "text": "the cat"}
IMAGE = {"type": "image"}
HUGE = (200, 200)  # pixels, beyond the model's 0.01 megapixels


@pytest.fixture(scope="module")
def endpoint(
    tmp_path_factory: pytest.TempPathFactory, seeing_model: Path
) -> Iterator[StubEndpoint]:
    models_yaml = MODELS_YAML.format(folder=seeing_model)
    with serving_stub(tmp_path_factory.mktemp("stub"), models_yaml) as stub:
        yield stub


@pytest.fixture
def see(endpoint: StubEndpoint) -> Model:
    return Model(endpoint, "see", batched=False)


def asked(text: str | None, *images: bytes, **more: Any) -> Request:
    tensors = {} if text is None else {"text_input": strings(text)}
    if images:
        tensors["image"] = strings(*images)
    return Request({**tensors, "max_tokens": np.array([8], np.int32), **more})


def chat(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


def of_chat(messages: list[Any], *images: bytes) -> Request:
    return asked(None, *images, messages=strings(json.dumps(messages)))


def test_images_and_texts_of_many_requests_are_answered_together(
    see: Model, reference: Reference
) -> None:
    prompts = [PROMPT, "the dog", f"<image>{PROMPT}", PROMPT]
    images: list[tuple[int, ...]] = [(0,), (), (1, 2), (3,)]
    found = see.infer_together(
        [asked(text, *map(png, ones)) for text, ones in zip(prompts, images, strict=True)]
    )
    assert [reply.text() for reply in found] == [
        reference.greedy(text, *map(picture, ones))
        for text, ones in zip(prompts, images, strict=True)
    ]


def test_images_without_a_place_come_before_the_text(see: Model, reference: Reference) -> None:
    replies = see.infer_together(
        [
            asked("the cat", png(1), png(2)),
            of_chat(chat(TEXT), png(1)),
            asked(None, png(1)),
        ]
    )
    assert [reply.text() for reply in replies] == [
        reference.greedy("<image><image>the cat", picture(1), picture(2)),
        reference.chat(chat(IMAGE, TEXT), picture(1)),
        reference.greedy("<image>", picture(1)),
    ]


def test_a_chat_holds_its_images_as_openais_clients_send_them(
    see: Model, reference: Reference
) -> None:
    url = {"url": f"data:image/png;base64,{base64_text(png(1))}", "detail": "auto"}
    reply = see.infer(of_chat(chat(TEXT, {"type": "image_url", "image_url": url})))
    assert reply.text() == reference.chat(chat(TEXT, IMAGE), picture(1))


@pytest.mark.parametrize("number", [0, 2])
def test_the_tokens_of_a_chat_are_told_with_those_of_its_images(
    number: int, see: Model, reference: Reference
) -> None:
    messages, images = chat(*[IMAGE] * number, TEXT), list(map(png, range(number)))
    given = of_chat(messages, *images)
    reply = see.infer(replace(given, parameters={"tokenizer": '{"ask": "tokenize"}'}))
    assert reply.ok, reply.error
    prompt = reference.processor.apply_chat_template(messages, add_generation_prompt=True)
    files = {"images": list(map(picture, range(number)))} if number else {}
    expected = reference.processor(text=prompt, **files)["input_ids"][0]
    assert json.loads(reply.text())["count"] == len(expected)


def test_generate_and_its_stream_take_base64(see: Model, reference: Reference) -> None:
    body = {"text_input": PROMPT, "image": base64_text(png()), "max_tokens": 8}
    expected = reference.greedy(PROMPT, picture())
    status, answer = see.generate(body)
    assert (status, answer["text_output"]) == (200, expected)
    status, events = see.engine.generate_stream({**body, "stream": True})
    assert status == 200
    assert "".join(event["text_output"] for event in events) == expected
    assert joined(see.endpoint.stream("see_stream", asked(PROMPT, png()))) == expected


def test_rows_of_a_batch_have_images_of_their_own(
    endpoint: StubEndpoint, reference: Reference
) -> None:
    tensors = {
        "text_input": strings(PROMPT, "the dog", f"<image>{PROMPT}").reshape(3, 1),
        "image": strings(png(0), b"", b"", b"", png(1), png(2)).reshape(3, 2),
        "max_tokens": np.full((3, 1), 8, np.int32),
    }
    found = endpoint.infer("rows", Request(tensors)).outputs["text_output"].reshape(-1).tolist()
    assert [one.decode() for one in found] == [
        reference.greedy(PROMPT, picture(0)),
        reference.greedy("the dog"),
        reference.greedy(f"<image>{PROMPT}", picture(1), picture(2)),
    ]
    tensors["image"][2, 1] = b"\0"
    reply = endpoint.infer("rows", Request(tensors))
    assert reply.error == (
        "image[1]: 1 bytes that are not an image; allowed: AVIF, BMP, GIF, JPEG, PNG, TIFF, "
        "WEBP (row 2 of the batch)"
    )


BAD: dict[str, tuple[Request, str]] = {
    "a path": (asked(PROMPT, b"/etc/passwd"), "image[0]: got a text that is not base64"),
    "an address": (
        of_chat(chat({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}})),
        "messages[0].content[0]: got a text that is not base64",
    ),
    "the second": (asked(f"<image>{PROMPT}", png(), b"\0"), "image[1]: 1 bytes that are no"),
    "huge": (asked(PROMPT, png(size=HUGE)), "image[0]: got an image of 200 x 200 pixels, at"),
    "together huge": (
        asked("a", png(size=(90, 90)), png(size=(90, 90))),
        "image[1]: got an image of 90 x 90 pixels, at most 0.0019 megapixels",
    ),
    "too many": (asked("a", *[png()] * 4), "image[3]: got 4, allowed: 3 (max_images)"),
    "too large": (asked(PROMPT, b"\0" * 2**20), "image[0]: got 1.0 MiB up to it, at most 0.5"),
    "too many places": (
        asked(f"<image>{PROMPT}", png()),
        "text_input: got 2 of the placeholder <image>, allowed: 1, one for each image",
    ),
    "a place without an image": (
        asked(PROMPT),
        "text_input: got 1 of the placeholder <image>, allowed: 0, one for each image",
    ),
    "a place in a chat's text": (
        of_chat(chat(IMAGE, {"type": "text", "text": "<image>"}), png()),
        "messages: got 2 of the placeholder <image>, allowed: 1, one for each image",
    ),
    "a sound": (asked("a", audio=strings(b"\0")), "audio[0]: this model takes no audio"),
    "no words": (asked(None), "text_input: missing, a text is required (or messages)"),
    "too long": (asked(f"{PROMPT} " + "the " * 110, png()), "max_tokens: the prompt has "),
}


@pytest.mark.threat("huge-input")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_named_and_its_neighbours_are_answered(
    name: str, see: Model, reference: Reference
) -> None:
    request, said = BAD[name]
    good = asked(PROMPT, png())
    replies = see.infer_together([good, request, good])
    assert (replies[1].status, replies[1].error and replies[1].error[: len(said)]) == (400, said)
    expected = reference.greedy(PROMPT, picture())
    assert [replies[0].text(), replies[2].text()] == [expected, expected]


@pytest.mark.threat("slow-media")
def test_texts_and_deadlines_do_not_wait_for_images_that_are_decoded(
    see: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = decoding.sandbox_of(decode_image)
    gate, decode = threading.Event(), images.call

    def slow(*given: Any, **limits: Any) -> bytes:
        assert gate.wait(60)
        return decode(*given, **limits)

    monkeypatch.setattr(images, "call", slow)
    replies: list[Any] = []
    asks = [asked(PROMPT, png(number)) for number in range(10)]  # more than threads that decode
    callers = [
        threading.Thread(target=lambda one=one: replies.append(see.infer(one))) for one in asks
    ]
    for caller in callers:
        caller.start()
    try:
        texts = [see.infer(asked("the dog")), see.infer(of_chat(chat(TEXT)))]
        late = see.infer(asked(PROMPT, png(), timeout_ms=np.array([50], np.int32)))
        assert not replies
    finally:
        gate.set()
    for caller in callers:
        caller.join(60)
    assert all(reply.ok for reply in texts)
    assert (late.status, late.error) == (
        503,
        "timeout_ms: the time is up; the request was still being read",
    )
    assert [reply.ok for reply in replies] == [True] * 10
