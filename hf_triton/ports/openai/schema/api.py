"""What the two APIs have in common: how a request is read, and how its choices are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hf_triton.ports.openai.schema.logprobs import Offsets, Position
from hf_triton.ports.openai.schema.request import GenerationRequest


@dataclass
class Choice:
    """One choice's answer, or the part of it that a chunk brings.

    ``positions`` are None without log-probabilities, and ``offsets`` are where the next begins.
    ``calls`` are calls of tools, or parts of them, or of one ``as_function`` where it was asked for
    so; ``reasoning`` comes before the text, and ``num_reasoning_tokens`` are its tokens so far,
    where they are counted; ``of_prompt`` is what the answer tells of its prompt, in vLLM's names;
    ``token_ids`` are None unless they are to be told; ``timed_out`` where it ended because its time
    did.
    """

    index: int
    num_alternatives: int = 0
    text: str = ""
    positions: list[Position] | None = None
    offsets: Offsets = field(default_factory=Offsets, repr=False)
    finish_reason: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    as_function: bool = False
    reasoning: str = ""
    num_tokens: int = field(default=0, repr=False)
    num_reasoning_tokens: int = field(default=0, repr=False)
    of_prompt: dict[str, Any] = field(default_factory=dict)
    token_ids: list[int] | None = None
    timed_out: bool = False

    @property
    def has_news(self) -> bool:
        """Whether a part tells anything: the tokens of a call that is hidden still do not."""
        told = (self.text, self.reasoning, self.calls, self.positions, self.token_ids)
        return any((*told, self.of_prompt, self.finish_reason))

    def ids(self) -> dict[str, list[int]]:
        """The field of a choice, where it is to be told."""
        return {} if self.token_ids is None else {"token_ids": self.token_ids}


class WriteChoice(Protocol):
    """Makes OpenAI's JSON of a choice."""

    def __call__(self, choice: Choice) -> dict[str, Any]:
        """An element of ``choices``."""


@dataclass(frozen=True)
class Api:
    """One of OpenAI's two, for models of ``tasks``; ``opening`` are the choices' own first chunks,
    before any text; ``beside`` is what the answer has beside its choices, from the first of them.
    """

    path: str
    tasks: Sequence[str]
    id_prefix: str
    object: str
    chunk_object: str
    read: Callable[[Mapping[str, Any]], GenerationRequest]
    write: WriteChoice
    write_chunk: WriteChoice
    opening: Callable[[int], Sequence[dict[str, Any]]]
    beside: Callable[[Choice], Mapping[str, Any]] = lambda _: {}
