"""What a served pipeline answers is what transformers' own pipeline gives."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_server import StubServer
from wire import Request, strings

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
    """``expected`` with every number within 1e-4."""
    if isinstance(expected, dict):
        return {key: near(value) for key, value in expected.items()}
    if isinstance(expected, list | tuple):
        return [near(value) for value in expected]
    return pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected


@pytest.mark.parametrize("form", ["bytes", "base64", "inputs", "JSON"])
def test_an_image_is_classified_however_it_is_sent(
    shared: Serve, own_pipeline: Own, form: str
) -> None:
    server = shared("image-classification")
    packed = base64_text(png())
    forms: dict[str, dict[str, Any]] = {
        "bytes": {"image": png()},
        "base64": {"image": packed},
        "inputs": {"inputs": packed},
        "JSON": {"inputs": json.dumps({"image": packed})},
    }
    [found] = answers(server, **forms[form])
    assert found == near(own_pipeline("image-classification")(picture()))


def test_images_of_one_request_are_answered_one_by_one(serve: Serve, own_pipeline: Own) -> None:
    server = serve("image-classification", batch_size=2)
    found = answers(
        server, image=[png(seed) for seed in range(3)], pipeline_parameters='{"top_k": 1}'
    )
    own = own_pipeline("image-classification")
    assert found == near([own(picture(seed), top_k=1) for seed in range(3)])


def test_a_json_list_is_answered_by_a_json_list(shared: Serve, own_pipeline: Own) -> None:
    packed = json.dumps([base64_text(png(seed)) for seed in range(2)])
    [found] = answers(shared("image-classification"), inputs=packed)
    own = own_pipeline("image-classification")
    assert found == near([own(picture(0)), own(picture(1))])


def test_an_images_labels_can_be_named_in_the_request(shared: Serve, own_pipeline: Own) -> None:
    server = shared("zero-shot-image-classification")
    labels, template = ["a cat", "the big house"], "this is {} ."
    own = own_pipeline("zero-shot-image-classification")
    expected = own(picture(), candidate_labels=labels, hypothesis_template=template)
    [found] = answers(server, image=png(), candidate_labels=labels, hypothesis_template=template)
    assert found == near(expected)
    assert abs(found[0]["score"] - 0.5) > 0.01
    parameters = json.dumps({"candidate_labels": "a cat, the big house"})
    [plain] = answers(server, image=png(), pipeline_parameters=parameters)
    assert plain == near(own(picture(), candidate_labels=labels))


def test_speech_is_recognised_in_a_sound_file(shared: Serve, own_pipeline: Own) -> None:
    own = own_pipeline("automatic-speech-recognition")
    [found] = answers(shared("automatic-speech-recognition"), audio=sound_file(tone()))
    assert found == own(tone())
    assert found["text"]


def test_speech_has_time_stamps_where_asked_for(serve: Serve, own_pipeline: Own) -> None:
    own = own_pipeline("automatic-speech-recognition")
    server = serve("automatic-speech-recognition", parameters='{"return_timestamps": "char"}')
    [found] = answers(server, audio=sound_file(tone()))
    assert found == near(own(tone(), return_timestamps="char"))


def test_a_long_sound_is_cut_into_chunks(shared: Serve, own_pipeline: Own) -> None:
    own = own_pipeline("automatic-speech-recognition")
    parameters = {"chunk_length_s": 1.0, "stride_length_s": 0.2}
    server = shared("automatic-speech-recognition")
    [found] = answers(
        server, audio=sound_file(tone(3.0)), pipeline_parameters=json.dumps(parameters)
    )
    assert found == own(tone(3.0), **parameters)


def test_a_sound_in_two_channels_is_heard_as_their_mean(shared: Serve, own_pipeline: Own) -> None:
    left, right = tone(hertz=300), tone(hertz=900)
    both = sound_file(np.stack([left, right], axis=1))
    [found] = answers(shared("audio-classification"), audio=both)
    assert found == near(own_pipeline("audio-classification")((left + right) / 2))


def test_a_sound_may_come_as_numbers(shared: Serve, own_pipeline: Own) -> None:
    sent = json.dumps({"raw": tone().tolist(), "sampling_rate": 16_000})
    [found] = answers(shared("audio-classification"), inputs=sent)
    assert found == near(own_pipeline("audio-classification")(tone()))


def test_texts_and_pairs_are_classified(shared: Serve, own_pipeline: Own) -> None:
    server = shared("text-classification")
    own = own_pipeline("text-classification")
    expected = own(["the cat sat", {"text": "the cat", "text_pair": "a dog"}])
    assert answers(server, inputs="the cat sat") == near(expected[:1])
    assert answers(server, text_input="the cat", text_pair="a dog") == near(expected[1:])
    sent = json.dumps({"text": "the cat", "text_pair": "a dog"})
    assert answers(server, inputs=sent) == near(expected[1:])


def test_a_text_that_only_looks_like_json_is_a_text(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("fill-mask"), inputs="[MASK] sat on the mat")
    assert found == near(own_pipeline("fill-mask")("[MASK] sat on the mat"))
    words = '["a", "b"]'
    [found] = answers(shared("feature-extraction"), text_input=words)
    assert found == near(own_pipeline("feature-extraction")(words))


def test_a_text_is_classified_by_labels_it_never_saw(serve: Serve, own_pipeline: Own) -> None:
    labels = ["a film", "good food"]
    own = own_pipeline("zero-shot-classification")
    server = serve("zero-shot-classification", batch_size=4)
    [found] = answers(server, inputs="Anna likes it", candidate_labels=labels)
    assert found == near(own("Anna likes it", candidate_labels=labels))


def test_a_chat_is_one_input(shared: Serve, own_pipeline: Own) -> None:
    chat = [{"role": "user", "content": "the cat"}]
    parameters = {"max_new_tokens": 4, "do_sample": False}
    server = shared("text-generation")
    [found] = answers(server, inputs=json.dumps(chat), pipeline_parameters=json.dumps(parameters))
    assert found == own_pipeline("text-generation")(chat, **parameters)


def test_an_image_and_a_text_are_one_input(serve: Serve, own_pipeline: Own) -> None:
    own, parameters = own_pipeline("image-text-to-text"), {"max_new_tokens": 4}
    server = serve("image-text-to-text", parameters=json.dumps(parameters))
    words = "<image> the cat"
    expected = own(images=picture(), text=words, **parameters)
    [found] = answers(server, image=png(), text_input=words)
    assert found == expected
    [found] = answers(server, inputs=json.dumps({"images": base64_text(png()), "text": words}))
    assert found == expected


def test_a_chat_with_an_image_is_one_input(serve: Serve, own_pipeline: Own) -> None:
    own, parameters = own_pipeline("image-text-to-text"), {"max_new_tokens": 4}
    server = serve("image-text-to-text", parameters=json.dumps(parameters))
    words = {"type": "text", "text": "the cat"}

    def chat(image: object) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image", "image": image}, words]}]

    [[expected]] = [own(chat(picture()), **parameters)]
    [[found]] = answers(server, inputs=json.dumps(chat(base64_text(png()))))
    assert found["generated_text"][-1] == expected["generated_text"][-1]
    assert found["input_text"] == [{"role": "user", "content": [{"type": "image"}, words]}]


def test_an_image_is_answered_as_a_png(shared: Serve, own_pipeline: Own) -> None:
    [found] = answers(shared("depth-estimation"), image=png(size=(64, 64)))
    expected = own_pipeline("depth-estimation")(picture(size=(64, 64)))
    prefix, packed = found["depth"].split(",")
    assert prefix == "data:image/png;base64"
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(packed))))
    assert np.abs(pixels.astype(int) - np.array(expected["depth"]).astype(int)).max() <= 1
    np.testing.assert_allclose(
        found["predicted_depth"], expected["predicted_depth"].numpy(), atol=1e-4
    )


def test_mlservers_requests_are_answered_as_it_does(shared: Serve, own_pipeline: Own) -> None:
    """https://github.com/SeldonIO/MLServer, runtimes/huggingface: its inputs' names, one JSON text
    for each input in ``output``.
    """
    server = shared("text-classification")
    own = own_pipeline("text-classification")
    texts = ["the cat sat", "a dog ran to the house"]
    assert answers(server, args="the cat sat") == near(own(texts[:1]))
    assert answers(server, array_inputs=texts) == near(own(texts))


def test_a_client_batch_is_answered_row_by_row(serve: Serve, own_pipeline: Own) -> None:
    server = serve("text-classification", max_batch_size=4)
    texts = ["the cat sat", "a dog ran"]
    reply = server.infer(Request({"inputs": strings(*texts).reshape(2, 1)}))
    assert reply.outputs["output"].shape == (2, 1)
    own = own_pipeline("text-classification")
    assert [json.loads(text) for text in reply.texts("output")] == near(own(texts))


def test_what_a_request_tells_the_server_is_no_parameter_of_the_call(
    shared: Serve, own_pipeline: Own
) -> None:
    expected = near(own_pipeline("image-classification")(picture(), top_k=2))
    server = shared("image-classification")
    told = {"id": "r-7", "user": "ann", "cache_salt": "a salt", "hf-triton-caller": "a caller"}
    status, body = server.generate({"inputs": base64_text(png()), "top_k": 2, **told})
    assert status == 200, body
    assert json.loads(body["output"]) == expected


def test_flat_json_asks_as_hugging_faces_own_api_is_asked(shared: Serve, own_pipeline: Own) -> None:
    server = shared("text-classification")
    status, body = server.generate({"inputs": "the cat sat", "parameters": {"top_k": 2}})
    assert status == 200
    own = own_pipeline("text-classification")
    assert json.loads(body["output"]) == near(own("the cat sat", top_k=2))
