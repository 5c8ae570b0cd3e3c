"""Sounds of next to no samples: answered, or refused by their field, by every kind of model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire import Request, strings

from hf_triton.cli.verbs.generate import generate
from tests.model.media.conftest import qwen2_audio
from tests.model.speech.test_other_models import moonshine
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.support.media_files import sound_file, tone
from tests.support.more_tiny_pipelines import MORE_MAKERS
from tests.support.tiny_pipelines import MAKERS
from tests.support.tiny_whisper import tiny_whisper

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' of its own calls
SPEECH = "automatic-speech-recognition"
HEARD: dict[str, Callable[[Path], Any]] = {
    "whisper": tiny_whisper,
    "moonshine": moonshine,
    "hear": qwen2_audio,
}
PIPELINES = (SPEECH, "audio-classification", "zero-shot-audio-classification")
MODELS = (*HEARD, "chat", *PIPELINES)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubEndpoint]:
    place = tmp_path_factory.mktemp("stub")

    def entry(name: str, make: Callable[[Path], Any], **more: Any) -> dict[str, Any]:
        folder = place / name
        folder.mkdir()
        make(folder)
        return {"name": name, "task": SPEECH, "model": str(folder), **more}

    cache = {"options": {"kv_cache_gib": 0.05}}
    entries = [entry(name, make, **cache) for name, make in HEARD.items()]
    entries.append(entry("chat", qwen2_audio, task="audio-text-to-text"))
    for name in PIPELINES:
        make = {**MAKERS, **MORE_MAKERS}[name]
        entries.append(entry(name, make, task="pipeline", options={"pipeline": name}))
    (place / "models.yaml").write_text(json.dumps({"models": entries}))
    generate(place / "models.yaml", place / "model_repository")
    stub = StubEndpoint(place / "model_repository")
    yield stub
    stub.close()


def asking(model: str, file: bytes) -> Request:
    more: dict[str, Any] = {}
    if model in HEARD or model == "chat":
        more["max_tokens"] = np.array([2], np.int32)
    if model == "chat":
        more["text_input"] = strings("the cat")
    if model.startswith("zero-shot"):
        more["candidate_labels"] = strings("a", "b")
    return Request({"audio": strings(file), **more})


@pytest.mark.parametrize("model", MODELS)
def test_few_samples_are_answered_or_refused_by_their_field(
    endpoint: StubEndpoint, model: str
) -> None:
    for num_samples, rate in ((0, 1), (1, 16_000), (1, 1), (1, 48_000), (9, 8_000), (100, 16_000)):
        file = sound_file(tone(1.0)[:num_samples], rate)
        reply = endpoint.infer(model, asking(model, file))
        assert reply.ok or (reply.status, (reply.error or "")[:5]) == (400, "audio")
