"""The interface of transcripts, for every kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hf_triton.text_generation.sequence.sampling_params import LogitsRule
from hf_triton.text_generation.sequence.source import Source

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Wanted:
    """A request's options for a sound; with None the model decides. ``verbose`` asks for all fields
    of OpenAI's segments and the language's name; ``max_tokens`` is the limit of a window.
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool = False
    verbose: bool = False
    prompt: str = ""
    max_tokens: int | None = None


@dataclass(frozen=True)
class Window:
    """A part of the sound that the model reads at once, and the decoder's first tokens.
    ``is_plain``: every token is text as soon as it is generated; ``continues_prompt``: the model is
    a decoder.
    """

    prompt_token_ids: list[int]
    source: Source
    max_tokens: int
    rule: LogitsRule | None = None
    is_plain: bool = True
    continues_prompt: bool = False


@dataclass(frozen=True)
class Segment:
    """Words between two times, in seconds from the sound's beginning; ``more`` are OpenAI's other
    fields.
    """

    start: float
    end: float
    token_ids: list[int]
    more: Mapping[str, Any] = field(default_factory=dict)


class Transcript(Protocol):
    """One sound's progress through the model; used by one thread at a time."""

    @property
    def language(self) -> str:
        """The code or name of the language; empty where the model says none."""

    @property
    def num_bytes(self) -> int:
        """The memory held."""

    def next_window(self) -> Window | None:
        """The next window; None at the end of the sound."""

    def begun(self, token_ids: list[int]) -> list[Segment]:
        """The complete segments of a window's tokens so far."""

    def ended(self, token_ids: list[int]) -> list[Segment]:
        """The segments of a finished window; moves on to the next."""


class SpeechModel(ABC):
    """Makes transcripts of sounds at ``sampling_rate``, in Hz. May be used by several threads at
    once.
    """

    def __init__(self, tokenizer: Any, sampling_rate: int) -> None:
        self.tokenizer, self.sampling_rate = tokenizer, sampling_rate

    @abstractmethod
    def check(self, wanted: Wanted) -> None:
        """Called before the sound is decoded; raises RequestError."""

    @abstractmethod
    def transcript(self, sound: Samples, wanted: Wanted) -> Transcript:
        """A transcript of (num_samples,) at ``sampling_rate``. Raises RequestError."""

    def text(self, token_ids: list[int]) -> str:
        """The words of a segment."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))


@dataclass(eq=False)
class OneWindow:
    window: Window
    seconds: float
    language: str = ""
    _is_read: bool = False

    @property
    def num_bytes(self) -> int:
        return self.window.source.num_bytes

    def next_window(self) -> Window | None:
        return None if self._is_read else self.window

    def begun(self, token_ids: list[int]) -> list[Segment]:
        return []

    def ended(self, token_ids: list[int]) -> list[Segment]:
        self._is_read = True
        return [Segment(0.0, self.seconds, token_ids)]


def token_ids_of(value: Any) -> tuple[int, ...]:
    """A generation config's token id, list of ids, or None."""
    if value is None:
        return ()
    return tuple(int(one) for one in value) if isinstance(value, list | tuple) else (int(value),)
