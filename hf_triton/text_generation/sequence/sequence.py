"""One prompt on its way through an engine. No torch, no Triton."""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hf_triton.runtime.errors import (
    CancelledError,
    DeadlineError,
    EngineError,
    RequestError,
    RuntimeModelError,
    reason,
)

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from ..structured.grammar import Grammar
    from .detokenizer import Detokenizer
    from .source import Source


NO_TOKEN = -1  # where the scores of a model are no numbers
# The log-probability of an impossible token, as in vLLM: JSON has no infinity.
LEAST_LOGPROB = -9999.0
# Of the background: a batch's lines.
LOWEST_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logs of a token's raw probabilities. ``rank`` 1 is the likeliest; ``alternatives``
    are (token_id, logprob, rank) of the likeliest others, likeliest first.
    """

    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float, int], ...] = ()


class Recipient(Protocol):
    @property
    def request_id(self) -> str:
        """The id that the client gave the request; empty where it gave none."""

    @property
    def streams(self) -> bool:
        """True if it wants every token at once, not only the whole output."""

    def take(self, update: Update) -> None:
        """Takes news of one of its sequences; called from the delivery's thread."""

    def flush(self) -> None:
        """Sends on what it took; called after the news of a step or several."""

    def fail(self, error: Exception) -> None:
        """The error is the answer; may be called from any thread, and more than once."""


class Update(NamedTuple):
    """News of a sequence since its last update. ``logprobs`` are its tokens' where the request asks
    for them, else empty. ``text`` is None where the recipient decodes it. ``finish_reason`` is
    ``stop``, ``length``, ``timeout`` or None; ``error`` ends it too.
    """

    sequence: Sequence
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    text: str | None
    finish_reason: str | None
    error: Exception | None

    def read_text(self) -> str:
        """The new text, decoded now where that is still to be done."""
        if self.text is not None:
            return self.text
        detokenizer = self.sequence.detokenizer
        hides_end = self.finish_reason == "stop" and self.sequence.hides_end
        detokenizer.add(self.token_ids[:-1] if hides_end else self.token_ids)
        return detokenizer.release(final=self.finish_reason is not None)


@dataclass(frozen=True)
class DecoderStart:
    """The beginning of an encoder-decoder's output: after ``token_id``, which is no part of it, and
    with ``forced_token_id``, such as the language to translate to.
    """

    token_id: int
    forced_token_id: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """A copy of a sequence's states after ``num_tokens``, in a row of its own."""

    num_tokens: int
    slot: int


@dataclass(eq=False)
class Sequence:
    """A prompt, its output so far, the pages of its keys and values, and the row (``slot``) of its
    states.

    ``continues_prompt`` is False where an encoder reads the ``source`` that the caller sent: the
    prompt is then the decoder's start, and ``forced_token_id`` the first token of the output.
    ``adapter_key`` tells apart adapters of one ``lora_name``; sequences of different adapters, or
    of different ``cache_salt``, share no keys and values. ``grammar`` is the state of its
    constraint. ``deadline_s`` is on the monotonic clock. ``finish_reason`` is also ``cancelled`` or
    ``error``, which no caller sees.

    ``num_prefill_tokens`` are computed in chunks before it decodes: its prompt, and after a
    preemption the tokens generated until then. ``encoded`` is what the engine
    keeps of the source. ``prompt_logprobs`` are the known ones of the prompt's tokens after the
    first. A sequence that ``is_alone`` shares no prefix and is not drafted. ``begins_with`` are
    tokens of the output, response by response, that a process sent which has died. ``kept`` is what
    others keep of it while it runs, by their class.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    recipient: Recipient
    detokenizer: Detokenizer
    continues_prompt: bool = True
    forced_token_id: int | None = None
    lora_name: str | None = None
    adapter_key: int = 0
    cache_salt: str | None = None
    deadline_s: float | None = None
    fails_on_timeout: bool = False
    grammar: Grammar | None = None
    source: Source | None = None
    encoded: Any = None
    token_ids: list[int] = field(default_factory=list)
    begins_with: list[list[int]] = field(default_factory=list)
    kept: dict[type, Any] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    slot: int = 0
    snapshot: Snapshot | None = None  # that it is to leave
    pages: array[int] = field(default_factory=lambda: array("i"))  # numbers, int32
    priority: int = 0  # the lower the number, the sooner it begins
    arrival: int = -1  # its place in the order of arrival
    num_prefill_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_reused_tokens: int = 0
    is_alone: bool = False
    finish_reason: str | None = None
    ended_by_token: bool = False
    error: Exception | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None  # its first step
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        self._uniforms = array("d")  # one for each position of the output
        self._num_told = 0  # tokens of earlier updates
        self._new_logprobs: list[TokenLogprobs] = []
        self.num_prefill_tokens = self.num_prompt_tokens

    @cached_property
    def _random(self) -> random.Random:
        return random.Random(self.params.seed)

    @property
    def hides_end(self) -> bool:
        """True if the token that ended it is no part of the text, as in vLLM. ``include_stop_word``
        shows a stop token, and the model's own end only among special tokens.
        """
        if not self.ended_by_token or self.token_ids[-1] in self.detokenizer.kept:
            return False
        asked = self.token_ids[-1] in self.params.stop_token_ids
        shown = asked or self.detokenizer.shows_special_tokens
        return not (self.params.include_stop_word and shown)

    @property
    def is_background(self) -> bool:
        return self.priority >= LOWEST_PRIORITY

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """True while some are asked for and not known yet."""
        asked = self.params.num_prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def num_shareable_tokens(self) -> int:
        """The number of tokens before the first whose logits are wanted: these may be shared."""
        if self.is_alone:
            return 0
        if self.lacks_prompt_logprobs:
            return len(self.prompt_logprobs)
        return self.num_prefill_tokens - 1

    @property
    def num_source_tokens(self) -> int:
        return 0 if self.source is None else self.source.num_tokens

    @property
    def num_sent_tokens(self) -> int:
        return self.num_prompt_tokens if self.continues_prompt else self.num_source_tokens

    @property
    def penalised_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.token_ids

    @property
    def num_tokens_left(self) -> int:
        return self.params.max_tokens - len(self.token_ids)

    def uniform(self, num_ahead: int = 0) -> float:
        """The random number in [0, 1) for the token ``num_ahead`` after the next one."""
        position = len(self.token_ids) + num_ahead
        while len(self._uniforms) <= position:
            self._uniforms.append(self._random.random())
        return self._uniforms[position]

    @property
    def last_token_id(self) -> int:
        return self.token_ids[-1]

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens ``start .. end-1`` of prompt and output."""
        return self._behind(self.prompt_token_ids, start, end)

    def keys(self, start: int, end: int) -> list[int]:
        """Like ``tokens``, with numbers of contents in the place of placeholders."""
        known = None if self.source is None else self.source.cache_token_ids
        return self._behind(self.prompt_token_ids if known is None else known, start, end)

    def _behind(self, prompt: list[int], start: int, end: int) -> list[int]:
        size = len(prompt)
        if end <= size:
            return prompt[start:end]
        output = self.token_ids[max(0, start - size) : end - size]
        return prompt[start:] + output if start < size else output

    @property
    def cache_start(self) -> tuple[object, ...]:
        """A key that is equal for sequences that may share keys and values."""
        source = self.source
        is_shared = source is None or source.cache_token_ids is not None
        own_key = None if is_shared or source is None else source.own_key
        return (self.lora_name, self.adapter_key, self.cache_salt, own_key)

    def preempt(self) -> None:
        """Makes the engine compute all of its tokens again."""
        self.num_prefill_tokens = self.num_prompt_tokens + len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions += 1
        self.encoded = None

    def append(
        self,
        token_id: int,
        eos_token_ids: frozenset[int],
        logprobs: TokenLogprobs | None = None,
        *,
        is_forced: bool = False,
    ) -> None:
        """Adds a token and decides whether it ends the sequence; a grammar sees no forced one."""
        self.token_ids.append(token_id)
        if logprobs is not None:
            self._new_logprobs.append(logprobs)
        params, may_end = self.params, self.grammar is None or self.grammar.may_end
        if self.grammar is not None and not is_forced:
            self._follow(self.grammar, token_id)
        may_stop = len(self.token_ids) >= params.min_tokens
        stops = may_stop and (
            (token_id in eos_token_ids and not params.ignore_eos)
            or token_id in params.stop_token_ids
        )
        self.ended_by_token = stops
        if stops and not may_end and self.finish_reason != "error":
            kind = params.constraint.kind if params.constraint else "grammar"
            text = f"{kind}: token {token_id} ended it early, allowed: after a complete text"
            self.end("error", RequestError(text))
        if params.stop_words and not self.hides_end:
            try:
                stops = self.detokenizer.stops_after(token_id, armed=may_stop) or stops
            except Exception as error:  # a tokenizer's own failure is this sequence's alone
                text = f"decoding the output failed: {reason(error)}"
                self.finish_reason, self.error = "error", EngineError(text)
        if self.finish_reason is None and stops:
            self.finish_reason = "stop"
        elif self.finish_reason is None and not self.num_tokens_left:
            self.finish_reason = "length"

    def _follow(self, grammar: Grammar, token_id: int) -> None:
        """A complete grammar ends the sequence; one that allows no token fails this one alone."""
        try:
            grammar.follow(token_id)
        except RuntimeModelError as error:
            # Its traceback would hold this frame, and that the request, until a collection.
            self.finish_reason, self.error = "error", error.with_traceback(None)
        else:
            self.finish_reason = "stop" if grammar.is_complete else None

    def end(self, finish_reason: str, error: Exception | None = None) -> None:
        """Ends the sequence from outside: ``timeout``, ``cancelled``, or ``error`` with one."""
        self.finish_reason, self.error = finish_reason, error
        if finish_reason == "cancelled":
            self.error = CancelledError("the request was cancelled")
        elif finish_reason == "timeout" and self.fails_on_timeout:
            num_tokens = len(self.token_ids)
            self.error = DeadlineError(
                f"timeout_ms: the time is up; {num_tokens} of at most {self.params.max_tokens} "
                "tokens were generated"
            )

    def forget(self) -> None:
        """Frees memory at its end, though others still refer to the sequence."""
        self.grammar = None
        self.kept.clear()

    def update(self) -> Update:
        token_ids, self._num_told = self.token_ids[self._num_told :], len(self.token_ids)
        logprobs, self._new_logprobs = self._new_logprobs, []
        finished = self.finish_reason is not None
        if finished:
            self.forget()
        text = self.detokenizer.release(final=finished) if self.params.stop_words else None
        return Update(self, token_ids, logprobs, text, self.finish_reason, self.error)
