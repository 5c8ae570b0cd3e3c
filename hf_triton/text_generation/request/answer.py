"""One request's answer: collects what its sequences generate and sends it, in one response or in
chunks. A request has one row, or several in a client's batch, each row ``n`` choices, and each
choice a sequence.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.request_parameters import Call
from hf_triton.runtime.request.responder import Responder, strings
from hf_triton.runtime.request.stream_journal import StreamJournal

from ..sequence.sequence import Sequence, TokenLogprobs, Update
from .chat import ReasoningTokens
from .chat_formats import with_counts

Describe = Callable[[int], dict[str, Any]]
_OF_PROMPTS = (
    *("num_input_tokens", "prompt_logprobs", "prompt_token_ids"),
    *("num_cached_tokens", "chat_format"),
)
OUTPUTS = (
    *("text_output", "finish_reason", "cumulative_logprob", "logprobs"),
    *("num_output_tokens", "token_ids"),
    *_OF_PROMPTS,
)
_NOTHING_NEW = "[]"
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass
class Choice:
    """The output of one sequence since the last response, and since its start."""

    prefix: str  # the prompt, where the caller wants it repeated
    prompt_token_ids: list[int]  # those of what its caller sent
    chat_format: str = ""
    reasoning: ReasoningTokens | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str = ""
    ends: bool = False  # and its caller does not know yet
    sequence: Sequence | None = None  # once there is news of it
    sent_prompt: bool = False  # the outputs of its prompt
    num_told: int = 0  # tokens that come and that its caller has already

    def take(self, update: Update) -> None:
        self.sequence = update.sequence
        self.text += update.read_text()
        self.token_ids += update.token_ids
        self.logprobs += update.logprobs
        self.finish_reason = update.finish_reason or ""
        self.ends = update.finish_reason is not None
        for one in update.logprobs:
            self.cumulative_logprob += one.logprob
        if self.reasoning is not None:
            for token_id in update.token_ids:
                self.reasoning.take(token_id)
        if self.num_told:
            self.num_told -= len(update.token_ids)
            self.sent()

    def sent(self) -> None:
        """Forgets what was new: the caller has it now."""
        self.prefix, self.text, self.ends = "", "", False
        self.token_ids, self.logprobs = [], []
        self.sent_prompt = self.sequence is not None


class OneAnswer:
    """A recipient of sequences that answers the caller of their request exactly once."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self.request_id, self.is_cancelled = responder.request_id, responder.is_cancelled
        self._on_close: Callable[[Any, Exception | None], None] = lambda *_: None
        self._lock = threading.Lock()
        self.is_closed = False

    def fail(self, error: Exception) -> None:
        """Answers with the error, unless all was answered before."""
        if self._close():
            self._responder.fail(error)
            self._on_close(self, error)

    def _close(self) -> bool:
        """True for the one caller that may send the last response."""
        with self._lock:
            was_open, self.is_closed = not self.is_closed, True
            return was_open


class Answer(OneAnswer):
    def __init__(
        self,
        responder: Responder,
        choices: list[list[Choice]],
        wanted: frozenset[str],
        describe: Describe,
        *,
        streams: bool,
        batched: bool,
        journal: StreamJournal | None = None,
        call: Call | None = None,
    ) -> None:
        """``choices`` has a list for each of the request's rows, all of one length."""
        super().__init__(responder)
        self.streams = streams
        self.sequences: list[Sequence] = []
        self._places: dict[Sequence, Choice] = {}
        self._choices = [choice for row in choices for choice in row]
        self._wanted = wanted
        self._describe = describe
        self.journal, self._call = journal, call
        num_choices = len(choices[0])
        self._shape = (len(choices), num_choices) if batched else (num_choices,)
        self._prompts_shape = (len(choices), 1) if batched else (1,)

    def expect(
        self,
        sequences: Iterable[Sequence],
        on_close: Callable[[Answer, Exception | None], None],
    ) -> None:
        """Takes the sequences of all choices, in order; ``on_close`` gets the error, if any."""
        self.sequences = list(sequences)
        self._places = dict(zip(self.sequences, self._choices, strict=True))
        self._on_close = on_close
        responses = self.journal.told if self.journal else []
        all_told = zip(*responses, strict=True)
        for (sequence, choice), told in zip(self._places.items(), all_told, strict=False):
            sequence.begins_with = [token_ids for token_ids, _ in told]
            choice.num_told = sum(map(len, sequence.begins_with))
            choice.cumulative_logprob = told[-1][1]

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
        elif not self.is_closed:
            self._places[update.sequence].take(update)

    def flush(self) -> None:
        """Sends a chunk where there is new text or an end, the whole where all is done."""
        done = all(choice.finish_reason for choice in self._choices)
        news = self.streams and any(choice.text or choice.ends for choice in self._choices)
        if self.is_closed or not (done or news):
            return
        outputs = self._outputs()  # before closing, after which their error would not be answered
        if done and not self._close():
            return
        if self.journal:
            self.journal.add((one.token_ids, one.cumulative_logprob) for one in self._choices)
        for choice in self._choices:
            choice.sent()
        self._responder.send(outputs, final=done)
        if done:
            self._on_close(self, None)

    def _close(self) -> bool:
        closes = super()._close()
        if closes and self._call:
            firsts = self._choices[:: self._shape[-1]]  # of the rows
            self._call.tell_use(
                prompt_tokens=sum(len(one.prompt_token_ids) for one in firsts),
                generated_tokens=sum(len(one.token_ids) for one in self.sequences),
            )
            if self._call.trace:
                self._call.trace.generated(self.sequences)
        return closes

    def _outputs(self) -> dict[str, npt.NDArray[Any]]:
        """The outputs that the caller wants: (n,), or (rows, n) in a batch."""
        found = {name: self._output(name) for name in OUTPUTS if name in self._wanted}
        return {
            name: one.reshape(self._prompts_shape if name in _OF_PROMPTS else self._shape)
            for name, one in found.items()
        }

    def _output(self, name: str) -> npt.NDArray[Any]:
        choices, size, describe = self._choices, self._shape[-1], self._describe
        firsts = choices[::size]  # of the rows, for what is of their prompts
        new = [None if choice.sent_prompt else choice.sequence for choice in firsts]
        match name:
            case "text_output":
                return strings([choice.prefix + choice.text for choice in choices])
            case "finish_reason":
                return strings([choice.finish_reason for choice in choices])
            case "cumulative_logprob":
                return np.array([choice.cumulative_logprob for choice in choices], np.float32)
            case "logprobs":
                return strings([logprobs_json(c.token_ids, c.logprobs, describe) for c in choices])
            case "num_output_tokens":
                return np.array([len(choice.token_ids) for choice in choices], np.uint32)
            case "token_ids":
                return strings([written(choice.token_ids) for choice in choices])
            case "num_input_tokens":
                return np.array([len(one.prompt_token_ids) for one in firsts], np.uint32)
            case "num_cached_tokens":
                # 0 without a salt: the number would reveal others' prompts.
                known = (one.sequence for one in firsts)
                salted = (s if s and s.cache_salt is not None else None for s in known)
                return np.array([s.num_reused_tokens if s else 0 for s in salted], np.uint32)
            case "chat_format":
                rows = (choices[at : at + size] for at in range(0, len(choices), size))
                return strings([_chat_format(row) for row in rows])
            case "prompt_token_ids":
                pairs = zip(firsts, new, strict=True)
                return strings([written(one.prompt_token_ids if s else []) for one, s in pairs])
        return strings([_NOTHING_NEW if s is None else prompt_json(s, describe) for s in new])


def _chat_format(choices: list[Choice]) -> str:
    """The format of a row's answers, with the number of tokens of each that were reasoning."""
    counts = [choice.reasoning.num for choice in choices if choice.reasoning is not None]
    told = choices[0].chat_format
    return with_counts(told, counts) if any(counts) else told


def logprobs_json(
    token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs], describe: Describe
) -> str:
    """A JSON list with an object for each token: token_id -> logprob, rank, decoded_token (and
    bytes); the sampled token first, then the likeliest others.
    """
    pairs = zip(token_ids, logprobs, strict=True)
    return _listed(written(_entry(token_id, found, describe)) for token_id, found in pairs)


def prompt_json(sequence: Sequence, describe: Describe) -> str:
    """``logprobs_json`` for a prompt's tokens, as far as they are known; null for the first."""
    token_ids = sequence.prompt_token_ids
    first = {"logprob": None, "rank": None, **describe(token_ids[0])}
    pairs = zip(token_ids[1:], sequence.prompt_logprobs, strict=False)
    rest = (written(_entry(token_id, found, describe)) for token_id, found in pairs)
    return _listed([written({str(token_ids[0]): first}), *rest])


def _entry(token_id: int, found: TokenLogprobs, describe: Describe) -> dict[str, Any]:
    listed = ((token_id, found.logprob, found.rank), *found.alternatives)
    return {
        str(token_id): {"logprob": logprob, "rank": rank, **describe(token_id)}
        for token_id, logprob, rank in listed
    }


def described(tokenizer: Any, token_id: int) -> dict[str, Any]:
    """``decoded_token``, the text of a token; and its ``bytes``, where it is no whole text."""
    text: str = tokenizer.decode(
        [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    found: dict[str, Any] = {"decoded_token": text}
    if _REPLACEMENT in text:
        known = _bytes_of(tokenizer.convert_ids_to_tokens(token_id))
        return {**found, "bytes": known} if known else found
    return found


def _bytes_of(piece: Any) -> list[int] | None:
    """The bytes of a vocabulary's piece: of SentencePiece's byte fallback, or byte-level."""
    if not isinstance(piece, str):
        return None
    if fallback := _BYTE_FALLBACK.fullmatch(piece):
        return [int(fallback[1], 16)]
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    known = {character: byte for byte, character in bytes_to_unicode().items()}
    return [known[one] for one in piece] if all(one in known for one in piece) else None


def _listed(entries: Iterable[str]) -> str:
    # Piece by piece: in one call a long one would hold the interpreter's lock for seconds.
    return f"[{', '.join(entries)}]"


def wanted_outputs(listed: Iterable[str], flagged: frozenset[str]) -> frozenset[str]:
    """The text and what a flag asks for; where a request lists outputs, those alone: the stub would
    drop others in ``send`` without the interpreter's lock, which kills it on Python 3.12. A request
    that lists none arrives with all.
    """
    names = frozenset(listed)
    if len(names) < len(OUTPUTS):
        return names
    return flagged | {"text_output"}
