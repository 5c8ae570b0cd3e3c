"""Sounds are transcribed in flight as transformers does one by one, on the stub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire import Reply, Request, strings

from hf_triton.automatic_speech_recognition.transcript import Wanted
from tests.model.speech.conftest import reference
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub
from tests.support.media_files import FEW_SAMPLES, base64_text, sound_file
from tests.support.tiny_whisper import RATE, speech

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' of its own calls
MODEL = "whisper"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[StubEndpoint]:
    entry = {
        "name": MODEL,
        "task": "automatic-speech-recognition",
        "model": str(folder),
        "options": {"max_audio_s": 20, "kv_cache_gib": 0.01},
    }
    with serving_stub(tmp_path_factory.mktemp("stub"), [entry]) as stub:
        yield stub


def asking(sound: Any, **fields: Any) -> Request:
    """A request with a WAV file of the sound."""
    file = sound if isinstance(sound, bytes) else sound_file(sound)
    tensors = {name: _tensor(value) for name, value in fields.items()}
    return Request({"audio": strings(file), **tensors})


def _tensor(value: Any) -> Any:
    if isinstance(value, str):
        return strings(value)
    kinds = {bool: np.bool_, int: np.int32, float: np.float32}
    return np.array([value], dtype=kinds[type(value)])


def segments_of(reply: Reply) -> list[Any]:
    assert reply.ok, reply.error
    found: list[Any] = json.loads(reply.texts("segments")[0])
    return found


def expected(loaded: Any, sound: Any, wanted: Wanted) -> list[Any]:
    tokenizer = loaded[1].tokenizer
    return [
        {
            "start": round(float(one["start"]), 2),
            "end": round(float(one["end"]), 2),
            "text": tokenizer.decode(one["tokens"], skip_special_tokens=True),
        }
        for one in reference(loaded, sound, wanted)
    ]


def test_sounds_in_flight_get_what_each_gets_alone(endpoint: StubEndpoint, loaded: Any) -> None:
    asked: list[tuple[float, dict[str, Any]]] = [
        (1.5, {}),
        (1.5, {"language": "German"}),
        (5.1, {}),
        (7.3, {"language": "<|de|>", "task": "translate"}),
        (4.7, {"language": "fr", "prompt": "so it was"}),
    ]
    sounds = [speech(seconds) for seconds, _ in asked]
    requests = [
        asking(sound, return_timestamps="segments", **fields)
        for sound, (_, fields) in zip(sounds, asked, strict=True)
    ]
    requests.append(asking(sounds[2]))  # long, but no times are asked for
    replies = endpoint.infer_together(MODEL, requests)
    for reply, sound, (_, fields) in zip(replies, sounds, asked, strict=False):
        assert segments_of(reply) == expected(loaded, sound, Wanted(**fields, timestamps=True))
    assert replies[-1].text() == "".join(one["text"] for one in segments_of(replies[2]))


def test_openais_fields_of_segments_are_told_where_they_are_asked_for(
    endpoint: StubEndpoint,
) -> None:
    sound = speech(5.0, 1)
    plain, verbose = endpoint.infer_together(
        MODEL, [asking(sound, return_timestamps=one) for one in ("segments", "verbose")]
    )
    found = segments_of(verbose)
    assert [{name: one[name] for name in ("start", "end", "text")} for one in found] == (
        segments_of(plain)
    )
    assert set(found[0]) - {"start", "end", "text"} == {
        *("seek", "tokens", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob"),
    }
    assert [plain.texts("language"), verbose.texts("language")] == [["fr"], ["french"]]
    seeks = [one["seek"] for one in found]
    assert seeks == sorted(seeks)
    assert len(set(seeks)) > 1
    assert all(one["seek"] / 100 <= one["start"] and one["avg_logprob"] < 0 for one in found)
    chunks = endpoint.stream(
        f"{MODEL}_stream", asking(sound, return_timestamps="verbose", stream=True)
    )
    streamed = [segment for chunk in chunks for segment in segments_of(chunk)]
    assert [one["tokens"] for one in streamed] == [one["tokens"] for one in found]
    assert streamed[-1]["avg_logprob"] == pytest.approx(found[-1]["avg_logprob"], rel=1e-4)


def test_a_short_sound_is_streamed_token_by_token(endpoint: StubEndpoint, loaded: Any) -> None:
    sound = speech(1.0, 4)
    whole = endpoint.infer(MODEL, asking(sound)).text()
    chunks = endpoint.stream(f"{MODEL}_stream", asking(sound, stream=True))
    assert whole == "".join(one["text"] for one in expected(loaded, sound, Wanted()))
    assert len(chunks) > 3
    assert "".join(chunk.text() for chunk in chunks) == whole


def test_a_long_sound_is_streamed_segment_by_segment(endpoint: StubEndpoint) -> None:
    request = asking(speech(6.0, 2), return_timestamps="segments", stream=True)
    chunks = endpoint.stream(f"{MODEL}_stream", request)
    streamed = [segment for chunk in chunks for segment in segments_of(chunk)]
    whole = endpoint.infer(MODEL, request)
    assert len(chunks) > 2
    assert streamed == segments_of(whole)
    assert "".join(chunk.text() for chunk in chunks) == whole.text()


def test_files_base64_and_samples_are_one_sound(endpoint: StubEndpoint) -> None:
    sound = speech(1.0, 1)
    text = endpoint.infer(MODEL, asking(sound)).text()
    body = {"audio": base64_text(sound_file(sound))}
    status, answer = endpoint.generate(MODEL, body)
    assert (status, answer["text_output"]) == (200, text)
    assert answer["language"] in ("en", "fr")
    tensors = {"samples": sound, "sampling_rate": np.array([RATE], dtype=np.int32)}
    assert endpoint.infer(MODEL, Request(tensors)).text() == text


BROKEN = {
    "no sound": (b"\0\1\2\3", "audio: 4 bytes that are not a sound"),
    "no numbers": (sound_file(speech(1.0) * np.nan), "audio: the WAV file has samples"),
    "too loud": (sound_file(speech(1.0) * np.float32(1e30)), "audio: got a sample of "),
    "too long": (sound_file(speech(21.0)), "audio: got a sound of 21.0 s, at most 20 s"),
}


@pytest.mark.threat("loud-samples")
@pytest.mark.parametrize("sound, text", BROKEN.values(), ids=BROKEN)
def test_a_broken_sound_is_refused_and_its_neighbour_answered(
    endpoint: StubEndpoint, sound: bytes, text: str
) -> None:
    bad, good = endpoint.infer_together(MODEL, [asking(sound), asking(speech(0.2), max_tokens=2)])
    assert (bad.status, bad.error[: len(text)]) == (400, text)
    assert good.ok


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"language": "xx"}, "language: got xx, allowed: de, en, fr"),
        ({"task": "sing"}, "task: got sing, allowed: transcribe, translate"),
        ({"return_timestamps": "words"}, "return_timestamps: got words, allowed: none, segments"),
        ({"temperature": -1.0}, "temperature: got -1.0, allowed: 0"),
        ({"max_tokens": 500}, "max_tokens: got 500, at most 60"),
        ({"on_timeout": "cry"}, "on_timeout: got another text"),
        ({"sampling_rate": 8000}, "sampling_rate: given without samples"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(
    endpoint: StubEndpoint, fields: dict[str, Any], text: str
) -> None:
    reply = endpoint.infer(MODEL, asking(speech(0.2), **fields))
    assert (reply.status, reply.error[: len(text)]) == (400, text)


def test_few_samples_are_answered_or_refused_by_their_field(endpoint: StubEndpoint) -> None:
    for file in FEW_SAMPLES:
        reply = endpoint.infer(MODEL, asking(file, max_tokens=2))
        assert reply.ok or (reply.status, reply.error[:5]) == (400, "audio")


def test_a_request_needs_one_sound(endpoint: StubEndpoint) -> None:
    assert endpoint.infer(MODEL, Request({})).error.startswith("audio: missing, send one of")
    both = {**asking(speech(0.2)).tensors, "samples": speech(0.2)}
    assert endpoint.infer(MODEL, Request(both)).error.startswith("audio: given with samples")
    alone = Request({"samples": speech(0.2)})
    assert endpoint.infer(MODEL, alone).error.startswith("sampling_rate: missing")


def test_a_sound_is_read_until_its_time_is_up(endpoint: StubEndpoint) -> None:
    late = asking(speech(19.0), timeout_ms=300, return_timestamps="segments")
    listed = ("text_output", "segments", "finish_reason")
    reply = endpoint.infer(MODEL, Request(late.tensors, outputs=(*listed, "duration")))
    assert reply.texts("finish_reason") == ["timeout"]
    assert reply.numbers("duration") == [19.0]
    assert all(segment["start"] < 19.0 for segment in segments_of(reply))
    error = endpoint.infer(MODEL, asking(speech(19.0), timeout_ms=300, on_timeout="error")).error
    assert error.startswith("timeout_ms: the time is up")


def test_a_seed_gives_the_same_text_again(endpoint: StubEndpoint) -> None:
    def text(seed: int) -> str:
        fields = {"temperature": 1.5, "return_timestamps": "segments"}
        request = asking(speech(3.0), **fields)
        tensors = {**request.tensors, "seed": np.array([seed], dtype=np.uint64)}
        return endpoint.infer(MODEL, Request(tensors)).text()

    assert text(7) == text(7) != text(8)
