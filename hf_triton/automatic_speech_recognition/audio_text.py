"""Transcribes with audio-text models: decoders that get a sound within a prompt that asks for a
transcript.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError, reason
from hf_triton.runtime.tokenizing.lengths import check_characters
from hf_triton.text_generation.media.processor import MediaProcessor, long_enough

from .transcript import OneWindow, Samples, Wanted, Window

_INSTRUCTION = "Transcribe the speech."
_IN_LANGUAGE = "Transcribe the speech, which is in {}."
_TRANSLATE = "Translate the speech to English."


@dataclass(frozen=True)
class AudioTextModel:
    """Makes prompts with one loaded processor. ``instruction`` is the option; ``max_tokens``
    applies to requests without one.
    """

    media: MediaProcessor
    tokenizer: Any
    instruction: str | None
    max_tokens: int

    @property
    def sampling_rate(self) -> int:
        return self.media.sampling_rate

    def check(self, wanted: Wanted) -> None:
        if wanted.timestamps:
            raise RequestError("return_timestamps: got segments, this model writes no times")
        if wanted.task not in (None, "transcribe", "translate"):
            raise RequestError("task: got another text, allowed: transcribe, translate")
        for field, given in (("prompt", wanted.prompt), ("language", wanted.language or "")):
            check_characters(field, len(given), self.max_tokens)

    def transcript(self, sound: Samples, wanted: Wanted) -> OneWindow:
        sound = long_enough(sound, self.sampling_rate)
        text = self._prompt(sound, wanted)
        bos = self.tokenizer.bos_token
        prompt, source = self.media.read(
            text, sounds=[sound], add_special_tokens=not (bos and text.startswith(bos))
        )
        return OneWindow(
            Window(
                prompt_token_ids=prompt,
                source=source,
                max_tokens=wanted.max_tokens or self.max_tokens,
                is_plain=not hasattr(self.media.processor, "extract_transcription"),
                continues_prompt=True,
            ),
            len(sound) / self.sampling_rate,
        )

    def text(self, token_ids: list[int]) -> str:
        written = str(self.tokenizer.decode(token_ids, skip_special_tokens=True))
        extract = getattr(self.media.processor, "extract_transcription", None)
        return written if extract is None else str(extract(written))

    def _prompt(self, sound: Samples, wanted: Wanted) -> str:
        """The processor's own prompt for a transcription where it has one."""
        processor = self.media.processor
        request = getattr(processor, "apply_transcription_request", None)
        names = inspect.signature(request).parameters if request is not None else {}
        instruction = wanted.prompt or self.instruction
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
        processor, tokenizer = self.media.processor, self.tokenizer
        sound = getattr(processor, "audio_token", "")
        content: Any = f"{sound}{instruction}"
        render = tokenizer
        if getattr(processor, "chat_template", None):
            render = processor
            content = [{"type": "audio"}, {"type": "text", "text": instruction}]
        elif not tokenizer.chat_template:
            return str(content)
        messages = [{"role": "user", "content": content}]
        text = render.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return str(text)


def _instruction(wanted: Wanted) -> str:
    if wanted.task == "translate":
        return _TRANSLATE
    return _IN_LANGUAGE.format(wanted.language) if wanted.language else _INSTRUCTION
