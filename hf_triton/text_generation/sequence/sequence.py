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


NO_TOKEN = -1
# Of a token of probability 0, as vLLM has it: JSON has no infinity.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logs of a token's raw probabilities. ``rank`` 1 is the likeliest; ``alternatives``
    are (token_id, logprob, rank) of the likeliest others, likeliest first.
    """

    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float, int], ...] = ()


class Token(NamedTuple):
    """A sampled token; ``logprobs`` where its sequence asks for them. ``id`` is NO_TOKEN where the
    model's scores are no numbers.
    """

    id: int
    logprobs: TokenLogprobs | None = None


class Recipient(Protocol):
    """Who a sequence's output goes to."""

    @property
    def request_id(self) -> str:
        """The id that the client gave the request; empty where it gave none."""

    @property
    def streams(self) -> bool:
        """Whether it wants every token at once, not only the whole output."""

    def take(self, update: Update) -> None:
        """Takes news of one of its sequences; called from the delivery's thread."""

    def flush(self) -> None:
        """Sends on what it took; called after the news of a step or several."""

    def fail(self, error: Exception) -> None:
        """The error is the answer; may be called from any thread, and more than once."""


@dataclass(frozen=True)
class Update:
    """What is new of a sequence since its last update.

    ``text`` is None where decoding was left to whoever takes the update. ``finish_reason`` is
    ``stop``, ``length``, ``timeout`` or None where the sequence goes on; ``error`` ends it too.
    """

    sequence: Sequence
    tokens: list[Token]
    text: str | None
    finish_reason: str | None
    error: Exception | None

    def read_text(self) -> str:
        """The new text; decodes where that is still to be done."""
        if self.text is not None:
            return self.text
        detokenizer = self.sequence.detokenizer
        token_ids = [token.id for token in self.tokens]
        if self.finish_reason == "stop" and self.sequence.hides_end:
            token_ids = token_ids[:-1]
        detokenizer.add(token_ids)
        return detokenizer.release(final=self.finish_reason is not None)


@dataclass(frozen=True)
class DecoderStart:
    """How the output of an encoder-decoder begins: after ``token_id``, which is no part of it, and
    with ``forced_token_id`` where that is given, such as the language to translate to.
    """

    token_id: int
    forced_token_id: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """A copy of a sequence's states (and of what lies beside them) after ``num_tokens``, in a row
    of its own.
    """

    num_tokens: int
    slot: int


@dataclass(eq=False)
class Sequence:
    """A prompt, its output so far, the pages of its keys and values, and the row (``slot``)
    of its states in their tables.

    ``continues_prompt`` is False where an encoder reads what the caller sent, the ``source``, and
    the output is a text of its own: its prompt is what the decoder starts with, and
    ``forced_token_id`` the first token that the output has to have. ``lora_name`` is its adapter,
    ``adapter_key`` which one of that name, as the engine took it; sequences of different adapters,
    or of different ``cache_salt``, share no keys and values.
    ``grammar`` is the state of its constraint. ``deadline_s`` is on the monotonic clock.
    ``finish_reason`` is also ``cancelled`` or ``error``, which no caller sees.

    ``num_prefill_tokens`` are computed in chunks before it decodes: its prompt, and after a
    preemption the tokens generated until then. ``num_pending`` tokens are sampled on the device and
    not in ``token_ids`` yet; ``num_computed_tokens`` does not wait for them. An encoder computes
    the ``source`` in the step that begins the sequence; ``encoded`` is what the engine keeps of it.
    ``prompt_logprobs`` are those of the prompt's tokens after the first, as far as they are known.
    Where it ``is_alone``, it begins with nothing that another computed, and nothing is drafted.
    ``begins_with`` are tokens of the output that its caller has, response by response: the process
    that generated them has died.
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
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    slot: int = 0
    snapshot: Snapshot | None = None  # that it is to leave
    pages: array[int] = field(default_factory=lambda: array("i"))  # numbers, int32
    priority: int = 0  # the lower, the sooner it begins
    arrival: int = -1  # its place in the order of arrival
    num_prefill_tokens: int = 0
    num_computed_tokens: int = 0
    num_pending: int = 0
    num_preemptions: int = 0
    num_reused_tokens: int = 0
    is_alone: bool = False
    finish_reason: str | None = None
    ended_by_token: bool = False
    error: Exception | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        self._uniforms = array("d")  # one for each position of the output
        self._new_tokens: list[Token] = []
        self.num_prefill_tokens = self.num_prompt_tokens

    @cached_property
    def _random(self) -> random.Random:
        """The sequence's own, so that a seed reproduces whatever else is in the batch; made for the
        first token that is drawn, because greedy ones need none.
        """
        return random.Random(self.params.seed)

    @property
    def hides_end(self) -> bool:
        """Whether a token ended it that is no part of the text, as in vLLM, special or not. Whoever
        wants the stop word in it wants no end of the model's own, but among special tokens.
        """
        if not self.ended_by_token or self.token_ids[-1] in self.detokenizer.kept:
            return False
        asked = self.token_ids[-1] in self.params.stop_token_ids
        shown = asked or self.detokenizer.shows_special_tokens
        return not (self.params.include_stop_word and shown)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether some are asked for and not known yet."""
        asked = self.params.num_prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def num_shareable_tokens(self) -> int:
        """How many tokens may come from a shared prefix: those before the first whose logits are
        wanted, which the last one's always are.
        """
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
        """How many tokens the caller's own text or sound has."""
        return self.num_prompt_tokens if self.continues_prompt else self.num_source_tokens

    @property
    def penalised_token_ids(self) -> list[int]:
        """The tokens that a repetition penalty looks at: the output, and what it continues."""
        return self.prompt_token_ids + self.token_ids

    @property
    def num_tokens_left(self) -> int:
        """How many more tokens the output may have."""
        return self.params.max_tokens - len(self.token_ids)

    @property
    def num_sampled_tokens(self) -> int:
        """The output's, with those that are not read from the device yet."""
        return len(self.token_ids) + self.num_pending

    def uniform(self, num_ahead: int = 0) -> float:
        """The random number in [0, 1) for the next token, or for one that comes ``num_ahead`` after
        it: the same until that is sampled.
        """
        position = self.num_sampled_tokens + num_ahead
        while len(self._uniforms) <= position:
            self._uniforms.append(self._random.random())
        return self._uniforms[position]

    @property
    def last_token_id(self) -> int:
        return self.token_ids[-1]

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens ``start .. end-1`` of prompt and output."""
        num_prompt_tokens = self.num_prompt_tokens
        if end <= num_prompt_tokens:
            return self.prompt_token_ids[start:end]
        first = max(0, start - num_prompt_tokens)
        output = self.token_ids[first : end - num_prompt_tokens]
        return self.prompt_token_ids[start:] + output if start < num_prompt_tokens else output

    @property
    def prompt_keys(self) -> list[int]:
        """The prompt's tokens as shared prefixes are found by: with numbers of contents where
        features of images or sounds go.
        """
        known = None if self.source is None else self.source.cache_token_ids
        return self.prompt_token_ids if known is None else known

    def keys(self, start: int, end: int) -> list[int]:
        """As ``tokens``, of which those of the prompt are ``prompt_keys``."""
        if self.prompt_keys is self.prompt_token_ids or start >= self.num_prompt_tokens:
            return self.tokens(start, end)
        first_of_output = max(0, end - self.num_prompt_tokens)
        return self.prompt_keys[start:end] + self.token_ids[:first_of_output]

    @property
    def cache_start(self) -> tuple[object, ...]:
        """What sequences have in common that share keys and values, beside tokens."""
        source = self.source
        is_alone = source is not None and source.cache_token_ids is None
        own_key = source.own_key if source is not None and is_alone else None
        return (self.lora_name, self.adapter_key, self.cache_salt, own_key)

    def preempt(self) -> None:
        """Has all of its tokens computed again, those that are pending too."""
        self.num_prefill_tokens = self.num_prompt_tokens + len(self.token_ids) + self.num_pending
        self.num_computed_tokens = 0
        self.num_preemptions += 1
        self.encoded = None

    def append(
        self, token: Token, eos_token_ids: frozenset[int], *, is_forced: bool = False
    ) -> None:
        """Adds a token and decides whether the sequence is finished by it; one that the model
        forces is no part of what a grammar looks at.
        """
        self.token_ids.append(token.id)
        self._new_tokens.append(token)
        params, may_end = self.params, self.grammar is None or self.grammar.may_end
        if self.grammar is not None and not is_forced:
            self._follow(self.grammar, token.id)
        may_stop = len(self.token_ids) >= params.min_tokens
        stops = may_stop and (
            (token.id in eos_token_ids and not params.ignore_eos)
            or token.id in params.stop_token_ids
        )
        self.ended_by_token = stops
        if stops and not may_end and self.finish_reason != "error":
            kind = params.constraint.kind if params.constraint else "grammar"
            text = f"{kind}: token {token.id} ended it before it may end, allowed: other ends"
            self.end("error", RequestError(text))
        if params.stop_words and not self.hides_end:
            stops = self._has_stop_word(token.id, armed=may_stop) or stops
        if self.finish_reason is None and stops:
            self.finish_reason = "stop"
        elif self.finish_reason is None and not self.num_tokens_left:
            self.finish_reason = "length"

    def lose_pending(self) -> None:
        """Forgets the tokens that the host has not read; they are to be sampled again."""
        if not self.num_computed_tokens:  # preempted
            self.num_prefill_tokens -= self.num_pending
        self.num_pending = 0

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

    def update(self) -> Update:
        """The tokens since the last update, and whether they end the sequence."""
        tokens, self._new_tokens = self._new_tokens, []
        finished = self.finish_reason is not None
        if finished:
            self.grammar = None  # frees memory, though others still refer to the sequence
        text = self.detokenizer.release(final=finished) if self.params.stop_words else None
        return Update(self, tokens, text, self.finish_reason, self.error)

    def _has_stop_word(self, token_id: int, *, armed: bool) -> bool:
        try:
            return self.detokenizer.stops_after(token_id, armed=armed)
        except Exception as error:
            # A tokenizer's own failure is this sequence's, not its neighbours'.
            self.finish_reason = "error"
            self.error = EngineError(f"decoding the output failed: {reason(error)}")
            return False
