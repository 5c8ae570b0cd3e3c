"""Transcribes with encoder-decoders that read a whole sound at once, such as Moonshine and
Speech2Text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.text_generation.media.processor import long_enough
from hf_triton.text_generation.sequence.source import Source

from .transcript import OneWindow, Samples, Wanted, Window

LONGEST_S = 60.0  # tokens reserved for each sound
_USUAL_TOKENS = 448


class EncoderDecoderModel:
    """Makes transcripts with one loaded model; sounds of at most ``longest_s``."""

    def __init__(self, model: Any, processor: Any) -> None:
        own = model.generation_config
        if own.decoder_start_token_id is None:
            raise LoadError("generation_config.json names no decoder_start_token_id")
        self._extractor, self._tokenizer = processor.feature_extractor, processor.tokenizer
        self._start = int(own.decoder_start_token_id)
        self.sampling_rate = int(self._extractor.sampling_rate)
        asked = own.max_new_tokens or (own.max_length and own.max_length - 1) or _USUAL_TOKENS
        positions = getattr(model.config, "max_target_positions", None)
        self._max_tokens = int(min(asked, (positions or asked + 1) - 1))

    def check(self, wanted: Wanted) -> None:
        asked = {
            "language": wanted.language,
            "task": wanted.task,
            "return_timestamps": wanted.timestamps,
            "prompt": wanted.prompt.strip(),
        }
        for name, value in asked.items():
            if value:
                raise RequestError(f"{name}: this model takes none, send the sound alone")

    def transcript(self, sound: Samples, wanted: Wanted) -> OneWindow:
        seconds = len(sound) / self.sampling_rate
        if seconds > LONGEST_S:
            raise RequestError(
                f"audio: got a sound of {seconds:.1f} s, this model reads at most {LONGEST_S:g} s"
            )
        max_tokens = wanted.max_tokens or self._max_tokens
        if max_tokens > self._max_tokens:
            raise RequestError(f"max_tokens: got {max_tokens}, at most {self._max_tokens}")
        window = Window([self._start], self.source(sound), max_tokens)
        return OneWindow(window, seconds)

    def text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def source(self, sound: Samples) -> Source:
        sound = long_enough(sound, self.sampling_rate)
        found = self._extractor(sound, sampling_rate=self.sampling_rate, return_tensors="pt")
        inputs = {name: value for name, value in found.items() if name != "attention_mask"}
        return Source(inputs, max(value.shape[1] for value in inputs.values()))

    def trial_sources(self) -> list[Source]:
        """Sounds to try an engine with, the longest first."""
        draw = np.random.default_rng(0)
        lengths = (int(LONGEST_S * self.sampling_rate), self.sampling_rate, self.sampling_rate * 2)
        return [self.source(draw.normal(0, 0.1, length).astype(np.float32)) for length in lengths]
