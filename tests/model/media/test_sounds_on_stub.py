"""Requests with sounds: answered as transformers' own generate does, or refused by what is wrong
with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from wire import Request, strings

from tests.model.media.conftest import Reference, qwen2_audio
from tests.scenarios.endpoint import Model
from tests.scenarios.stub_endpoint import serving_stub
from tests.support.media_files import base64_text, png, sound_file, tone

MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"
RATE = 16_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    qwen2_audio(found)
    return found


@pytest.fixture(scope="module")
def hear(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Model]:
    entry = {"name": "hear", "task": "audio-text-to-text", "model": str(folder)}
    with serving_stub(tmp_path_factory.mktemp("stub"), [entry]) as stub:
        yield Model(stub, "hear", batched=False)


def asked(text: str, *sounds: bytes, kind: str = "audio") -> Request:
    tensors = {"text_input": strings(text), kind: strings(*sounds)}
    return Request({**tensors, "max_tokens": np.array([6], np.int32)})


def test_sounds_of_any_rate_are_answered_and_bad_ones_are_named(hear: Model, folder: Path) -> None:
    one, two = tone(0.5), tone(0.8, hertz=700)
    whole = sound_file(one)
    replies = hear.infer_together(
        [
            asked("the cat", whole),
            asked("the cat", whole[:-2000]),
            asked(f"{MARK}{MARK} the cat", whole, base64_text(sound_file(two)).encode()),
            asked("the cat", png(), kind="image"),
            asked(f"{MARK}{MARK} the cat", whole),
        ]
    )
    reference = Reference(folder)
    expected = [
        reference.greedy(f"{MARK * len(sounds)} the cat", max_tokens=6, audio=list(sounds))
        for sounds in ((one,), (one, two))
    ]
    assert [replies[0].text(), replies[2].text()] == expected
    assert [reply.error for reply in replies if not reply.ok] == [
        "audio[0]: the WAV file is cut short",
        "image[0]: this model takes no image",
        "text_input: got 2 of the placeholder <|AUDIO|>, allowed: 1, one for each audio",
    ]
