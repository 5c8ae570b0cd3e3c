"""Starts an engine on a tiny model, sends it sequences, waits for the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.engine import Engine, EngineSetup
from hf_triton.text_generation.engine.generation_rules import decoder_start
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import DecoderStart, Sequence, Update
from hf_triton.text_generation.sequence.source import text_source
from tests.support.tiny_models import Asked
from tests.support.triton import eventually

ANSWER_TIMEOUT_S = 60
LONG = 100  # tokens; the tiny models' context is 128
_TIMING = ("deadline_s", "fails_on_timeout")
GIB = 2**30
# True if engines run by compiled loops: see the fixture storage_kind.
COMPILED = True


@dataclass(frozen=True)
class Completion:
    """All that a sequence generated."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_input_tokens: int


class Caller:
    """The recipient of one sequence; ``put`` gets its completion or error, exactly once."""

    request_id = "7"

    def __init__(
        self, put: Callable[[Completion | Exception], None], *, streams: bool = False
    ) -> None:
        self.streams = streams
        self.updates: list[Update] = []
        self.texts: list[str] = []
        self._put, self._done = put, False

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
            return
        self.updates.append(update)
        self.texts.append(update.read_text())
        if update.finish_reason is not None:
            token_ids = tuple(one for update in self.updates for one in update.token_ids)
            text, prompt = "".join(self.texts), update.sequence.num_prompt_tokens
            self._finish(Completion(text, token_ids, update.finish_reason, prompt))

    def flush(self) -> None:
        """Everything is taken at once."""

    def fail(self, error: Exception) -> None:
        if not self._done:
            self._finish(error)

    def _finish(self, result: Completion | Exception) -> None:
        self._done = True
        self._put(result)


class Clock:
    """The monotonic clock of this process, so many seconds ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.ahead_s)


class NumberTokenizer:
    """Token 7 is the text `` 7``; ids decode independently of each other."""

    eos_token_id = None

    def decode(self, token_ids: Items[int], **_: Any) -> str:
        return "".join(f" {token_id}" for token_id in token_ids)


def setup(model: Any, *, eos: Items[int] = (), **options: Any) -> EngineSetup:
    """One thread, 1 GiB free, nothing prepacked; ``options`` are the YAML's."""
    return EngineSetup(
        model=model,
        options=Options(**options),
        device=torch.device("cpu"),
        eos_token_ids=frozenset(eos),
        num_threads=1,
        free_bytes=lambda device: GIB,
        prepare=lambda model: None,
        compiled=COMPILED,
    )


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Every thread that is started meanwhile ends, in the end."""
    before = set(threading.enumerate())
    yield
    assert eventually(lambda: set(threading.enumerate()) <= before), threading.enumerate()


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """Starts the engine and stops it at the end."""
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


class Answers:
    """Makes sequences and collects what each is answered."""

    def __init__(self) -> None:
        self.results: dict[int, Completion | Exception] = {}
        self._answered_twice: list[int] = []
        self._changed = threading.Condition()

    def sequence(self, number: int, prompt: list[int], **params: Any) -> Sequence:
        """A sequence whose answer is ``results[number]``; with a ``start`` an encoder reads the
        prompt.
        """
        start: DecoderStart | None = params.pop("start", None)
        timing = {name: params.pop(name) for name in _TIMING if name in params}
        streams = bool(params.pop("streams", False))
        sampling = SamplingParams(**params)
        return Sequence(
            prompt if start is None else [start.token_id],
            sampling,
            Caller(lambda result: self.put(number, result), streams=streams),
            Detokenizer(NumberTokenizer(), [] if start else prompt, sampling.stop_words),
            continues_prompt=start is None,
            forced_token_id=None if start is None else start.forced_token_id,
            source=None if start is None else text_source(prompt),
            **timing,
        )

    def of(self, asked: Items[Asked], first: int = 0, **params: Any) -> list[Sequence]:
        """A sequence for each, the first with this number."""
        sequences = []
        for number, one in enumerate(asked, first):
            made = self.sequence(number, one.prompt, **{"max_tokens": one.max_tokens, **params})
            made.lora_name, made.source = one.lora_name, one.source or made.source
            sequences.append(made)
        return sequences

    def wait(self, count: int) -> dict[int, Completion | Exception]:
        """The answers, when there are ``count``."""
        return self._wait_until(lambda: len(self.results) >= count)

    def completion(self, number: int) -> Completion:
        """The answer of that number, which must not be an error."""
        result = self._wait_until(lambda: number in self.results)[number]
        assert isinstance(result, Completion), result
        return result

    def _wait_until(self, condition: Callable[[], bool]) -> dict[int, Completion | Exception]:
        with self._changed:
            assert self._changed.wait_for(condition, ANSWER_TIMEOUT_S), "no answer in time"
            assert self._answered_twice == []
        return self.results

    def put(self, number: int, result: Completion | Exception) -> None:
        """Takes an answer. Whoever waits is told of a second one: the thread that brings it would
        swallow an error.
        """
        with self._changed:
            if number in self.results:
                self._answered_twice.append(number)
            self.results[number] = result
            self._changed.notify_all()


def submit(engine: Engine, answers: Answers, number: int, **params: Any) -> Sequence:
    """A sequence of two prompt tokens, and LONG tokens asked unless said otherwise."""
    sequence = answers.sequence(number, [5, 6], **{"max_tokens": LONG, **params})
    engine.submit([sequence])
    return sequence


def generate_all(engine: Engine, asked: Items[Asked], at_first: int) -> list[tuple[int, ...]]:
    """Greedy tokens of each; ``at_first`` are submitted together, and one more whenever one is
    answered, so that the rest join in mid-flight.
    """
    answers = Answers()
    left = list(range(at_first, len(asked)))

    def make(number: int) -> Sequence:
        start = decoder_start(engine.setup.model)
        [sequence] = answers.of([asked[number]], number, start=start)

        def answer_and_submit(result: Completion | Exception) -> None:
            answers.put(number, result)
            if left:
                engine.submit([make(left.pop(0))])

        sequence.recipient = Caller(answer_and_submit)
        return sequence

    engine.submit([make(number) for number in range(at_first)])
    answers.wait(len(asked))
    return [answers.completion(number).token_ids for number in range(len(asked))]
