"""Transcribes with models that read a whole sound at once: audio-text models, decoders whose prompt
holds a sound and asks for a transcript; encoder-decoders such as Moonshine and Speech2Text.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from hf_triton.runtime.errors import LoadError, RequestError, reason
from hf_triton.runtime.tokenizing.lengths import check_characters
from hf_triton.text_generation.media.processor import MediaProcessor, long_enough
from hf_triton.text_generation.sequence.source import Source

from .transcript import OneWindow, Samples, SpeechModel, Wanted, Window

_INSTRUCTION = "Transcribe the speech."
_IN_LANGUAGE = "Transcribe the speech, which is in {}."
_TRANSLATE = "Translate the speech to English."


class AudioTextModel(SpeechModel):
    def __init__(
        self, media: MediaProcessor, tokenizer: Any, instruction: str | None, max_tokens: int
    ) -> None:
        """``instruction`` is the option; ``max_tokens`` is for requests that set none."""
        super().__init__(tokenizer, media.sampling_rate)
        self._media, self._instruction, self._max_tokens = media, instruction, max_tokens

    def check(self, wanted: Wanted) -> None:
        if wanted.timestamps:
            raise RequestError("return_timestamps: got segments, this model writes no times")
        if wanted.task not in (None, "transcribe", "translate"):
            raise RequestError("task: got another text, allowed: transcribe, translate")
        for field, given in (("prompt", wanted.prompt), ("language", wanted.language or "")):
            check_characters(field, len(given), self._max_tokens)

    def transcript(self, sound: Samples, wanted: Wanted) -> OneWindow:
        sound = long_enough(sound, self.sampling_rate)
        text = self._prompt(sound, wanted)
        bos = self.tokenizer.bos_token
        prompt, source = self._media.read(
            text, sounds=[sound], add_special_tokens=not (bos and text.startswith(bos))
        )
        window = Window(
            prompt_token_ids=prompt,
            source=source,
            max_tokens=wanted.max_tokens or self._max_tokens,
            is_plain=not hasattr(self._media.processor, "extract_transcription"),
            continues_prompt=True,
        )
        return OneWindow(window, len(sound) / self.sampling_rate)

    def text(self, token_ids: list[int]) -> str:
        written = super().text(token_ids)
        extract = getattr(self._media.processor, "extract_transcription", None)
        return written if extract is None else str(extract(written))

    def _prompt(self, sound: Samples, wanted: Wanted) -> str:
        """The processor's own prompt for a transcription where it has one."""
        processor = self._media.processor
        request = getattr(processor, "apply_transcription_request", None)
        names = inspect.signature(request).parameters if request is not None else {}
        instruction = wanted.prompt or self._instruction
        if request is None or "tokenize" not in names or wanted.task == "translate":
            return self._instructed(instruction or _instruction(wanted))
        asked = {"language": wanted.language, "prompt": instruction}
        given = {name: value for name, value in asked.items() if value and name in names}
        if wanted.language and "language" not in names and not instruction:
            given["prompt"] = _instruction(wanted)
        try:
            return str(request(audio=[sound], tokenize=False, **given)[0])
        except Exception as error:  # processors raise what they like for a language they lack
            raise RequestError(f"language: {reason(error)}") from error

    def _instructed(self, instruction: str) -> str:
        renderer: Any = self._media.processor
        content: Any = [{"type": "audio"}, {"type": "text", "text": instruction}]
        if not getattr(renderer, "chat_template", None):
            content = f"{getattr(renderer, 'audio_token', '')}{instruction}"
            renderer = self.tokenizer
            if not renderer.chat_template:
                return str(content)
        messages = [{"role": "user", "content": content}]
        options = {"add_generation_prompt": True, "tokenize": False}
        return str(renderer.apply_chat_template(messages, **options))


def _instruction(wanted: Wanted) -> str:
    if wanted.task == "translate":
        return _TRANSLATE
    return _IN_LANGUAGE.format(wanted.language) if wanted.language else _INSTRUCTION


LONGEST_S = 60.0  # tokens reserved for each sound
USUAL_TOKENS = 448  # of an answer, if the model sets none


class EncoderDecoderModel(SpeechModel):
    def __init__(self, model: Any, processor: Any) -> None:
        own = model.generation_config
        if own.decoder_start_token_id is None:
            raise LoadError("generation_config.json names no decoder_start_token_id")
        self._extractor, self._start = processor.feature_extractor, int(own.decoder_start_token_id)
        super().__init__(processor.tokenizer, int(self._extractor.sampling_rate))
        asked = own.max_new_tokens or (own.max_length and own.max_length - 1) or USUAL_TOKENS
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
