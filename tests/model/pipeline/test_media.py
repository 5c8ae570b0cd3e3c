"""Images and sounds out of bytes, and answers into JSON."""

from __future__ import annotations

import base64
import io
import json
import math
import time
from enum import Enum
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from hf_triton.pipeline.items import KINDS, ItemReader
from hf_triton.pipeline.reception import to_json
from hf_triton.runtime.errors import EngineError, RequestError
from hf_triton.runtime.media.decoding import MediaLimits, file_bytes, image
from hf_triton.runtime.media.sounds import resample
from tests.support.media_files import base64_text, picture, png, sound_file, tone

LIMITS = MediaLimits(64e6, 600.0)


@pytest.mark.parametrize("form", ["plain", "lines", "URL-safe", "data URL"])
def test_base64_is_read_in_every_form(form: str) -> None:
    content = png()
    packed = base64_text(content)
    forms = {
        "plain": packed,
        "lines": base64.encodebytes(content).decode(),
        "URL-safe": base64.urlsafe_b64encode(content).decode(),
        "data URL": f"data:image/png;base64,{packed}",
    }
    assert file_bytes("image", forms[form]) == content
    assert file_bytes("image", forms[form].encode()) == content


@pytest.mark.threat("data-addresses")
def test_a_text_that_begins_as_a_data_url_is_read_in_no_time() -> None:
    began_s = time.process_time()
    with pytest.raises(RequestError, match=r"^image: got a text that is not base64"):
        file_bytes("image", "data:" + "a" * 50_000)
    assert time.process_time() - began_s < 5  # by its square it would be minutes


def test_an_image_is_turned_as_its_camera_was_held() -> None:
    packed = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn by 90 degrees
    picture().save(packed, format="JPEG", exif=exif)
    assert image("image", packed.getvalue(), LIMITS).size == (40, 50)


def test_formats_that_run_programs_are_not_read() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n\x00"
    with pytest.raises(RequestError, match="bytes that are not an image"):
        image("image", postscript, LIMITS)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100])
def test_a_resampled_tone_is_the_same_tone(rate: int) -> None:
    found = resample(tone(1.0, rate), rate, 16_000)
    expected = tone(1.0, 16_000)
    assert found.shape == expected.shape
    inside = slice(500, -500)
    assert np.abs(found[inside] - expected[inside]).max() < 2e-3


def test_a_tone_that_the_new_rate_can_not_hold_is_gone() -> None:
    found = resample(tone(1.0, 48_000, hertz=12_000), 48_000, 16_000)
    assert np.abs(found[500:-500]).max() < 5e-3


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value, expected",
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (math.nan, None),
        (np.array([1.0, math.inf]), [1.0, None]),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor([0.5], dtype=torch.bfloat16), [0.5]),
        ((1, "ä"), [1, "ä"]),
        ({1: {"a": Colour.RED}}, {"1": {"a": "red"}}),
        (b"\x00\xff", "AP8="),
        ({"type": "image", "image": picture()}, {"type": "image"}),
    ],
)
def test_every_answer_has_a_form_in_json(value: Any, expected: Any) -> None:
    assert json.loads(to_json(value)) == expected


def test_an_object_without_one_is_named_to_the_caller() -> None:
    with pytest.raises(EngineError, match="answered a Thread"):
        to_json({"a": __import__("threading").Thread()})


def test_a_sound_is_answered_as_a_wav() -> None:
    found = json.loads(to_json({"audio": tone()[None], "sampling_rate": 16_000}))
    prefix, packed = found["audio"].split(",")
    assert (prefix, found["sampling_rate"]) == ("data:audio/wav;base64", 16_000)
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(packed)))
    assert rate == 16_000
    np.testing.assert_allclose(samples, tone(), atol=1e-4)


def reader(name: str) -> ItemReader:
    return ItemReader(KINDS[name], LIMITS, 16_000)


PACKED = base64_text(png())


def test_a_document_is_an_image_and_a_question() -> None:
    value = {"image": PACKED, "question": "what?", "word_boxes": [["a", [0, 0, 1, 1]]]}
    found = reader("document-question-answering").item("inputs", value)
    assert found["image"].size == (50, 40)
    assert (found["question"], found["word_boxes"]) == ("what?", [["a", [0, 0, 1, 1]]])


def test_two_images_are_one_input_of_a_pair() -> None:
    found = reader("keypoint-matching").item("image", [PACKED, png(1)])
    assert [one.size for one in found] == [(50, 40), (50, 40)]


def test_a_chats_images_and_sounds_are_decoded() -> None:
    content = [
        {"type": "text", "text": "what is it?"},
        {"type": "image", "image": PACKED},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PACKED}"}},
        {"type": "audio", "audio": base64_text(sound_file(tone()))},
    ]
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": content}]
    found = reader("any-to-any").item("inputs", chat).messages
    assert found[0] == {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
    assert [part["type"] for part in found[1]["content"]] == ["text", "image", "image", "audio"]
    assert found[1]["content"][2]["image"].size == (50, 40)
    assert found[1]["content"][3]["audio"].shape == tone().shape


def test_numbers_of_another_rate_are_resampled() -> None:
    value = {"raw": tone(rate=8_000).tolist(), "sampling_rate": 8_000}
    found = reader("audio-classification").item("inputs", value)
    np.testing.assert_array_equal(found, resample(tone(rate=8_000), 8_000, 16_000))


PATH = "/etc/hostname"
CHAT_PARTS = [
    ("image-text-to-text", {"type": "image", "url": PATH}),
    ("image-text-to-text", {"type": "image", "path": PATH}),
    ("any-to-any", {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}),
    ("any-to-any", {"type": "audio", "path": PATH}),
    ("any-to-any", {"type": "video", "video": PATH}),
    ("any-to-any", {"image": PATH}),
]


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, [{"role": "user", "content": [part]}]) for name, part in CHAT_PARTS),
        ("decision", '{"state": "a", "questions": {}, "assets": {"x": "/etc/hostname"}}'),
        ("decision", {"state": "a", "questions": {}, "assets": {"x": PATH}}),
        ("decision", {"state": "a", "questions": {}, "assets": {"x": {"data_base64": PATH}}}),
        ("zero-shot-object-detection", {"image": PATH, "candidate_labels": ["a"]}),
        ("document-question-answering", {"image": PATH, "question": "a"}),
        ("image-text-to-text", {"images": [PATH], "text": "a"}),
        ("keypoint-matching", [PATH, PATH]),
        ("automatic-speech-recognition", {"path": PATH, "sampling_rate": 16_000}),
        ("zero-shot-audio-classification", PATH),
    ],
)
def test_what_an_input_names_is_not_opened(name: str, value: Any) -> None:
    with pytest.raises(RequestError):
        reader(name).item("inputs", value)


def test_many_assets_are_read_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ItemReader, "image", lambda *_: "an image")
    assets = {f"asset {number}": "" for number in range(50_000)}
    began_s = time.process_time()
    found = reader("decision").item("inputs", {"state": "a", "questions": {}, "assets": assets})
    assert time.process_time() - began_s < 3  # by their square it would be half a minute
    assert found["assets"] == dict.fromkeys(assets, "an image")
    assert set(assets.values()) == {""}
