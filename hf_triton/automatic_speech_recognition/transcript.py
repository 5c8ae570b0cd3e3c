"""The interface of transcripts, for every kind of model. No torch."""

from __future__ import annotations

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
    """How a sound is to be transcribed. None: as the model does by itself. ``verbose`` beside
    ``timestamps`` asks for all that OpenAI tells of a segment, and for the language's name;
    ``max_tokens`` are those of a window.
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
    """Words between two times, in seconds from the sound's beginning; ``more`` is what else is told
    of them.
    """

    start: float
    end: float
    token_ids: list[int]
    more: Mapping[str, Any] = field(default_factory=dict)


class Transcript(Protocol):
    """One sound's progress through the model; used by one thread at a time."""

    @property
    def language(self) -> str:
        """The code or name of the language that is spoken; empty where the model says none."""

    @property
    def num_bytes(self) -> int:
        """The memory held for the sound."""

    def next_window(self) -> Window | None:
        """The next window; None at the end of the sound."""

    def begun(self, token_ids: list[int]) -> list[Segment]:
        """The complete segments of a window's tokens so far."""

    def ended(self, token_ids: list[int]) -> list[Segment]:
        """The segments of a finished window (end of text included); moves on to the next."""


class SpeechModel(Protocol):
    """Makes transcripts. May be used by several threads at once."""

    @property
    def sampling_rate(self) -> int:
        """In Hz, of the sounds that the model reads."""

    def check(self, wanted: Wanted) -> None:
        """Raises RequestError for what the model does not support; called before the sound is
        decoded.
        """

    def transcript(self, sound: Samples, wanted: Wanted) -> Transcript:
        """A transcript of samples (num_samples,) at ``sampling_rate``. Raises RequestError for a
        sound that the model can't read.
        """

    def text(self, token_ids: list[int]) -> str:
        """The words of a segment."""


@dataclass(eq=False)
class OneWindow:
    """The transcript of a model that reads a whole sound at once."""

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
