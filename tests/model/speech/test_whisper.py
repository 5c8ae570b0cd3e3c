"""Whisper's windows, timestamps and languages are those of transformers' own ``generate``."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from hf_triton.automatic_speech_recognition.transcript import Segment, Wanted, Window
from hf_triton.automatic_speech_recognition.whisper.transcript import (
    WhisperModel,
    WhisperRule,
    complete_segments,
    split,
)
from hf_triton.runtime.errors import RequestError
from tests.model.speech.conftest import load, reference
from tests.support.tiny_whisper import END, TIMESTAMP_BEGIN, speech, tiny_whisper

T = TIMESTAMP_BEGIN

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' of its own calls


def greedy(model: Any, window: Window) -> list[int]:
    """The window's likeliest tokens, without any engine."""
    features = window.source.inputs["input_features"]
    encoded = BaseModelOutput(model.get_encoder()(features).last_hidden_state)
    output: list[int] = []
    while len(output) < window.max_tokens and END not in output:
        ids = torch.tensor([window.prompt_token_ids + output])
        logits = model(encoder_outputs=encoded, decoder_input_ids=ids, use_cache=False).logits
        scores = logits[0, -1].float().clone()
        assert window.rule is not None
        window.rule.restrict(scores, output)
        output.append(int(scores.argmax()))
    return output


@torch.inference_mode()
def transcribed(loaded: Any, sound: Any, wanted: Wanted) -> tuple[str, list[Segment]]:
    model, processor = loaded
    transcript = WhisperModel(model, processor).transcript(sound, wanted)
    segments: list[Segment] = []
    while (window := transcript.next_window()) is not None:
        segments += transcript.ended(greedy(model, window))
    return transcript.language, segments


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(language="en", prompt="so it was")])
def test_how_sure_the_model_is_is_what_transformers_counts(loaded: Any, wanted: Wanted) -> None:
    (model, processor), sound = loaded, speech(1.5)
    features = processor.feature_extractor(sound, sampling_rate=16_000, return_tensors="pt")
    prompt = processor.get_prompt_ids(wanted.prompt, return_tensors="pt") if wanted.prompt else None
    [[one, *_]] = model.generate(
        features.input_features,
        language=wanted.language,
        task=wanted.task,
        prompt_ids=prompt,
        return_timestamps=True,
        return_dict_in_generate=True,
        output_scores=True,
    )["segments"]
    scores, tokens = one["result"]["scores"], one["result"]["sequences"]
    wanted = replace(wanted, timestamps=True)
    _, plain = transcribed(loaded, sound, wanted)
    _, found = transcribed(loaded, sound, replace(wanted, verbose=True))

    assert [(s.start, s.token_ids) for s in found] == [(s.start, s.token_ids) for s in plain]
    found = [one for one in found if one.more["seek"] == 0]  # of the first window
    [sum_logprobs] = {one.more["avg_logprob"] * (len(scores) + 1) for one in found}
    mean = model._retrieve_avg_logprobs(scores, tokens, 0.0)
    assert sum_logprobs == pytest.approx(float(mean) * len(scores), rel=1e-4)
    start = [*([] if prompt is None else prompt), model.generation_config.decoder_start_token_id]
    with torch.inference_mode():
        logits = model(features.input_features, decoder_input_ids=torch.tensor([start])).logits
    no_speech = float(logits[0, -1].softmax(-1)[T - 2])
    assert found[0].more["no_speech_prob"] == pytest.approx(no_speech, rel=1e-3)
    words = [token for token in tokens[-len(scores) :].tolist() if token < END]
    text = processor.tokenizer.decode(words).strip().encode()
    ratio = len(text) / len(zlib.compress(text))
    assert {one.more["compression_ratio"] for one in found} == {ratio}
    assert [one.more["tokens"] for one in found] == [one.token_ids for one in found]


@pytest.mark.parametrize(
    "wanted, text",
    [
        (Wanted(prompt="word " * 30), "prompt: got .* tokens, at most 31"),
        (Wanted(prompt="<|endoftext|>"), "prompt: Encountered text"),
        (Wanted(max_tokens=64), "max_tokens: got 64, at most 60"),
    ],
)
def test_what_does_not_fit_is_refused(loaded: Any, wanted: Wanted, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        WhisperModel(*loaded).transcript(speech(1.0), wanted)


def test_a_model_of_one_language_takes_none(tmp_path: Path) -> None:
    loaded = load(tiny_whisper(tmp_path, multilingual=False))
    with pytest.raises(RequestError, match="language: got en, but this model knows one"):
        WhisperModel(*loaded).check(Wanted(language="en"))
    _, found = transcribed(loaded, speech(3.0), Wanted())
    expected = reference(loaded, speech(3.0), Wanted())
    assert [(s.start, s.end) for s in found] == [
        pytest.approx((float(one["start"]), float(one["end"]))) for one in expected
    ]
    texts = [[id_ for id_ in segment.token_ids if id_ < T] for segment in found]
    assert texts == [[id_ for id_ in one["tokens"].tolist() if id_ < T] for one in expected]


def test_suppressed_tokens_are_never_written_and_some_not_first(loaded: Any) -> None:
    tokens = WhisperModel(*loaded).tokens
    rule = WhisperRule(tokens, forced=((258, 260), (262,)))

    def allowed(token_ids: list[int]) -> set[int]:
        logits = torch.zeros(tokens.vocab_size)
        rule.restrict(logits, token_ids)
        return {id_ for id_, logit in enumerate(logits.tolist()) if logit == 0}

    every = set(range(tokens.vocab_size)) - set(tokens.suppressed)
    assert len(tokens.suppressed) == 5
    assert (allowed([]), allowed([258])) == ({258, 260}, {262})
    assert allowed([258, 262]) == every - {32, END}
    assert allowed([258, 262, 5]) == every


def test_segments_are_complete_where_one_time_follows_another() -> None:
    written = [T, 5, 6, T + 10, T + 10, 7, T + 30]
    first = Segment(1.0, 1.2, [T, 5, 6, T + 10])
    assert complete_segments(written, T, 1.0) == [first]
    # A single time at the end: no speech after it, and the window is over.
    whole, num_frames = split(written, T, 1.0, 200)
    assert (whole[0], num_frames) == (first, 200)
    assert [round(time, 6) for time in (whole[1].start, whole[1].end)] == [1.2, 1.6]
    # A segment that is cut off is read again.
    cut, num_frames = split([*written, T + 30, 8], T, 1.0, 200)
    assert (len(cut), num_frames) == (2, 60)
    assert split([5, 6], T, 1.0, 150)[0] == [Segment(1.0, 2.5, [5, 6])]
