"""One prompt on its way through an engine. No torch, no Triton."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hf_runtime.errors import EngineError, reason

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .detokenizer import Detokenizer


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logs of a token's raw probabilities. ``rank`` 1 is the likeliest; ``alternatives`` are
    (token_id, logprob, rank) of the likeliest others, likeliest first.
    """

    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float, int], ...] = ()


@dataclass(frozen=True)
class Token:
    """A sampled token; ``logprobs`` where its sequence asks for them."""

    id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Completion:
    """What a finished sequence answers. ``finish_reason`` is ``stop`` or ``length``."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_input_tokens: int


@dataclass(eq=False)
class Sequence:
    """A prompt, its output so far, and where its keys and values lie.

    ``on_finish`` is called exactly once, from the engine's thread, with a Completion or an error;
    it must not raise.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    on_finish: Callable[[Completion | Exception], None]
    detokenizer: Detokenizer
    continues_prompt: bool = (
        True  # False: an encoder read the prompt, the output is a text of its own
    )
    token_ids: list[int] = field(default_factory=list)
    slot: int = -1
    num_computed_tokens: int = 0
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        """Gives the sequence its own random numbers, so that a seed reproduces whatever else is in
        the batch.
        """
        self.random = random.Random(self.params.seed)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def penalised_token_ids(self) -> list[int]:
        """The tokens that a repetition penalty looks at: the output, and the prompt that it
        continues.
        """
        return self.prompt_token_ids + self.token_ids if self.continues_prompt else self.token_ids

    @property
    def num_tokens_left(self) -> int:
        """How many more tokens the output may have."""
        return self.params.max_tokens - len(self.token_ids)

    @property
    def last_token_id(self) -> int:
        return self.token_ids[-1]

    def append(self, token_id: int, eos_token_ids: frozenset[int]) -> None:
        """Adds a sampled token and decides whether the sequence is finished by it."""
        self.token_ids.append(token_id)
        num_tokens = len(self.token_ids)
        may_stop = num_tokens >= self.params.min_tokens
        stops = may_stop and token_id in eos_token_ids
        if self.params.stop_words and not stops:
            stops = self.detokenizer.stops_after(token_id, armed=may_stop)
        if stops:
            self.finish_reason = "stop"
        elif not self.num_tokens_left:
            self.finish_reason = "length"

    def finish(self) -> None:
        """Answers with what was generated, or with an error where it can't be turned into text."""
        assert self.finish_reason is not None
        try:
            text = self.detokenizer.text(self.token_ids)
        except Exception as error:
            # A tokenizer's own failure is this sequence's, not its neighbours'.
            self.on_finish(EngineError(f"decoding the output failed: {reason(error)}"))
            return
        self.on_finish(
            Completion(text, tuple(self.token_ids), self.finish_reason, self.num_prompt_tokens)
        )
