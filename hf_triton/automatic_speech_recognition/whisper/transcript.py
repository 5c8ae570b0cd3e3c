"""Transcribes with Whisper: 30 seconds at a time, each window from where the last one ended.

Windows and segments are those of WhisperForConditionalGeneration.generate and _retrieve_segment,
which follow section 3.8 of https://arxiv.org/abs/2212.04356: features of the whole sound, and the
next window begins at the last timestamp, which longer sounds need, whether asked for or not.

What the decoder may write next (no suppressed token, and timestamps in pairs) is the rule of
transformers' SuppressTokensLogitsProcessor, SuppressTokensAtBeginLogitsProcessor and
WhisperTimeStampLogitsProcessor, which follow
https://github.com/openai/whisper/blob/main/whisper/decoding.py (ApplyTimestampRules).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing.lengths import check_characters
from hf_triton.text_generation.sequence.source import Source

from ..transcript import Samples, Segment, SpeechModel, Wanted, Window
from .tokens import DETECTED, WhisperTokens

_NEVER = float("-inf")

TIME_STEP_S = 0.02  # between one timestamp token and the next
FRAME_S = 0.01  # between one frame of features and the next
_FRAMES_A_STEP = 2


class WhisperModel(SpeechModel):
    def __init__(self, model: Any, processor: Any) -> None:
        self.tokens = WhisperTokens(model)
        self._extractor = processor.feature_extractor
        super().__init__(processor.tokenizer, int(self._extractor.sampling_rate))
        config, own = model.config, model.generation_config
        encoder = model.get_encoder()
        stride = encoder.conv1.stride[0] * encoder.conv2.stride[0]
        self.num_positions = int(config.max_source_positions)
        self.window_frames = self.num_positions * stride
        self._max_length = int(config.max_target_positions)
        self._most_prompt_tokens = self._max_length // 2 - 1
        # Its max_length leaves out what the decoder begins with.
        self._own_max_tokens = own.max_new_tokens or own.max_length

    def check(self, wanted: Wanted) -> None:
        if wanted.language is not None:
            self.tokens.language_code(wanted.language)
        if wanted.task is not None:
            self.tokens.check_task(wanted.task)
        if wanted.timestamps and self.tokens.no_timestamps is None:
            raise RequestError("return_timestamps: got segments, but this model writes no times")
        check_characters("prompt", len(wanted.prompt), self._most_prompt_tokens)

    def transcript(self, sound: Samples, wanted: Wanted) -> WhisperTranscript:
        if wanted.language is not None:
            wanted = replace(wanted, language=self.tokens.language_code(wanted.language))
        features = self._features(sound)
        is_long = features.shape[1] > self.window_frames
        if is_long and self.tokens.no_timestamps is None:
            longest_s = self.window_frames * FRAME_S
            raise RequestError(
                f"audio: got a sound of {len(sound) / self.sampling_rate:.1f} s, at most "
                f"{longest_s:g} s: this model writes no times, which longer ones need"
            )
        wanted = replace(wanted, timestamps=wanted.timestamps or is_long)
        return WhisperTranscript(self, features, wanted, self._prompt(wanted.prompt))

    def max_tokens(self, num_initial: int, wanted: Wanted) -> int:
        """The most of a window whose decoder begins with ``num_initial``. Raises RequestError."""
        room = self._max_length - num_initial
        asked = wanted.max_tokens or self._own_max_tokens
        if wanted.max_tokens is not None and wanted.max_tokens > room:
            raise RequestError(
                f"max_tokens: got {wanted.max_tokens}, at most {room} after {num_initial} tokens "
                "of prompt, language and task"
            )
        return room if asked is None else min(room, asked)

    def trial_sources(self) -> list[Source]:
        draw = np.random.default_rng(0)
        sounds = (draw.normal(0, 0.1, self.sampling_rate).astype(np.float32) for _ in range(3))
        return [self.source(self._features(sound), 0) for sound in sounds]

    def source(self, features: npt.NDArray[np.float32], start: int) -> Source:
        """A window of features (mel bins, frames) from a frame on; silence after their end."""
        part = features[:, start : start + self.window_frames]
        padded = np.pad(part, ((0, 0), (0, self.window_frames - part.shape[1])))
        inputs = {"input_features": torch.from_numpy(padded)[None]}
        return Source(inputs, self.num_positions)

    def _features(self, sound: Samples) -> npt.NDArray[np.float32]:
        """(mel bins, frames): at least a window's."""
        is_long = len(sound) > self._extractor.n_samples
        found = self._extractor(
            sound,
            sampling_rate=self.sampling_rate,
            truncation=False,
            padding="longest" if is_long else "max_length",
            return_tensors="np",
        )
        features: npt.NDArray[np.float32] = found.input_features[0]
        return features

    def _prompt(self, text: str) -> list[int]:
        """<|startofprev|> and the text's tokens, which come before the start."""
        if not text.strip():
            return []
        try:
            token_ids = [int(one) for one in self.tokenizer.get_prompt_ids(text)]
        except ValueError as error:
            raise RequestError(f"prompt: {error}") from None
        if len(token_ids) > self._most_prompt_tokens:
            raise RequestError(
                f"prompt: got {len(token_ids)} tokens, at most {self._most_prompt_tokens}"
            )
        return token_ids


@dataclass(eq=False)
class WhisperTranscript:
    """One sound; ``features`` (mel bins, frames), of which ``_seek`` are read."""

    model: WhisperModel
    features: npt.NDArray[np.float32]
    wanted: Wanted
    prompt: list[int]

    def __post_init__(self) -> None:
        tokens = self.model.tokens
        self._initial = tokens.initial(
            self.wanted.language, self.wanted.task, timestamps=self.wanted.timestamps
        )
        self._seek = 0
        self._num_forced = 0
        self._only_detects = False
        self._confidence: Confidence | None = None
        self.model.max_tokens(len(self.prompt) + len(self._initial), self.wanted)

    @property
    def language(self) -> str:
        known = len(self._initial) > 1 and self._initial[1] != DETECTED
        code = self.model.tokens.language_of(self._initial[1]) if known else ""
        return LANGUAGES.get(code, code) if self.wanted.verbose else code

    @property
    def num_bytes(self) -> int:
        return int(self.features.nbytes)

    def next_window(self) -> Window | None:
        if self._seek >= self.features.shape[1]:
            return None
        tokens = self.model.tokens
        prompt, forced = [*self.prompt, *self._initial], list[tuple[int, ...]]()
        max_tokens = self.model.max_tokens(len(prompt), self.wanted)
        self._only_detects = False
        if DETECTED in self._initial:
            # The model chooses the language without a prompt before it.
            self._only_detects = bool(self.prompt)
            prompt = self._initial[:1]
            after = [] if self._only_detects else self._initial[2:]
            forced = [tuple(tokens.languages.values()), *((one,) for one in after)]
        elif self.wanted.verbose:  # at the start the model says whether anybody speaks
            prompt, after = [*self.prompt, tokens.start], self._initial[1:]
            forced = [(one,) for one in after]
        self._num_forced = len(forced)
        self._confidence = Confidence() if self.wanted.verbose else None
        return Window(
            prompt_token_ids=prompt,
            source=self.model.source(self.features, self._seek),
            max_tokens=len(forced) + (0 if self._only_detects else max_tokens),
            rule=WhisperRule(tokens, tuple(forced), self.wanted.timestamps, self._confidence),
            is_plain=not self.wanted.timestamps,
        )

    def begun(self, token_ids: list[int]) -> list[Segment]:
        if self.wanted.verbose:  # all is known once the window has ended
            return []
        own = token_ids[self._num_forced :]
        return complete_segments(own, self.model.tokens.timestamp_begin, self._seek * FRAME_S)

    def ended(self, token_ids: list[int]) -> list[Segment]:
        if DETECTED in self._initial and token_ids:
            self._initial[1] = token_ids[0]
        if self._only_detects:
            return []
        own = token_ids[self._num_forced :]
        if own and own[-1] == self.model.tokens.end:
            own = own[:-1]
        num_frames, seek = self.features.shape[1] - self._seek, self._seek
        begin = self.model.tokens.timestamp_begin
        num_frames = min(num_frames, self.model.window_frames)
        segments, num_read = split(own, begin, seek * FRAME_S, num_frames)
        self._seek += num_read
        if self._confidence is None:
            return segments
        # As openai/whisper's transcribe.py, of all segments of the window.
        text = self.model.text(own).strip().encode()
        more = {
            "seek": seek,
            "avg_logprob": float(self._confidence.sum_of(token_ids)) / (len(own) + 1),
            "compression_ratio": len(text) / len(zlib.compress(text)),
            "no_speech_prob": float(self._confidence.no_speech_prob),
        }
        return [replace(one, more={**more, "tokens": one.token_ids}) for one in segments]


def complete_segments(token_ids: list[int], begin: int, offset_s: float) -> list[Segment]:
    """The segments that end within the tokens so far: where one time follows another. ``begin`` is
    the token of time 0, ``offset_s`` the window's own time.
    """
    return [_timed(part, begin, offset_s) for part in _parts(token_ids, _ends(token_ids, begin))]


def split(
    token_ids: list[int], begin: int, offset_s: float, num_frames: int
) -> tuple[list[Segment], int]:
    """The segments of a finished window of ``num_frames``, without its end of text, and how many
    frames the next window leaves out.
    """
    ends = _ends(token_ids, begin)
    if not ends:  # to the last time that is not 0, else the window's end
        last = next((token_id for token_id in reversed(token_ids) if token_id >= begin), begin)
        num_steps = last - begin or num_frames // _FRAMES_A_STEP
        segment = Segment(offset_s, offset_s + num_steps * TIME_STEP_S, token_ids)
        return [segment], num_frames
    is_time = [token_id >= begin for token_id in token_ids]
    if is_time[-2:] == [False, True]:  # no speech after the last time
        parts = _parts(token_ids, [*ends, len(token_ids)])
        return [_timed(part, begin, offset_s) for part in parts], num_frames
    # The sound after the last whole segment is cut off: the next window reads it again.
    segments = complete_segments(token_ids, begin, offset_s)
    last = token_ids[ends[-1] - 1] - begin
    return segments, last * _FRAMES_A_STEP or num_frames


def _ends(token_ids: list[int], begin: int) -> list[int]:
    pairs = pairwise(token_ids)
    return [n for n, (a, b) in enumerate(pairs, start=1) if a >= begin and b >= begin]


def _parts(token_ids: list[int], ends: list[int]) -> list[list[int]]:
    starts = [0, *ends]
    return [token_ids[a:b] for a, b in zip(starts, ends, strict=False)]


def _timed(part: list[int], begin: int, offset_s: float) -> Segment:
    start, end = ((token_id - begin) * TIME_STEP_S for token_id in (part[0], part[-1]))
    return Segment(offset_s + start, offset_s + end, part)


@dataclass(eq=False)
class Confidence:
    """The model's confidence in a window, as openai/whisper's decoding.py: log-probabilities of
    tokens that the rule allows, and the probability of silence without it.
    """

    no_speech_prob: torch.Tensor | float = 0.0
    _sum: torch.Tensor | float = 0.0
    _logprobs: torch.Tensor | None = None  # of the token after the first _num_tokens
    _num_tokens: int = 0

    def expect(self, logits: torch.Tensor, token_ids: Sequence[int]) -> None:
        """Takes the logits (vocab,) of the token after ``token_ids``, with the rule."""
        self.sum_of(token_ids)
        self._logprobs, self._num_tokens = logits.log_softmax(dim=-1), len(token_ids)

    def sum_of(self, token_ids: Sequence[int]) -> torch.Tensor | float:
        if self._logprobs is not None and len(token_ids) > self._num_tokens:
            self._sum = self._sum + self._logprobs[token_ids[self._num_tokens]]
            self._logprobs = None
        return self._sum


@dataclass(frozen=True)
class WhisperRule:
    """``forced`` are the first tokens of the output, each one of several."""

    tokens: WhisperTokens
    forced: tuple[tuple[int, ...], ...] = ()
    timestamps: bool = False
    confidence: Confidence | None = None

    def restrict(self, logits: Any, token_ids: Sequence[int]) -> None:
        """Changes float32 logits (vocab,) in place; ``token_ids`` is the output so far."""
        step, confidence = len(token_ids), self.confidence
        if confidence is not None and not step:
            confidence.no_speech_prob = logits.softmax(dim=-1)[self.tokens.no_speech]
        if step < len(self.forced):
            index = _index(self.forced[step], logits.device)
            kept = logits[index] if len(index) > 1 else 0.0
            logits.fill_(_NEVER)
            logits[index] = kept
        else:
            own = token_ids[len(self.forced) :]
            _forbid(logits, self.tokens.suppressed)
            if not own:
                _forbid(logits, self.tokens.suppressed_at_first)
            if self.timestamps:
                self._restrict_times(logits, own)
        if confidence is not None and step >= len(self.forced):
            confidence.expect(logits, token_ids)

    def _restrict_times(self, logits: torch.Tensor, own: Sequence[int]) -> None:
        begin, text = self.tokens.timestamp_begin, logits[: self.tokens.timestamp_begin]
        times = logits[begin:]
        text[begin - 1] = _NEVER  # <|notimestamps|>
        last_is_time = bool(own) and own[-1] >= begin
        one_before_is_time = len(own) < 2 or own[-2] >= begin
        if last_is_time and one_before_is_time:
            times.fill_(_NEVER)
        elif last_is_time:
            text[: self.tokens.end].fill_(_NEVER)
        last = next((token for token in reversed(own) if token >= begin), None)
        if last is not None:  # those before the last one, which may come again to open a segment
            opens = last_is_time and not one_before_is_time
            times[: last - begin + (0 if opens else 1)].fill_(_NEVER)
        if not own:
            text.fill_(_NEVER)
            if self.tokens.max_initial_timestamp is not None:
                times[self.tokens.max_initial_timestamp + 1 :].fill_(_NEVER)
        # A time where all times together are likelier than the likeliest other token.
        likelier = times.logsumexp(dim=0) > text.max()
        text.masked_fill_(likelier, _NEVER)


def _forbid(logits: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    if token_ids:
        logits.index_fill_(0, _index(token_ids, logits.device), _NEVER)


@lru_cache(maxsize=256)
def _index(token_ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(token_ids, device=device)
