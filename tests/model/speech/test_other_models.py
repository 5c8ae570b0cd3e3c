"""Moonshine and audio-text models hear in flight what transformers' own generate does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wire import Request, strings

from tests.model.media.conftest import Reference, qwen2_audio
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub
from tests.support.media_files import FEW_SAMPLES, base64_text, png, sound_file, tone
from tests.support.tiny_encoders import tiny_tokenizer
from tests.support.tiny_models import with_large_weights
from tests.support.tiny_whisper import RATE, speech

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' of its own calls
MAX_TOKENS = 12
SOUNDS = [speech(seconds, seed) for seed, seconds in enumerate((1.0, 2.3, 0.6))]


def moonshine(folder: Path) -> None:
    from transformers import (
        MoonshineConfig,
        MoonshineForConditionalGeneration,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2Processor,
    )

    tokenizer = tiny_tokenizer("distilbert")
    config = MoonshineConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = with_large_weights(MoonshineForConditionalGeneration(config))
    model.generation_config.decoder_start_token_id = 1
    model.save_pretrained(folder)
    extractor = Wav2Vec2FeatureExtractor(do_normalize=False)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in ("moonshine", "hear")}
    moonshine(found["moonshine"])
    qwen2_audio(found["hear"])
    return found


@pytest.fixture(scope="module")
def endpoint(
    tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]
) -> Iterator[StubEndpoint]:
    entries = [
        {
            "name": name,
            "task": "automatic-speech-recognition",
            "model": str(folder),
            "max_batch_size": 4,
            "streaming": False,
            "options": {"kv_cache_gib": 0.05},
        }
        for name, folder in folders.items()
    ]
    chat = {"name": "chat", "task": "audio-text-to-text", "model": str(folders["hear"])}
    with serving_stub(tmp_path_factory.mktemp("stub"), [*entries, chat]) as stub:
        yield stub


def asking(*sounds: Any, **fields: str) -> Request:
    """A client's batch with a row for each sound."""
    files = [one if isinstance(one, bytes) else sound_file(one) for one in sounds]
    texts = {name: strings(*[value] * len(sounds)).reshape(-1, 1) for name, value in fields.items()}
    most = np.full((len(sounds), 1), MAX_TOKENS, np.int32)
    return Request({"audio": strings(*files).reshape(-1, 1), "max_tokens": most, **texts})


def moonshines_own(folder: Path, sound: Any) -> str:
    from transformers import AutoProcessor, MoonshineForConditionalGeneration

    processor = AutoProcessor.from_pretrained(folder)
    model = MoonshineForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(sound, sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)[0]
    return str(processor.tokenizer.decode(tokens, skip_special_tokens=True))


def test_moonshine_reads_sounds_of_different_lengths_at_once(
    endpoint: StubEndpoint, folders: dict[str, Path]
) -> None:
    reply = endpoint.infer("moonshine", asking(*SOUNDS))
    assert reply.ok, reply.error
    expected = [moonshines_own(folders["moonshine"], sound) for sound in SOUNDS]
    assert len(set(expected)) > 1
    assert reply.texts() == expected


@pytest.mark.parametrize("model", ["moonshine", "hear", "chat"])
def test_few_samples_are_answered_or_refused_by_their_field(
    model: str, endpoint: StubEndpoint
) -> None:
    for file in FEW_SAMPLES:
        reply = endpoint.infer(model, asked("a", file) if model == "chat" else asking(file))
        assert reply.ok or (reply.status, reply.error[:5]) == (400, "audio")


def test_moonshine_takes_the_sound_alone(endpoint: StubEndpoint) -> None:
    reply = endpoint.infer("moonshine", asking(SOUNDS[0], language="en"))
    assert (reply.status, reply.error.split(",")[0]) == (400, "language: this model takes none")
    reply = endpoint.infer("moonshine", asking(speech(61.0)))
    assert "audio: got a sound of 61.0 s, this model reads at most 60 s" in reply.error


def test_an_audio_text_model_is_told_to_transcribe(
    endpoint: StubEndpoint, folders: dict[str, Path]
) -> None:
    reference = Reference(folders["hear"])
    for fields, words in (
        ({}, "Transcribe the speech."),
        ({"language": "French"}, "Transcribe the speech, which is in French."),
        ({"prompt": "the cat"}, "the cat"),
    ):
        reply = endpoint.infer("hear", asking(*SOUNDS[:2], **fields))
        prompt = f"user : <|audio_bos|><|AUDIO|><|audio_eos|>{words} . "
        assert reply.ok, reply.error
        assert [text.strip() for text in reply.texts()] == [
            reference.greedy(prompt, audio=[sound], max_tokens=MAX_TOKENS).strip()
            for sound in SOUNDS[:2]
        ]


_MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"


def asked(text: str, *sounds: bytes, kind: str = "audio") -> Request:
    tensors = {"text_input": strings(text), kind: strings(*sounds)}
    return Request({**tensors, "max_tokens": np.array([6], np.int32)})


def test_sounds_of_any_rate_are_answered_and_bad_ones_are_named(
    endpoint: StubEndpoint, folders: dict[str, Path]
) -> None:
    one, two = tone(0.5), tone(0.8, hertz=700)
    whole = sound_file(one)
    replies = endpoint.infer_together(
        "chat",
        [
            asked("the cat", whole),
            asked("the cat", whole[:-2000]),
            asked(f"{_MARK}{_MARK} the cat", whole, base64_text(sound_file(two)).encode()),
            asked("the cat", png(), kind="image"),
            asked(f"{_MARK}{_MARK} the cat", whole),
        ],
    )
    reference = Reference(folders["hear"])
    expected = [
        reference.greedy(f"{_MARK * len(sounds)} the cat", max_tokens=6, audio=list(sounds))
        for sounds in ((one,), (one, two))
    ]
    assert [replies[0].text(), replies[2].text()] == expected
    assert [reply.error for reply in replies if not reply.ok] == [
        "audio[0]: the WAV file is cut short",
        "image[0]: this model takes no image",
        "text_input: got 2 of the placeholder <|AUDIO|>, allowed: 1, one for each audio",
    ]
